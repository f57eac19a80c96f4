"""Causal language models from a folder of transformers or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from veridical.errors import InputError, NotApplicableError
from veridical.tasks.huggingface import _safely, quietly, told
from veridical.tasks.packages import require


def causal_model(source: str | Path) -> tuple[nn.Module, Any]:
    """A causal language model and its tokenizer from a folder, a GGUF file, or a name on the hub.

    Weights of a folder must be safetensors; code that comes with a model never runs.
    """
    require("transformers")
    path = Path(source)
    if path.suffix == ".gguf":
        return _from_gguf(path)
    local = path.is_dir()
    if not local and (isinstance(source, Path) or str(source).count("/") > 1 or str(source).startswith(".")):
        raise InputError(f"there is no folder {source}, and it is no name on the hub either")
    options = {"local_files_only": local, "trust_remote_code": False}
    with quietly(), told(source):
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        config = AutoConfig.from_pretrained(str(source), **options)
        kinds = " ".join(config.architectures or ())
        if "ForCausalLM" not in kinds and "LMHeadModel" not in kinds:
            raise NotApplicableError(f"{source} holds {kinds or 'no architecture'}; expected ...ForCausalLM")
        model = _safely(AutoModelForCausalLM, str(source), options)
        return model.eval(), AutoTokenizer.from_pretrained(str(source), **options)


def _from_gguf(path: Path) -> tuple[nn.Module, Any]:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    for package in ("gguf", "accelerate"):
        require(package)
    with quietly(), told(path):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        options: dict[str, Any] = {
            "gguf_file": path.name,
            "local_files_only": True,
            "trust_remote_code": False,
        }
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **options)
        return AutoModelForCausalLM.from_pretrained(str(path.parent), **options).eval(), tokenizer
