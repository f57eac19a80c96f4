"""A planted prompt: the judge's sentence decides, the right unit wins for every seed, and controls lose."""

import pytest
import torch

import veridical as vd
from veridical.data import known_language
from veridical.data.known_language import WordTokenizer
from veridical.errors import InputError

SEEDS = 20
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
    rows = known_language.training_data().rows
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


def test_a_tokenizer_of_words_gives_texts_back_and_refuses_others():
    tokenizer = WordTokenizer(known_language.PROMPT_WORDS)
    text = "Ann says red. Judge says blue. So it is "
    assert tokenizer.decode(tokenizer.encode(text)) == text
    with pytest.raises(InputError, match="'x' in 'Ann says x' is no piece"):
        tokenizer.encode("Ann says x")
