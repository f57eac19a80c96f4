"""Ray: the bytes of one process, also when workers and nodes die under it, and nothing left behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import veridical as vd
from scripts.kill_study import descendants, files, runs
from tests.auditing.test_jobs import FAST, METHODS, frame
from veridical import study as studies
from veridical.auditing import audit
from veridical.errors import InputError, StudyError
from veridical.jobs import RayPool
from veridical.jobs.ray import HEAD_LOST, NODE_LOST, bound_to

pytest.importorskip("ray")
pytestmark = pytest.mark.extras

STORE = 80 * 2**20
HELD = "tests.study.ray_code:Held"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each, on this machine, for this module only."""
    import ray
    from ray.cluster_utils import Cluster

    # Ray reads its mode of authentication when it is imported, so a cluster in this process has none
    own = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        node = {"num_cpus": 1, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
        with bound_to("127.0.0.1"):
            made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
            made.add_node(**node)
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            made.extra = node
            yield made
            ray.shutdown()
            made.shutdown()


@pytest.fixture
def held(tmp_path: Path) -> dict[str, Any]:
    """Twelve cells; two of them can be held."""
    place = tmp_path / "held"
    place.mkdir()
    return {
        "tasks": [{"name": "known/linear", "samples": 8}],
        "explainers": ["input_x_gradient", "random"],
        "metrics": ["sparseness", "pixel_flipping", {"code": HELD, "settings": {"folder": str(place)}}],
        "seeds": [0, 1],
        "plan": {"rows": 64},
    }


def run(study: dict[str, Any], folder: Any, executor: Any = "in-process", **options: Any) -> Any:
    made = studies.run(study, folder, executor=executor, progress=False, allow_code=True, **options)
    assert made.status().complete, made.failures[0].traceback or made.failures[0].error
    return made


class Meanwhile:
    """Holds the study, does something to the first held worker that will do, and lets go."""

    def __init__(self, folder: Path, fits: Callable[[str], bool], act: Callable[[int], None]) -> None:
        self.folder, self.fits, self.act = folder, fits, act
        self.acted = False
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Meanwhile":
        (self.folder / "hold").touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _watch(self) -> None:
        until = time.monotonic() + 60
        while not self.acted and time.monotonic() < until:
            for path in self.folder.glob("*.held"):
                if self.fits(path.read_text()):
                    self.act(int(path.stem))
                    self.acted = True
                    break
            time.sleep(0.05)
        (self.folder / "hold").unlink()


def test_two_nodes_give_the_bytes_of_one_process(cluster, held, tmp_path):
    run(held, tmp_path / "one")
    made = run(held, tmp_path / "two", "ray")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert len({line["pid"] for line in made.timings}) >= 2
    import ray  # the cluster that was there is still there

    assert ray.is_initialized()


def test_no_more_jobs_are_out_than_fit(cluster):
    assert RayPool().slots == 2 + 1
    assert RayPool(cpus=0.5).slots == 4 + 1


def test_a_killed_worker_costs_nothing_but_its_job(cluster, held, tmp_path):
    run(held, tmp_path / "one")
    with Meanwhile(tmp_path / "held", lambda _: True, lambda pid: os.kill(pid, signal.SIGKILL)) as kill:
        run(held, tmp_path / "two", RayPool())
    assert kill.acted
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_killed_node_costs_nothing_but_its_jobs(cluster, held, tmp_path):
    run(held, tmp_path / "one")
    node = cluster.add_node(**cluster.extra)

    def remove(_: int) -> None:
        cluster.remove_node(node, allow_graceful=False)

    with Meanwhile(tmp_path / "held", lambda where: where == node.node_id, remove) as kill:
        run(held, tmp_path / "two", RayPool())
    assert kill.acted
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_cells_that_ask_for_a_gpu_go_where_one_is_declared(cluster, held, tmp_path):
    """A GPU as the scheduler sees it: the node says it has one, and no cell touches it."""
    run(held, tmp_path / "one")
    node, seen = cluster.add_node(**cluster.extra, num_gpus=1), []

    def noted(where: str) -> bool:
        seen.append(where)
        return True

    try:
        with Meanwhile(tmp_path / "held", noted, lambda _: None) as held_once:
            run(held, tmp_path / "two", RayPool(gpus=1, memory_mib=64))
    finally:
        cluster.remove_node(node)
    assert held_once.acted
    assert set(seen) == {node.node_id}
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_what_no_node_has_is_a_failure_and_not_a_long_wait(cluster, held, tmp_path):
    pool = RayPool(gpus=1)
    made = studies.run(held, tmp_path, executor=pool, progress=False, allow_code=True)
    assert made.status().failed == 12
    assert "no node of the cluster has" in made.failures[0].error
    assert "1 gpus" in made.failures[0].error


def test_mistakes_are_told_at_once():
    for wrong in ({"cpus": "many"}, {"num_cpus": 0}):
        with pytest.raises(InputError, match="RayPool"):
            RayPool(**wrong)
    RayPool().shutdown()


SCRIPT = """
import json, os, sys
from veridical import study
from veridical.jobs import RayPool
from tests.study.test_ray import listening

seen = set()
with RayPool(num_cpus=1) as pool:
    watch = lambda line: seen.update(listening(os.getpid()) if line["event"] == "done" else ())
    made = study.run(sys.argv[1], sys.argv[2], executor=pool, progress=False, watch=watch)
import ray
print(json.dumps([made.status().done, sorted(seen), ray.is_initialized()]))
"""


def listening(root: int) -> set[str]:
    """The addresses on which a process and its descendants listen, as the kernel tells them."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    sockets = set()
    for pid in family:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(words[1].partition(":")[0])
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_cluster_of_its_own_is_private_and_goes_away(held, tmp_path):
    del held["metrics"][2]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(held))
    home = tmp_path / "home"
    home.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env = {**clean, "HOME": str(home), "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "study.yaml"), str(tmp_path / "s")]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    done, seen, still_there = json.loads(ended.stdout.splitlines()[-1])
    assert done == 8
    assert not still_there
    # 127.0.0.1, also as IPv6 writes it, and ::1
    local = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert seen
    assert set(seen) <= local
    assert not (home / ".ray").exists()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("watched", [(), ("--log-json",)])
def test_a_lost_node_of_this_machine_is_a_sentence_a_status_and_no_lease(held, tmp_path, watched):
    (tmp_path / "held" / "hold").touch()
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(held))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
    words = ["run", str(tmp_path / "study.yaml"), "-w", "1", "--executor", "ray", "--allow-code", *watched]
    run = subprocess.Popen(
        [sys.executable, "-m", "veridical", *words], env=env, stderr=subprocess.PIPE, text=True
    )
    while not list((tmp_path / "held").glob("*.held")) and run.poll() is None:
        time.sleep(0.1)
    os.kill(next(pid for pid in descendants(run.pid) if runs(pid, "raylet/raylet")), signal.SIGKILL)
    _, said = run.communicate(timeout=120)
    (tmp_path / "held" / "hold").unlink()
    assert run.returncode == 4, said
    assert "error: the Ray node of this machine was lost" in said
    assert "veridical resume" in said
    assert ('"event": "started"' in said) == bool(watched)
    assert list((tmp_path / "study_study" / "leases").iterdir()) == []
    resumed = studies.resume(tmp_path / "study_study", executor="in-process", allow_code=True, progress=False)
    assert resumed.status().complete


def test_what_is_gone_is_said_in_a_sentence():
    gone = socket.socket()
    gone.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{gone.getsockname()[1]}"
    gone.close()
    for said in (HEAD_LOST, NODE_LOST):
        pool = RayPool()
        pool._needed[address] = said
        with pytest.raises(StudyError, match=r"(head|node) .*(gone|lost).*resume.*does not answer"):
            pool.check()


def test_both_head_and_node_are_asked(cluster):
    with RayPool() as pool:
        pool.submit(divmod, 3, 2).result()
        assert list(pool._needed.values()) == [HEAD_LOST, NODE_LOST]


def test_an_audit_on_ray_has_the_bits_of_one_process():
    given = {"explainers": METHODS, "effort": FAST, "samples": 24, "concepts": ()}
    # each its own task: what one has asked, another need not ask again
    here = audit(vd.tasks.load("known/linear"), **given)
    with RayPool(num_cpus=2) as pool:
        there = audit(vd.tasks.load("known/linear"), **given, executor=pool)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
    assert frame(there).equals(frame(here))
    assert there.sentences == here.sentences
    for cell, scores in here.evaluation.scores.items():
        assert torch.equal(scores.values.nan_to_num(7), there.evaluation.scores[cell].values.nan_to_num(7))
