"""Models in Hugging Face's layout from a folder or, by id, from the hub; causal ones from GGUF files too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from veridical.data.files import image_files, require
from veridical.data.images import image_space, open_image
from veridical.data.tables import class_numbers
from veridical.errors import (
    FormatError,
    InputError,
    MissingExtraError,
    NotApplicableError,
    VeridicalError,
    VeridicalWarning,
)
from veridical.perturb.fills import Token
from veridical.values.space import Space
from veridical.values.task import Task

# --- classifiers of texts and images --------------------------------------------------------------------


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
    source: str | Path,
    inputs: Any,
    *,
    length: int = 128,
    labels: Any = None,
    train: Any = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Task:
    """A task from a text or image classifier saved by transformers.

    Weights must be safetensors, and code that comes with a model never runs. Special tokens are no features,
    and removed tokens become padding, which the model does not attend to.

    Parameters
    ----------
    source : str or path
        A local folder; only a name that is no folder is looked up on the hub.
    inputs
        For a text classifier texts. For an image classifier a folder of images, paths, or a tensor
        (N, channels, height, width) that is ready for the model; files are prepared by the folder's own image
        processor.
    length : int
        Texts are cut and padded to at most so many tokens.
    labels : sequence, optional
        Numbers of outputs, or names of the model's classes.
    train : optional
        Reference rows of the same kind, alone or in a tuple with their labels; texts are cut to the longest
        of `inputs`.
    device : torch.device or str, optional
        Where the model runs; the CPU by default.
    **settings
        Go to `Task`.

    Returns
    -------
    Task

    Raises
    ------
    FormatError
        Where the folder has no safetensors, lacks weights or a tokenizer, or brings code of its own.
    NotApplicableError
        Where it holds another kind of model.
    """
    config, options, kind = classifier(source)
    settings.setdefault("name", Path(source).name)
    with quietly(), reading_errors(source):
        import transformers

        if kind == "text":
            read: Any = TextReader(str(source), config, length, options)
            model = _load_pretrained(transformers.AutoModelForSequenceClassification, str(source), options)
        else:
            read = ImageReader(str(source), config, options)
            model = _load_pretrained(transformers.AutoModelForImageClassification, str(source), options)
    rows, found, about = read(inputs)
    settings = {"head": _head(config), **about, **settings}
    given = found if labels is None else labels
    if given is not None:
        settings["labels"] = class_numbers(given, output_names(config))
    if train is not None:
        known, truth = train if isinstance(train, tuple) else (train, None)
        reference, seen, _ = read(known, rows.shape[1:])
        truth = seen if truth is None else truth
        settings["train"] = (
            reference if truth is None else (reference, class_numbers(truth, output_names(config)))
        )
    wrap = TokenClassifier(model, read.pad) if isinstance(read, TextReader) else ImageClassifier(model)
    wrap.eval()
    return Task(wrap.to(device or "cpu"), rows, **settings)


def classifier(source: str | Path) -> tuple[Any, dict[str, Any], Literal["text", "image"]]:
    """The configuration of a classifier, how its files may be read, and what it classifies."""
    options = reading_options(source)
    with quietly(), reading_errors(source):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(str(source), **options)
    kinds = " ".join(config.architectures or ())
    if "ForSequenceClassification" in kinds:
        return config, options, "text"
    if "ForImageClassification" in kinds:
        return config, options, "image"
    raise NotApplicableError(
        f"{source} holds {kinds or 'no architecture'}; expected ...ForSequenceClassification or "
        "...ForImageClassification"
    )


def reading_options(source: str | Path) -> dict[str, Any]:
    """How the files of a model may be read: a folder's own, and never code that comes with them."""
    require("transformers")
    local = Path(source).is_dir()
    if not local and (isinstance(source, Path) or str(source).count("/") > 1 or str(source).startswith(".")):
        raise InputError(f"there is no folder {source}, and it is no name on the hub either")
    return {"local_files_only": local, "trust_remote_code": False}


def output_names(config: Any) -> list[str]:
    """The names of a model's outputs in their order."""
    return [str(name) for _, name in sorted((int(number), name) for number, name in config.id2label.items())]


def read_tokenizer(source: str, options: dict[str, Any]) -> Any:
    """The tokenizer of a model."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    files = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
    needed = options["local_files_only"] and bool(tokenizer.vocab_files_names)
    if needed and not any((Path(source) / file).is_file() for file in files):
        # transformers would make an empty one, to which every word is unknown
        raise FormatError(f"{source} has no tokenizer ({', '.join(sorted(files))}); save it there too")
    return tokenizer


class TextReader:
    """Texts as the token ids of a model's own tokenizer."""

    def __init__(self, source: str, config: Any, length: int, options: dict[str, Any]) -> None:
        self.tokenizer = read_tokenizer(source, options)
        if self.tokenizer.pad_token_id is None:
            raise NotApplicableError(
                f"the tokenizer of {source} has no pad token; set one and save the tokenizer again"
            )
        self.pad: int = self.tokenizer.pad_token_id
        # tokenizers that were given no limit state an enormous one
        limits = (self.tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or length)
        self.length = min(length, *limits)

    def __call__(self, texts: Any, shape: torch.Size | None = None) -> tuple[Tensor, None, dict[str, Any]]:
        """Token ids, no labels, and the space and fill of them; `shape` says how long rows are."""
        if isinstance(texts, str | Path) or not all(isinstance(text, str) for text in texts):
            raise InputError("a text classifier takes inputs=[text, text, ...]")
        tokenizer = self.tokenizer
        found = tokenizer(
            list(texts),
            padding=True if shape is None else "max_length",
            truncation=True,
            max_length=self.length if shape is None else shape[0],
            return_tensors="pt",
        )
        tokens = found["input_ids"]
        if shape is not None:
            return tokens, None, {}
        special = torch.tensor(sorted(tokenizer.all_special_ids))
        unknown = tokenizer.unk_token_id
        # an unknown word is a word; all other special tokens are none
        valid = ~torch.isin(tokens, special) | (tokens == (-1 if unknown is None else unknown))
        empty = (~valid.any(1)).nonzero().reshape(-1).tolist()
        if empty:
            raise InputError(f"{len(empty)} texts have no word at all (first: {empty[:5]}); leave them out")
        names = [tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
        space = Space.tokens(tokens.shape[1], valid, names)
        return tokens, None, {"space": space, "fill": Token(self.pad)}


class ImageReader:
    """Image files as the pixels of a model's own image processor."""

    def __init__(self, source: str, config: Any, options: dict[str, Any]) -> None:
        self.source = source
        self.config = config
        self.options = options

    def __call__(
        self, inputs: Any, shape: torch.Size | None = None
    ) -> tuple[Tensor, list[str] | None, dict[str, Any]]:
        """Pixels, the names of the subfolders if those are classes, and ids."""
        if isinstance(inputs, Tensor | np.ndarray):
            ready = torch.as_tensor(inputs)
            return ready, None, {"space": image_space(ready.shape[1:])} if ready.dim() == 4 else {}
        about: dict[str, Any] = {}
        names = None
        if isinstance(inputs, str | Path):
            folder = Path(inputs)
            inputs, classes, found = image_files(folder)
            about["ids"] = [path.relative_to(folder).as_posix() for path in inputs]
            if classes is not None and found is not None:
                names = self.known_classes([classes[number] for number in found.tolist()])
        rows = [self.pixels(path) for path in inputs]
        if len({row.shape for row in rows}) > 1:
            raise NotApplicableError(
                f"the image processor of {self.source} gives images of several sizes; let it cut them"
            )
        about["space"] = image_space(rows[0].shape)
        return torch.stack(rows), names, about

    def pixels(self, path: str | Path, **changes: Any) -> Tensor:
        """One image file, prepared; `changes` replace settings of the image processor."""
        mode = "L" if getattr(self.config, "num_channels", 3) == 1 else "RGB"
        image = open_image(path, mode)
        prepared = self.processor(image, return_tensors="pt", **changes)
        pixels: Tensor = prepared["pixel_values"][0].float()
        return pixels

    def mask(self, path: str | Path) -> Tensor:
        """One object mask, cut like the images: bright is the object."""
        return self.pixels(path, do_normalize=False, do_rescale=True, rescale_factor=1 / 255)[0] > 0.5

    @cached_property
    def processor(self) -> Any:
        """The folder's own image processor."""
        import transformers

        # the backend that works with Pillow alone, under the name each major version has for it
        old = int(transformers.__version__.split(".")[0]) < 5
        choice: dict[str, Any] = {"use_fast": False} if old else {"backend": "pil"}
        with quietly(), reading_errors(self.source):
            return transformers.AutoImageProcessor.from_pretrained(self.source, **choice, **self.options)

    def known_classes(self, names: list[str]) -> list[str] | None:
        """Subfolders are classes only if the model has heard of any of them."""
        known = {name.casefold() for name in output_names(self.config)}
        if any(name.casefold() in known or name.isdigit() for name in names):
            return names
        warnings.warn(
            f"the subfolders {sorted(set(names))[:8]} are no classes of the model, so these images have no "
            f"labels; its classes are {output_names(self.config)[:8]}",
            VeridicalWarning,
            stacklevel=4,
        )
        return None


def _load_pretrained(kind: Any, source: str, options: dict[str, Any]) -> nn.Module:
    try:
        model, report = kind.from_pretrained(
            source, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and "safetensors" in str(error):
            raise FormatError(
                f"{source} has no model.safetensors; other formats can run code when they are read. Save the "
                "model again with model.save_pretrained(folder)"
            ) from error
        raise FormatError(f"the weights in {source} do not fit its config.json: {error}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers would draw them at random and go on
        raise FormatError(
            f"{source} has no weights for {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}: it "
            "is not a finished classifier. Fine-tune it and save it again"
        )
    return cast(nn.Module, model)


def _head(config: Any) -> str:
    kind = getattr(config, "problem_type", None)
    if kind == "multi_label_classification":
        return "multilabel"
    if kind == "regression":
        return "regression"
    return "binary" if config.num_labels == 1 else "multiclass"


@contextmanager
def reading_errors(source: str | Path, what: str = "classifier") -> Iterator[None]:
    """Turn what transformers raises about a folder into one sentence that names the folder."""
    try:
        yield
    except VeridicalError:
        raise
    except ImportError as error:
        raise MissingExtraError(f"{source} cannot be read here: {error}") from error
    except Exception as error:  # what broken files raise differs between versions and tokenizers
        if "trust_remote_code" in str(error):
            raise FormatError(
                f"{source} brings Python code of its own (trust_remote_code), which is never run"
            ) from error
        raise FormatError(f"{source} is not a {what} that transformers can read: {error}") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Keep transformers' own bars and remarks off the terminal for as long as a model loads."""
    from transformers.utils import logging

    before, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if before:
            logging.enable_progress_bar()


# --- causal language models -----------------------------------------------------------------------------


def causal_model(source: str | Path) -> tuple[nn.Module, Any]:
    """A causal language model and its tokenizer.

    Weights of a folder must be safetensors; code that comes with a model never runs.

    Parameters
    ----------
    source : str or path
        A folder of transformers, a GGUF file, or a name on the hub.

    Returns
    -------
    tuple of nn.Module and tokenizer
        The model in eval mode.
    """
    if Path(source).suffix == ".gguf":
        return _from_gguf(Path(source))
    options = reading_options(source)
    with quietly(), reading_errors(source, "causal language model"):
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(str(source), **options)
        kinds = " ".join(config.architectures or ())
        if "ForCausalLM" not in kinds and "LMHeadModel" not in kinds:
            raise NotApplicableError(f"{source} holds {kinds or 'no architecture'}; expected ...ForCausalLM")
        model = _load_pretrained(AutoModelForCausalLM, str(source), options)
        return model.eval(), read_tokenizer(str(source), options)


def _from_gguf(path: Path) -> tuple[nn.Module, Any]:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    for package in ("transformers", "gguf", "accelerate"):
        require(package)
    # transformers counts tensors on the terminal, whatever its settings
    with quietly(), reading_errors(path, "causal language model"), redirect_stderr(StringIO()):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        options = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **options)
        return AutoModelForCausalLM.from_pretrained(str(path.parent), **options).eval(), tokenizer
