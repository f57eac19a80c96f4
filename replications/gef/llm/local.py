"""A language model on this machine, through transformers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from veridical.core.allowed import Count, Positive
from veridical.core.settings import check_settings
from veridical.errors import InputError, missing_extra


@dataclass(frozen=True)
class LocalModel:
    """Answers prompts with a causal language model of transformers, greedily (extra `llm`).

    It loads at the first prompt. Code that comes with a model never runs.
    """

    source: str
    """A local folder or, if there is none, a name on the hub."""
    gguf_file: str | None = None
    """The file inside it, for a model in that format."""
    new_tokens: Count = 128
    """The longest reply, in tokens."""
    begin: str = ""
    """How the reply begins: a small model told to answer in JSON chats, unless it has begun as JSON."""
    stop: str | None = None
    """The text behind which the reply ends."""
    repetition_penalty: Positive = 1.0
    """Above 1 it keeps the model from going round in circles (transformers' own)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", str(self.source))
        check_settings(self)
        if self.stop == "":
            raise InputError("every reply holds the empty text: stop is some text, or None")

    def __call__(self, prompt: str) -> str:
        import torch

        tokenizer, model = _loaded(self.source, self.gguf_file)
        text = prompt
        if getattr(tokenizer, "chat_template", None):
            message = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        asked = tokenizer(text + self.begin, return_tensors="pt", add_special_tokens=text is prompt).to(
            model.device
        )
        start = asked["input_ids"].shape[1]

        def said(answer: Any) -> str:
            return str(tokenizer.decode(answer[0, start:], skip_special_tokens=True))

        def ended(answer: Any, _scores: Any, **_: Any) -> Any:
            return torch.full((1,), self.stop in said(answer), device=answer.device)  # type: ignore[operator]

        with torch.no_grad():
            answer = model.generate(
                **asked,
                max_new_tokens=self.new_tokens,
                do_sample=False,
                repetition_penalty=self.repetition_penalty,
                pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
                **({} if self.stop is None else {"stopping_criteria": [ended]}),
            )
        reply = said(answer)
        if self.stop is not None:
            reply = "".join(reply.partition(self.stop)[:2])
        return self.begin + reply


@lru_cache(maxsize=2)
def _loaded(source: str, gguf_file: str | None) -> tuple[Any, Any]:
    for package in ("transformers",) if gguf_file is None else ("transformers", "gguf", "accelerate"):
        if find_spec(package) is None:
            raise missing_extra(package, "llm")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"local_files_only": Path(source).is_dir(), "trust_remote_code": False}
    if gguf_file is not None:
        options["gguf_file"] = gguf_file
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if gguf_file is None:
        options["use_safetensors"] = True
    return tokenizer, AutoModelForCausalLM.from_pretrained(source, **options).eval()
