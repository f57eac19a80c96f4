"""A plan of one row per chunk is kept by everything: a model that takes one row at a time can be judged."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_lm import Words, small_lm
from veridical.errors import ModelError, NotApplicableError, VeridicalWarning
from veridical.explainers import registry as explainers
from veridical.metrics import Metric
from veridical.metrics import registry as metrics
from veridical.models.output_heads import ONE_ROW

ONE = vd.Plan(rows=1)


class OneRow(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) != 1:
            raise ValueError(f"one row, please, not {len(rows)}")
        outputs: Tensor = self.inner(rows)
        return outputs


def one_row(modality: str, plan: vd.Plan | None = ONE, **given: Any) -> vd.Task:
    """Three samples with object masks and train rows."""
    torch.manual_seed(0)
    if modality == "table":
        net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
        rows = torch.randn(3, 5)
        masks = torch.tensor([[1, 1, 0, 0, 0]]).bool().expand(3, -1)
    else:
        net = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
        )
        rows, masks = torch.rand(3, 1, 5, 5), torch.zeros(3, 5, 5).bool()
        masks[:, 1:3, 1:3] = True
    train = torch.cat([rows, rows + 0.1])
    return vd.Task(OneRow(net.eval()), rows, masks=masks, train=train, plan=plan, **given)


QUICK = {"draws": 5, "steps": 3, "runs": 3, "samples": 3, "masks": 4, "levels": 3, "repeats": 2}


def made(registry: Any, name: str) -> Any:
    known = getattr(registry.maker(name), "__dataclass_fields__", {})
    return registry.make(name, **{field: few for field, few in QUICK.items() if field in known})


@pytest.mark.parametrize("modality", ["table", "image"])
@pytest.mark.parametrize("name", list(explainers))
def test_explainers(name: str, modality: str) -> None:
    task, explainer = one_row(modality), made(explainers, name)
    if explainer.inapplicable_reason(task) is not None:
        pytest.skip("it does not apply")
    assert vd.explain(explainer, task).values.isfinite().all()


@pytest.mark.parametrize("modality", ["table", "image"])
@pytest.mark.parametrize("name", list(metrics))
def test_metrics(name: str, modality: str) -> None:
    task, metric = one_row(modality), made(metrics, name)
    if metric.inapplicable_reason(task) is not None:
        pytest.skip("it does not apply")
    subject = torch.randn(3, task.space.n_features) if isinstance(metric, Metric) else "gradient"
    if name.startswith("ffid"):
        with pytest.raises(NotApplicableError, match="fine-tuned: on a batch of 5 rows it raises ValueError"):
            vd.score(metric, task, subject)
        return
    scores = vd.score(metric, task, subject)
    assert torch.stack([scores.values.isfinite(), *scores.flags.values()]).any(0).all()


def test_targets_that_are_given_and_no_plan() -> None:
    with pytest.warns(VeridicalWarning, match=ONE_ROW):
        task = one_row("table", plan=None, targets=0)
    assert task.predictor.rows == 1
    for name in ("gradient", "occlusion", "integrated_gradients", "kernel_shap"):
        assert vd.explain(name, task).values.equal(vd.explain(name, one_row("table", targets=0)).values)


class NoGradient(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(rows)


SYSTEMS: dict[str, Callable[[vd.Task], Any]] = {
    "split": lambda task: vd.concepts.split(task).test().values,
    "expansion": lambda task: vd.concepts.split(task, "inner.0", first_order=True, read="mean").test().values,
    "concepts": lambda task: vd.concepts.compare(task, [vd.concepts.PCA(2)], seeds=1),
    "damage": lambda task: vd.meta.planted_damage(task, ["pixel_flipping"], progress=False),
    "assumptions": lambda task: vd.gef.assumptions(task, levels=2, draws=2, mask_steps=3, search_draws=2),
    "neuron": lambda task: vd.gef.at_neuron(task, "inner.0", 1, axis=1).outputs,
    "picture": lambda task: vd.gef.visualise(task, int(task.predictions[0]), steps=1, views=2),
    "standing": lambda task: vd.qge.standing(task, "pixel_flipping", "gradient", draws=4),
    "rankings": lambda task: vd.qge.sampled_study(task, rankings=4, draws=2, progress=False),
    "table": lambda task: vd.evaluate(task, "kernel_shap", "rfid_plus", repeats=2, progress=False),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems(name: str) -> None:
    assert SYSTEMS[name](one_row("image")) is not None


def test_what_a_model_raises_is_a_sentence_wherever_it_is_asked() -> None:
    task = one_row("table").with_plan(vd.Plan(rows=4))
    for name in ("gradient", "integrated_gradients", "occlusion"):
        with pytest.raises(ModelError, match=r"ValueError on \d rows .* not \d. If it takes fewer") as told:
            vd.explain(name, task)
        assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)  # as workers send it


def test_prompts_of_a_language_model() -> None:
    texts = ["Ann sings. Bob sings.", "Bob has a dog. Ann has a cat."]
    tokens = Words(*texts)
    model, asked = small_lm(tokens), []

    def count(_module: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        asked.append(len(given[0] if given else named["input_ids"]))

    model.register_forward_pre_hook(count, with_kwargs=True)
    task = vd.models.Generation(model, tokens, texts, answers=[" sings", " dog"], plan=ONE)
    vd.score("pixel_flipping", task, "gradient")
    vd.explain("occlusion", vd.data.switch(task, vd.models.Mlps()))
    assert set(asked) == {1}


@pytest.mark.extras
def test_a_method_of_captum_is_asked_in_parts() -> None:
    attribution = pytest.importorskip("captum.attr").IntegratedGradients
    one = vd.explain(attribution, one_row("table")).values
    torch.testing.assert_close(one, vd.explain("integrated_gradients", one_row("table"), steps=50).values)


@pytest.mark.parametrize(
    ("model", "rows", "words"),
    [
        (NoGradient(4, 3), 6, "no gradient"),
        (nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval(), 2, "batch of 1 rows"),
    ],
)
def test_models_that_no_batch_can_train(model: nn.Module, rows: int, words: str) -> None:
    task = vd.Task(model, torch.randn(1, 4), train=torch.randn(rows, 4))
    with pytest.raises(NotApplicableError, match=words):
        vd.score("ffid_minus", task, "random")
