"""Heads written by hand: who is responsible depends on the head and on what the paired prompt changes."""

import math

import pytest
import torch

import veridical as vd
from veridical.data import known_language
from veridical.data.networks import ANSWER, HEADS, MATCH, InductionTransformer
from veridical.errors import InputError

SEEDS = 20
PREVIOUS, INDUCTION = 1, HEADS + 2
REMOVAL = ("insertion", "deletion", "faithfulness_correlation")


@pytest.fixture(scope="module", params=["value", "key"])
def change(request):
    return request.param


@pytest.fixture(scope="module")
def answer(change):
    return known_language.induction_heads(24, change=change)


def patched(model, tokens, paired, layer, head, at):
    """The logits at the end when one head's output comes from a paired row: by hand, with one hook."""
    joining = model.blocks[layer].attention.out
    size = joining.in_features // HEADS
    own = slice(head * size, (head + 1) * size)
    seen = []
    handle = joining.register_forward_pre_hook(lambda _m, given: seen.append(given[0]))
    with torch.no_grad():
        model(paired)
    handle.remove()

    def replace(_m, given):
        state = given[0].clone()
        state[..., own] = seen[0][..., own]
        return (state,)

    handle = joining.register_forward_pre_hook(replace)
    with torch.no_grad():
        found = model(tokens)[:, -1]
    handle.remove()
    return found.gather(1, at)


def test_the_model_repeats_what_followed_the_key():
    rows, place, _ = known_language.drawn_pairs(torch.arange(50))
    model = InductionTransformer(
        len(known_language.INDUCTION_WORDS), known_language.INDUCTION_LENGTH, (3, 1)
    ).eval()
    with torch.no_grad():
        said = model(rows)[:, -1].argmax(-1)
    assert torch.equal(said, rows.gather(1, place[:, None] + 1)[:, 0])


def test_occlusion_is_activation_patching_by_hand(answer):
    task = answer.task
    side = task.side
    found = vd.explain("occlusion", task).values
    model = task.predictor.source.module.module.model
    answers, foils = side["answer"][:, :1], side["foil"][:, :1]
    tokens, paired = side["tokens"], side["paired tokens"]
    at = torch.cat([answers, foils], 1)
    with torch.no_grad():
        clean = model(tokens)[:, -1].gather(1, at)
    for unit in range(2 * HEADS):
        off = patched(model, tokens, paired, *divmod(unit, HEADS), at)
        fall = (clean - off)[:, 0] - (clean - off)[:, 1]
        assert torch.allclose(found[:, unit], fall, atol=1e-5)


def test_the_closed_form_of_both_changes(change, answer):
    """The induction head gives its match e^MATCH parts of attention and each other token one."""
    seen = 2 * known_language.PAIRS + 2
    share = math.exp(MATCH) / (math.exp(MATCH) + seen - 1)
    fall = {
        "value": 2 * ANSWER * share,
        "key": ANSWER * (share - (1 - share) / (seen - 1)),
    }[change]
    values = vd.explain("occlusion", answer.task).values
    truth = answer.truth.bool()
    assert torch.allclose(values[truth], torch.full_like(values[truth], fall), rtol=1e-4)
    assert float(values[~truth].abs().max()) < 1e-5
    assert truth.sum(1).eq(1 if change == "value" else 2).all()
    assert truth[:, INDUCTION].all()
    assert bool(truth[:, PREVIOUS].all()) == (change == "key")


def test_shapley_shares_what_both_heads_do_together(change, answer):
    single = vd.explain("occlusion", answer.task).values
    values = vd.explain("exact_shapley", answer.task).values
    assert torch.allclose(values, single * (0.5 if change == "key" else 1.0), atol=1e-4)


def test_gradients_are_exact_where_the_model_is_linear_and_too_small_where_attention_is_sure(change, answer):
    single = vd.explain("occlusion", answer.task).values
    first_order = vd.explain("input_x_gradient", answer.task).values
    assert torch.allclose(first_order[:, INDUCTION], single[:, INDUCTION], rtol=1e-4)
    if change == "key":
        assert bool((first_order[:, PREVIOUS] < 0.5 * single[:, PREVIOUS]).all())
        assert bool((first_order[:, PREVIOUS] > 0.1 * single[:, PREVIOUS]).all())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_right_heads_win_on_the_mean_in_every_seed(seed):
    drawn = known_language.induction_heads(8, seed=seed, turn=(seed % HEADS, seed // HEADS % HEADS))
    right = drawn.truth.bool()
    for name in drawn.winners:
        values = vd.explain(name, drawn.task).values
        assert float(values[right].min()) > 100 * float(values[~right].abs().max()), name
    found = vd.evaluate(drawn.task, ["occlusion", "exact_shapley", "random", "constant"], REMOVAL, seed=seed)
    for metric in REMOVAL:
        one, two, chance, same = (found[name, metric].utility.mean() for name in found.explanations)
        assert min(one, two) > max(chance, same), metric


def test_half_the_pairs_change_the_key_and_half_the_value():
    answer = vd.tasks.known("induction", samples=40)
    both = answer.truth[:, PREVIOUS].bool()
    assert torch.equal(both, answer.task.ids % 2 == 1)
    assert answer.task.space.feature_name(INDUCTION) == "layer 1 head 2"
    assert torch.equal(answer.task.masks, answer.truth.bool())
    with pytest.raises(InputError, match="'value', 'key' or 'both'"):
        known_language.induction_heads(change="answer")
