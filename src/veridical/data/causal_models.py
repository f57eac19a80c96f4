"""Causal language models from a folder of transformers or a GGUF file."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from torch import nn

from veridical.data.huggingface import _safely, quietly, read_tokenizer, reading_options, told
from veridical.data.packages import require
from veridical.errors import InputError, NotApplicableError


def causal_model(source: str | Path) -> tuple[nn.Module, Any]:
    """A causal language model and its tokenizer from a folder, a GGUF file, or a name on the hub.

    Weights of a folder must be safetensors; code that comes with a model never runs.
    """
    if Path(source).suffix == ".gguf":
        return _from_gguf(Path(source))
    options = reading_options(source)
    with quietly(), told(source, "causal language model"):
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(str(source), **options)
        kinds = " ".join(config.architectures or ())
        if "ForCausalLM" not in kinds and "LMHeadModel" not in kinds:
            raise NotApplicableError(f"{source} holds {kinds or 'no architecture'}; expected ...ForCausalLM")
        model = _safely(AutoModelForCausalLM, str(source), options)
        return model.eval(), read_tokenizer(str(source), options)


def _from_gguf(path: Path) -> tuple[nn.Module, Any]:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    for package in ("transformers", "gguf", "accelerate"):
        require(package)
    # transformers counts tensors on the terminal, whatever it is told
    with quietly(), told(path, "causal language model"), redirect_stderr(StringIO()):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        options = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **options)
        return AutoModelForCausalLM.from_pretrained(str(path.parent), **options).eval(), tokenizer
