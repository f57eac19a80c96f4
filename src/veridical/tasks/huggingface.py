"""Text and image classifiers in Hugging Face's layout, from a folder or, if asked for by id, from the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import FormatError, InputError, NotApplicableError
from veridical.fill import Token
from veridical.space import Space
from veridical.task import Task
from veridical.tasks.images import image_files, read_image
from veridical.tasks.packages import require


class TokenClassifier(nn.Module):
    """A text classifier of token ids alone: padding is known by its id and never attended to."""

    def __init__(self, module: nn.Module, pad: int) -> None:
        super().__init__()
        self.module = module
        self.pad = pad

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.module(input_ids=tokens, attention_mask=(tokens != self.pad).long()).logits
        return logits


class ImageClassifier(nn.Module):
    """An image classifier whose answer is its logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.module(pixel_values=pixels).logits
        return logits


def from_huggingface(
    source: str | Path, inputs: Any, *, length: int = 128, labels: Any = None, **settings: Any
) -> Task:
    """A task from a text or image classifier saved by transformers.

    `source` is a local folder; only a name that is no folder is looked up on the hub. Weights must be
    safetensors, and code that comes with a model never runs. For a text classifier `inputs` are texts, cut
    and padded to at most `length` tokens; special tokens are no features, and removed tokens become
    padding, which the model does not attend to. For an image classifier they are a folder of images, paths,
    or a tensor (N, channels, height, width) that is ready for the model. `labels` may be class names of the
    model. Further settings go to `Task`.
    """
    require("transformers")
    from transformers import AutoConfig

    local = Path(source).is_dir()
    if not local and (isinstance(source, Path) or str(source).count("/") > 1 or str(source).startswith(".")):
        raise InputError(f"there is no folder {source}, and it is no name on the hub either")
    options = {"local_files_only": local, "trust_remote_code": False}
    with quietly():
        config = AutoConfig.from_pretrained(str(source), **options)
        kinds = " ".join(config.architectures or ())
        if labels is not None:
            labels = _label_ids(labels, config)
        settings.setdefault("name", Path(source).name)
        if "ForSequenceClassification" in kinds:
            return _text_task(str(source), inputs, labels, length, options, settings)
        if "ForImageClassification" in kinds:
            return _image_task(str(source), inputs, labels, options, settings)
    raise NotApplicableError(
        f"{source} holds {kinds or 'no architecture'}; expected ...ForSequenceClassification or "
        "...ForImageClassification"
    )


def _text_task(
    source: str, inputs: Any, labels: Any, length: int, options: dict[str, Any], settings: dict[str, Any]
) -> Task:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if isinstance(inputs, str) or not all(isinstance(text, str) for text in inputs):
        raise InputError("a text classifier takes inputs=[text, text, ...]")
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if tokenizer.pad_token_id is None:
        raise NotApplicableError(
            f"the tokenizer of {source} has no pad token; set one and save the tokenizer again"
        )
    model = _safely(AutoModelForSequenceClassification, source, options)
    found = tokenizer(list(inputs), padding=True, truncation=True, max_length=length, return_tensors="pt")
    tokens = found["input_ids"]
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    names = [tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
    unknown = tokenizer.unk_token_id
    # an unknown word is a word; all other special tokens are none
    valid = ~torch.isin(tokens, special) | (tokens == (-1 if unknown is None else unknown))
    settings.setdefault("space", Space.tokens(tokens.shape[1], valid, names))
    settings.setdefault("fill", Token(tokenizer.pad_token_id))
    settings.setdefault("head", _head(model))
    classifier = TokenClassifier(model.eval(), tokenizer.pad_token_id)
    return Task(classifier, tokens, labels=labels, **settings)


def _image_task(
    source: str, inputs: Any, labels: Any, options: dict[str, Any], settings: dict[str, Any]
) -> Task:
    from transformers import AutoModelForImageClassification

    model: Any = _safely(AutoModelForImageClassification, source, options)
    if isinstance(inputs, str | Path):
        folder = Path(inputs)
        inputs, classes, found = image_files(folder)
        settings.setdefault("ids", [path.relative_to(folder).as_posix() for path in inputs])
        if labels is None and classes is not None and found is not None:
            known = model.config.label2id
            if all(name in known for name in classes):
                labels = torch.tensor([int(known[name]) for name in classes])[found]
    if not isinstance(inputs, Tensor):
        rule = _image_rule(source, options)
        inputs = torch.stack([read_image(path, **rule) for path in inputs])
    settings.setdefault("head", _head(model))
    return Task(ImageClassifier(model.eval()), inputs, labels=labels, **settings)


def _safely(kind: Any, source: str, options: dict[str, Any]) -> nn.Module:
    try:
        model: nn.Module = kind.from_pretrained(source, use_safetensors=True, **options)
    except OSError as error:
        if "safetensors" in str(error):
            raise FormatError(
                f"{source} has no model.safetensors; other formats can run code when they are read. Save the "
                "model again with model.save_pretrained(folder)"
            ) from error
        raise
    return model


def _head(model: Any) -> str:
    kind = getattr(model.config, "problem_type", None)
    if kind == "multi_label_classification":
        return "multilabel"
    if kind == "regression":
        return "regression"
    return "binary" if model.config.num_labels == 1 else "multiclass"


def _label_ids(labels: Any, config: Any) -> Any:
    if isinstance(labels, Sequence) and labels and isinstance(labels[0], str):
        unknown = sorted(set(labels) - set(config.label2id))
        if unknown:
            raise InputError(f"labels {unknown} are not among the model's {sorted(config.label2id)}")
        return torch.tensor([int(config.label2id[name]) for name in labels])
    return labels


def _image_rule(source: str, options: dict[str, Any]) -> dict[str, Any]:
    """Size, crop and scale as the model's preprocessor_config.json states them."""
    from transformers.utils import cached_file

    path = cached_file(source, "preprocessor_config.json", local_files_only=options["local_files_only"])
    facts = json.loads(Path(str(path)).read_text(encoding="utf-8"))
    size, crop = facts.get("size", 224), facts.get("crop_size")
    shorter = None
    if isinstance(size, dict):
        shorter = size.get("shortest_edge")
        size = (size["height"], size["width"]) if "height" in size else shorter
    if crop is not None and facts.get("do_center_crop", True):
        size = (crop["height"], crop["width"]) if isinstance(crop, dict) else crop
    elif shorter is None:
        # nothing is cut off: the shorter side is the crop itself
        shorter = size if isinstance(size, int) else max(size)
    scaled = facts.get("do_normalize", True)
    mean = facts.get("image_mean", 0.5) if scaled else 0.0
    deviation = facts.get("image_std", 0.5) if scaled else 1.0
    channels = 1 if isinstance(mean, list) and len(mean) == 1 else 3
    return {"size": size, "mean": mean, "deviation": deviation, "channels": channels, "shorter": shorter}


@contextmanager
def quietly() -> Iterator[None]:
    """Keep transformers' own bars off the terminal for as long as a model loads."""
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()
