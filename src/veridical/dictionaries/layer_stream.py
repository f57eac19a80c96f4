"""The activations of a layer as a stream: the model is asked again for every shard."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.concepts.dictionary import Stream
from veridical.core.key import Key, permutation
from veridical.errors import InputError
from veridical.gef.codes import End, layer_activations
from veridical.values.task import Task


def activations(
    task: Task,
    layer: str,
    *,
    axis: int = 1,
    end: End = "output",
    shards: int = 1,
    stay: int = 64,
    seed: int = 0,
) -> Stream:
    """Rows for `train` from any layer of a task: one per sample and position, padding left out.

    `axis` says where the layer counts its units: 1 for channels of a convolution, -1 for a transformer.
    With `shards` above 1 one share of the samples, picked at random, is in memory at a time; the model
    answers it when its turn comes.
    """
    if not 1 <= shards <= len(task):
        raise InputError(f"shards is from 1 to the {len(task)} samples, got {shards}")
    order = permutation(Key(seed) / "shards", torch.zeros(1, dtype=torch.int64), 0, len(task))[0]

    def read(number: int) -> Tensor:
        part = task if shards == 1 else task[order[number::shards]]
        states = layer_activations(part, layer, end, axis)
        valid = part.space.valid
        if part.modality == "text" and valid is not None and valid.shape[1] == states.shape[1]:
            return states[valid.to(states.device)]
        return states.flatten(0, 1)

    return Stream(read, shards, stay)
