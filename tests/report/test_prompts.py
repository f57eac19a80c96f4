"""Prompts and heads in the report: coloured by unit, summed by sentence, escaped."""

import re

import pytest
import torch

import veridical as vd
from veridical.auditing import Test
from veridical.auditing.evidence import HERE, THERE
from veridical.core.space import Space
from veridical.data import known_language
from veridical.data.known_language import WordTokenizer
from veridical.data.networks import CausalTransformer
from veridical.report.evaluation import curves, write_evaluation
from veridical.report.first_page import _removed, in_a_sentence
from veridical.report.gallery import coloured, gallery, head_grid, of_heads, of_prompts
from veridical.report.verification import callers_module

SCRIPT = "<script>alert(1)</script> "
WORDS = ("...", "a ", "b ", ". ", "f ", SCRIPT)


def asked(units="word", prompts=("a b . " + SCRIPT + "a . ",), **settings):
    torch.manual_seed(0)
    model = CausalTransformer(len(WORDS), 16, 16, 2, 1).eval()
    return vd.models.Generation(
        model, WordTokenizer(WORDS), list(prompts), ["f "] * len(prompts), units=units, **settings
    )


def test_pieces_cover_the_whole_text_and_sentences_hold_the_sum_of_their_words():
    task = asked(questions=["b "])
    assert of_prompts(task)
    values = [1.0, -4.0, 0.5, 2.0, 3.0, 0.5]
    shown = coloured(task, 0, values)
    pieces = [piece for sentence in shown["sentences"] for piece in sentence["pieces"]]
    assert "".join(text for text, _ in pieces) == task.prompts[0].text
    assert [share for _, share in pieces if share is not None] == [v / 4 for v in values]
    assert pieces[-1] == ["b ", None]
    sums = [-2.5, 5.5]
    assert [sentence["share"] for sentence in shown["sentences"][:2]] == pytest.approx(
        [s / 5.5 for s in sums]
    )


def test_the_page_shows_answers_beside_prompts_and_runs_nothing(tmp_path):
    task = asked(prompts=("a b . " + SCRIPT + "a . ", "a . b . "), foils=["a ", "b "])
    found = vd.evaluate(task, ["occlusion", "random"], ["deletion"])
    page = write_evaluation(found, tmp_path / "page.html").read_text()
    assert "rather than <em>a </em>: log-odds" in page
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert len(re.findall(r'class="sentence', page)) >= 4


def test_the_page_names_the_callers_model_its_scale_and_what_off_means():
    task = asked(prompts=("a b . b a . ", "a . b . "), foils=["a ", "b "])
    found = vd.evaluate(task, ["occlusion", "random"], ["pixel_flipping"])
    assert curves(found)[0]["y_label"] == "log-odds of answer and foil"
    assert type(callers_module(task)) is CausalTransformer
    assert type(callers_module(vd.data.switch(task, vd.models.Heads()))) is CausalTransformer
    assert _removed(task) == "units are off: fill"
    assert _removed(vd.data.switch(task, vd.models.Heads())) == "units inside it are off"


def test_heads_are_laid_out_by_layer_and_head(tmp_path):
    task = known_language.induction_heads(6).task
    found = vd.evaluate(task, ["occlusion", "random"], ["deletion"])
    shown = gallery(task, found.explanations, {})
    assert shown["kind"] == "heads"
    mean = next(one for one in shown["means"] if one["explainer"] == "occlusion")
    assert mean["grid"][1][2] == 1.0
    assert mean["grid"][0][0] == 0.0
    page = write_evaluation(found, tmp_path / "page.html").read_text()
    assert "Mean over 6 samples" in page
    assert page.count('<table class="heads">') == 2 + 2 * len(shown["items"])


def test_other_units_are_not_heads():
    assert not of_heads(Space.units(2, None, ["conv1 channel 0", "conv1 channel 1"]))
    assert not of_heads(Space.units(2))
    ragged = Space.units(3, None, ["layer 0 head 0", "layer 1 head 0", "layer 1 head 1"])
    assert head_grid(ragged, [0.0, 2.0, -4.0])["grid"] == [[0.0, None], [0.5, -1.0]]


@pytest.mark.parametrize(("head", "asked"), [("generation", "answer"), ("regression", "output")])
def test_the_randomisation_of_a_task_without_classes_speaks_of_none(head, asked):
    for rival in (HERE[0], THERE[0]):
        test = Test("randomisation", rival, 0.9, 0.8, 0.95, 0.01, 24)
        assert f"(the same {asked})" in in_a_sentence(test, head)
        assert "class" not in in_a_sentence(test, head)
        assert "(each for the class it predicts)" in in_a_sentence(test)
