"""Ranks, correlations, tests, distances and groups written as their definitions read, on plain floats."""

from __future__ import annotations

import math
from itertools import combinations, permutations, product


def average_ranks(x: list[float]) -> list[float]:
    return [sum(b < a for b in x) + (sum(b == a for b in x) + 1) / 2 for a in x]


def pearson(x: list[float], y: list[float]) -> float:
    n = len(x)
    mx, my = math.fsum(x) / n, math.fsum(y) / n
    if min(x) == max(x) or min(y) == max(y):
        return math.nan
    top = math.fsum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return top / math.sqrt(math.fsum((a - mx) ** 2 for a in x) * math.fsum((b - my) ** 2 for b in y))


def spearman(x: list[float], y: list[float]) -> float:
    return pearson(average_ranks(x), average_ranks(y))


def partial_rank_correlation(x: list[float], y: list[float], given: list[float]) -> float:
    r_xy, r_xg, r_yg = spearman(x, y), spearman(x, given), spearman(y, given)
    bottom = (1 - r_xg**2) * (1 - r_yg**2)
    if math.isnan(bottom) or bottom < 1e-12:
        return math.nan
    return (r_xy - r_xg * r_yg) / math.sqrt(bottom)


def kendall_tau_b(x: list[float], y: list[float]) -> float:
    concordant = discordant = untied_x = untied_y = 0
    for i, j in combinations(range(len(x)), 2):
        untied_x += x[i] != x[j]
        untied_y += y[i] != y[j]
        agreement = (x[i] > x[j]) - (x[i] < x[j])
        agreement *= (y[i] > y[j]) - (y[i] < y[j])
        concordant += agreement > 0
        discordant += agreement < 0
    if untied_x == 0 or untied_y == 0:
        return math.nan
    return (concordant - discordant) / math.sqrt(untied_x * untied_y)


def rank_sums(differences: list[float]) -> tuple[float, float]:
    """R+ and R-, the ranks of zeros split between them."""
    ranks = average_ranks([abs(d) for d in differences])
    zeros = sum(r for r, d in zip(ranks, differences, strict=True) if d == 0) / 2
    plus = sum(r for r, d in zip(ranks, differences, strict=True) if d > 0)
    minus = sum(r for r, d in zip(ranks, differences, strict=True) if d < 0)
    return plus + zeros, minus + zeros


def sign_change_p(differences: list[float]) -> float:
    """The two-sided p-value by trying every change of signs."""
    observed = rank_sums(differences)[0]
    every = [
        rank_sums([s * abs(d) for s, d in zip(signs, differences, strict=True)])[0]
        for signs in product((-1, 1), repeat=len(differences))
    ]
    low = sum(r <= observed for r in every) / len(every)
    high = sum(r >= observed for r in every) / len(every)
    return min(1.0, 2 * min(low, high))


def holm(p: list[float]) -> list[float]:
    known = sorted(q for q in p if not math.isnan(q))
    adjusted: dict[float, float] = {}
    running = 0.0
    for i, q in enumerate(known):
        running = max(running, min(1.0, (len(known) - i) * q))
        adjusted.setdefault(q, running)
        adjusted[q] = max(adjusted[q], running)
    return [math.nan if math.isnan(q) else adjusted[q] for q in p]


def settled(units: list[float], shown: float, fails: float, stakes: tuple[float, ...]) -> tuple[int, int]:
    """Both gamblers play unit by unit; the first to reach a bound ends it."""
    up, down = [1.0] * len(stakes), [1.0] * len(stakes)
    for place, u in enumerate(units, 1):
        if math.isnan(u):
            continue
        up = [w * (1 + s * (2 * u - 1)) for w, s in zip(up, stakes, strict=True)]
        down = [w * (1 + s * (1 - 2 * u)) for w, s in zip(down, stakes, strict=True)]
        if sum(up) / len(stakes) >= 1 / shown:
            return 1, place
        if sum(down) / len(stakes) >= 1 / fails:
            return -1, place
    return 0, 0


def kept_means(units: list[float], level: float, stakes: tuple[float, ...], grid: list[float]) -> list[float]:
    """The means of a grid that neither of two gamblers ever refuted."""
    bound, kept = 2 / (1 - level), []
    for m in grid:
        up, down, refuted = [1.0] * len(stakes), [1.0] * len(stakes), False
        for u in units:
            up = [w * (1 + s * (u / m - 1)) for w, s in zip(up, stakes, strict=True)]
            down = [w * (1 + s * ((1 - u) / (1 - m) - 1)) for w, s in zip(down, stakes, strict=True)]
            refuted |= max(sum(up), sum(down)) / len(stakes) >= bound
        if not refuted:
            kept.append(m)
    return kept


def area_under_curve(y: list[float], x: list[float] | None = None) -> float:
    x = x if x is not None else [float(i) for i in range(len(y))]
    return sum((x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(y) - 1))


def rms_normalise(e: list[float]) -> list[float]:
    rms = math.sqrt(math.fsum(v * v for v in e) / len(e))
    return [v / rms if rms else 0.0 for v in e]


def cosine_distance(a: list[float], b: list[float]) -> float:
    length_a, length_b = math.sqrt(math.fsum(v * v for v in a)), math.sqrt(math.fsum(v * v for v in b))
    if length_a == 0 or length_b == 0:
        return float(length_a != length_b)
    return 1 - math.fsum(v * w for v, w in zip(a, b, strict=True)) / (length_a * length_b)


def gini(x: list[float]) -> float:
    """Half the mean absolute difference of all pairs, relative to the mean."""
    size = [abs(v) for v in x]
    total = math.fsum(size)
    if total == 0:
        return math.nan
    return math.fsum(abs(a - b) for a in size for b in size) / (2 * len(x) * total)


def entropy(x: list[float]) -> float:
    total = math.fsum(abs(v) for v in x)
    if total == 0:
        return math.nan
    shares = [abs(v) / total for v in x]
    return -math.fsum(p * math.log(p) for p in shares if p > 0)


def round_to_grid(responses: list[float], relative_step: float) -> list[float]:
    step = max(abs(r) for r in responses) * relative_step
    return [round(r / step) * step if step else r for r in responses]


def ssim(a: list[list[float]], b: list[list[float]], size: int, data_range: float) -> float:
    """Wang et al. (2004) window by window, with (co)variances taken about the window's own mean."""
    flat = [1 / size**2] * size**2
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    correction = size**2 / (size**2 - 1)
    values = []
    for top in range(len(a) - size + 1):
        for left in range(len(a[0]) - size + 1):
            p = [a[top + i][left + j] for i in range(size) for j in range(size)]
            q = [b[top + i][left + j] for i in range(size) for j in range(size)]
            mp = math.fsum(w * v for w, v in zip(flat, p, strict=True))
            mq = math.fsum(w * v for w, v in zip(flat, q, strict=True))
            vp = correction * math.fsum(w * (v - mp) ** 2 for w, v in zip(flat, p, strict=True))
            vq = correction * math.fsum(w * (v - mq) ** 2 for w, v in zip(flat, q, strict=True))
            c = correction * math.fsum(w * (v - mp) * (u - mq) for w, v, u in zip(flat, p, q, strict=True))
            top_value = (2 * mp * mq + c1) * (2 * c + c2)
            values.append(top_value / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return math.fsum(values) / len(values)


def wealth(units: list[float], stakes: tuple[float, ...]) -> list[float]:
    purses = [1.0 / len(stakes)] * len(stakes)
    path = []
    for unit in units:
        if not math.isnan(unit):
            purses = [purse * (1 + s * (2 * unit - 1)) for purse, s in zip(purses, stakes, strict=True)]
        path.append(sum(purses))
    return path


def betting_p(units: list[float], stakes: tuple[float, ...]) -> float:
    return 1 / max([1.0, *wealth(units, stakes)])


def win_unit(own: float, other: float, grid: float, scale: float, no_map: bool, other_no_map: bool) -> float:
    if no_map or other_no_map:
        return 0.5 if no_map and other_no_map else float(other_no_map)
    if math.isnan(own) or math.isnan(other):
        return 0.5
    if own == other:
        return 0.5
    size = max(abs(own), abs(other), scale)
    if math.isfinite(size) and abs(own - other) <= grid * size:
        return 0.5
    return float(own > other)


def mean_win(own: list[float], others: list[list[float]], grid: float, scale: float) -> float:
    """The mean win of one sample over metrics and the draws of one rival."""
    pairs = [pair for other in others for pair in zip(own, other, strict=True)]
    return sum(win_unit(a, b, grid, scale, False, False) for a, b in pairs) / len(pairs)


def member_units(units: list[list[list[float]]], members: list[int]) -> list[list[float]]:
    """Of each member, in each sample, the mean over the other members."""
    samples = len(units[0][0])
    return [
        [sum(units[a][b][n] for b in members if b != a) / (len(members) - 1) for n in range(samples)]
        for a in members
    ]


def spread(rows: list[list[float]]) -> float:
    means = [sum(row) / len(row) for row in rows]
    return max(means) - min(means)


def exact_range_p(rows: list[list[float]]) -> float:
    """Every order of the methods in every sample."""
    observed, beyond, count = spread(rows), 0, 0
    columns = list(zip(*rows, strict=True))
    for orders in product(permutations(range(len(rows))), repeat=len(columns)):
        shuffled = [
            [column[o[m]] for column, o in zip(columns, orders, strict=True)] for m in range(len(rows))
        ]
        beyond += spread(shuffled) >= observed - 1e-12
        count += 1
    return beyond / count
