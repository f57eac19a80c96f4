"""DeepLIFT and DeepLIFT SHAP: closed forms, completeness, captum, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import captum.attr as captum
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.small_nets import conv_net, draw, image_task, linear_task, seeded, series_task
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import DeepLift, DeepLiftShap, IntegratedGradients, LrpEpsilon
from veridical.models.predictor import Plan


def test_linear_model_has_a_closed_form() -> None:
    task, weights = linear_task()
    for baseline, start in ((0.0, 0.0), (0.5, 0.5), ("mean", task.train.mean(0))):
        found = DeepLift(baseline)(task)
        torch.testing.assert_close(found.values, (task.inputs - start) * weights, rtol=0, atol=1e-12)
        assert found.cost == vd.models.Cost(6, 5)  # the baseline is asked once a call, forward


def test_the_baseline_is_asked_once_however_the_samples_are_cut() -> None:
    for net in (nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))):
        task = vd.Task(seeded(net), draw(20, 4), plan=Plan(rows=8))
        found = DeepLift()(task)
        assert found.cost == vd.models.Cost(21, 20)
        whole = DeepLift()(task.with_plan(Plan(rows=32))).values
        torch.testing.assert_close(found.values, whole, rtol=0, atol=1e-12)


def test_a_rectifier_between_two_zeros_passes_nothing() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]]))
        net[2].weight.copy_(torch.tensor([[5.0, 1.0, 7.0], [0.0, 0.0, 0.0]]))
    # the first unit is 0 at input and baseline alike, the second rises, the third falls from 0
    x = torch.tensor([[2.0, 2.0, 3.0]], dtype=torch.float64)
    assert DeepLift()(vd.Task(net, x, targets=0)).values.tolist() == [[2.0, 0.0, 0.0]]
    # between 1 and -2 a third of the slope is left, between -1 and -2 none, between 1 and 2 all
    for z, z0, slope in ((1.0, -2.0, 1 / 3), (-2.0, 1.0, 1 / 3), (-1.0, -2.0, 0.0), (1.0, 2.0, 1.0)):
        one = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
        for layer in (one[0], one[2]):
            nn.init.ones_(layer.weight)
        task = vd.Task(one, torch.tensor([[z]], dtype=torch.float64), targets=0, head="regression")
        assert DeepLift(z0)(task).values.item() == pytest.approx(slope * (z - z0), abs=1e-12)


def change(task: vd.Task, baseline: float) -> Tensor:
    start = torch.full_like(task.inputs, baseline)
    with torch.no_grad():
        moved = task.model(task.inputs) - task.model(start)
    return moved.gather(1, task.targets[:, None])[:, 0]


def complete(task: vd.Task, maps: Tensor, baseline: float) -> bool:
    return torch.allclose(maps.sum(-1), change(task, baseline), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "task",
    [image_task(), image_task(conv_net(True)), image_task(conv_net(pool=nn.MaxPool2d)), series_task()],
    ids=["average", "in place", "maximum", "series with overlapping windows"],
)
def test_contributions_sum_to_the_change(task: vd.Task) -> None:
    for baseline in (0.0, -0.7):
        maps = DeepLift(baseline)(task).values
        assert complete(task, maps, baseline)
        assert not complete(task, -maps, baseline)
        assert not complete(task, maps, baseline + 0.5)
        coarse = IntegratedGradients(steps=2, baseline=baseline, rule="left")(task).values
        assert not complete(task, coarse, baseline)


def captums(task: vd.Task, baseline: float) -> Tensor:
    start = torch.full_like(task.inputs, baseline)
    x = task.inputs.clone().requires_grad_()
    return task.values(captum.DeepLift(task.model).attribute(x, start, target=task.targets).detach())


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
@pytest.mark.parametrize("baseline", [0.0, 0.4])
@pytest.mark.parametrize(
    "net",
    [
        conv_net(),
        nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 3)),
        nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4), nn.ReLU(), nn.Linear(4, 3)),
    ],
    ids=["average", "maximum", "maximum and linear"],
)
def test_agrees_with_captum(net: nn.Module, baseline: float) -> None:
    task = image_task(seeded(net))
    torch.testing.assert_close(DeepLift(baseline)(task).values, captums(task, baseline), rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
def test_activation_behind_max_pooling_is_rescaled_too() -> None:
    # the baseline wins every window: relu(-1) - relu(2) = -2 is what arrives, and -3 what came in
    net = nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(1, 2, bias=False)).double()
    with torch.no_grad():
        net[3].weight.copy_(torch.tensor([[1.0], [0.0]]))
    x = torch.tensor([[[[-1.0, -1.5], [-3.0, -2.0]]]], dtype=torch.float64)
    task = vd.Task(net, x, targets=0, plan=Plan(rows=8))
    assert DeepLift(2.0)(task).values.tolist() == [[-2.0, 0.0, 0.0, 0.0]]
    # captum passes the pooling by the activation's multiplier and loses completeness here
    assert captums(task, 2.0).sum() == pytest.approx(-3.0)


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
@pytest.mark.parametrize(
    "act", [nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.GELU, nn.SiLU, nn.Hardswish]
)
def test_other_activations_are_complete_and_agree_with_captum(act: type[nn.Module]) -> None:
    net = seeded(nn.Sequential(nn.Linear(5, 7), act(), nn.Linear(7, 6), act(), nn.Linear(6, 3)))
    task = vd.Task(net, draw(4, 5), plan=Plan(rows=64))
    assert complete(task, DeepLift(0.1)(task).values, 0.1)
    if act in (nn.GELU, nn.SiLU, nn.Hardswish):
        return  # captum passes over these
    start = torch.full_like(task.inputs, 0.1)
    peer = captum.DeepLift(net).attribute(task.inputs.clone().requires_grad_(), start, target=task.targets)
    torch.testing.assert_close(DeepLift(0.1)(task).values, peer.detach(), rtol=0, atol=1e-9)


def test_side_inputs_go_with_both_halves() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.head = nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.head(self.act(self.first(x) * scale[:, None]))

    net = seeded(Scaled())
    x, scale = draw(4, 4), draw(4, seed=3).abs() + 0.5
    task = vd.Task(net, x, side=(scale,), plan=Plan(rows=64))
    with torch.no_grad():
        moved = (net(x, scale) - net(torch.zeros_like(x), scale)).gather(1, task.targets[:, None])[:, 0]
    torch.testing.assert_close(DeepLift()(task).values.sum(-1), moved, rtol=0, atol=1e-9)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x) * self.second(x))


class Quotient(Product):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x) / (self.second(x).exp() + 1.0) + 2.0 / (self.second(x).square() + 1.0))


class Recurring(nn.Module):
    def __init__(self, kind: type[nn.Module], **more: object) -> None:
        super().__init__()
        self.cell = kind(2, 3, batch_first=True, **more)
        self.head = nn.Linear(6 if more.get("bidirectional") else 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.unflatten(1, (2, 2)))[0][:, -1])


BLOCKS = [
    Product(),
    Quotient(),
    nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
    nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.RMSNorm(3), nn.Flatten(), nn.Linear(6, 3)),
    nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6, 3)),
    nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2),
                  nn.Flatten(), nn.Linear(4, 3)),
    nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)),
    nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3)),
    nn.Sequential(nn.Unflatten(1, (2, 2)), nn.ConvTranspose1d(2, 3, 2), nn.ReLU(),
                  nn.Flatten(), nn.Linear(9, 3)),
    Recurring(nn.LSTM),
    Recurring(nn.GRU),
    Recurring(nn.RNN, nonlinearity="relu"),
    Recurring(nn.LSTM, num_layers=2, bidirectional=True),
]  # fmt: skip


@pytest.mark.parametrize("net", BLOCKS, ids=lambda net: type(net).__name__)
def test_norms_products_and_recurrence_lose_no_difference(net: nn.Module) -> None:
    task = vd.Task(seeded(net), draw(4, 4), plan=Plan(rows=64))
    for baseline in (0.3, -1.0):
        maps = DeepLift(baseline)(task).values
        assert complete(task, maps, baseline)
        assert not complete(task, maps, baseline + 0.5)
    # not by chance: a gradient is not complete
    assert not complete(task, vd.explain("input_x_gradient", task).values, 0.0)


def test_a_product_gives_each_factor_the_mean_of_the_other() -> None:
    class Times(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x[:, :1] * x[:, 1:]).expand(-1, 2)

    x, x0 = torch.tensor([[3.0, 5.0]], dtype=torch.float64), 1.0
    found = DeepLift(x0)(vd.Task(Times(), x, targets=0)).values
    assert found.tolist() == [[2.0 * 3.0, 4.0 * 2.0]]  # (3 - 1)(5 + 1)/2 and (5 - 1)(3 + 1)/2: Shapley values


def test_a_maximum_along_an_axis_goes_to_the_winners() -> None:
    class Largest(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.amax(1), x.max(dim=1).values], 1)

    x = torch.tensor([[3.0, 5.0], [4.0, -2.0]], dtype=torch.float64)
    for target in (0, 1):
        task = vd.Task(Largest(), x, targets=target, plan=Plan(rows=8))
        assert DeepLift(1.0)(task).values.tolist() == [[0.0, 4.0], [3.0, 0.0]]


def test_a_way_chosen_by_values_is_refused() -> None:
    class Turning(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x[0, 0] > 0 else -x

    with pytest.raises(NotApplicableError, match="chooses its way"):
        DeepLift()(vd.Task(Turning(), draw(3, 4)))


# --- DeepLIFT SHAP ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
def test_deeplift_shap_agrees_with_captum() -> None:
    task = image_task(conv_net(), train=draw(4, 2, 8, 8, seed=9))
    peer = captum.DeepLiftShap(task.model)
    theirs = peer.attribute(task.inputs.clone().requires_grad_(), task.train, target=task.targets)
    torch.testing.assert_close(DeepLiftShap()(task).values, task.values(theirs.detach()), rtol=0, atol=1e-9)


def test_more_reference_rows_than_baselines_are_drawn_by_the_key() -> None:
    task = image_task(train=draw(40, 2, 8, 8, seed=9))
    few = DeepLiftShap(baselines=4)
    assert few._draws_on(task)
    assert not DeepLiftShap(baselines=40)._draws_on(task)
    a, b, c = (few(task, vd.core.Key(seed)).values for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)
    chunked = few(task.with_plan(Plan(rows=8))).values
    torch.testing.assert_close(chunked, a, rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="baselines is a whole number from 1"):
        DeepLiftShap(baselines=0)


def test_wrong_baselines_are_refused() -> None:
    with pytest.raises(InputError, match="or one of 'mean'"):
        DeepLift("median")
    task, _ = linear_task(train=0)
    with pytest.raises(NotApplicableError, match="reference rows"):
        DeepLift("mean")(task)


class Attends(nn.Module):
    """Attention whose scores lie as far from those of the baseline as `steep` says."""

    def __init__(self, steep: float) -> None:
        super().__init__()
        self.steep, self.query, self.head = steep, nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.steep * self.query(x) @ x.transpose(1, 2)
        return self.head((torch.softmax(scores, -1) @ x).mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steep", [0.0, 1.0, 100.0, 3000.0])
def test_a_softmax_far_from_its_baseline_stays_finite_and_complete(steep: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    task = vd.Task(Attends(steep).to(dtype), torch.randn(5, 6, 4).to(dtype))
    complete = DeepLift()(task).provenance["completeness"]
    assert complete["largest_residual"] < (1e-3 if dtype == torch.float32 else 1e-8)


class OfTwo(nn.Module):
    """An operation whose setting follows the input too, given by name."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.join, self.first, self.second = join, nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.first(x), self.second(x))


@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: torch.clamp(a, min=b),
        lambda a, b: F.linear(a, weight=b[:3, :3]),
        lambda a, b: F.batch_norm(a, torch.zeros(3).double(), torch.ones(3).double(), weight=b[0]),
    ],
    ids=["clamp", "linear", "batch norm"],
)
def test_a_setting_that_follows_the_input_is_refused_by_name_too(
    join: Callable[[Tensor, Tensor], Tensor],
) -> None:
    task = vd.Task(seeded(OfTwo(join)), draw(4, 4), targets=0)
    for explainer in (DeepLift(), LrpEpsilon()):
        with pytest.raises(NotApplicableError, match="has no rule for"):
            explainer(task)


class Reused(nn.Module):
    """One ReLU, in place, that runs three times; maximum pooling, a residual sum, a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1, bias=False)
        self.norm, self.relu, self.head = nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(8, 3)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.first(x))
        g = self.norm(self.second(h))
        g += h
        return self.head(F.max_pool1d(self.relu(g), 4, 4).flatten(1))


class DeepliftShapAttending(nn.Module):
    """Attention between eight places, with places first or rows first, a norm and a gate."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.enter, self.attention = nn.Linear(2, 6), nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.transpose(1, 2))
        h = h if self.attention.batch_first else h.transpose(0, 1)
        h = self.norm(h + self.attention(h, h, h)[0])
        return self.head((h * torch.sigmoid(h)).amax(1 if self.attention.batch_first else 0))


class DeepliftShapRecurring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.transpose(1, 2))[0][:, -1])


class Windows(nn.Module):
    """The windows of all rows lie along the first axis, those of a row together, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x.unflatten(2, (2, 4)).flatten(0, 2)))
        return self.head(h.reshape(len(x), -1))


class Scattered(nn.Module):
    """The places of all rows lie along the first axis, those of a row apart."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x.permute(2, 0, 1).flatten(0, 1)))
        return self.head(h.unflatten(0, (8, -1)).sum(0))


NETS = {
    "reused": Reused,
    "attention": lambda: DeepliftShapAttending(True),
    "places first": lambda: DeepliftShapAttending(False),
    "lstm": DeepliftShapRecurring,
    "windows": Windows,
}


def one_by_one(task: vd.Task) -> Tensor:
    """The mean of DeepLIFT over reference rows, each in a call of its own."""
    assert task.train is not None
    single = [task.changed(train=row) for row in task.train.split(1)]
    return torch.stack([DeepLift("mean")(one).values for one in single]).mean(0)


@pytest.mark.parametrize(
    ("samples", "baselines", "rows"), [(5, 3, 2), (5, 3, 64), (3, 3, 64), (1, 4, 64), (4, 1, 2), (2, 2, 2)]
)
@pytest.mark.parametrize("name", NETS)
def test_each_call_is_the_mean_over_single_baselines(
    name: str, samples: int, baselines: int, rows: int
) -> None:
    train = draw(baselines, 2, 8, seed=9)
    task = vd.Task(seeded(NETS[name]()), draw(samples, 2, 8), train=train, plan=Plan(rows=rows))
    expected, explainer = one_by_one(task), DeepLiftShap()
    found = explainer(task)
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-10)
    assert found.cost == explainer._declared(task) == vd.models.Cost(samples + baselines, samples * baselines)
    assert found.provenance["completeness"]["largest_residual"] < 1e-7
    shuffled = task.changed(train=train.flip(0))
    torch.testing.assert_close(explainer(shuffled).values, expected, rtol=0, atol=1e-10)
    if baselines > 1:
        fewer = explainer(task.changed(train=train[:-1])).values
        assert not torch.allclose(fewer, expected, atol=1e-6)


class Beside(nn.Module):
    """A row times what it is given beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * torch.relu(x[:, :1] + beside[:, None]))


@pytest.mark.parametrize("rows", [2, 64])
def test_samples_with_side_inputs_run_once_too(rows: int) -> None:
    side = (torch.tensor([0.5, 1.0, -2.0, 3.0]).double(),)
    task = vd.Task(seeded(Beside()), draw(4, 5), side=side, train=draw(3, 5, seed=9), plan=Plan(rows=rows))
    expected, explainer = one_by_one(task), DeepLiftShap()
    found = explainer(task)
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-10)
    assert found.cost == explainer._declared(task) == vd.models.Cost(4 + 3 * 4, 3 * 4)


@pytest.mark.parametrize("explainer", [DeepLift("mean"), DeepLiftShap()], ids=lambda each: each.name)
def test_rows_whose_things_are_not_together_are_refused(explainer: vd.Explainer) -> None:
    task = vd.Task(seeded(Scattered()), draw(4, 2, 8), train=draw(3, 2, 8, seed=9))
    with pytest.raises(NotApplicableError, match="'relu': several things of each row"):
        explainer(task)
