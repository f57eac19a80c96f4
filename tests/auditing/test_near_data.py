"""Near data: harmless models agree with themselves, models that lie do not, others are not asked."""

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import nn

import veridical as vd
from replications.verdict.scaffolds import Scaffold
from veridical.auditing import near_data

PLANE = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    3, 8, generator=torch.Generator().manual_seed(1)
)
PLANE = PLANE + 0.1 * torch.randn(PLANE.shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("detector", "fill"),
    [
        ("nearest", "zero"),
        ("nearest", "mean"),
        ("nearest", "uniform_noise"),
        ("nearest", None),
        ("forest", None),
    ],
)
def test_a_model_that_lies_off_its_data_is_found(detector, fill):
    task = vd.Task(Scaffold(PLANE, [0], [1, 2], detector), PLANE[:32], train=PLANE, fill=fill)
    found = near_data.check(task)
    assert found.asked
    assert found.about_data is False
    assert found.agreement < 0.3
    assert "another rule" in found.sentence


@pytest.mark.parametrize("detector", ["nearest", "forest"])
@pytest.mark.parametrize("discrete", [False, True])
def test_a_detector_that_takes_some_masked_rows_for_data_is_found(detector, discrete):
    """A forest lets many masked rows of independent columns pass; neighbours share small numbers."""
    rows = torch.randn(400, 12, generator=torch.Generator().manual_seed(3))
    if discrete:
        rows[:, :6] = (rows[:, :6] > 0).float() + (rows[:, :6] > 1).float()
    task = vd.Task(Scaffold(rows, [0], [5, 8], detector), rows[:32], train=rows)
    found = near_data.check(task)
    assert found.about_data is False
    assert found.high < near_data.LINE


@pytest.mark.parametrize(
    "name", ["breast_cancer", "wine_logistic", "diabetes", "digits", "known/interactions"]
)
def test_harmless_models_are_not(name):
    task = vd.tasks.load(name)[:24]
    found = near_data.check(task, seed=1)
    assert found.about_data
    assert found.low > 0.2
    assert found.low <= found.agreement <= found.high
    assert found.step == 0.2
    assert found.samples == 24
    assert "about the data" in found.sentence


@pytest.mark.parametrize("columns", [6, 30])
def test_what_answers_in_steps_is_told_from_what_lies(columns):
    """Trees answer few small moves; a model behind a function shows no gradient either."""
    rows, labels = load_breast_cancer(return_X_y=True)
    rows = rows[:, :columns]
    trees = HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(rows[:300], labels[:300])
    harmless = near_data.check(vd.Task(trees, rows[300:324], train=rows[:300]))
    assert harmless.step == 1
    assert harmless.about_data
    free = torch.randn(400, 12, generator=torch.Generator().manual_seed(3))
    lying = Scaffold(free, [0], [5, 8], "forest")

    def answer(x):
        with torch.no_grad():
            return lying(torch.as_tensor(x).float()).numpy()

    found = near_data.check(vd.Task(answer, free[:24].numpy(), train=free.numpy()))
    assert found.step == 1
    assert found.about_data is False


@pytest.mark.parametrize("fill", ["zero", "marginal", "mean", "uniform_noise"])
def test_effects_of_a_linear_model_agree_exactly(fill):
    model = nn.Linear(8, 2).double()
    task = vd.Task(model, PLANE[:24].double(), train=PLANE.double(), fill=fill)
    found = near_data.check(task)
    assert found.agreement == pytest.approx(1.0, abs=1e-6)


def test_rows_are_counted_and_the_seed_decides():
    task = vd.tasks.load("known/linear")[:24]
    before = task.predictor.meter.cost
    found = near_data.check(task, seed=4)
    assert found.rows == (task.predictor.meter.cost - before).forward > 0
    # 24 samples, 12 features: 8 neighbours, 16 sets with and without each feature
    assert found.rows <= 24 * (8 * 12 + 16 * 13) + 24
    assert near_data.check(task, seed=4) == found
    assert near_data.check(task, seed=5).agreement != found.agreement


def test_who_is_not_asked():
    def reason(task):
        found = near_data.check(task)
        assert not found.asked
        assert found.about_data is None
        assert found.why_not in found.sentence
        return found.why_not

    rows = PLANE[:30]
    assert "reference rows" in reason(vd.Task(nn.Linear(8, 2), rows))
    assert "moves" in reason(vd.Task(lambda x: (x[:, :2] > 99).double(), rows.double(), train=PLANE.double()))
    two = PLANE[:, :2].double()
    assert "too few features" in reason(vd.Task(nn.Linear(2, 2).double(), two[:30], train=two))
    assert "series" in reason(vd.testing.tiny_task("series"))
    assert "near a text" in reason(vd.tasks.load("reviews")[:30])  # and not: pass token ids as numbers


@pytest.fixture(scope="module")
def audited():
    task = vd.Task(Scaffold(PLANE, [0], [1, 2]), PLANE[:48], train=PLANE)
    return vd.audit(task, explainers=["gradient", "lime", "occlusion"], effort="glance", concepts=())


def test_an_audit_asks_near_the_data_where_masks_say_nothing_of_it(audited):
    verdict = audited.verdict
    assert verdict["gradient"].status == "provisional"
    assert not verdict["lime"].trusted
    assert not verdict["occlusion"].trusted
    assert verdict.leading == ("gradient",)
    states = {question.criterion: question.state for question in verdict["gradient"].questions}
    assert states["removal"] == "not asked"
    assert states["near"] == "shown"
    assert {test.rival for test in verdict["gradient"].tests if test.criterion == "near"} == {"random"}
    assert not any("size of the input" in test.rival for test in verdict["gradient"].tests)
    assert [role.metric for role in verdict.deciding] == ["near_removal"]
    text = " ".join(audited.sentences)
    assert "another rule" in text
    assert "when features go towards near rows it beats noise" in text


def test_nothing_that_reads_masks_refutes_what_is_true_on_the_data(audited):
    """Measured effects are those of masked rows: they would say that the gradient hides the other rule."""
    place = audited.verdict["gradient"]
    assert not any("hid" in veto.name for veto in place.vetoes)
    assert place.grade is None
    assert "answers inputs that do not occur by another rule" in audited.skipped_metrics["rfid_plus"]


def test_an_audit_says_that_removal_is_about_the_data(audited):
    found = vd.audit(vd.tasks.load("wine_logistic"), explainers=["occlusion"], effort="glance", concepts=())
    assert "Removal is about the data" in " ".join(found.sentences)
    assert found.verdict["occlusion"].questions[0].criterion == "removal"
