"""Is the betting test valid where Wilcoxon's is not, and how many samples does it need?

    python -m replications.verdict.betting --out results [--repeats 20000]

Units of one sample are shares of wins of several metrics, so they are neither symmetric nor continuous. Each
shape below has mean exactly 1/2: a method that is no better than the control it is compared with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from veridical.auditing.evidence import SHOWN
from veridical.functional import betting_p, confidence_sequence, settle, signed_rank
from veridical.functional.significance import STAKES

SIZES = (24, 64, 200)
LEVEL = 0.05
"""At which betting and Wilcoxon's test are compared; an audit tests at `SHOWN`."""
RATES = (0.6, 0.7, 0.74, 0.8, 0.86, 0.9)

FAIR: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "coin": ((0.0, 1.0), (0.5, 0.5)),
    "mostly ties": ((0.0, 0.5, 1.0), (0.1, 0.8, 0.1)),
    "wins a little often": ((0.0, 0.625), (0.2, 0.8)),
    "wins a lot seldom": ((0.375, 1.0), (0.8, 0.2)),
    "four metrics that agree": ((0.0, 0.25, 0.5, 0.75, 1.0), (0.4, 0.07, 0.06, 0.07, 0.4)),
    "loses all or wins most": ((0.0, 0.75), (1 / 3, 2 / 3)),
    "loses all or wins three": ((0.0, 0.5, 0.75), (0.25, 0.25, 0.5)),
}
Units = Callable[[int, int, torch.Generator], Tensor]


def drawn(
    values: tuple[float, ...], chances: tuple[float, ...], repeats: int, size: int, dice: torch.Generator
) -> Tensor:
    """Units (repeats, size) of a shape."""
    picks = torch.multinomial(torch.tensor(chances), repeats * size, replacement=True, generator=dice)
    return torch.tensor(values, dtype=torch.float64)[picks].reshape(repeats, size)


def false_positives(repeats: int, seed: int = 0) -> list[dict[str, object]]:
    """How often each test calls a fair shape better than 1/2: betting looks after every sample."""
    dice = torch.Generator().manual_seed(seed)
    rows: list[dict[str, object]] = []
    for shape, (values, chances) in FAIR.items():
        for size in SIZES:
            units = drawn(values, chances, repeats, size, dice)
            found = signed_rank(units - 0.5)
            one_sided = torch.where(found.rank_biserial > 0, found.p / 2, 1 - found.p / 2)
            looks = [n for n in SIZES if n <= size]
            peeking = torch.stack([_wilcoxon(units[:, :n]) for n in looks]).amin(0)
            rows.append(
                {
                    "shape": shape,
                    "samples": size,
                    "betting": float((betting_p(units) <= LEVEL).double().mean()),
                    "wilcoxon": float((one_sided <= LEVEL).double().mean()),
                    "wilcoxon, looking at 24, 64, 200": float((peeking <= LEVEL).double().mean()),
                }
            )
    return rows


def _wilcoxon(units: Tensor) -> Tensor:
    found = signed_rank(units - 0.5)
    return torch.where(found.rank_biserial > 0, found.p / 2, 1 - found.p / 2)


def power(repeats: int, seed: int = 1) -> list[dict[str, object]]:
    """How often a method of a given win rate is shown, and one as bad as it is good fails, in an audit."""
    dice = torch.Generator().manual_seed(seed)
    rows: list[dict[str, object]] = []
    for rate in RATES:
        for size in SIZES:
            for metrics in ("one coin", "four metrics that agree", "four draws of noise"):
                units = alternative(metrics, rate, repeats, size, dice)
                rows.append(
                    {
                        "win rate": rate,
                        "samples": size,
                        "units": metrics,
                        "shown": float((settle(units, SHOWN).side > 0).double().mean()),
                        "fails": float((settle(1 - units, SHOWN, SHOWN / 10).side < 0).double().mean()),
                        **rivals(units),
                    }
                )
    return rows


def coverage(repeats: int, seed: int = 2, level: float = 0.99) -> list[dict[str, object]]:
    """How often intervals leave the true mean out after any of 200 samples, and how wide they are."""
    dice = torch.Generator().manual_seed(seed)
    rows: list[dict[str, object]] = []
    for mean in (0.5, 0.75, 0.95):
        for kind in ("one coin", "four draws of noise"):
            units = alternative(kind, mean, repeats, SIZES[-1], dice)
            widths = {}
            for count in SIZES:
                low, high = confidence_sequence(units[:, :count], level)
                widths[f"width at {count}"] = float((high - low).mean())
            out = (low > mean) | (high < mean)  # a mean that was ever refuted stays so
            missed = float(out.double().mean())
            rows.append({"win rate": mean, "units": kind, "missed after any sample": missed, **widths})
    return rows


def alternative(kind: str, rate: float, repeats: int, size: int, dice: torch.Generator) -> Tensor:
    """Units of a given mean: all or nothing, metrics correlated by .9, or samples of differing difficulty."""
    if kind == "one coin":
        return (torch.rand(repeats, size, generator=dice) < rate).double()
    if kind == "four metrics that agree":
        shared = torch.randn(repeats, size, 1, generator=dice) * 0.9**0.5
        own = torch.randn(repeats, size, 4, generator=dice) * 0.1**0.5
        return (shared + own < torch.special.ndtri(torch.tensor(rate))).double().mean(-1)
    # a sample is won with a chance of its own, Beta(2 rate, 2 (1 - rate)), against each of four draws
    gamma = torch._standard_gamma
    up, down = (gamma(torch.full((repeats, size), 2 * r), generator=dice) for r in (rate, 1 - rate))
    chance = (up / (up + down))[..., None]
    return (torch.rand(repeats, size, 4, generator=dice) < chance).double().mean(-1)


def rivals(units: Tensor) -> dict[str, float]:
    """The same power under other ways to bet: one fixed stake, and a stake that follows the mean so far."""
    gain = 2 * units - 1
    found = {}
    for stake in STAKES:
        wealth = torch.log1p(stake * gain).cumsum(-1).amax(-1)
        found[f"stake {stake}"] = float((wealth >= torch.tensor(1 / SHOWN).log()).double().mean())
    # aGRAPA (Waudby-Smith and Ramdas 2024): mean over mean square so far, from a fair prior sample
    mean = (gain.cumsum(-1) - gain) / torch.arange(1, gain.shape[-1] + 1)
    square = (gain.square().cumsum(-1) - gain.square() + 0.25) / torch.arange(1, gain.shape[-1] + 1)
    follow = (mean / square.clamp(min=1e-3)).clamp(0, 0.95)
    wealth = torch.log1p(follow * gain).cumsum(-1).amax(-1)
    found["follows the mean"] = float((wealth >= torch.tensor(1 / SHOWN).log()).double().mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=20_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    result = {
        "repeats": given.repeats,
        "level": LEVEL,
        "false positives": false_positives(given.repeats),
        "power": power(given.repeats),
        "coverage": coverage(given.repeats // 10),
    }
    for row in (*result["false positives"], *result["power"], *result["coverage"]):  # type: ignore[misc]
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    (given.out / "betting.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
