"""The published program, MetaQuantus, on the same table as `benchmarks.meta`: seconds of one run.

It is no dependency: `benchmarks.meta --peer FOLDER` looks for the packages `metaquantus`, `quantus` and
`cachetools` there (or in the environment). What those import and this table does not use (networks, picture
libraries) is stood in for, so that it need not be installed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import sys
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np

import veridical as vd

UNUSED = ("torchvision", "cv2", "skimage", "matplotlib", "timm", "tqdm")


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any of the unused modules that is not installed, and gives something that takes every call."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in UNUSED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = _something
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def _something(name: str) -> Any:
    """Progress bars give back what they get; everything else is a mock."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in ("tqdm", "auto"):
        return lambda rows=None, *args, **settings: rows
    return MagicMock()


@contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    finder = _StandIn()
    sys.meta_path.append(finder)
    if folder is not None:
        sys.path.insert(0, str(folder))
    if "trapz" not in dir(np):
        # a name that numpy 2 has dropped
        np.__dict__["trapz"] = np.trapezoid
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def peer_seconds(task: vd.Task, folder: Path | None, per_step: int, draws: int) -> float:
    """Wall time of pixel flipping meta-evaluated by MetaQuantus with two explainers, one iteration."""
    with _importable(folder), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        import quantus  # type: ignore[import-not-found]
        from metaquantus import MetaEvaluation  # type: ignore[import-not-found]
        from metaquantus.helpers.configs import setup_test_suite  # type: ignore[import-not-found]

        estimator = quantus.PixelFlipping(
            features_in_step=per_step,
            perturb_baseline="black",
            return_auc_per_sample=True,
            return_aggregate=False,
            disable_warnings=True,
            display_progressbar=False,
        )
        run = MetaEvaluation(
            test_suite=setup_test_suite("MNIST"),
            xai_methods={"Saliency": {}, "IntegratedGradients": {}},
            iterations=1,
            nr_perturbations=draws,
            write_to_file=False,
        )
        start = time.perf_counter()
        run(
            estimator=estimator,
            model=task.model,
            x_batch=task.inputs.numpy(),
            y_batch=task.targets.numpy(),
            device="cpu",
            score_direction="lower",
        )
        return time.perf_counter() - start
