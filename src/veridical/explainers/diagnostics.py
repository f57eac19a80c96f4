"""Checks of finished maps: completeness, repeatability, and which maps are constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import warn
from veridical.functional import has_spread
from veridical.models.context import Context
from veridical.perturb.masked_task import MaskedTask
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.core.space import Space

TOLERANCE = 0.05
"""The share of the expected sum beyond which a map misses completeness."""
CANCELLING = 1e6
"""How many times the expected sum a map's values may amount to: beyond it they say nothing."""
MIN_SUM = 0.01
"""A smaller expected sum is taken to be this: values that cancel to 0, as they should, are no fault."""
LOW_CORRELATION = 0.5
"""Below this correlation with the map of another seed a map is called noise."""
MIN_DRAWS = 4
"""Draws that can be halved into two maps."""
FLAT = 1e-9
"""A half whose values differ by less than this share of their size, or the outputs', is constant."""


# --- completeness: what the values of a map sum to ----------------------------------------------------------


def check_completeness(
    name: str, statement: str, exact: bool, expected: Tensor, values: Tensor
) -> dict[str, Any]:
    """Compare the sum of each sample's values with what it should be, for the provenance.

    The residual is a share of the expected sum, or of a hundredth of the sum of absolute values, whichever
    is more: where large values cancel, their rounding is no fault. Maps that miss an exact statement are
    counted, those that contain NaN among them.

    Parameters
    ----------
    name : str
        The explainer.
    statement : str
        What its values sum to, in words.
    exact : bool
        Whether the statement holds of each map, rather than in expectation.
    expected : Tensor
        (n,): the sum that each sample should have.
    values : Tensor
        (n, V): the maps.

    Returns
    -------
    dict
        `{"completeness": {"states", "largest_residual", "mean_residual", "broken", "of"}}`.
    """
    # in one pass each, without a copy of all values in float64
    total = values.sum(-1, dtype=torch.float64)
    size = torch.linalg.vector_norm(values, 1, -1, dtype=torch.float64)
    residual = (total - expected).abs() / torch.maximum(expected.abs(), size / 100).clamp(min=1e-12)
    broken = ~(residual <= TOLERANCE) | (size > CANCELLING * expected.abs().clamp(min=MIN_SUM))
    known = residual[residual.isfinite()]
    found: dict[str, Any] = {
        "completeness": {
            "states": statement,
            "largest_residual": float(known.max()) if len(known) else None,
            "mean_residual": float(known.mean()) if len(known) else None,
            "broken": int(broken.sum()) if exact else None,
            "of": len(broken),
        }
    }
    if exact and found["completeness"]["broken"]:
        warn(f"'{name}': {completeness_sentence(found)}")
    return found


def completeness_sentence(provenance: Mapping[str, Any]) -> str | None:
    """One sentence on how far maps are from their expected sums; None where nothing is expected."""
    found = provenance.get("completeness")
    if not found:
        return None
    if found["largest_residual"] is None:
        return f"{found['states']}; no map of {found['of']} is a number: do not read them"
    text = f"{found['states']}; they miss it by {found['largest_residual']:.2g} of it at most"
    if found.get("broken"):
        fault = f"by more than {TOLERANCE:.0%}"
        if found["largest_residual"] <= TOLERANCE:
            fault = f"hand out {CANCELLING:.0e} times what they sum to, or are no numbers"
        text += f", {found['broken']} of {found['of']} maps {fault}: do not read those"
    return text


def output_of_target(task: Task) -> Tensor:
    """The explained output of each sample, in float64."""
    return task.clean_response("logit")[:, 0].double()


def difference_from_baselines(task: Task, baselines: Callable[[Task], Tensor]) -> Tensor:
    """y_c(x) less the mean of y_c over `baselines(task)` (k, *input shape), not counted."""
    at = task.at_embeddings()
    rows = baselines(at)

    def evaluate() -> Tensor:
        with at.session():
            if not at.side:
                return at.predictor.chunk(rows).double().mean(0).expand(len(at), -1)
            each = [at.predictor.chunk(row.expand_as(at.inputs), at.side) for row in rows.split(1)]
        return torch.stack(each).double().mean(0)

    below: Tensor = at.uncounted(evaluate)
    return output_of_target(task) - below.gather(1, task.targets[:, None])[:, 0]


def difference_from_empty(task: Task, key: Key) -> Tensor:
    """y_c(x) less y_c with every feature removed, not counted."""
    everything = Given(torch.ones(1, task.space.n_features, dtype=torch.bool, device=task.device))
    empty: Tensor = task.uncounted(lambda: probe(task, everything, response="logit", key=key))
    return output_of_target(task) - empty[:, 0]


# --- repeatability: whether another seed would give the same map --------------------------------------------


def record_split_half(
    context: Context, task: MaskedTask, draws: int, fit: Callable[[int], Tensor], some: slice = slice(None)
) -> None:
    """Record how far the maps `fit(0)` and `fit(1)` of every second draw agree, where the context reads it.

    No row is evaluated for it: each half of the responses is fitted alone. Two halves are less alike than two
    whole maps, so the correlation r of the halves stands for 2r / (1 + r) of the maps (Spearman 1910, Brown
    1910).
    """
    valid = task.space.valid
    if context.halves is not None and draws >= MIN_DRAWS:
        size = task.outputs.gather(1, task.targets[:, None])[some]
        present = None if valid is None else valid[some]
        context.halves.append(expected_agreement(fit(0), fit(1), present, size))


def expected_agreement(
    first: Tensor, second: Tensor, valid: Tensor | None = None, size: Tensor | float = 0.0
) -> Tensor:
    """(n,): the correlation between two maps that each take as many draws as both halves (n, V) together.

    `size` (n, 1) is that of the outputs, beside which a map may be nothing but their rounding.
    """
    halves = torch.stack([first, second]).double()
    present = torch.ones_like(halves[0]) if valid is None else valid.to(halves)
    centred = (halves - (halves * present).sum(-1, keepdim=True) / present.sum(-1, keepdim=True)) * present
    length = torch.linalg.vector_norm(centred, dim=-1)
    large = torch.linalg.vector_norm(torch.cat([halves * present, size + 0 * halves[..., :1]], -1), dim=-1)
    r = (centred[0] * centred[1]).sum(-1) / length.prod(0)
    # halves that contradict one another promise nothing of the whole
    agreement = torch.where(r > 0, 2 * r / (1 + r), r)
    return agreement.masked_fill((length <= FLAT * large).any(0), torch.nan)


def check_repeatability(name: str, found: list[Tensor]) -> dict[str, Any]:
    """How far maps repeat, for the provenance; warns where most of a task's are noise."""
    each = torch.cat(found)
    each = each[each.isfinite()]
    if not len(each):
        return {}
    repeatability = {
        "mean": float(each.mean()),
        "smallest": float(each.min()),
        "low": int((each < LOW_CORRELATION).sum()),
        "of": len(each),
    }
    provenance = {"repeatability": repeatability}
    if repeatability["mean"] < LOW_CORRELATION:
        warn(f"'{name}': {repeatability_sentence(provenance)}")
    return provenance


def repeatability_sentence(provenance: Mapping[str, Any]) -> str | None:
    """One sentence on how far maps would come out again; None where nothing was drawn."""
    found = provenance.get("repeatability")
    if not found:
        return None
    text = f"with another seed maps would correlate by {found['mean']:.2f} (halves of their draws say so)"
    if not found["low"]:
        return text
    return (
        f"{text}, {found['low']} of {found['of']} by less than {LOW_CORRELATION}: those are mostly noise; "
        "evaluate more rows, or give the task fewer features (larger patches, superpixels)"
    )


def notes(explanations: Mapping[str, Any]) -> list[str]:
    """Notes beside maps: completeness, repeatability, joined features, fits of too few responses."""
    out = []
    for who, explanation in explanations.items():
        provenance = explanation.provenance
        said = [completeness_sentence(provenance), repeatability_sentence(provenance)]
        said += [provenance.get(what) for what in ("cells", "underdetermined")]
        out += [f"{who}: {text}" for text in said if text]
    return out


# --- constant maps ------------------------------------------------------------------------------------------


class ConstantMaps:
    """Which samples of a task a method gives a constant map.

    Metrics of methods explain again and again; the first map of a sample is that of its untouched
    input, and the one that counts.
    """

    def __init__(self, task: Task) -> None:
        self._ids = task.ids
        self._constant: dict[int, bool] = {}

    def notice(self, task: Task, space: Space, values: Tensor) -> None:
        """Remember which of these maps (n, V) are constant; NaN says that a sample has none."""
        if len(self._constant) < len(self._ids):
            constant = ~has_spread(values, space.valid) & ~values.isnan().any(-1)
            for sample, flat in zip(task.ids.tolist(), constant.tolist(), strict=True):
                self._constant.setdefault(sample, flat)

    @property
    def flags(self) -> Tensor:
        """(N,): samples whose first map is constant."""
        found = [self._constant.get(sample, False) for sample in self._ids.tolist()]
        return torch.tensor(found, dtype=torch.bool, device=self._ids.device)
