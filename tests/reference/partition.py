"""PartitionSHAP rewritten slowly: sets of features, a list of branches, one question after the other."""

from collections.abc import Callable

import numpy as np


def halving_order(places: np.ndarray) -> list[int]:
    """The features at these places (D, axes), so that what is halved together lies together."""

    def halved(members: list[int]) -> list[int]:
        if len(members) < 2:
            return members
        spans = [np.ptp(places[members, axis]) for axis in range(places.shape[1])]
        longest = spans.index(max(spans))
        ordered = sorted(members, key=lambda member: places[member, longest])
        middle = len(ordered) // 2
        return halved(ordered[:middle]) + halved(ordered[middle:])

    return halved(list(range(len(places))))


def owen_values(
    order: list[int], ask: Callable[[frozenset[int]], float], high: float, budget: int, together: int = 10
) -> dict[int, float]:
    """The value of each feature of a sample: `ask` says the output with a set of features there."""
    credit = dict.fromkeys(order, 0.0)
    root = (tuple(order), frozenset(), ask(frozenset()), high, 1.0)
    waiting, left = [root], budget - 2

    def moved(branch: tuple) -> float:
        _, _, low, high, weight = branch
        return abs(high - low) * weight

    while True:
        # `max` takes the first of equals, and branches wait in the order in which they came up
        several, chosen = [branch for branch in waiting if len(branch[0]) > 1], []
        while several and 2 * len(chosen) < min(together, left):
            chosen.append(max(several, key=moved))
            several = [branch for branch in several if branch is not chosen[-1]]
        if not chosen:
            break
        for branch in chosen:
            members, there, low, high, weight = branch
            waiting = [other for other in waiting if other is not branch]
            first, second = members[: len(members) // 2], members[len(members) // 2 :]
            with_first, with_second = there | set(first), there | set(second)
            one, two = ask(with_first), ask(with_second)
            waiting += [
                (first, there, low, one, weight / 2),
                (second, there, low, two, weight / 2),
                (first, with_second, two, high, weight / 2),
                (second, with_first, one, high, weight / 2),
            ]
            left -= 2
    for members, _, low, high, weight in waiting:
        for member in members:
            credit[member] += (high - low) * weight / len(members)
    return credit
