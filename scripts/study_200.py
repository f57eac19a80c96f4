"""A study of 200 small cells in one process, on two local processes, and on a Ray cluster of two nodes.

    python scripts/study_200.py

Prints the seconds of each and whether every file of scores and maps is the same, byte for byte. Ray runs on
this machine and listens on 127.0.0.1 only.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
# Ray reads these when it is imported and when its nodes start
os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")

from scripts.kill_study import files  # noqa: E402 (the path must be set first)
from veridical import study as studies  # noqa: E402
from veridical.jobs import RayPool  # noqa: E402
from veridical.jobs.ray import bound_to  # noqa: E402

STUDY = {
    "name": "two hundred",
    "tasks": [{"name": "known/linear", "samples": 16}, {"name": "known/tiers", "samples": 16}],
    "explainers": [
        "gradient",
        "input_x_gradient",
        {"name": "integrated_gradients", "settings": {"steps": 8}},
        "occlusion",
        "random",
    ],
    "metrics": [
        "sparseness",
        "complexity",
        "pixel_flipping",
        {"name": "faithfulness_correlation", "settings": {"runs": 16}},
        {"name": "sensitivity_n", "settings": {"draws": 8}},
    ],
    "seeds": [0, 1, 2, 3],
    "plan": {"rows": 64, "threads": 1},
}


def timed(where: Path, executor: Any) -> tuple[float, dict[str, bytes], int]:
    """The seconds of a run, its files, and on how many processes it ran."""
    began = time.monotonic()
    study = studies.run(STUDY, where, executor=executor, progress=False)
    seconds = time.monotonic() - began
    if not study.status().complete:
        raise SystemExit(f"{study}\n{study.failures[0].traceback}")
    return seconds, files(where), len({line["pid"] for line in study.timings})


def main() -> int:
    """Exit status 1 says that something differs."""
    import ray
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as folder, bound_to("127.0.0.1"):
        place = Path(folder)
        found = {"one process": timed(place / "one", "in-process")}
        found["two processes"] = timed(place / "two", "processes")
        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        nodes = sum(node["Alive"] for node in ray.nodes())
        found[f"Ray, {nodes} nodes"] = timed(place / "ray", RayPool())
        ray.shutdown()
        cluster.shutdown()
    expected = found["one process"][1]
    cells = sum(name.startswith("cells/") for name in expected)
    for name, (seconds, content, workers) in found.items():
        same = "the same bytes" if content == expected else "OTHER BYTES"
        print(f"{name}: {cells} cells in {seconds:.1f} s, {workers} worker processes, {same}")
    return int(any(content != expected for _, content, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
