"""Models in Hugging Face's layout from a folder or, by id, from the hub; causal ones from GGUF files too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from veridical.core.space import Space
from veridical.data.files import require
from veridical.data.images import ImageReader, open_image
from veridical.errors import (
    FormatError,
    InputError,
    MissingExtraError,
    NotApplicableError,
    VeridicalError,
    warn,
)
from veridical.perturb.fills import Token

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


def read_classifier(source: str, length: int) -> tuple[nn.Module, str, TextReader | ProcessorReader]:
    """A text or image classifier, the head of its configuration, and what reads its inputs.

    Weights must be safetensors, and code that comes with a model never runs.
    """
    options = reading_options(source)
    with quietly(), reading_errors(source):
        import transformers

        config = transformers.AutoConfig.from_pretrained(source, **options)
        kinds = " ".join(config.architectures or ())
        if "ForSequenceClassification" in kinds:
            texts = TextReader(source, config, length, options)
            module = _load_pretrained(transformers.AutoModelForSequenceClassification, source, options)
            return TokenClassifier(module, texts.pad).eval(), _head(config), texts
        if "ForImageClassification" in kinds:
            images = ProcessorReader(source, config, options)
            module = _load_pretrained(transformers.AutoModelForImageClassification, source, options)
            return ImageClassifier(module).eval(), _head(config), images
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


def _output_names(config: Any) -> list[str]:
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
        self.names = _output_names(config)
        # tokenizers that were given no limit state an enormous one
        limits = (self.tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or length)
        self.length = min(length, *limits)

    def padded(self, texts: list[str], length: int | None = None) -> Tensor:
        """Token ids, as long as the longest text or of this length."""
        tokens: Tensor = self.tokenizer(
            texts,
            padding=True if length is None else "max_length",
            truncation=True,
            max_length=length or self.length,
            return_tensors="pt",
        )["input_ids"]
        return tokens

    def __call__(self, texts: list[str], units: str = "token") -> tuple[Tensor, dict[str, Any]]:
        """Token ids, and the space (tokens, or the words they are pieces of) and fill of them."""
        if units not in ("token", "word"):
            raise InputError(f"the texts of a classifier have units 'token' or 'word', got {units!r}")
        tokens = self.padded(texts)
        special = torch.tensor(sorted(self.tokenizer.all_special_ids))
        unknown = self.tokenizer.unk_token_id
        # an unknown word is a word; all other special tokens are none
        valid = ~torch.isin(tokens, special) | (tokens == (-1 if unknown is None else unknown))
        empty = (~valid.any(1)).nonzero().reshape(-1).tolist()
        if empty:
            raise InputError(f"{len(empty)} texts have no word at all (first: {empty[:5]}); leave them out")
        names = [self.tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
        space = Space.tokens(tokens.shape[1], valid, names)
        return tokens, {
            "space": space if units == "token" else self._words(texts, valid),
            "fill": Token(self.pad),
        }

    def _words(self, texts: list[str], valid: Tensor) -> Space:
        """One feature per word: what the tokenizer split before it cut words into pieces."""
        if not self.tokenizer.is_fast:
            raise NotApplicableError(
                "this tokenizer does not say which word a token is of; say units='token'"
            )
        read = self.tokenizer(texts, padding=True, truncation=True, max_length=self.length)
        labels, names = torch.full(valid.shape, -1), []
        for row, text in enumerate(texts):
            numbers = [n if there else None for n, there in zip(read.word_ids(row), valid[row], strict=True)]
            words = [n for n in dict.fromkeys(numbers) if n is not None]
            labels[row] = torch.tensor([-1 if n is None else words.index(n) for n in numbers])
            names.append([text[slice(*read.word_to_chars(row, n))] for n in words])
        count = max(map(len, names))
        exists = torch.tensor([[place < len(own) for place in range(count)] for own in names])
        named = tuple((*own, *[""] * (count - len(own))) for own in names)
        return Space("token", (valid.shape[1],), count, labels, per_sample=True, valid=exists, names=named)


class ProcessorReader(ImageReader):
    """Image files as the pixels of a model's own image processor."""

    def __init__(self, source: str, config: Any, options: dict[str, Any]) -> None:
        self.source = source
        self.mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        self.names = _output_names(config)
        self.options = options

    def pixels(self, files: Sequence[Path]) -> Tensor:
        rows = [self._prepared(file) for file in files]
        if len({row.shape for row in rows}) > 1:
            raise NotApplicableError(
                f"the image processor of {self.source} gives images of several sizes; let it cut them"
            )
        return torch.stack(rows)

    def _prepared(self, file: Path, **changes: Any) -> Tensor:
        """One image; `changes` replace settings of the image processor."""
        prepared = self.processor(open_image(file, self.mode), return_tensors="pt", **changes)
        pixels: Tensor = prepared["pixel_values"][0].float()
        return pixels

    def mask(self, file: Path) -> Tensor:
        return self._prepared(file, do_normalize=False, do_rescale=True, rescale_factor=1 / 255)[0] > 0.5

    @cached_property
    def processor(self) -> Any:
        """The folder's own image processor."""
        import transformers

        # the backend that works with Pillow alone, under the name each major version has for it
        old = int(transformers.__version__.split(".")[0]) < 5
        choice: dict[str, Any] = {"use_fast": False} if old else {"backend": "pil"}
        with quietly(), reading_errors(self.source):
            return transformers.AutoImageProcessor.from_pretrained(self.source, **choice, **self.options)

    def known_classes(self, names: list[str] | None) -> list[str] | None:
        known = {name.casefold() for name in self.names}
        if names is None or any(name.casefold() in known or name.isdigit() for name in names):
            return names
        warn(
            f"the subfolders {sorted(set(names))[:8]} are no classes of the model, so these images have no "
            f"labels; its classes are {self.names[:8]}"
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


CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the architectures of causal language models end."""
ENCODING = ("ForConditionalGeneration",)
"""How those with an encoder and a decoder end."""


def causal_model(source: str | Path) -> tuple[nn.Module, Any]:
    """A causal language model, or one whose encoder reads and whose decoder answers, and its tokenizer.

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
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

        config = AutoConfig.from_pretrained(str(source), **options)
        kinds, encodes = config.architectures or [], bool(getattr(config, "is_encoder_decoder", False))
        if not any(kind.endswith(ENCODING if encodes else CAUSAL) for kind in kinds):
            raise NotApplicableError(
                f"{source} holds {' '.join(kinds) or 'no architecture'}; expected ...ForCausalLM, or "
                "...ForConditionalGeneration with an encoder"
            )
        model = _load_pretrained(
            AutoModelForSeq2SeqLM if encodes else AutoModelForCausalLM, str(source), options
        )
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
