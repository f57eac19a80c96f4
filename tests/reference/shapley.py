"""Shapley values by the definition: the mean marginal contribution over all orders of arrival."""

from collections.abc import Callable, Iterable
from itertools import permutations


def shapley_values(value: Callable[[frozenset[int]], float], players: Iterable[int]) -> dict[int, float]:
    """phi_i = mean over orders of v(those before i and i) - v(those before i)."""
    players = list(players)
    total = dict.fromkeys(players, 0.0)
    count = 0
    memory: dict[frozenset[int], float] = {}

    def v(group: frozenset[int]) -> float:
        if group not in memory:
            memory[group] = value(group)
        return memory[group]

    for order in permutations(players):
        count += 1
        here: frozenset[int] = frozenset()
        for player in order:
            total[player] += v(here | {player}) - v(here)
            here = here | {player}
    return {player: share / count for player, share in total.items()}
