"""Models from files: weights, estimators, ONNX, folders; code runs only where it was allowed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.data.files import existing_file, read_safetensors
from veridical.data.onnx_models import OnnxFunction
from veridical.errors import FormatError, InputError

# --- code -----------------------------------------------------------------------------------------------


def check_allowed(what: str, why: str, allow_code: bool) -> None:
    """Refuse to run code that nobody allowed, and say why it would run."""
    if not allow_code:
        raise InputError(
            f"{what} is refused: {why}. If you trust where it comes from, say so with --allow-code "
            "(allow_code=True in Python)"
        )


def import_attribute(path: str, allow_code: bool = False) -> Any:
    """What `module:name` or `file.py:name` stands for; importing runs the module, so it must be allowed.

    Parameters
    ----------
    path : str
        The module, looked for among the installed ones and in the current folder, or its file; then a colon
        and the name, with dots for attributes of attributes.
    allow_code : bool
        Whether the module's code may run.

    Returns
    -------
    object

    Raises
    ------
    InputError
        Where code is not allowed, the module cannot be imported, or has no such name.
    """
    module_name, colon, name = path.rpartition(":")
    if not colon or not module_name or not name:
        raise InputError(f"an architecture is given as module:function or file.py:function, got '{path}'")
    check_allowed(f"'{path}'", "importing it runs the Python code of that module", allow_code)
    module = _from_file(Path(module_name)) if module_name.endswith(".py") else _by_name(module_name)
    try:
        return attrgetter(name)(module)
    except AttributeError as error:
        public = sorted(n for n in vars(module) if not n.startswith("_"))
        raise InputError(f"'{module_name}' has no '{name}'; it has {', '.join(public[:20])}") from error


def _by_name(name: str) -> Any:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # the module's own code may raise anything
        raise InputError(f"the module '{name}' cannot be imported: {error!r}") from error
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # registered while it runs, so that its dataclasses find their module
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise InputError(f"{path} cannot be imported: {error!r}") from error
    return module


# --- weights --------------------------------------------------------------------------------------------

WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors file, or from one of torch's that holds nothing but tensors.

    Parameters
    ----------
    path : str or path
        The file; a checkpoint may hold the state dict beside other things.

    Returns
    -------
    dict of str to Tensor

    Raises
    ------
    FormatError
        Where the file is damaged or holds more than tensors: a pickled model is never read.
    """
    path = existing_file(path)
    if path.suffix.lower() == ".safetensors":
        return read_safetensors(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes make torch and pickle raise anything
        raise FormatError(
            f"{path.name} holds more than weights, or is damaged; a whole pickled model can run code and is "
            "never read. Save torch.save(model.state_dict(), path), or better a .safetensors file "
            f"({str(error).partition(chr(10))[0]})"
        ) from error
    return _state(found, path)


def _state(found: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in what torch read: a checkpoint keeps it beside the epoch and the optimiser."""
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise FormatError(f"{path.name} is no state dict: expected tensors by name")
    return dict(found)


def load_weights(path: str | Path, arch: Any, allow_code: bool = False) -> nn.Module:
    """The network that `arch` builds, in eval mode and with the weights of this file.

    Parameters
    ----------
    path : str or path
        The file of weights.
    arch : nn.Module, callable or str
        A module, a function without arguments that makes one, or the import path of either.
    allow_code : bool
        Whether the code behind an import path may run.

    Returns
    -------
    nn.Module

    Raises
    ------
    InputError
        Where the weights do not fit the network, or code would have to run that nobody allowed.
    """
    path = existing_file(path)
    if arch is None:
        raise InputError(
            f"{path.name} holds weights, not the network they belong to: name the function that builds it "
            "with --arch module:function. (A whole pickled network is not read, as that can run code: write "
            "torch.save(model.state_dict(), path))"
        )
    built = import_attribute(arch, allow_code) if isinstance(arch, str) else arch
    if callable(built) and not isinstance(built, nn.Module):
        try:
            built = built()
        except TypeError as error:
            raise InputError(f"arch must build the network without arguments: {error}") from error
    if not isinstance(built, nn.Module):
        raise InputError(f"arch gives a {type(built).__name__}; expected a function that builds a module")
    fit_weights(built, read_weights(path), path.name)
    return built.eval()


def fit_weights(module: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Put weights into a network, all of them and nothing else, or say what does not fit."""
    held = module.state_dict()
    if not set(weights) & set(held):
        # weights saved from a wrapper (DataParallel, compile) carry its name in front
        for prefix in ("module.", "_orig_mod.", "model."):
            if all(key.startswith(prefix) for key in weights):
                weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise InputError(f"the weights in {name} do not fit the network: {error}") from error


# --- models ---------------------------------------------------------------------------------------------

Kind = Literal["huggingface", "weights", "sklearn", "onnx", "object"]
HUB = "hf:"
"""Written before a model's name to have it fetched from the hub; nothing else reaches for the network."""
SUFFIXES: dict[str, Kind] = {
    **dict.fromkeys(WEIGHT_SUFFIXES, "weights"),
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
) -> LoadedModel:
    """Read a model from wherever it is: a path, `hf:owner/name`, or an object that is one already.

    Parameters
    ----------
    model
        The path, the name on the hub, or the model.
    arch : optional
        What builds the network of a file of weights; see `load_weights`.
    kind : {"huggingface", "weights", "sklearn", "onnx"}, optional
        What a file is, where its suffix does not say it.
    allow_code : bool
        Whether code that comes with the model may run; a joblib file can contain any.

    Returns
    -------
    LoadedModel
        The model, its kind and its path; one of Hugging Face stays a name.

    Raises
    ------
    InputError
        Where there is no model at the path, or code is not allowed.
    FormatError
        Where a file is not what its suffix says.
    """
    if not isinstance(model, str | Path):
        return LoadedModel("object", model)
    what, path = kind or kind_of(model), Path(model)
    if arch is not None and what != "weights":
        raise InputError(f"arch= (--arch) goes with a file of weights; {model} is a {what} model of its own")
    if what == "huggingface":
        if not _on_hub(model) and not path.is_dir():
            raise InputError(f"there is no folder {path}; a model on the hub is written {HUB}owner/name")
        return LoadedModel(what, str(model).removeprefix(HUB))
    readers: dict[str, Callable[[], Any]] = {
        "weights": lambda: load_weights(path, arch, allow_code),
        "sklearn": lambda: load_estimator(path, allow_code),
        "onnx": lambda: OnnxFunction(path),
    }
    if what not in readers:
        raise InputError(f"kind is one of huggingface, weights, sklearn, onnx; got '{kind}'")
    return LoadedModel(what, readers[what](), path)


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


def _on_hub(model: str | Path) -> bool:
    return isinstance(model, str) and model.startswith(HUB)
