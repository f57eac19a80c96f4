"""Planted prompts and heads written by hand: the right unit wins for every seed, and controls lose."""

from __future__ import annotations

import math

import pytest
import torch

import veridical as vd
from scripts.make_tasks import prompt_data
from veridical.data import known_language
from veridical.data.networks import ANSWER, HEADS, MATCH, InductionTransformer
from veridical.errors import InputError

# --- heads ----------------------------------------------------------------------------------------------

SEEDS = 20
PREVIOUS, INDUCTION = 1, HEADS + 2
HEAD_REMOVAL = ("insertion", "deletion", "faithfulness_correlation")


@pytest.fixture(scope="module", params=["value", "key"])
def change(request):
    return request.param


@pytest.fixture(scope="module")
def heads_answer(change):
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


def test_occlusion_is_activation_patching_by_hand(heads_answer):
    task = heads_answer.task
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


def test_the_closed_form_of_both_changes(change, heads_answer):
    """The induction head gives its match e^MATCH parts of attention and each other token one."""
    seen = 2 * known_language.PAIRS + 2
    share = math.exp(MATCH) / (math.exp(MATCH) + seen - 1)
    fall = {
        "value": 2 * ANSWER * share,
        "key": ANSWER * (share - (1 - share) / (seen - 1)),
    }[change]
    values = vd.explain("occlusion", heads_answer.task).values
    truth = heads_answer.truth.bool()
    assert torch.allclose(values[truth], torch.full_like(values[truth], fall), rtol=1e-4)
    assert float(values[~truth].abs().max()) < 1e-5
    assert truth.sum(1).eq(1 if change == "value" else 2).all()
    assert truth[:, INDUCTION].all()
    assert bool(truth[:, PREVIOUS].all()) == (change == "key")


def test_shapley_shares_what_both_heads_do_together(change, heads_answer):
    single = vd.explain("occlusion", heads_answer.task).values
    values = vd.explain("exact_shapley", heads_answer.task).values
    assert torch.allclose(values, single * (0.5 if change == "key" else 1.0), atol=1e-4)


def test_gradients_are_exact_where_the_model_is_linear_and_too_small_where_attention_is_sure(
    change, heads_answer
):
    single = vd.explain("occlusion", heads_answer.task).values
    first_order = vd.explain("input_x_gradient", heads_answer.task).values
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
    found = vd.evaluate(
        drawn.task, ["occlusion", "exact_shapley", "random", "constant"], HEAD_REMOVAL, seed=seed
    )
    for metric in HEAD_REMOVAL:
        one, two, chance, same = (found[name, metric].utility.mean() for name in found.explanations)
        assert min(one, two) > max(chance, same), metric


def test_half_the_pairs_change_the_key_and_half_the_value():
    heads_answer = vd.tasks.known("induction", samples=40)
    both = heads_answer.truth[:, PREVIOUS].bool()
    assert torch.equal(both, heads_answer.task.ids % 2 == 1)
    assert heads_answer.task.space.feature_name(INDUCTION) == "layer 1 head 2"
    assert torch.equal(heads_answer.task.masks, heads_answer.truth.bool())
    with pytest.raises(InputError, match="'value', 'key' or 'both'"):
        known_language.induction_heads(change="heads_answer")


# --- prompts --------------------------------------------------------------------------------------------

FINDS_IT = ("occlusion", "exact_shapley", "lime", "lrp_epsilon", "attention_rollout", "gradient_x_attention")
REMOVAL = ("insertion", "deletion", "faithfulness_correlation", "rfid_minus")


@pytest.fixture(scope="module")
def answer():
    return vd.tasks.known("prompt")


def off(task, units):
    """The response when these units (N, V) are off."""
    with torch.no_grad():
        return task.model(task.inputs.masked_fill(units, 0.0), **task.side)[:, 0]


@pytest.mark.parametrize("how", ["fill", "drop", "zero"])
def test_only_the_judges_sentence_decides(how):
    task = known_language.prompt_task(off=how).task
    judge = task.masks
    assert bool((task.outputs[:, 1] == 1).all())  # every answer is what the model says
    without, alone = off(task, judge), off(task, ~judge)
    # the judge's sentence alone gives the answer as surely as all of them; without it nothing is known
    assert float(alone.min()) > 3
    assert float(alone.mean()) > 9
    assert float(without.mean().abs()) < 1
    assert float((alone - without).min()) > 2


def test_prompts_read_as_english_and_the_foil_is_another_answer(answer):
    task = answer.task
    for prompt, said in zip(task.prompts[:20], task.answers, strict=False):
        assert len(prompt.units) == known_language.SENTENCES
        assert prompt.text.endswith("So it is ")
        assert f"Judge says {said.text}." in prompt.units
        assert said.foil != said.text
    assert answer.truth.sum(1).eq(1).all()
    assert all(
        prompt.units[place].startswith("Judge")
        for prompt, place in zip(task.prompts, answer.truth.argmax(1).tolist(), strict=True)
    )


def test_evaluated_prompts_were_not_trained_on():
    rows = prompt_data().rows
    task = vd.tasks.known("prompt").task
    seen = {tuple(row) for row in rows[:, :-3].tolist()}
    assert not any(tuple(row[:-3]) in seen for row in task.side["tokens"].tolist())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_right_unit_wins_on_the_mean_in_every_seed(answer, seed):
    drawn = vd.tasks.known("prompt", samples=16, seed=seed)
    judge = drawn.truth.bool()
    for name in FINDS_IT:
        values = vd.explain(name, drawn.task).values
        assert float(values[judge].mean()) > 2 * float(values[~judge].abs().mean()), name
    names = ["occlusion", "exact_shapley", "random", "constant"]
    found = vd.evaluate(drawn.task, names, list(REMOVAL), seed=seed)
    for metric in REMOVAL:
        best, second, chance, constant = (found[name, metric].utility.mean() for name in names)
        assert min(best, second) > max(chance, constant), (metric, best, second, chance, constant)


def test_a_gradient_at_full_gates_misses_what_is_saturated(answer):
    """Attribution patching is a first-order guess; its path form, integrated gradients, is not."""
    few, truth = answer.task[:64], answer.truth[:64].argmax(1)
    found = {name: vd.explain(name, few).values.argmax(1) == truth for name in ("gradient", "occlusion")}
    assert bool(found["occlusion"].all())
    assert float(found["gradient"].double().mean()) < 0.9
