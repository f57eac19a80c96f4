"""Methods that look at tokens, over the units of a prompt; every explainer on three language models."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference import gated
from veridical.data import known_language
from veridical.data.generation import Answer
from veridical.data.known_language import WordTokenizer
from veridical.data.networks import HEADS, CausalTransformer
from veridical.data.prompt_texts import Prompt
from veridical.errors import NotApplicableError, UnknownNameError
from veridical.explainers.base import registry as explainers
from veridical.explainers.trace.decompose import scaled_dot_product_attention

WORDS = ("...", "a ", "b ", "c ", "d ", "e ", ". ", "f ", "g ")
PROMPTS = ["a b c . d e . ", "c . b a a . e . d d b . "]


def small_model(seed=0):
    torch.manual_seed(seed)
    model = CausalTransformer(len(WORDS), 24, 16, 2, 2).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def asked(answers=("f ", "g "), foils=("g ", "a "), **settings):
    return vd.models.Generation(
        small_model(), WordTokenizer(WORDS), PROMPTS, list(answers), foils=foils and list(foils), **settings
    )


class LastLogit(nn.Module):
    """The logit of the answer less that of the foil, behind the last token."""

    def __init__(self, model, answer, foil):
        super().__init__()
        self.model, self.answer, self.foil = model, answer, foil

    def forward(self, tokens):
        logits = self.model(tokens)[:, -1]
        return (logits[:, self.answer] - logits[:, self.foil])[:, None]


@pytest.mark.parametrize("name", ["lrp_epsilon", "lrp_z_plus", "lrp_gamma"])
def test_relevance_of_a_unit_is_that_of_its_tokens(name):
    task = asked(off="zero")
    for row in range(2):
        prompt, answer = task.prompts[row], task.answers[row]
        plain = LastLogit(task.predictor.source.module.model, answer.tokens[0], answer.foil_tokens[0])
        by_token = vd.explain(name, vd.Task(plain, torch.tensor([prompt.ids]), head="regression")).values[0]
        found = vd.explain(name, task).values[row]
        for unit in range(len(prompt.units)):
            own = torch.tensor([owner == unit for owner in prompt.unit])
            assert torch.allclose(found[unit], by_token[own].sum(), atol=1e-9), (row, unit)


def rolled_out(task, row):
    """Attention rollout of one prompt by hand: no padding, no batches."""
    model, prompt = task.predictor.source.module.model, task.prompts[row]
    mixing = torch.eye(len(prompt.ids), dtype=torch.float64)
    seen = []
    handles = [
        block.attention.softmax.register_forward_hook(lambda _m, _i, weights: seen.append(weights[0]))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(torch.tensor([prompt.ids]))
    for handle in handles:
        handle.remove()
    for weights in seen:
        mixing = (weights.mean(0) + torch.eye(len(mixing))) / 2 @ mixing
    return mixing


def test_rollout_reads_where_the_answer_is_predicted_and_adds_up_tokens():
    task = asked()
    explanation = vd.explain("attention_rollout", task)
    assert explanation.provenance["reading"] == "where the answer is predicted"
    for row in range(2):
        expected = rolled_out(task, row)[-1]
        prompt = task.prompts[row]
        for unit in range(len(prompt.units)):
            own = torch.tensor([owner == unit for owner in prompt.unit])
            assert torch.allclose(explanation.values[row, unit], expected[own].sum(), atol=1e-9)
    assert not explanation.values[0, len(task.prompts[0].units) :].any()


@pytest.mark.parametrize("name", ["attention_rollout", "gradient_x_attention", "lrp_epsilon"])
def test_answers_and_foils_of_several_tokens(name):
    one = vd.explain(name, asked(("f g ", "a a "), ("g f f ", "b "))).values
    assert bool(one.isfinite().all())
    assert bool((one[1] != 0).any())
    # a foil that needs its own pass changes what the answer's attention is multiplied with, not its size
    alone = vd.explain(name, asked(("f g ", "a a "), None)).values
    assert one.shape == alone.shape


def test_the_mean_over_judged_places_is_read():
    both = asked(("f g ", "a a "), None)
    first, second = (
        vd.explain("attention_rollout", asked(("f g ", "a a "), None, answer_parts=[[i], [i]])).values
        for i in (0, 1)
    )
    assert torch.allclose(vd.explain("attention_rollout", both).values, (first + second) / 2, atol=1e-12)


def test_a_log_probability_without_a_foil_is_followed_as_a_logit():
    """The certificate compares with the logit, not with the log-probability."""
    task = vd.models.Generation(small_model(), WordTokenizer(WORDS), "a b . c d . ", ["f "], off="zero")
    complete = vd.explain("lrp_epsilon", task).provenance["completeness"]
    with torch.no_grad():
        logit = float(small_model()(task.side["tokens"])[0, -1, WORDS.index("f ")])
    assert abs(float(task.outputs[0, 0]) - logit) > 0.5
    assert float(vd.explain("lrp_epsilon", task).values.sum()) == pytest.approx(
        logit, abs=complete["largest_residual"] * abs(logit) + 1e-9
    )


def test_the_size_of_a_unit_is_its_length():
    """A control that long units would beat every method with, if a metric rewarded length."""
    found = vd.explain("input_magnitude", asked()).values
    assert found.tolist() == [[4.0, 3.0, 0.0, 0.0], [2.0, 4.0, 2.0, 4.0]]
    inside = vd.explain("input_magnitude", known_language.induction_heads(2).task).values
    assert inside.eq(1).all()


def test_attention_says_nothing_of_heads():
    task = known_language.induction_heads(4).task
    with pytest.raises(NotApplicableError, match="inside the model"):
        vd.explain("attention_rollout", task)


def test_dropped_tokens_have_attention_but_no_relevance():
    task = known_language.prompt_task(4, off="drop").task
    assert bool(vd.explain("attention_rollout", task).values.gt(0).all())
    with pytest.raises(NotApplicableError, match="have no gradient"):
        vd.explain("lrp_epsilon", task)


def test_a_place_that_may_see_nothing_answers_zero_as_torch_has_it():
    torch.manual_seed(1)
    query, key, value = (torch.randn(2, 2, 4, 3) for _ in range(3))
    seen = torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
    seen[0, :, :, :2] = False
    ours = scaled_dot_product_attention(query, key, value, seen)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, seen)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not ours[0, :, :2].any()


@pytest.mark.parametrize(
    ("elsewhere", "here"), [("activation_patching", "occlusion"), ("eap_ig", "integrated_gradients")]
)
def test_names_from_elsewhere_lead_to_ours(elsewhere, here):
    with pytest.raises(UnknownNameError, match=f"here it is '{here}' on a task of switches"):
        vd.explain(elsewhere, asked())


NOISE = "a unit is on or off"
ROWS = "needs reference rows"
KIND = r"it works on .*, this task is units"
INSIDE = "the units of this task are inside the model"
PRODUCT = "a product of two activations"
RELU = "no ReLU"
OUTCOMES: dict[tuple[str, str, str], str] = {
    ("completeness",) * 3: "deeplift exact_shapley kernel_shap partition_shap shapley_sampling",
    ("hand",) * 3: "feature_ablation gradient input_x_gradient integrated_gradients occlusion saliency",
    ("runs",) * 3: "constant gradient_shap hsic input_magnitude lime moving_noise random random_k rise sobol "
    "reagent",
    ("runs", INSIDE, "runs"): "attention_rollout gradient_x_attention value_zeroing",
    ("runs", PRODUCT, "runs"): "lrp lrp_alpha_beta lrp_epsilon lrp_gamma lrp_z_plus",
    (RELU,) * 3: "deconvolution guided_backprop",
    (ROWS,) * 3: "deeplift_shap expected_gradients permutation_importance",
    (KIND,) * 3: "gradcam gradcam_plus_plus guided_gradcam layercam scorecam sobel tree_shap",
    (NOISE,) * 3: "smoothgrad smoothgrad_squared vargrad",
}
"""What each explainer does on each of the three models.

`completeness`: its values sum to what they should. `hand`: they are those of a loop over single prompts.
`runs`: it draws, or is a control, and has no other way to be told. Anything else is what its refusal says.
"""
TABLE = {name: outcome for outcome, names in OUTCOMES.items() for name in names.split()}


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
    if said not in ("completeness", "hand", "runs"):
        with pytest.raises(NotApplicableError, match=said):
            vd.explain(name, task)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = vd.explain(name, task)
    assert found.values.isfinite().all()
    if said == "completeness":
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


def test_deeplift_of_a_log_probability_is_complete():
    """Without a foil, and with one of several tokens, the response has a normaliser: it is followed too."""
    _, model, _ = planted()
    words = WordTokenizer(known_language.PROMPT_WORDS)
    texts = ["Judge says red. Bob says blue. "] * 2
    for answers, foils in ((["red", "blue"], None), (["red. ", "blue. "], ["blue. ", "it is "])):
        task = vd.models.Generation(model, words, texts, answers, foils=foils, questions=["So it is "] * 2)
        complete = vd.explain("deeplift", task).provenance["completeness"]
        assert complete["largest_residual"] < 1e-4
        assert complete["broken"] == 0
