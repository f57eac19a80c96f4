"""The job store: whole files or none, one resume, workers that may die."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch

from veridical import jobs
from veridical.errors import InputError, StudyError
from veridical.jobs import (
    BlockedError,
    Job,
    Lease,
    Processes,
    Store,
    WorkerLostError,
    as_executor,
    content_hash,
    lease,
    pools,
)


def double(number: int) -> int:
    return 2 * number


def dies_once(folder: str) -> str:
    mark = os.path.join(folder, "died")
    if not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(7)
    return "alive"


def always_dies(_: object) -> None:
    os._exit(7)


# --- the store --------------------------------------------------------------------------------------------


def test_a_store_keeps_files_by_name(tmp_path):
    store = Store(tmp_path / "s")
    assert store.hashes("cells") == set()
    assert not store.exists("cells/a.parquet")
    store.write("cells/a.parquet", b"1")
    store.write("cells/a.parquet", b"22")
    store.write("cells/b.parquet", b"3")
    store.append("log/x", ["1", "2"])
    store.append("log/x", ["3"])
    assert store.read("log/x") == b"1\n2\n3\n"
    assert store.read("cells/a.parquet") == b"22"
    assert store.hashes("cells") == {"a", "b"}
    store.delete("cells/a.parquet")
    store.delete("cells/a.parquet")
    assert store.files("cells") == ["b.parquet"]
    with pytest.raises(FileNotFoundError):
        store.read("cells/a.parquet")


def test_a_cell_comes_back_and_damage_is_said(tmp_path, caplog):
    store, name = Store(tmp_path), content_hash({"a": 1})
    assert store.read_cell("parts", name) is None
    store.write_cell("parts", name, {"n": [1, None]}, {"x": torch.arange(3)})
    header, tensors = store.read_cell("parts", name)
    assert header == {"n": [1, None]}
    assert tensors["x"].tolist() == [0, 1, 2]
    path = tmp_path / "parts" / f"{name}.safetensors"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert store.read_cell("parts", name) is None
    assert "made again" in caplog.text
    path.write_bytes(whole)
    (tmp_path / "parts" / "other.safetensors").write_bytes(whole)
    assert store.read_cell("parts", "other") is None


# --- who may write ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "lives"),
    [
        ({}, True),
        ({"at": -9e9}, True),  # the clock was set, or the machine slept: the process is there
        ({"began": "1"}, False),  # another process has the number of one that is gone
        ({"pid": 2**22 + 1}, False),
        ({"host": "far"}, True),
        ({"host": "far", "at": -99}, False),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_lease_counts_while_its_process_lives(tmp_path, monkeypatch, change, lives):
    monkeypatch.setattr(lease, "TRIES", 1)
    store, own = Store(tmp_path), os.getpid()
    note = {"plan": "other", "name": "s", "host": lease.socket.gethostname(), "pid": own}
    note |= {"began": lease.process_start(own), **change, "at": time.time() + change.get("at", 0)}
    store.write_json("leases/old.json", note, "lease", 2, "old")
    store.write("cells/x.part", b"half")
    os.utime(tmp_path / "cells" / "x.part", (1, 1))
    if lives:
        with pytest.raises(StudyError, match="'s'"):
            Lease(store, "mine", "m").__enter__()
    else:
        with Lease(store, "mine", "m") as mine:
            assert not mine.shared
            assert not (tmp_path / "cells" / "x.part").exists()


@pytest.mark.parametrize(
    "note",
    [
        *({}, [], {"pid": "x"}, {"plan": 1, "name": 2, "host": 3, "pid": [], "at": 5}),
        *({"at": "now"}, {"pid": -1}, {"pid": 0}, {"pid": 10**30}, {"began": []}),
    ],
)
def test_what_is_no_lease_stops_nobody(tmp_path, note):
    store = Store(tmp_path)
    if set(note) & {"at", "pid", "began"} and len(note) == 1:
        whole = {"plan": "p", "name": "n", "host": lease.socket.gethostname(), "pid": os.getpid()}
        note = {**whole, "began": "", "at": time.time(), **note}
    store.write_json("leases/odd.json", note, "lease", 2, "odd")
    with Lease(store, "mine", "m") as mine:
        assert not mine.shared


def test_a_lease_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    store = Store(tmp_path)

    def at() -> float:
        return float(store.read_json(f"leases/{store.files('leases')[0]}", "lease", 2)["at"])

    with Lease(store, "p", "n"):
        first, deadline = at(), time.monotonic() + 10
        while at() == first and time.monotonic() < deadline:
            time.sleep(0.02)
        assert at() > first


# --- order ------------------------------------------------------------------------------------------------


def test_a_job_waits_for_what_it_needs_and_falls_with_it():
    seen = []

    def work(job: Job) -> str:
        seen.append(job.hash)
        if job.hash == "bad":
            raise ValueError("it had to be")
        return job.hash

    made = [
        Job("a"),
        Job("bad"),
        Job("b", needs=("a",)),
        Job("c", needs=("b", "bad")),
        Job("d", needs=("c",)),
        Job("e", needs=("known before",)),
    ]
    found = {job.hash: result for job, result in jobs.run(made, work)}
    assert seen == ["a", "bad", "b", "e"]
    assert (found["b"], found["e"]) == ("b", "e")
    assert isinstance(found["bad"], ValueError)
    for hash in "cd":
        assert isinstance(found[hash], BlockedError)
        assert found[hash].cause is found["bad"]


def test_jobs_are_taken_one_at_a_time():
    taken = []

    def many():
        for number in range(10**6):
            taken.append(number)
            yield Job(str(number))

    running = jobs.run(many(), lambda job: job.hash)
    assert next(running)[1] == "0"
    running.close()
    assert len(taken) < 5


def test_resume_reads_what_is_kept_and_keeps_the_rest():
    kept, made = {"a": 10}, []

    def save(hash, one, result):
        kept[hash] = result
        made.append(hash)

    def load(hash, one):
        return kept.get(hash)

    pairs = [("c", 3), ("a", 5), ("b", 0), ("c", 3)]
    assert jobs.resume(pairs, double, load=load, save=save) == [6, 10, 0, 6]
    assert made == ["c", "b"]
    with pytest.raises(TypeError):
        jobs.resume({"x": 1, "y": None}, double, load=load, save=save)
    assert kept["x"] == 2


# --- pools ------------------------------------------------------------------------------------------------


def test_an_executor_by_its_name():
    assert as_executor("in-process", 4) is as_executor(None, 1) is None
    assert isinstance(as_executor(None, 2), Processes)
    with ThreadPoolExecutor(1) as own:
        assert as_executor(own, 2) is own
    for wrong in (lambda: as_executor("elsewhere", 2), lambda: Processes(0)):
        with pytest.raises(InputError):
            wrong()


@pytest.fixture(scope="module")
def pool():
    with Processes(2) as made:
        yield made


def test_processes_give_results_and_what_was_raised(pool):
    assert [pool.submit(double, n).result() for n in range(3)] == [0, 2, 4]
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()
    found = dict(jobs.run([Job("1"), Job("2", needs=("1",))], str, pool, payload=lambda job: job.hash))
    assert {job.hash: result for job, result in found.items()} == {"1": "1", "2": "2"}


def test_a_worker_that_dies_is_replaced_and_its_job_tried_again(pool, tmp_path):
    jobs_ = [Job("a"), Job("b")]
    found = dict(jobs.run(jobs_, dies_once, pool, payload=lambda job: str(tmp_path)))
    assert list(found.values()) == ["alive", "alive"]
    ((_, result),) = jobs.run([Job("a")], always_dies, pool)
    assert isinstance(result, WorkerLostError)
    assert str(result) == "the worker died with status 7, 3 times"
    other = pool.submit(time.sleep, 0.5)
    assert isinstance(pool.submit(os._exit, 1).exception(), WorkerLostError)
    assert other.result() is None


def test_workers_that_never_work_end_the_run(monkeypatch):
    monkeypatch.setattr(pools, "_begin", os._exit)
    with Processes(1) as pool, pytest.raises(StudyError, match="10 workers in a row have died"):
        list(jobs.run([Job("a")], double, pool))


@pytest.mark.slow
def test_a_broken_pool_of_the_users_is_said():
    with ProcessPoolExecutor(1) as pool, pytest.raises(StudyError, match="fewer workers"):
        list(jobs.run([Job("a")], always_dies, pool))


def test_a_call_that_takes_too_long_is_ended():
    with Processes(1, seconds=1.0) as pool:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="longer than 1 s"):
            pool.submit(time.sleep, 600).result()
        assert time.monotonic() - began < 300
        assert pool.submit(double, 2).result() == 4


SCRIPT = """
import os, sys, time
from veridical.jobs import Processes
pool = Processes(1)
print(pool.submit(os.getpid).result(), flush=True)
pool.submit(time.sleep, 600).result()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_workers_need_no_guard_in_a_script_and_end_with_it(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], env=env, stdout=subprocess.PIPE, text=True
    )
    worker = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{worker}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{worker}")
