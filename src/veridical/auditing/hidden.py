"""Vetoes: does a method hide a feature, and does it lie in some samples? They refute or stay silent.

That nothing is hidden cannot be shown with few samples, so the other answer is "nothing found in n samples".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Tensor

from veridical.auditing.measured_effects import Effects
from veridical.core.space import Space
from veridical.functional import pearson

LEVEL = 0.01
"""The chance that a veto falls on a method whose shares are not above the threshold."""
STRONG = 0.5
"""The share of the largest effect of a sample from which on a feature is strong."""
ERRORS = 2.0
"""Standard errors by which an effect has to be above or below another for that to be shown."""
MIN_WEAKER = 4
"""Features shown to be weaker, without which a sample does not show whether a strong one is hidden."""
MIN_STRONG = 12
"""Samples in which a feature is strong, below which nothing is tested of it."""
OFTEN = 0.2
"""The share of samples in which it has to be strong: of features that seldom are, sound methods hide half."""
HIDDEN_SHARE = 1 / 3
"""The share of the samples in which a feature is strong that a map may hide it in.

On the four tasks it was set on sound methods hide at most .26 of such a feature, maps that give its relevance
to another .50 to 1.
"""
MIN_FEATURES = 3
"""Features without which a map has no agreement with the effects."""
BELOW_MEDIAN = 0.5
"""How far below the method's median its agreement with the effects lies in a sample in which it lies."""
LOST_SHARE = 0.05
"""The share of such samples that a method may have.

On the tasks it was set on and a network that was never trained, sound methods have at most .04 (gradient
methods .09 on one, where they win .68 against noise), maps that are noise in a quarter of the samples or
negated in a fifth .19 to .26.
"""
HIDDEN = "hidden feature"
LIES = "lies in some samples"
MIN_OF_CLASS = 8
"""Samples of a class, below which nothing is tested of it."""


@dataclass(frozen=True)
class Veto:
    """One thing that would refute a method, whether it was found, and in words what was."""

    name: str
    fell: bool
    """Whether it refutes the method."""
    sentence: str
    """What was found; without a veto in how many samples nothing was, or why nothing was tested."""
    samples: int
    """Samples it rests on, 0 where nothing was tested."""
    feature: str = ""
    """The feature or class in question."""
    share: float = torch.nan
    """The share of its samples in which the method hides it, or loses outright."""
    low: float = torch.nan
    """The lower bound of this share."""


def lower_bound(hits: int, samples: int, level: float) -> float:
    """The smallest share that makes so many hits not unlikely (one-sided, Clopper and Pearson 1934)."""
    return 0.0 if hits <= 0 else float(betaincinv(hits, samples - hits + 1, level))


# --- a feature that is hidden -----------------------------------------------------------------------------


def strong_features(effects: Tensor, errors: Tensor, signed: Tensor | None = None) -> Tensor:
    """Which features are strong (N, V): at least half of the sample's largest effect, beyond two errors.

    `effects` are compared by size. `signed` marks samples (N,) whose map has no negative values: there only
    features that speak for the output can be strong.
    """
    size = effects.abs()
    largest, where = size.max(-1, keepdim=True)
    own = size - STRONG * largest
    error = (errors.square() + (STRONG * errors.gather(-1, where)).square()).sqrt()
    # the largest itself is compared with none but its half
    error = torch.where(size == largest, (1 - STRONG) * errors, error)
    strong = own - ERRORS * error > 0
    return strong if signed is None else strong & ((effects > 0) | ~signed[:, None])


def hidden_features(
    maps: Tensor, effects: Tensor, errors: Tensor, valid: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which features are strong in which samples, and which of these the maps hide: two masks (N, V).

    A strong feature is hidden where the map ranks it below at least half of the features whose effect is
    shown to be less than half of its own; ties count half. Where there are fewer than four such features, or
    no map, the sample shows nothing. Maps and effects are compared by size; of a map without negative values
    only features count that speak for the output, since it may show the positive part alone.
    """
    there = torch.ones_like(maps, dtype=torch.bool) if valid is None else valid
    present = ~(maps.isnan() & there).any(-1)
    maps = maps.nan_to_num(0.0).masked_fill(~there, 0.0)
    size, shown = effects.abs().masked_fill(~there, 0.0), maps.abs()
    strong = strong_features(effects, errors, (maps >= 0).all(-1)) & there & present[:, None]
    testable, hidden = torch.zeros_like(strong), torch.zeros_like(strong)
    for sample in strong.any(-1).nonzero()[:, 0].tolist():
        features = strong[sample].nonzero()  # (S, 1): compared with all others along the row
        own, error = size[sample, features], errors[sample, features]
        apart = ERRORS * (errors[sample].square() + (STRONG * error).square()).sqrt()
        weaker = there[sample] & (size[sample] + apart < STRONG * own)
        above = shown[sample] - shown[sample, features]
        ranked = torch.where(above == 0, 0.5, (above > 0).double())
        count, features = weaker.sum(-1), features[:, 0]
        testable[sample, features] = count >= MIN_WEAKER
        hidden[sample, features] = (ranked * weaker).sum(-1) >= count / 2
    return testable, hidden & testable


def hidden_feature(maps: Tensor, effects: Effects, space: Space, level: float = LEVEL) -> Veto:
    """Whether a method hides a feature that the model uses: the one whose share is surest to be too large.

    Of every feature that is strong in at least 12 samples, and in a fifth of all, the share of these in which
    the maps hide it is bounded from below, at `level` divided by the number of such features. The veto falls
    where a bound is above `HIDDEN_SHARE`.

    Parameters
    ----------
    maps : Tensor
        Maps (N, V) of a method, one value per feature of the task; NaN throughout where there is none.
    effects : Effects
        The measured effects of the same samples.
    space : Space
        That of the task; where features of one sample are not those of another nothing is tested.
    level : float
        The chance that the veto falls on a method that does not deserve it.

    Returns
    -------
    Veto
        Whether it fell, and the feature.
    """
    if space.per_sample or space.valid is not None:
        return _not_tested("features of one sample are not those of another")
    seen = effects.summed(maps.to(effects.values))
    tested_in, hidden = hidden_features(seen, effects.values, effects.errors)
    counts, hits = tested_in.sum(0), hidden.sum(0)
    enough = max(MIN_STRONG, OFTEN * len(maps))
    tested = (counts >= enough).nonzero()[:, 0].tolist()
    samples = int(tested_in.any(-1).sum())
    if not tested:
        return _not_tested(f"no feature is shown to be strong in {math.ceil(enough)} samples")
    bounds = {i: lower_bound(int(hits[i]), int(counts[i]), level / len(tested)) for i in tested}
    worst = max(tested, key=lambda i: bounds[i])
    share, low = float(hits[worst] / counts[worst]), bounds[worst]
    name = (space if effects.cells is None else effects.cells.space).feature_name(worst)
    fell = low > HIDDEN_SHARE
    sentence = (
        f"it hides '{name}': in {int(hits[worst])} of the {int(counts[worst])} samples in which this feature "
        "is strong the map ranks it below at least half of the weaker ones"
        if fell
        else f"no hidden feature was found in {samples} samples"
    )
    return Veto(HIDDEN, fell, sentence, samples, name, share, low)


def _not_tested(why: str) -> Veto:
    return Veto(HIDDEN, False, f"whether it hides a feature was not tested: {why}", 0)


# --- samples in which it lies -----------------------------------------------------------------------------


def agreement_with(maps: Tensor, effects: Effects, valid: Tensor | None = None) -> Tensor:
    """How maps agree with the measured effects: the correlation in each sample (N,).

    Maps without negative values are compared with the sizes of the effects or with their positive part, by
    what suits most samples. NaN where there is no map, no effect is shown, or there are not three features:
    two values always correlate with 1 or -1.
    """
    seen, values = effects.summed(maps.to(effects.values)), effects.values
    there = valid if effects.cells is None else None
    known = ~seen.isnan() if there is None else ~seen.isnan() | ~there
    counts = seen.shape[-1] if there is None else there.sum(-1)
    shown = (values.abs() > ERRORS * effects.errors).any(-1) & known.all(-1) & (counts >= MIN_FEATURES)
    seen = seen.nan_to_num(0.0) if there is None else seen.nan_to_num(0.0).masked_fill(~there, 0.0)
    positive = not bool((seen[shown] < 0).any())
    ways = [values.abs(), values.clamp(min=0)] if positive else [values]
    # a flat map agrees with nothing
    each = [pearson(seen, way, there).nan_to_num(0.0).masked_fill(~shown, torch.nan) for way in ways]
    return max(each, key=lambda r: float(r.nanmedian().nan_to_num()))


def lies_in_some(
    agrees: Tensor,
    targets: Tensor | None = None,
    names: Sequence[str] | None = None,
    level: float = LEVEL,
    fault: str = "disagrees with the measured effects",
) -> Veto:
    """Whether a method is wrong in some samples while it is right in most.

    It is wrong where it agrees by more than 1/2 less than its median does. The share of such samples, and
    that of every class of at least eight, is bounded from below, at `level` divided by the number of these
    groups. The veto falls where a bound is above `LOST_SHARE`.

    Parameters
    ----------
    agrees : Tensor
        Agreement (N,) with the measured effects; where these are not known, units against noise. NaN where a
        sample shows nothing.
    targets : Tensor, optional
        The explained class of each sample (N,); without, classes are not compared.
    names : sequence of str, optional
        What classes are called; by default their numbers.
    level : float
        The chance that the veto falls on a method that does not deserve it.
    fault : str
        What a map does where it is wrong.

    Returns
    -------
    Veto
        Whether it fell, and the class where it is one.
    """
    known = ~agrees.isnan()
    agrees, samples = agrees[known].double(), int(known.sum())
    if not samples:
        return Veto(LIES, False, "whether it lies in some samples was not tested: no sample shows it", 0)
    lost = agrees < agrees.quantile(0.5) - BELOW_MEDIAN
    groups: dict[str | None, Tensor] = {None: torch.ones_like(lost)}
    targets = None if targets is None else targets.to(known.device)[known]
    classes = [] if targets is None else targets.unique().tolist()
    for one in classes if len(classes) > 1 else []:
        member = targets == one
        if int(member.sum()) >= MIN_OF_CLASS:
            groups[str(one) if names is None else names[one]] = member
    counts = {name: (int((lost & member).sum()), int(member.sum())) for name, member in groups.items()}
    bounds = {name: lower_bound(*count, level / len(groups)) for name, count in counts.items()}
    worst = max(groups, key=lambda name: bounds[name])
    hits, count = counts[worst]
    fell = bounds[worst] > LOST_SHARE
    where = "" if worst is None else f" of class '{worst}'"
    sentence = (
        f"in {hits} of {count} samples{where} its map {fault}, unlike in most"
        if fell
        else f"no samples in which it lies were found among {samples}"
    )
    return Veto(LIES, fell, sentence, samples, worst or "", hits / count, bounds[worst])
