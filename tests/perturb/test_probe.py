"""The one loop: it asks exactly what a naive loop asks, in pieces that stay within the plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import veridical as vd
from tests.reference import probe as reference
from tests.reference.small_models import Convolution, Text, mlp
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, ShapeError
from veridical.functional import round_to_grid
from veridical.models.predictor import Plan
from veridical.perturb import fills
from veridical.perturb.fills import NoisyLinear
from veridical.perturb.probe import blocks, probe
from veridical.perturb.rules import Given, RandomSubsets, RankThreshold, step_counts

KEY = Key(4) / "probe"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def image_task(**changes: object) -> vd.Task:
    torch.manual_seed(0)
    model = Convolution(2, 4).double().eval()
    x = torch.randn(5, 2, 4, 4, dtype=torch.float64, generator=generator())
    train = torch.randn(9, 2, 4, 4, dtype=torch.float64, generator=generator(1))
    return vd.Task(model, x, train=train, **{"plan": Plan(rows=16), **changes})


def random_masks(task: vd.Task, count: int = 6) -> Tensor:
    return torch.rand(len(task), count, task.space.n_features, generator=generator(2)) < 0.4


def agrees(task: vd.Task, masks: Tensor, fill: fills.Fill, response: str = "probability") -> None:
    got = probe(task, Given(masks), response=response, fill=fill, key=KEY)
    expected = reference.responses(task, masks, fill, KEY, response)
    torch.testing.assert_close(got, expected, atol=1e-8, rtol=1e-8)


# --- equal to a naive loop -------------------------------------------------------------------------------

FILLS = [
    fills.Zero(),
    fills.Constant(0.7),
    fills.Mean(),
    fills.Marginal(3),
    fills.UniformNoise(),
    fills.Blur(1.0),
    NoisyLinear(),
    fills.Custom(lambda x, removed: torch.where(removed, -x, x)),
]


@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: fill.name)
@pytest.mark.parametrize("response", ["probability", "logit"])
def test_every_fill_equals_the_naive_loop(fill: fills.Fill, response: str) -> None:
    task = image_task()
    agrees(task, random_masks(task), fill, response)


SEGMENTS = torch.randint(-1, 5, (5, 4, 4), generator=generator(3))
SEGMENTS[:, 0, :4] = torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    "space",
    [
        Space.pixels((2, 4, 4)),
        Space.patches((2, 4, 4), 3),
        Space.superpixels((2, 4, 4), torch.where(SEGMENTS[0] == 4, -1, SEGMENTS[0])),
        Space.superpixels((2, 4, 4), SEGMENTS),
        Space.elements((2, 4, 4)),
    ],
    ids=["pixel", "patch", "superpixel", "superpixel a sample", "element"],
)
@pytest.mark.parametrize("fill", [fills.Mean(), fills.Marginal(2), NoisyLinear()], ids=lambda f: f.name)
def test_every_space_equals_the_naive_loop(space: Space, fill: fills.Fill) -> None:
    task = image_task(space=space)
    agrees(task, random_masks(task), fill)


@pytest.mark.parametrize("named", [True, False])
def test_tokens_with_side_inputs_and_padding_equal_the_naive_loop(named: bool) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(1, 20, (5, 7))
    kept = torch.arange(7)[None] < torch.tensor([7, 5, 3, 2, 6])[:, None]
    task = vd.Task(
        Text().double(),
        tokens,
        side={"mask": kept} if named else (kept,),
        space=Space.tokens(7, kept),
        plan=Plan(rows=8),
    )
    agrees(task, random_masks(task), fills.Token(0))
    # whatever a rule says, padding stays
    everything = torch.ones(5, 1, 7, dtype=torch.bool)
    agrees(task, everything, fills.Token(0))


@pytest.mark.parametrize("rows", [8, 16, 64])
def test_rules_equal_their_masks_written_out(rows: int) -> None:
    task = image_task(plan=Plan(rows=rows))
    ranks = torch.rand(5, 16, generator=generator(4)).argsort(-1).argsort(-1)
    counts = torch.tensor([0, 1, 5, 9, 16])
    written = ranks[:, None] < counts[:, None]
    got = probe(task, RankThreshold(ranks, counts), key=KEY)
    torch.testing.assert_close(got, probe(task, Given(written), key=KEY), atol=1e-9, rtol=0)
    own_counts = torch.stack([counts.roll(i) for i in range(5)])
    own = probe(task, RankThreshold(ranks, own_counts), key=KEY)
    expected = probe(task, Given(ranks[:, None] < own_counts[..., None]), key=KEY)
    torch.testing.assert_close(own, expected, atol=1e-9, rtol=0)

    sizes = torch.tensor([2, 7])
    subsets = RandomSubsets(KEY, task.draw_ids, 16, 9, sizes)
    orders = keyed.random_keys(KEY, task.draw_ids, torch.arange(9), 16).argsort(-1).argsort(-1)
    written = (orders[:, :, None] < sizes[:, None]).flatten(1, 2)
    assert subsets.count == written.shape[1]
    assert torch.equal(subsets.removed(slice(0, 5), slice(0, 18)), written)
    assert torch.equal(subsets.removed(slice(1, 3), slice(5, 12)), written[1:3, 5:12])
    got = probe(task, subsets, key=KEY)
    torch.testing.assert_close(got, probe(task, Given(written), key=KEY), atol=1e-9, rtol=0)


def test_all_outputs_and_the_clean_response() -> None:
    task = image_task()
    masks = random_masks(task)
    everything = probe(task, Given(masks), key=KEY, all_outputs=True, with_clean=True, response="logit")
    assert everything.shape == (5, 7, 3)
    torch.testing.assert_close(everything[:, 0], task.outputs)
    own = probe(task, Given(masks), key=KEY, with_clean=True, response="logit")
    target = task.targets[:, None, None].expand(5, 7, 1)
    torch.testing.assert_close(own, everything.gather(-1, target)[..., 0], atol=1e-8, rtol=0)


# --- ties and rounding -----------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Its last bits depend on how many rows it is asked at once, as those of a real model do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(16, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        jitter = 3e-7 * torch.sin(torch.arange(len(x)) * 1.7 + self.calls)
        return self.inner(x) * (1 + jitter[:, None])


def half_black(count: int = 6) -> Tensor:
    x = torch.randn(count, 16, generator=generator(6))
    return torch.where(torch.rand(count, 16, generator=generator(7)) < 0.5, 0.0, x)


@pytest.mark.parametrize("fill", [fills.Zero(), fills.Marginal(3)], ids=lambda f: f.name)
def test_steps_that_change_nothing_tie_by_construction(fill: fills.Fill) -> None:
    x = half_black()
    train = x.clone()
    if isinstance(fill, fills.Marginal):
        # columns that have one value only: whichever row is drawn, nothing changes
        x[:, 8:] = train[:, 8:] = 0.0
    task = vd.Task(Noisy(), x, fill=fill, train=train, plan=Plan(rows=8))
    black = (x == 0) if not isinstance(fill, fills.Marginal) else (torch.arange(16) >= 8).expand(6, 16)
    ranks = torch.rand(6, 16, generator=generator(8)).argsort(-1).argsort(-1)
    counts = torch.arange(1, 17)
    curve = probe(task, RankThreshold(ranks, counts), key=KEY, with_clean=True)
    removed_at = black.gather(-1, ranks.argsort(-1))
    assert bool(removed_at.any())
    steps = curve.diff(dim=-1) == 0
    assert bool(steps[removed_at].all())
    single = torch.eye(16, dtype=torch.bool)
    alone = probe(task, Given(single), key=KEY, with_clean=True)
    assert bool((alone[:, 1:] == alone[:, :1])[black].all())
    assert not bool((alone[:, 1:] == alone[:, :1])[~black].all())


def test_responses_lie_on_the_grid() -> None:
    task = image_task()
    got = probe(task, Given(random_masks(task)), key=KEY, with_clean=True)
    assert torch.equal(got, round_to_grid(got, like=torch.float64))
    single = vd.Task(task.model.float(), task.inputs.float())
    coarse = probe(single, Given(random_masks(task)), key=KEY, with_clean=True)
    assert torch.equal(coarse, round_to_grid(coarse, like=torch.float32))


# --- blocks ----------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 70))
def test_blocks_cover_every_cell_exactly_once_within_the_plan(samples: int, masks: int, rows: int) -> None:
    seen = torch.zeros(samples, masks, dtype=torch.int64)
    for down, across in blocks(samples, masks, rows):
        cells = seen[down, across]
        assert 0 < cells.numel() <= rows
        seen[down, across] += 1
    assert bool((seen == 1).all())


MEASURE = """
import resource, sys, torch
import veridical as vd
from veridical.models.predictor import Plan
torch.set_num_threads(1)

class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(784, 10)
    def forward(self, x):
        return self.head(x.flatten(1))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

budget = 16
x = torch.rand(64, 1, 28, 28)
maps = torch.rand(64, 784).argsort(-1).float()  # no ties
task = vd.Task(Flat().eval(), x, plan=Plan(budget_mib=budget))
few = task[:1]
vd.score("pixel_flipping", few, maps[:1], per_step=300)
before = peak()
scores = vd.score("pixel_flipping", task, maps)
assert scores.cost.forward == 64 * 784
print(task.predictor.rows, peak() - before)
"""


def test_memory_stays_within_twice_the_chunk_budget() -> None:
    """64 samples x 784 masks of MNIST's size would be 150 MiB of rows at once."""
    env = {"PYTHONPATH": str(Path(vd.__file__).parents[1]), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin"}
    # glibc would keep freed blocks; have it give them back, so that the peak is what was held at once
    env["MALLOC_MMAP_THRESHOLD_"] = "65536"
    run = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, env=env, check=False
    )
    assert run.returncode == 0, run.stderr
    rows, grown = run.stdout.split()
    assert int(rows) >= 1024
    assert float(grown) < 2 * 16


# --- small parts -----------------------------------------------------------------------------------------


def test_step_counts_end_with_no_feature_left() -> None:
    task = image_task()
    assert step_counts(task, None).tolist() == list(range(1, 17))
    assert step_counts(task, 4).tolist() == [4, 8, 12, 16]
    assert step_counts(task, 3).tolist() == [5, 10, 16]
    assert step_counts(task, None, per_step=5).tolist() == [5, 10, 15, 16]
    short = task.with_space(Space.superpixels((2, 4, 4), SEGMENTS.clamp(max=3)))
    counts = step_counts(short, None)
    assert bool((counts[:, -1] == short.space.counts(5)).all())
    assert bool((step_counts(short, 2)[:, -1] == short.space.counts(5)).all())


def test_masks_of_another_size_are_refused() -> None:
    task = image_task()
    with pytest.raises(ShapeError, match="16 pixel features"):
        probe(task, Given(torch.zeros(5, 3, 9, dtype=torch.bool)))
    with pytest.raises(InputError, match="makes no masks"):
        probe(task, Given(torch.zeros(5, 0, 16, dtype=torch.bool)))


def test_an_explanation_of_other_features_or_samples_is_refused() -> None:
    task = image_task()
    patches = task.with_space(Space.patches((2, 4, 4), 2))
    explanation = vd.explain("gradient", task)
    assert explanation.matching(task) is explanation
    with pytest.raises(
        ShapeError, match=r"16 pixel features, the task 5 samples x 4 patch features.*space.pool"
    ):
        explanation.matching(patches)
    with pytest.raises(ShapeError, match="5 samples x 16 pixel features, the task 2 samples"):
        explanation.matching(task[:2])
    with pytest.raises(InputError, match="ids are not the task's"):
        explanation.matching(task[[1, 0, 2, 3, 4]])
    assert explanation.take(torch.tensor([1, 0])).matching(task[[1, 0]]).ids.tolist() == [1, 0]
