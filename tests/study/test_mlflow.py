"""MLflow: what a study is, as a real server on loopback tells it back."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from veridical import study as studies
from veridical.study.tracking import MlflowTracker, track

pytest.importorskip("mlflow")
pytestmark = pytest.mark.extras


def server_command() -> str:
    """The `mlflow` of an environment with the server in it; made once, beside the temporary files.

    The extra installs only the client. VERIDICAL_MLFLOW_SERVER names an environment that is already there.
    """
    given = os.environ.get("VERIDICAL_MLFLOW_SERVER")
    home = Path(given) if given else Path(tempfile.gettempdir()) / "veridical-mlflow-server"
    command, complete = home / "bin" / "mlflow", home / "complete"
    if given and command.exists():
        return str(command)
    if not complete.exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "mlflow"]
        ended = subprocess.run(install, capture_output=True, text=True, timeout=1200)
        if ended.returncode:
            why = ended.stderr.strip().splitlines()[-1]
            pytest.fail(f"pip cannot install an MLflow server, name one by VERIDICAL_MLFLOW_SERVER: {why}")
        complete.touch()
    return str(command)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a database of its own, on a free port of 127.0.0.1."""
    place = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [server_command(), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{place}/runs.db",
        "--artifacts-destination",
        str(place / "art"),
    ]
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MLFLOW_TRACKING_URI")}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=place, env=own, stdout=log, stderr=log, start_new_session=True
        )
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 150
    try:
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((place / "log").read_text()[-2000:]) from None
                time.sleep(0.3)
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


@pytest.fixture
def client(server: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=server)


def nested(client: Any, experiment: str, parent: str) -> dict[str, Any]:
    found = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'")
    return {run.info.run_name: run for run in found}


def test_a_study_is_told_back_by_a_real_server(server, client, small, tmp_path):
    study = studies.run(small, tmp_path, executor="in-process", progress=False)
    parent = track(study, server)
    run = client.get_run(parent)
    assert run.info.run_name == "small"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["cells"] == run.data.metrics["done"] == 24
    assert run.data.params["seeds"] == "0, 1"
    assert run.data.params["version.veridical"]
    assert run.data.params["rows.known/linear"] == "64"
    runs = nested(client, run.info.experiment_id, parent)
    assert len(runs) == 12
    one = runs["known/linear / random / sensitivity_n (draws=6)"]
    assert one.data.params["metric"] == "sensitivity_n (draws=6)"
    assert "6" in [value for key, value in one.data.params.items() if key.endswith(".draws")]
    told = {point.step: point.value for point in client.get_metric_history(one.info.run_id, "mean")}
    for seed in (0, 1):
        scores = study["known/linear", "random", "sensitivity_n (draws=6)", seed]
        assert told[seed] == pytest.approx(scores.mean(skip_nan=True), rel=1e-12)
    assert one.data.metrics["samples"] == 10
    assert one.data.metrics["forward"] == scores.cost.forward
    names = [artifact.path for artifact in client.list_artifacts(parent)]
    assert names == ["study.yaml"]


def test_a_second_time_brings_up_to_date_and_adds_nothing(server, client, small, tmp_path):
    small["name"] = "twice"
    study = studies.run(small, tmp_path, executor="in-process", progress=False)
    first = track(study, server)
    experiment = client.get_run(first).info.experiment_id
    before = nested(client, experiment, first)
    assert track(tmp_path, server) == first
    after = nested(client, experiment, first)
    assert {k: r.info.run_id for k, r in after.items()} == {k: r.info.run_id for k, r in before.items()}
    history = client.get_metric_history(next(iter(after.values())).info.run_id, "mean")
    assert len(history) == 2


def test_a_failed_cell_is_a_failed_run(server, client, code, tmp_path):
    code |= {"name": "failing", "explainers": ["gradient"]}
    code["metrics"].append({"code": "tests.study.user_code:Breaks"})
    watcher = MlflowTracker(server, experiment="elsewhere")
    studies.run(code, tmp_path, executor="in-process", progress=False, allow_code=True, watchers=[watcher])
    experiment = client.get_experiment_by_name("elsewhere").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert runs["failing"].info.status == "FAILED"
    assert runs["whole / gradient / Breaks"].info.status == "FAILED"
    assert "it had to be" in runs["whole / gradient / Breaks"].data.tags["veridical.error"]
    assert runs["whole / gradient / Total"].info.status == "FINISHED"


def test_a_server_that_is_gone_does_not_harm_the_study(code, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    watcher = MlflowTracker("http://127.0.0.1:9")
    study = studies.run(
        code, tmp_path, executor="in-process", progress=False, allow_code=True, watchers=[watcher]
    )
    assert study.status().complete
    assert "MLflow did not take it" in caplog.text
    assert json.loads((tmp_path / "plan.json").read_text())
