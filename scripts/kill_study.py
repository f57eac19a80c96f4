"""Kill the processes of a study with SIGKILL, let it finish, and compare it with an undisturbed run.

    python scripts/kill_study.py                 # 24 kills on processes, 12 on a Ray cluster of two nodes
    python scripts/kill_study.py --only workers --kills 8

Prints a table; exit status 1 says that a file was lost, computed twice, or came out otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from veridical import study as studies  # noqa: E402 (the path must be set first)
from veridical.study.cells import from_parquet  # noqa: E402

KINDS = ("cells", "explanations", "prepared")
COMMAND = """
import json, sys
from veridical import study
study.run(json.loads(sys.argv[1]), sys.argv[2], executor=sys.argv[3], allow_code=True, progress=False)
"""
PATIENCE = 240.0


@dataclass
class Report:
    """What happened: who was killed, after how many cells, what the run did, and what differs in the end."""

    cells: int
    kills: list[int] = field(default_factory=list)
    strikes: list[tuple[str, str]] = field(default_factory=list)
    """Kind of process, and what became of the run."""
    different: list[str] = field(default_factory=list)
    recomputed: list[str] = field(default_factory=list)
    files: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether nothing was lost, made twice, or came out otherwise."""
        return not self.different and not self.recomputed

    def __str__(self) -> str:
        return (
            f"{len(self.kills)} kills after {self.kills} of {self.cells} cells; {len(self.different)} of "
            f"{self.files} files differ from an undisturbed run; {len(self.recomputed)} finished files were "
            f"computed again, {self.failed} had been recorded as failed; {self.seconds:.0f} s"
        )


def files(folder: Path) -> dict[str, bytes]:
    """Every finished file that must not depend on when and where it was made."""
    return {
        f"{kind}/{path.name}": path.read_bytes()
        for kind in KINDS
        for path in sorted((folder / kind).glob("*"))
        if path.suffix in (".parquet", ".safetensors", ".json")
    }


def start(
    study: dict[str, Any], folder: Path, executor: str, said: Path | None = None, **env: str
) -> subprocess.Popen[bytes]:
    """The study in a process of its own, with the paths of this one; `said` takes what it says."""
    paths = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    command = [sys.executable, "-c", COMMAND, json.dumps(study), str(folder), executor]
    with contextlib.ExitStack() as stack:
        stderr = None if said is None else stack.enter_context(said.open("wb"))
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths, **env}, stderr=stderr)


def count(folder: Path) -> int:
    """Finished cells."""
    return len(list((folder / "cells").glob("*.parquet")))


def wait_for(folder: Path, cells: int, process: subprocess.Popen[bytes]) -> None:
    """Until the folder has so many cells, or the process has ended."""
    until = time.monotonic() + PATIENCE
    while count(folder) < cells and process.poll() is None:
        if time.monotonic() > until:
            raise RuntimeError(f"no {cells} cells after {PATIENCE:g} s")
        time.sleep(0.002)


class Stamps(dict[str, int]):
    """When each cell was written: a cell that is written again had been lost, or was not trusted."""

    def check(self, folder: Path, report: Report) -> None:
        for path in (folder / "cells").glob("*.parquet"):
            from_parquet(path.read_bytes())  # every file there is whole
            stamp = path.stat().st_mtime_ns
            if self.setdefault(path.name, stamp) != stamp:
                report.recomputed.append(path.name)


def compared(report: Report, whole: Path, killed: Path, began: float) -> Report:
    """The report, with what differs from the undisturbed run."""
    expected, found = files(whole), files(killed)
    report.files = len(expected)
    names = sorted({*expected, *found})
    report.different = [name for name in names if expected.get(name) != found.get(name)]
    report.seconds = time.monotonic() - began
    return report


def undisturbed(study: dict[str, Any], folder: Path) -> Report:
    """The study run alone in one process, unless it lies there already."""
    made = studies.run(study, folder, executor="in-process", allow_code=True, progress=False)
    return Report(made.status().cells)


def kill_often(
    study: dict[str, Any], folder: Path, kills: int, executor: str = "in-process", seed: int = 0
) -> Report:
    """Run a study, SIGKILL its process at random moments, go on, and compare with an undisturbed run."""
    began, chance, killed = time.monotonic(), random.Random(seed), folder / "killed"
    report, stamps = undisturbed(study, folder / "whole"), Stamps()
    while len(report.kills) < kills:
        before = count(killed)
        process = start(study, killed, executor)
        # in the middle of the work, not of the imports: after some new cells, and then a moment
        left = max(1, (report.cells - before) // (kills - len(report.kills) + 1))
        wait_for(killed, before + chance.randint(1, left), process)
        time.sleep(chance.random() * 0.05)
        if process.poll() is not None:
            raise RuntimeError(f"the study ended, with status {process.returncode}, before it was killed")
        process.send_signal(signal.SIGKILL)
        process.wait()
        report.kills.append(count(killed))
        report.strikes.append(("runner", "killed"))
        stamps.check(killed, report)
    if start(study, killed, executor).wait() != 0:
        raise RuntimeError("the last run did not end well")
    return compared(report, folder / "whole", killed, began)


def kill_workers(study: dict[str, Any], folder: Path, kills: int, seed: int = 0) -> Report:
    """SIGKILL workers of two local processes, one after the other, in one run that must end well."""
    began, chance, killed = time.monotonic(), random.Random(seed), folder / "killed"
    report, stamps = undisturbed(study, folder / "whole"), Stamps()
    process = start(study, killed, "processes")
    while len(report.kills) < kills:
        wait_for(killed, count(killed) + chance.randint(1, 4), process)
        workers = [pid for pid in descendants(process.pid) if runs(pid, "multiprocessing.spawn")]
        if process.poll() is not None:
            raise RuntimeError("the study ended before all kills")
        os.kill(chance.choice(workers), signal.SIGKILL)
        report.kills.append(count(killed))
        report.strikes.append(("worker", "survived"))
        stamps.check(killed, report)
    if process.wait() != 0:
        raise RuntimeError("the run did not survive its workers")
    report.failed = len(list((killed / "failures").glob("*.json")))
    # a job under which three workers died is recorded as failed, and a second run tries it again
    if start(study, killed, "processes").wait() != 0:
        raise RuntimeError("the last run did not end well")
    return compared(report, folder / "whole", killed, began)


# --- a Ray cluster of two nodes ---------------------------------------------------------------------------

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
from veridical.jobs.ray import bound_to
node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}
with bound_to("127.0.0.1"):
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
print(made.address, flush=True)
sys.stdin.read()
"""
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
PROCESSES = {
    "worker": ("ray::work",),
    "log monitor": ("ray/_private/log_monitor.py",),
    "autoscaler": ("autoscaler/_private/monitor.py",),
    "agent of an environment": ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
    "agent of a node": ("ray::DashboardAgent", "ray/dashboard/agent.py"),
    "second node": ("raylet/raylet",),
    "head node": ("raylet/raylet",),
    "head": ("gcs/gcs_server",),
    "driver": (),
}
"""Each kind of process of a cluster, and what its command line may hold; from the harmless to the worst."""


class TwoNodes:
    """A head and another node on this machine, in a process of their own."""

    def __init__(self) -> None:
        paths = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        env = {**os.environ, **RAY, "PYTHONPATH": paths}
        env.pop("RAY_ADDRESS", None)
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", CLUSTER]
        self._known: set[int] = set()
        self.hurt = False
        for _ in range(3):  # Ray gives a node 30 s to begin, which is little where others work too
            self._keeper = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
            assert self._keeper.stdout is not None
            self.address = self._keeper.stdout.readline().strip()
            if self.address:
                return
            self.close()
        raise RuntimeError("no cluster would begin")

    def find(self, kind: str) -> list[int]:
        """The processes of a kind, those of the second node last."""
        self._known |= set(descendants(self._keeper.pid))
        found = sorted(pid for pid in self._known if any(runs(pid, name) for name in PROCESSES[kind]))
        heads = [pid for pid in found if runs(pid, "--head")]
        if kind == "head node":
            return heads or found[:1]
        return [pid for pid in found if pid not in heads or kind != "second node"]

    def close(self) -> None:
        """End every process of the cluster, also those that lost their parent."""
        self._known |= set(descendants(self._keeper.pid))
        for pid in (self._keeper.pid, *self._known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._keeper.wait()


def kill_ray(study: dict[str, Any], folder: Path, kinds: list[str], seed: int = 0) -> Report:
    """SIGKILL one process of each kind under a run on two nodes; where the run ends, another goes on."""
    began, chance, killed = time.monotonic(), random.Random(seed), folder / "killed"
    report, stamps, said = undisturbed(study, folder / "whole"), Stamps(), folder / "said"
    cluster, process = None, None
    try:
        for kind in kinds:
            if cluster is None or cluster.hurt:
                if cluster is not None:
                    cluster.close()
                if process is not None:
                    process.kill()
                    process.wait()
                cluster, process = TwoNodes(), None
            if process is None or process.poll() is not None:
                process = start(study, killed, "ray", said, **RAY, RAY_ADDRESS=cluster.address)
            wait_for(killed, count(killed) + chance.randint(1, 3), process)
            if process.poll() is not None:
                raise RuntimeError(f"the study ended before the {kind} was killed: {said.read_text()[-400:]}")
            victims = [process.pid] if kind == "driver" else []
            while not victims and process.poll() is None:
                victims = cluster.find(kind)  # a worker may be between two jobs
            os.kill(victims[-1], signal.SIGKILL)
            report.kills.append(count(killed))
            outcome = became(process, killed, said)
            report.strikes.append((kind, outcome))
            stamps.check(killed, report)
            cluster.hurt = kind not in ("worker", "log monitor", "autoscaler", "driver")
    finally:
        if process is not None:
            process.kill()
            process.wait()
        if cluster is not None:
            cluster.close()
    if start(study, killed, "processes").wait() != 0:
        raise RuntimeError("the last run did not end well")
    stamps.check(killed, report)
    return compared(report, folder / "whole", killed, began)


def became(process: subprocess.Popen[bytes], folder: Path, said: Path) -> str:
    """What a run did after a strike: it goes on, or ends and says why; anything else is a failure of ours."""
    if process.poll() is None:
        with contextlib.suppress(RuntimeError):
            wait_for(folder, count(folder) + 4, process)
            if process.poll() is None:
                return "survived"
    if process.poll() is None:
        process.kill()
        return "hung"
    process.wait()
    if process.returncode == 0:
        return "survived"
    if process.returncode == -signal.SIGKILL:
        return "killed"
    known = ("the head of the Ray cluster", "the Ray node of this machine was lost", "raylet")
    told = [line for line in said.read_text(errors="replace").splitlines() if any(k in line for k in known)]
    return f"said: {told[-1][:110]}" if told else f"ended with {process.returncode} and said nothing"


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, in any of its threads, and theirs."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in listed.read_text().split():
                yield int(child)
                yield from descendants(int(child))


def runs(pid: int, program: str) -> bool:
    """Whether the command line of a process that is there holds this."""
    with contextlib.suppress(OSError):
        return program in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return False


STUDY = {
    "name": "killed",
    "tasks": [{"name": "known/linear", "samples": 40}, {"name": "known/planted_patch", "samples": 40}],
    "explainers": ["input_x_gradient", {"name": "integrated_gradients", "settings": {"steps": 8}}, "random"],
    "metrics": [
        "sparseness",
        "pixel_flipping",
        {"name": "faithfulness_correlation", "settings": {"runs": 16}},
        "max_sensitivity",
        {"name": "rfid_plus", "settings": {"draws": 4}},
    ],
    "seeds": [0, 1],
    "shard_size": 10,
    "plan": {"rows": 64, "threads": 1},
}


def main() -> int:
    """Exit status 1 says that something was lost or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=8, help="of each row on processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=["one", "two", "workers", "ray"])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    # three workers, for they are what dies most; the driver twice
    kinds = ["worker", "worker", "worker", "driver", *PROCESSES]
    rows = {
        "one": lambda at: kill_often(STUDY, at, given.kills, "in-process", given.seed),
        "two": lambda at: kill_often(STUDY, at, given.kills, "processes", given.seed),
        "workers": lambda at: kill_workers(STUDY, at, given.kills, given.seed),
        "ray": lambda at: kill_ray(STUDY, at, kinds, given.seed),
    }
    titles = {
        "one": "one process: the runner",
        "two": "two workers: the runner",
        "workers": "two workers: a worker",
        "ray": "Ray, two nodes",
    }
    good = True
    print("| killed | kills | the run | files byte-equal | computed twice |\n|---|---|---|---|---|")
    for name, row in rows.items():
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = row(Path(folder))
        good &= report.whole and not any("nothing" in end or end == "hung" for _, end in report.strikes)
        equal = f"{report.files - len(report.different)} of {report.files}"
        for (kind, end), times in Counter(report.strikes).items():
            title = f"{titles[name]}: {kind}" if name == "ray" else titles[name]
            print(f"| {title} | {times} | {end} | {equal} | {len(report.recomputed)} |", flush=True)
        print(f"{name}: {report}", file=sys.stderr, flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
