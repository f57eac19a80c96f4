"""Methods that look at tokens, over the units of a prompt: they are the tokens' values, added up."""

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.data import known_language
from veridical.data.known_language import WordTokenizer
from veridical.data.networks import CausalTransformer
from veridical.errors import NotApplicableError, UnknownNameError
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
    law = vd.explain("lrp_epsilon", task).provenance["completeness"]
    with torch.no_grad():
        logit = float(small_model()(task.side["tokens"])[0, -1, WORDS.index("f ")])
    assert abs(float(task.outputs[0, 0]) - logit) > 0.5
    assert float(vd.explain("lrp_epsilon", task).values.sum()) == pytest.approx(
        logit, abs=law["largest_residual"] * abs(logit) + 1e-9
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
    with pytest.raises(NotApplicableError, match="off='drop' has no gradient"):
        vd.explain("lrp_epsilon", task)


@pytest.mark.extras
@pytest.mark.parametrize("name", ["lrp_epsilon", "gradient_x_attention", "attention_rollout"])
def test_models_with_rms_norm_rotary_places_and_gated_layers(name):
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = hf.LlamaForCausalLM(config).eval()
    task = vd.models.Generation(
        model, WordTokenizer(WORDS), PROMPTS, ["f ", "g "], foils=["g ", "a "], off="zero"
    )
    values = vd.explain(name, task).values
    single = vd.models.Generation(model, WordTokenizer(WORDS), PROMPTS[:1], ["f "], foils=["g "], off="zero")
    alone = vd.explain(name, single).values[0]
    # padding on the left changes nothing
    assert torch.allclose(values[0, : len(alone)], alone, rtol=1e-3, atol=1e-5)
    assert bool((values != 0).any())


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
