"""What each table meta-evaluates: groups of metrics, sets of explainers, and the printed figures.

A group is run by itself and written when it is done, so that the dearest metrics come last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import veridical as vd
from replications.metaquantus.printed import GEF_A1, GEF_A2, QGE_5
from veridical.explainers import GradientShap, IntegratedGradients, Occlusion
from veridical.fill import UniformNoise
from veridical.metrics import (
    EfficientMprt,
    FaithfulnessCorrelation,
    LocalLipschitz,
    MaxSensitivity,
    Mprt,
    PixelFlipping,
    PointingGame,
    RandomLogit,
    RegionPerturbation,
    RelativeInputStability,
    RelativeOutputStability,
    RelativeRepresentationStability,
    RelevanceMassAccuracy,
    RelevanceRankAccuracy,
    SmoothMprt,
)

PER_STEP = 2 * 28
"""Features removed a step, and in a subset: twice the width (MetaQuantus A.4)."""
SAME_SPREAD = 0.001 * math.sqrt(3)
"""Neighbours are drawn uniformly here; this radius has the spread of the GEF paper's N(0, 0.001)."""


@dataclass(frozen=True)
class Table:
    """Groups of metrics by label, sets of explainers by label, and printed means of MC by metric."""

    groups: tuple[dict[str, Any], ...]
    sets: dict[str, list[Any]]
    printed: dict[str, float]


def six(quick: bool) -> list[Any]:
    """The six explanation methods of MetaQuantus' Table 3."""
    steps, window = (5, 7) if quick else (32, 4)
    return [
        "gradient",
        "saliency",
        "gradcam",
        IntegratedGradients(steps=steps),
        Occlusion(window=window, stride=window),
        GradientShap(samples=steps),
    ]


def ten(neighbours: int) -> list[Any]:
    """The ten estimators of Table 3 as A.4 sets them; where it is silent, our choice stands in README.md."""
    return [
        "sparseness",
        "complexity",
        FaithfulnessCorrelation(runs=10, subset_size=PER_STEP, fill=UniformNoise()),
        PixelFlipping(per_step=PER_STEP, fill=UniformNoise()),
        PointingGame(),
        RelevanceMassAccuracy(),
        RandomLogit(),
        Mprt(),
        MaxSensitivity(draws=neighbours),
        LocalLipschitz(draws=neighbours),
    ]


def gef_sets(quick: bool) -> dict[str, list[Any]]:
    """The two sets of explainers of the GEF paper, A.8.1."""
    shap = GradientShap(samples=5 if quick else 10)
    return {"GRAD, G-CAM": ["gradient", "gradcam"], "SAL, SHAP-G": ["saliency", shap]}


def gef_a1(quick: bool, neighbours: int) -> Table:
    """GEF paper, Table A.1: unified and faithfulness metrics."""
    cheap = {
        "Fast-GEF": vd.FastGEF(path="published"),
        "PF": PixelFlipping(per_step=28),
        "FC": FaithfulnessCorrelation(runs=5, subset_size=28),
        "RP": RegionPerturbation(patch=7),
    }
    # K matters only to SHAP-G, which draws anew; the program's output noise reaches no explainer
    dear = {"GEF": vd.GEF(form="reference", path="published", output_draws=1)}
    return Table((cheap, dear), gef_sets(quick), GEF_A1)


def gef_a2(quick: bool, neighbours: int) -> Table:
    """GEF paper, Table A.2: sensitivity and robustness metrics."""
    around = {"draws": 5, "radius": SAME_SPREAD}
    first = {
        "eMPRT": EfficientMprt(),
        "MPRT": Mprt(aggregate="last"),
        "RIS": RelativeInputStability(**around),  # type: ignore[arg-type]
        "ROS": RelativeOutputStability(**around),  # type: ignore[arg-type]
        "RRS": RelativeRepresentationStability(**around),  # type: ignore[arg-type]
    }
    second = {"sMPRT": SmoothMprt(noise_draws=5, noise_level=0.01)}
    return Table((first, second), gef_sets(quick), GEF_A2)


def qge_5(quick: bool, neighbours: int) -> Table:
    """QGE paper, Table 5: three metrics as they are, above one random map, and above their inverse."""
    plain = {
        "PF": PixelFlipping(per_step=28),
        "RRA": RelevanceRankAccuracy(),
        "RMA": RelevanceMassAccuracy(),
    }
    rows: dict[str, Any] = dict(plain)
    for name, metric in plain.items():
        rows |= {f"QRAND-1 {name}": vd.QRand(metric, draws=1), f"QGE {name}": vd.QGE(metric)}
    return Table((rows,), {"six methods": six(quick)}, QGE_5)


OTHERS: dict[str, Callable[[bool, int], Table]] = {"gef-a1": gef_a1, "gef-a2": gef_a2, "qge-5": qge_5}
