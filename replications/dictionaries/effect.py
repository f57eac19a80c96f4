"""Claimed effects of atoms against those of switching them off: right for any dictionary, so no metric."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.data.switching import switch
from veridical.dictionaries import MEASURES, Measure, Subject
from veridical.errors import NotApplicableError
from veridical.explainers.gradients import gradient
from veridical.functional import pearson
from veridical.models.inner_units import Atoms
from veridical.models.predictor import repeat_side
from veridical.values.scores import Direction

SAMPLES, SWITCHED = 32, 16
"""Samples that are evaluated, and how many atoms, the most active ones, are switched off in each."""


def effect(subject: Subject) -> Tensor:
    """How well claimed effects of atoms follow real ones: their correlation over atoms, sample by sample.

    An atom's claim is its code times the slope of the explained output along its direction; its real effect
    is what the output loses when the atom alone is switched off. Where all that follows the layer is linear
    the two are the same, whatever the dictionary.
    """
    bench = subject.bench
    if bench.axis != -1 and bench.states.shape[1] > 1:
        raise NotApplicableError(
            "atoms are switched over a layer's last axis; this one has its units elsewhere"
        )
    few = bench.task[:SAMPLES]
    seen = subject.codes[: int(bench.kept[: len(few)].sum())]
    busiest = seen.abs().sum(0).topk(min(SWITCHED, seen.shape[1])).indices
    switched = switch(few, Atoms(bench.layer, subject.dictionary, tuple(busiest.tolist())))
    claims = gradient(switched)
    count = len(busiest)
    # each sample once with every atom on, then with one atom off after the other
    gates = torch.cat([switched.inputs.new_ones(1, count), 1 - torch.eye(count).to(switched.inputs)])
    outputs = switched.predictor.outputs(gates.repeat(len(few), 1), repeat_side(switched.side, count + 1))
    answers = outputs.gather(1, switched.targets.repeat_interleave(count + 1)[:, None]).reshape(len(few), -1)
    effects = answers[:, :1] - answers[:, 1:]
    return bench.means(pearson(claims, effects), samples=True)


MEASURES["effect"] = Measure("effect", Direction.HIGHER, effect)
