"""Which kind of model a path leads to, and that model, read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from veridical.data import weights
from veridical.data.files import existing_file
from veridical.data.onnx_models import OnnxFunction
from veridical.data.trust import check_allowed
from veridical.errors import FormatError, InputError

Kind = Literal["huggingface", "weights", "sklearn", "onnx", "object"]
HUB = "hf:"
"""Written before a model's name to have it fetched from the hub; nothing else reaches for the network."""
SUFFIXES: dict[str, Kind] = {
    **dict.fromkeys(weights.SUFFIXES, "weights"),
    ".joblib": "sklearn",
    ".pkl": "sklearn",
    ".onnx": "onnx",
}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and where it came from. A Hugging Face model stays a name: its folder says how to read data."""

    kind: Kind
    model: Any
    path: Path | None = None

    @property
    def name(self) -> str:
        """What to call a task by this model."""
        if self.kind == "huggingface":
            return str(self.model).rstrip("/").rsplit("/", 1)[-1]
        return type(self.model).__name__ if self.path is None else self.path.stem


def load_model(
    model: Any,
    *,
    arch: Any = None,
    kind: Kind | None = None,
    allow_code: bool = False,
    device: torch.device | None = None,
) -> LoadedModel:
    """Read a model from wherever it is: a path, `hf:owner/name`, or an object that is one already.

    `kind` says what a file is where its suffix does not.
    """
    if not isinstance(model, str | Path):
        return LoadedModel("object", _placed(model, device))
    what = kind or kind_of(model)
    if arch is not None and what != "weights":
        raise InputError(f"arch= (--arch) goes with a file of weights; {model} is a {what} model of its own")
    path = Path(model)
    if what == "huggingface":
        return LoadedModel(what, str(model).removeprefix(HUB) if _on_hub(model) else _folder(path))
    if what == "weights":
        return LoadedModel(what, _placed(weights.load_weights(path, arch, allow_code), device), path)
    if what == "sklearn":
        return LoadedModel(what, load_estimator(path, allow_code), path)
    if what == "onnx":
        function = OnnxFunction(path)
        scores = function.scores_name()
        if scores is not None and scores != function.output_name:
            function = OnnxFunction(path, scores)
        return LoadedModel(what, function, path)
    raise InputError(f"kind is one of huggingface, weights, sklearn, onnx; got '{kind}'")


def kind_of(model: str | Path) -> Kind:
    """The kind of model at a path, by what is there."""
    path = Path(model)
    if _on_hub(model) or (path.is_dir() and (path / "config.json").is_file()):
        return "huggingface"
    if path.is_dir():
        raise InputError(f"{path} has no config.json, so it is no model in Hugging Face's layout")
    if not path.exists():
        name = str(model)
        hub = name.count("/") == 1 and not path.suffix and not name.startswith((".", "/", "~"))
        hint = f"; a model on the hub is written {HUB}{name}" if hub else ""
        raise InputError(f"there is no file or folder {model}{hint}")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path.name} ends in '{path.suffix}'; a model is a Hugging Face folder or a file that ends in "
            f"{', '.join(SUFFIXES)}"
        )
    return SUFFIXES[path.suffix.lower()]


def load_estimator(path: str | Path, allow_code: bool = False) -> Any:
    """A scikit-learn estimator from a joblib file, which is a pickle: reading it can run any code."""
    path = existing_file(path)
    check_allowed(
        path.name, "a joblib file is a pickle, and reading a pickle runs whatever it contains", allow_code
    )
    import joblib  # type: ignore[import-untyped]

    try:
        found = joblib.load(path)
    except Exception as error:  # a pickle raises whatever its contents raise
        raise FormatError(f"{path.name} cannot be read by joblib: {error!r}") from error
    if not hasattr(found, "predict"):
        raise FormatError(f"{path.name} holds a {type(found).__name__}, which cannot predict")
    return found


def checked_device(device: torch.device | str | None) -> torch.device | None:
    """The device of this name, if this machine has it."""
    if device is None:
        return None
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"there is no device '{device}' here; cpu always is ({reason})") from error
    return place


def _placed(model: Any, device: torch.device | None) -> Any:
    return model.to(device) if isinstance(model, nn.Module) and device is not None else model


def _on_hub(model: str | Path) -> bool:
    return isinstance(model, str) and model.startswith(HUB)


def _folder(path: Path) -> str:
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; a model on the hub is written {HUB}owner/name")
    return str(path)
