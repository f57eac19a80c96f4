"""The exact expectation of FFid+ in F-Fidelity's Theorem 1, by counting what may be drawn of each tier."""

from itertools import product
from math import comb


def expected_drop(tiers, g, alpha, budget, size):
    """g(all) - E[g(rest)] when min(floor(alpha * size), budget) of the `size` strongest are removed."""
    top = []
    left = size
    for tier in tiers:
        top.append(min(tier, left))
        left -= top[-1]
    removed = min(int(alpha * size + 1e-9), budget)
    total = comb(size, removed)
    expected = 0.0
    for drawn in product(*(range(min(n, removed) + 1) for n in top)):
        if sum(drawn) != removed:
            continue
        ways = 1
        for n, k in zip(top, drawn, strict=True):
            ways *= comb(n, k)
        expected += ways / total * g([c - k for c, k in zip(tiers, drawn, strict=True)])
    return g(list(tiers)) - expected
