"""Can maps of nearly the same model give away a method that is honest about every model but one?

    python -m replications.verdict.near --out results [--families linear cancer digits window] [--seed 4]

Weights go in steps from the audited model to a fresh one. At each step the maps of the next model are set
against a method's own on this one: an honest method should win at least half. Methods that cheat on the
audited model, on any that has learnt, or less and less as it forgets, should be beaten by their neighbour
where they turn honest.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from replications.verdict import worlds
from veridical.auditing.candidates import choose_metrics
from veridical.auditing.effort import EFFORTS
from veridical.auditing.evidence import Grid, rates, units
from veridical.auditing.jobs import Job, carry_out
from veridical.auditing.model_randomisation import on, other_models, sample_scores
from veridical.core.key import Key
from veridical.explainers import Explainer, as_explainer
from veridical.models.context import Context
from veridical.testing import red_team as cheats
from veridical.testing.red_team import RedTeamMember
from veridical.values.task import Task

STEPS = (0.0, 0.02, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
TRUE = as_explainer("integrated_gradients")


def between(model: nn.Module, other: nn.Module, share: float) -> nn.Module:
    """The model whose weights lie that share of the way from one to the other."""
    made, towards = copy.deepcopy(model), other.state_dict()
    mixed = {
        name: torch.lerp(value, towards[name], share) if value.is_floating_point() else value
        for name, value in made.state_dict().items()
    }
    made.load_state_dict(mixed)
    return made.eval()


def one_sided(model: nn.Module) -> dict[str, Callable[[Task, Key], Tensor]]:
    """Cheats that are honest elsewhere, by how they know where they are."""
    own = _weights(model)

    def honest(task: Task, key: Key) -> Tensor:
        return TRUE.maps(task, Context(key)).double()

    def here(task: Task) -> bool:
        return torch.equal(_weights(task.predictor.model), own)

    def all_but_one(task: Task, key: Key) -> Tensor:
        return cheats.naive_bayes(task, key) if here(task) else honest(task, key)

    def dimmed(task: Task, key: Key) -> Tensor:
        noise = 0.7 * cheats._unit(cheats._noise(task, "dim"))
        return cheats.naive_bayes(task, key) if here(task) else cheats._unit(honest(task, key)) + noise

    def learnt(task: Task, key: Key) -> Tensor:
        return cheats.naive_bayes(task, key) if cheats._has_learnt(task) else honest(task, key)

    return {cheat.__name__: cheat for cheat in (all_but_one, dimmed, learnt)}


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def study(family: str, seed: int, samples: int) -> dict[str, list[dict[str, float]]]:
    """By method and step: how often the next model's maps win here, and p of "no more than half"."""
    task = worlds.make(family, seed, samples)
    model, copies = task.predictor.source.module, other_models(task, seed)[0]
    assert copies is not None
    methods: dict[str, Explainer] = {name: as_explainer(name) for name in worlds.GOOD}
    for name, cheat in one_sided(model).items():
        cheats.CHEATS[name] = cheat
        methods[name] = RedTeamMember(cheat=name)
    metrics, grid = choose_metrics(task, EFFORTS["glance"], None, ("removal",)).removal, Grid.of(task)
    path = [on(task, between(model, copies.modules[0], share)) for share in STEPS]
    path = [one.with_targets(one.predictions) for one in path]
    found: dict[str, list[dict[str, float]]] = {}
    for name, method in methods.items():
        for i, share in enumerate(STEPS[1:]):
            near = path[i + 1].with_targets(path[i].targets)
            jobs = [Job(name, method, metrics, made_on, path[i], "near") for made_on in (path[i], near)]
            own, other = (sample_scores([carry_out(job, seed)], [samples], metrics) for job in jobs)
            test = rates([units(other, [own], grid)])[0]
            found.setdefault(name, []).append({"to": share, "neighbour wins": test.rate, "p": test.p})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--families", nargs="+", default=["linear", "cancer", "digits", "window"])
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--samples", type=int, default=48)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {family: study(family, given.seed, given.samples) for family in given.families}
    (given.out / "near.json").write_text(json.dumps(result, indent=1))
    for family, methods in result.items():
        for name, steps in methods.items():
            print(family, name, *(f"{one['neighbour wins']:.2f} ({one['p']:.3f})" for one in steps))


if __name__ == "__main__":
    main()
