"""Random calls of the public verbs, from a seed: each ends in a right answer, a flag, or a VeridicalError.

Some are made again under another plan, some in another process and order: the numbers agree.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import random
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import veridical as vd
from tests.fuzz import agreement, systems
from veridical.auditing.result import Audit
from veridical.errors import VeridicalError, visible
from veridical.explainers.base import registry as explainer_registry
from veridical.metrics.base import registry as metric_registry
from veridical.study.study_file import read_study

SECONDS = 20
ODD: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 1.5, 0.5, -0.5, 1e-12, 1e300, math.nan, math.inf, -math.inf),
    *(2**31, 2**63, 2**70, True, False, None, "", "a", "mean", "zero", "last", "cuda:99", b"x"),
    *([], [1], [None], (0.1, 0.2), (math.nan,), {}, {"a": 1}, object(), len, np.float32(0.25), np.int8(3)),
    *(torch.ones(2), torch.tensor(3), torch.zeros(0), np.ones(3)),
)
MODEST = tuple(v for v in ODD if not (isinstance(v, int) and abs(v) > 100) and v is not len)
"""Values to compute with: a billion draws are a wish, and a user's function may raise what it likes."""
TOO_LONG = {"fast_gef", "gef", "sufficiency_necessity"}
"""Methods that take long by nature; their settings are tried, their work is not."""


class Hang(BaseException):
    """A call did not come back."""


@dataclass
class Tally:
    """What became of the calls; `wrong` are those that broke the promise."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    """What each call answered, in a word."""

    def attempt(
        self, what: str, call: Callable[[], Any], problem_of: Callable[[Any], str | None] | None = None
    ) -> Any:
        """Make one call, and give its answer, or the error it ended in."""
        problem, answer = None, None
        try:
            with warnings.catch_warnings(), deadline(SECONDS):
                warnings.simplefilter("ignore")
                answer = call()
                problem = (problem_of or broken)(answer)
            outcome = "answer" if problem is None else "silent"
        except VeridicalError as error:
            outcome, answer = "refused", error
        except Hang:
            outcome, problem = "hang", f"did not come back in {SECONDS} s"
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            outcome, answer = "raw", error
            problem = f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {str(error)[:120]}"
        self.outcomes[outcome] += 1
        if problem is not None:
            self.wrong.append(f"{what}: {problem}")
        return answer


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang

    # seconds of work, not of waiting for a busy machine; again and again, since a destructor swallows them
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


PLANS = (vd.Plan(rows=64), vd.Plan(rows=1), vd.Plan(rows=2), vd.Plan(rows=8), vd.Plan())
"""The first is that of every call; the others are met by one call in `TWICE`."""
TWICE = 4


def run(calls: int, seed: int, step: int = 1) -> Tally:
    """Make these calls; the n-th of a seed is always the same, whatever was called before.

    With a step below 0 every so manieth is made, the last one first, and none again under another plan.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory() as cache, environment("VERIDICAL_CACHE", cache):
        for number in range(calls)[::step]:
            one(seed, number, tally, agree=step > 0)
    return tally


def one(seed: int, number: int, tally: Tally, agree: bool = True) -> None:
    """The n-th call of a seed, and for one in `TWICE` the same under another plan."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    what, drawn = f"{seed}/{number} {kind}", systems.Draw()
    drawn.odd = MODEST

    def call(plan: vd.Plan) -> Any:
        torch.manual_seed(number)
        drawn.seed(f"{seed}/{number}/{kind}")
        drawn.plan = plan
        return KINDS[kind][0](drawn)

    answer = tally.attempt(what, lambda: call(PLANS[0]))
    tally.digests[str(number)] = agreement.digest(answer)
    if agree and kind in PLANNED and chance.random() * TWICE < 1:
        other = Tally()
        again = other.attempt(what, lambda: call(chance.choice(PLANS[1:])))
        tally.outcomes["under another plan"] += 1
        apart = agreement.disagreement(answer, again, drawn.precision)
        tally.wrong += [f"{line} (under another plan)" for line in other.wrong]
        if apart is not None:
            tally.outcomes["disagrees"] += 1
            tally.wrong.append(f"{what}: disagrees: {apart[:300]}")


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def broken(result: Any) -> str | None:
    """Why an answer is not one: a number that is none, and nothing that says so."""
    if isinstance(result, list | tuple | dict):
        inner = result.values() if isinstance(result, dict) else result
        return next((found for each in inner if (found := broken(each)) is not None), None)
    if isinstance(result, vd.Scores):
        fine = torch.stack([result.values.isfinite(), *result.flags.values()]).any(0)
        if not bool(fine.all()):
            return f"{result.metric}: a value is {result.values.tolist()} without a flag"
    if isinstance(result, vd.Explanation):
        rows = result.values.cpu()
        absent = rows.isnan().all(-1)
        if not bool((rows.isfinite().all(-1) | absent).all()):
            return f"{result.explainer}: a map is neither finite nor absent"
    if isinstance(result, vd.Evaluation | Audit):
        return broken(list((result.evaluation if isinstance(result, Audit) else result).scores.values()))
    if isinstance(result, str) and visible(result) != result:
        return f"a text for a terminal holds a control character: {result!r}"
    return None


# --- what is called ---------------------------------------------------------------------------------------


class Any2D(nn.Module):
    """A small network that takes whatever dtype it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x.to(self.inner[0].weight.dtype).flatten(1))
        return made


class Pictures(nn.Module):
    """Every pixel has a weight of its own, so that no two features tie but for rounding."""

    def __init__(self, side: int = 6) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2 * side * side, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.conv(x.to(self.head.weight.dtype)).relu().flatten(1))
        return made


def rows(chance: systems.Draw, *shape: int) -> Tensor:
    """Inputs of some dtype, sometimes with a value no model should see."""
    x = torch.randn(*shape) * chance.choice([1.0, 1.0, 1.0, 0.0, 1e-30, 1e6, 1e30])
    if chance.random() < 0.02 and x.numel():
        x.view(-1)[chance.randrange(x.numel())] = chance.choice([math.nan, math.inf, -math.inf])
    dtypes = [torch.float32] * 4 + [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
    dtype = chance.choice([*dtypes, torch.bool])
    return x.nan_to_num(0, 0, 0).clamp(-50, 50).to(dtype) if not dtype.is_floating_point else x.to(dtype)


def tasks(chance: systems.Draw) -> vd.Task:
    count = chance.choice([1, 2, 3, 3, 3, 5])
    picture = chance.random() < 0.4
    side, width = chance.choice([1, 4, 6]), 0 if chance.random() < 0.02 else chance.choice([1, 2, 4, 4, 4, 6])
    shape = (1, side, side) if picture else (width,)
    x = rows(chance, count, *shape)
    given: dict[str, Any] = {}
    if chance.random() < 0.6:
        given["train"] = (x.repeat(3, *[1] * len(shape)), torch.arange(3 * count) % 3)
    if picture and chance.random() < 0.5:
        given["masks"] = torch.rand(count, side, side) < chance.choice([0.0, 0.5, 1.0])
    model: nn.Module = Pictures(side) if picture else Any2D(width)
    if chance.random() < 0.5:
        model = model.double()
    else:
        chance.precision = torch.float32
    given = {"plan": chance.plan, **given, **options(chance, 0.04)}
    plan = given["plan"]
    kept = systems.kept_to(plan if isinstance(plan, vd.Plan) else None, model.eval())
    return vd.Task(kept, x, **given)


OPTIONS = "targets ids labels fill train head output masks space side name plan".split()


def options(chance: systems.Draw, often: float) -> dict[str, Any]:
    return {name: chance.choice(MODEST) for name in OPTIONS if chance.random() < often * 0.3}


def settings(chance: systems.Draw, maker: Any, pool: tuple[Any, ...], often: float) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(maker) if f.init] if dataclasses.is_dataclass(maker) else []
    return {name: chance.choice(pool) for name in names if chance.random() < often}


def make(chance: systems.Draw) -> Any:
    registry: Any = chance.choice([explainer_registry, metric_registry])
    name = chance.choice(sorted(registry))
    return registry.make(name, **settings(chance, registry.maker(name), ODD, 0.5))


def explain(chance: systems.Draw) -> Any:
    name = chance.choice([n for n in explainer_registry if n not in TOO_LONG])
    given = settings(chance, explainer_registry.maker(name), MODEST, 0.05)
    seed: Any = chance.choice(MODEST) if chance.random() < 0.1 else 0
    return vd.explain(name, tasks(chance), seed=seed, **_quick(given, name, explainer_registry))


def score(chance: systems.Draw) -> Any:
    name = chance.choice([n for n in metric_registry if n not in TOO_LONG])
    given = settings(chance, metric_registry.maker(name), MODEST, 0.05)
    task = tasks(chance)
    maker = metric_registry.maker(name)
    subject: Any = "gradient"
    if isinstance(maker, type) and issubclass(maker, vd.Metric):
        subject = maps(chance, task)
    seed: Any = chance.choice(MODEST) if chance.random() < 0.1 else 0
    return vd.score(name, task, subject, seed=seed, **_quick(given, name, metric_registry))


def maps(chance: systems.Draw, task: vd.Task) -> Any:
    """Maps of odd sizes, dtypes, shapes and contents."""
    shape = chance.choice([task.inputs.shape, (len(task), task.space.n_features)] * 20 + [(2, 3), (0,), ()])
    made = torch.randn(tuple(shape)) * chance.choice([1.0, 1.0, 0.0, 1e-300, 1e30])
    dtype = chance.choice([torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8])
    made = made.to(dtype)
    if dtype == torch.float64 and chance.random() < 0.5:
        made = made.sign() * chance.choice([1e300, 1e-300, 1e308])
    if made.is_floating_point() and made.numel() and chance.random() < 0.2:
        made.view(-1)[chance.randrange(made.numel())] = chance.choice([math.nan, math.inf])
    if made.is_floating_point() and chance.random() < 0.05:
        made = torch.full_like(made, math.nan)
    given: Any = chance.choice([made, made, made, made.numpy()])
    return chance.choice(MODEST) if chance.random() < 0.04 else given


QUICK = {"draws": 3, "steps": 4, "samples": 4, "masks": 8, "runs": 3, "levels": 3, "repeats": 2, "epochs": 1}


def _quick(given: dict[str, Any], name: str, registry: Any) -> dict[str, Any]:
    """Few draws, where nothing else was chosen: it is the odd values that matter here."""
    maker = registry.maker(name)
    known = {f.name for f in dataclasses.fields(maker)} if dataclasses.is_dataclass(maker) else set()
    return {**{k: v for k, v in QUICK.items() if k in known}, **given}


def task_alone(chance: systems.Draw) -> Any:
    model = chance.choice([Any2D(4).eval(), Any2D(4).eval(), Any2D(4).eval(), None, len, "resnet", 3])
    x = chance.choice([rows(chance, 3, 4), rows(chance, 3, 4), rows(chance, 3, 4).float().numpy(), *ODD])
    return vd.Task(model, x, **options(chance, 1.0)).outputs


def values(chance: systems.Draw) -> Any:
    task, odd = vd.Task(Any2D(4).eval(), torch.randn(3, 4)), chance.choice(ODD)
    of_scores: list[Any] = [torch.ones(3), "higher", "m", torch.arange(3)]
    of_maps: list[Any] = [torch.rand(3, 4), task.space, task.targets, task.ids]
    for own in (of_scores, of_maps):
        own[chance.randrange(4)] = odd
    plan = chance.choice(["rows", "threads", "budget_mib", "autocast", "precision"])
    makers: list[Callable[[], Any]] = [
        lambda: vd.Plan(**{plan: odd}),
        lambda: vd.core.Key(odd),
        lambda: vd.explain("gradient", task, device=odd),
        lambda: task.with_fill(odd).outputs,
        lambda: vd.tasks.load("known/linear", odd, chance.choice(MODEST)),
        lambda: vd.score("sparseness", task, "gradient").ci(level=odd),
        lambda: vd.Scores(*of_scores),
        lambda: vd.Explanation(*of_maps),
    ]
    return chance.choice(makers)()


STUDY: dict[str, Any] = {
    "tasks": [{"name": "known/linear", "samples": 4}],
    "explainers": ["gradient", {"name": "smoothgrad", "settings": {"samples": 3}}],
    "metrics": [{"name": "pixel_flipping", "grid": {"steps": [2, 4]}}],
    "seeds": [0, 1],
    "plan": {"rows": 8, "threads": 1},
    "limits": {"seconds": 5},
}


def study(chance: systems.Draw) -> Any:
    """A study with one part of it replaced."""
    data = copy.deepcopy(STUDY)
    place: Any = data
    while True:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.4:
            place[key] = chance.choice(ODD)
            return read_study(data)
        place = inner


KINDS: dict[str, tuple[Callable[[systems.Draw], Any], float]] = {
    "make": (make, 24),
    "score": (score, 36),
    "explain": (explain, 20),
    "task": (task_alone, 10),
    "values": (values, 8),
    "study": (study, 6),
    "system": (systems.one, 20),
}
PLANNED = {"score", "explain", "system"}
"""Kinds of calls that may be made under any plan."""
