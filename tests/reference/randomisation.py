"""The parameter randomisation test with copied models, one sample and one layer at a time."""

import copy

import numpy as np
import torch


def average_ranks(values):
    ordered = sorted(values)
    return [sum(k + 1 for k, other in enumerate(ordered) if other == v) / ordered.count(v) for v in values]


def correlation(a, b):
    a, b = np.asarray(a) - np.mean(a), np.asarray(b) - np.mean(b)
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def spearman(a, b):
    return correlation(average_ranks(list(map(float, a))), average_ranks(list(map(float, b))))


def walk(names, order):
    """Lists of layers randomised at each step; never an empty one."""
    if order == "independent":
        return [[n] for n in names]
    names = names[::-1] if order == "top_down" else names
    return [names[: i + 1] for i in range(len(names))]


def with_parameters(model, parameters):
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            if name in parameters:
                value.copy_(parameters[name])
    return twin
