"""What a method promises of every map, and how far a map is from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import VeridicalWarning
from veridical.explainers import repeatability
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given
from veridical.values.task import Task

TOLERANCE = 0.05
"""The share of what was promised beyond which a map is said to break its law."""
CANCELLING = 1e6
"""How many times over what was promised a map may hand out: beyond it the values say nothing."""
NOTHING = 0.01
"""Below this a promise is taken to be this: values that cancel to 0, as they should, are no fault."""


def checked_sum(name: str, law: str, exact: bool, promised: Tensor, values: Tensor) -> dict[str, Any]:
    """Compare what the values of each sample sum to with what was promised, for the provenance.

    The residual is a share of what was promised, or of a hundredth of all that the map hands out, whichever
    is more: where large values cancel, their rounding is no fault. Maps that break an exact law are counted,
    those that are no numbers among them.
    """
    # in one pass each, without a copy of all values in float64
    total = values.sum(-1, dtype=torch.float64)
    size = torch.linalg.vector_norm(values, 1, -1, dtype=torch.float64)
    residual = (total - promised).abs() / torch.maximum(promised.abs(), size / 100).clamp(min=1e-12)
    broken = ~(residual <= TOLERANCE) | (size > CANCELLING * promised.abs().clamp(min=NOTHING))
    known = residual[residual.isfinite()]
    told: dict[str, Any] = {
        "law": {
            "states": law,
            "largest_residual": float(known.max()) if len(known) else None,
            "mean_residual": float(known.mean()) if len(known) else None,
            "broken": int(broken.sum()) if exact else None,
            "of": len(broken),
        }
    }
    if exact and told["law"]["broken"]:
        warnings.warn(f"'{name}': {in_words(told)}", VeridicalWarning, stacklevel=2)
    return told


def in_words(provenance: Mapping[str, Any]) -> str | None:
    """One sentence on how far a map is from what it promises; None where it promises nothing."""
    law = provenance.get("law")
    if not law:
        return None
    if law["largest_residual"] is None:
        return f"{law['states']}; no map of {law['of']} is a number: do not read them"
    text = f"{law['states']}; they miss it by {law['largest_residual']:.2g} of it at most"
    if law.get("broken"):
        fault = f"by more than {TOLERANCE:.0%}"
        if law["largest_residual"] <= TOLERANCE:
            fault = f"hand out {CANCELLING:.0e} times what they sum to, or are no numbers"
        text += f", {law['broken']} of {law['of']} maps {fault}: do not read those"
    return text


def notes(explanations: Mapping[str, Any]) -> list[str]:
    """What is said beside maps: their laws, how far they repeat, joined features, fits of too few answers."""
    out = []
    for who, explanation in explanations.items():
        said = [in_words(explanation.provenance), repeatability.in_words(explanation.provenance)]
        said += [explanation.provenance.get(what) for what in ("cells", "underdetermined")]
        out += [f"{who}: {text}" for text in said if text]
    return out


def explained_output(task: Task) -> Tensor:
    """The explained output of each sample, in float64."""
    return task.clean_response("logit")[:, 0].double()


def change_from(task: Task, start: Callable[[Task], Tensor]) -> Tensor:
    """y_c(x) less the mean of y_c over the baselines `start(task)` (k, *input shape), not counted."""
    at = task.at_embeddings()
    rows = start(at)

    def ask() -> Tensor:
        with at.session():
            if not at.side:
                return at.predictor.chunk(rows).double().mean(0).expand(len(at), -1)
            each = [at.predictor.chunk(row.expand_as(at.inputs), at.side) for row in rows.split(1)]
        return torch.stack(each).double().mean(0)

    below: Tensor = at.uncounted(ask)
    return explained_output(task) - below.gather(1, task.targets[:, None])[:, 0]


def change_from_nothing(task: Task, key: Key) -> Tensor:
    """y_c(x) less y_c with every feature removed, not counted."""
    everything = Given(torch.ones(1, task.space.n_features, dtype=torch.bool, device=task.device))
    empty: Tensor = task.uncounted(lambda: probe(task, everything, response="logit", key=key))
    return explained_output(task) - empty[:, 0]
