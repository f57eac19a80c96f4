"""Every explainer of the registry on three language models: right, or refused in a sentence.

`law`: its values sum to what they promise. `hand`: they are those of a loop over single prompts. `runs`: it
draws, or is a control, and has no other way to be told. Anything else is what its refusal says.
"""

from __future__ import annotations

import itertools
import math
import warnings
from functools import cache

import pytest
import torch

import veridical as vd
from tests.reference import gated
from veridical.data import known_language
from veridical.data.generation import Answer
from veridical.data.known_language import WordTokenizer
from veridical.data.networks import HEADS
from veridical.data.prompt_texts import Prompt
from veridical.errors import NotApplicableError
from veridical.explainers.base import registry as explainers

WORDS = ("...", "a ", "b ", "c ", "d ", "e ", ". ", "f ", "g ")
NOISE = "a unit is on or off"
ROWS = "needs reference rows"
KIND = r"it works on .*, this task is units"
INSIDE = "the units of this task are inside the model"
PRODUCT = "a product of two activations"
RELU = "no ReLU"
TABLE: dict[str, tuple[str, str, str]] = {
    "attention_rollout": ("runs", INSIDE, "runs"),
    "constant": ("runs",) * 3,
    "deconvolution": (RELU, RELU, RELU),
    "deeplift": ("law",) * 3,
    "deeplift_shap": (ROWS,) * 3,
    "exact_shapley": ("law",) * 3,
    "expected_gradients": (ROWS,) * 3,
    "feature_ablation": ("hand",) * 3,
    "gradcam": (KIND,) * 3,
    "gradcam_plus_plus": (KIND,) * 3,
    "gradient": ("hand",) * 3,
    "gradient_shap": ("runs",) * 3,
    "gradient_x_attention": ("runs", INSIDE, "runs"),
    "guided_backprop": (RELU, RELU, RELU),
    "guided_gradcam": (KIND,) * 3,
    "hsic": ("runs",) * 3,
    "input_magnitude": ("runs",) * 3,
    "input_x_gradient": ("hand",) * 3,
    "integrated_gradients": ("hand",) * 3,
    "kernel_shap": ("law",) * 3,
    "layercam": (KIND,) * 3,
    "lime": ("runs",) * 3,
    "lrp": ("runs", PRODUCT, "runs"),
    "lrp_alpha_beta": ("runs", PRODUCT, "runs"),
    "lrp_epsilon": ("runs", PRODUCT, "runs"),
    "lrp_gamma": ("runs", PRODUCT, "runs"),
    "lrp_z_plus": ("runs", PRODUCT, "runs"),
    "moving_noise": ("runs",) * 3,
    "occlusion": ("hand",) * 3,
    "partition_shap": ("law",) * 3,
    "permutation_importance": (ROWS,) * 3,
    "random": ("runs",) * 3,
    "random_k": ("runs",) * 3,
    "rise": ("runs",) * 3,
    "saliency": ("hand",) * 3,
    "scorecam": (KIND,) * 3,
    "shapley_sampling": ("law",) * 3,
    "smoothgrad": (NOISE,) * 3,
    "smoothgrad_squared": (NOISE,) * 3,
    "sobel": (KIND,) * 3,
    "sobol": ("runs",) * 3,
    "tree_shap": (KIND + "|this needs the package 'shap'",) * 3,
    "vargrad": (NOISE,) * 3,
}


@cache
def planted():
    task = known_language.prompt_task(2).task
    return task, task.predictor.source.module.model, gated.over_tokens(task, 0)


@cache
def induction():
    """The heads written by hand, told apart by a pair with another value, or another key."""
    known = known_language.induction_heads(2).task
    clean, paired = induction_prompts(known)
    return known, known.predictor.source.module.module.model, gated.over_heads(clean, HEADS, "paired", paired)


class Prompts:
    """Tokens and answers of a task, as the slow loop reads them."""

    def __init__(self, tokens, answers, foils):
        self.prompts = [Prompt("", tuple(row), (), (), (), False) for row in tokens]
        self.answers = [Answer("", (a,), (0,), "", (f,)) for a, f in zip(answers, foils, strict=True)]


def induction_prompts(task):
    said = task.side["answer"][:, 0].tolist(), task.side["foil"][:, 0].tolist()
    return [Prompts(task.side[name].tolist(), *said) for name in ("tokens", "paired tokens")]


@cache
def llama():
    """A random network of SmolLM2's kind, two layers deep, and prompts of other lengths and unit counts."""
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=36,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    model = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(4)  # so that a random network says something
    task = vd.models.Generation(
        model,
        WordTokenizer(WORDS),
        ["a b c . d e . ", "c . b a a . e . d d b . "],
        ["f ", "g "],
        foils=["g ", "a "],
    )
    return task, model, gated.over_tokens(task, 0)


TASKS = [planted, induction, pytest.param(llama, marks=pytest.mark.extras)]


def test_every_explainer_has_its_line():
    assert sorted(TABLE) == sorted(explainers)


@pytest.mark.parametrize("make", TASKS)
@pytest.mark.parametrize("name", sorted(TABLE))
def test_right_or_refused(name, make):
    said = TABLE[name][[planted, induction, llama].index(make)]
    task, model, respond = make()
    if said not in ("law", "hand", "runs"):
        with pytest.raises(NotApplicableError, match=said):
            vd.explain(name, task)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = vd.explain(name, task)
    assert found.values.isfinite().all()
    if said == "law":
        assert found.provenance["completeness"]["largest_residual"] < 1e-4
    if said == "hand":
        for row in range(len(task)):
            valid = None if task.space.valid is None else int(task.space.valid[row].sum())
            gates = torch.ones(valid or task.space.n_features)
            want = by_hand(name, respond, model, row, gates)
            own = found.values[row, : len(gates)]
            torch.testing.assert_close(
                own.double(), want.double(), atol=2e-4 * float(want.abs().max()), rtol=1e-3
            )


def by_hand(name, respond, model, row, gates):
    if name in ("occlusion", "feature_ablation"):
        with torch.no_grad():
            full = respond(model, row, gates)
            return torch.stack([full - respond(model, row, gates * off) for off in 1 - torch.eye(len(gates))])
    if name == "integrated_gradients":
        return gated.integrated(respond, model, row, gates, steps=32)
    return gated.MAPS[name](respond, model, row, gates)


@pytest.mark.parametrize("make", [planted, induction])
def test_exact_shapley_values_against_all_orders(make):
    """Every subset of the units of one prompt asked by hand."""
    task, model, respond = make()
    count = task.space.n_features
    with torch.no_grad():
        value = {
            chosen: float(respond(model, 0, torch.tensor([float(i in chosen) for i in range(count)])))
            for size in range(count + 1)
            for chosen in itertools.combinations(range(count), size)
        }
    want = []
    for unit in range(count):
        total = 0.0
        for chosen, before in value.items():
            if unit in chosen:
                continue
            share = (
                math.factorial(len(chosen)) * math.factorial(count - len(chosen) - 1) / math.factorial(count)
            )
            total += share * (value[tuple(sorted((*chosen, unit)))] - before)
        want.append(total)
    found = vd.explain("exact_shapley", task).values[0].double()
    torch.testing.assert_close(found, torch.tensor(want, dtype=torch.float64), atol=1e-3, rtol=1e-4)


def test_deeplift_of_a_log_probability_keeps_its_law():
    """Without a foil, and with one of several tokens, the response has a normaliser: it is followed too."""
    _, model, _ = planted()
    words = WordTokenizer(known_language.PROMPT_WORDS)
    texts = ["Judge says red. Bob says blue. "] * 2
    for answers, foils in ((["red", "blue"], None), (["red. ", "blue. "], ["blue. ", "it is "])):
        task = vd.models.Generation(model, words, texts, answers, foils=foils, questions=["So it is "] * 2)
        law = vd.explain("deeplift", task).provenance["completeness"]
        assert law["largest_residual"] < 1e-4
        assert law["broken"] == 0
