"""What each table meta-evaluates: groups of metrics, sets of explainers, and the printed figures.

A group is run by itself and written when it is done, so that the dearest metrics come last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

import veridical as vd
from replications.metaquantus.printed import GEF_A1, GEF_A2, QGE_5
from veridical.core.key import Key
from veridical.explainers import GradientShap, IntegratedGradients, Occlusion
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
    TopKIntersection,
)
from veridical.perturb.fills import Fill, UniformNoise, Zero

SAME_SPREAD = 0.001 * math.sqrt(3)
"""Neighbours are drawn uniformly here; this radius has the spread of the GEF paper's N(0, 0.001)."""


@dataclass(frozen=True)
class Table:
    """Groups of metrics by label, sets of explainers by label, and printed means of MC by metric."""

    groups: tuple[dict[str, Any], ...]
    sets: dict[str, list[Any]]
    printed: dict[str, float]


@dataclass(frozen=True)
class OwnMean(Fill):
    """The mean of the image itself, what the published program calls "mean"."""

    name: ClassVar[str] = "mean of the image"

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        return x.flatten(1).mean(1).reshape(-1, 1, *[1] * (x.dim() - 1)).expand(-1, 1, *x.shape[1:])


def six(quick: bool, side: int = 28, stride: int | None = None) -> list[Any]:
    """The six explanation methods of MetaQuantus' Tables 3 and 5, as its program sets them.

    Its window of occlusion slides by one pixel, 484 places of an MNIST image; here by `stride`.
    """
    window = side // 4
    stride = stride or window
    return [
        "gradient",
        "saliency",
        "gradcam",
        IntegratedGradients(steps=3 if quick else 10, rule="trapezoid"),
        Occlusion(window=window, stride=stride),
        GradientShap(samples=2 if quick else 5),
    ]


SIX = ("gradient", "saliency", "gradcam", "integrated_gradients", "occlusion", "gradient_shap")
A_5_2 = (
    ("gradient", "occlusion"),
    ("gradient", "input_x_gradient"),
    ("gradient", "saliency"),
    ("gradient", "gradcam", "gradient_shap"),
    ("gradient", "saliency", "integrated_gradients"),
    ("gradient", "saliency", "input_x_gradient", "gradcam"),
    ("gradient", "saliency", "occlusion", "gradcam"),
)
"""The sets of explainers of A.5.2, which names one of them twice."""


def seven(quick: bool, side: int = 28) -> list[Any]:
    """The six, and the one more that the sets of A.5.2 (figure 9) need."""
    stride = None if quick else 2 if side == 28 else 4
    return [*six(quick, side, stride), "input_x_gradient"]


def ten(neighbours: int, side: int = 28) -> list[Any]:
    """The ten estimators of Tables 3 and 5 as A.4 and the program it points to set them."""
    per_step = 2 * side
    return [
        "sparseness",
        "complexity",
        FaithfulnessCorrelation(runs=10, subset_size=per_step, fill=UniformNoise(), response="logit"),
        PixelFlipping(per_step=per_step, fill=UniformNoise(), response="logit"),
        PointingGame(),
        RelevanceMassAccuracy(),
        RandomLogit(),
        Mprt(),
        MaxSensitivity(draws=neighbours, radius=0.01),
        # the program's neighbours are normal with this spread, here they are uniform
        LocalLipschitz(draws=neighbours, radius=0.01 * math.sqrt(3)),
    ]


def grid() -> dict[str, Any]:
    """The twelve settings of faithfulness correlation of figure 10 (left), P1 to P12."""
    fills: dict[str, Fill] = {"black": Zero(), "uniform": UniformNoise(), "mean": OwnMean()}
    pairs = [(name, size) for name in fills for size in (28, 52, 102, 128)]
    return {
        f"P{place} {name}, {size}": FaithfulnessCorrelation(
            runs=10, subset_size=size, fill=fills[name], response="logit"
        )
        for place, (name, size) in enumerate(pairs, 1)
    }


def localisation() -> list[Any]:
    """The four estimators of figure 8."""
    return [PointingGame(), TopKIntersection(), RelevanceMassAccuracy(), RelevanceRankAccuracy()]


def gef_sets(quick: bool) -> dict[str, list[Any]]:
    """The two sets of explainers of the GEF paper, A.8.1."""
    shap = GradientShap(samples=5 if quick else 10)
    return {"GRAD, G-CAM": ["gradient", "gradcam"], "SAL, SHAP-G": ["saliency", shap]}


def gef_a1(quick: bool, neighbours: int) -> Table:
    """GEF paper, Table A.1: unified and faithfulness metrics."""
    cheap = {
        "Fast-GEF": vd.gef.FastGEF(path="published"),
        "PF": PixelFlipping(per_step=28),
        "FC": FaithfulnessCorrelation(runs=5, subset_size=28),
        "RP": RegionPerturbation(patch=7),
    }
    # K matters only to SHAP-G, which draws anew; the program's output noise reaches no explainer
    dear = {"GEF": vd.gef.GEF(form="reference", path="published", output_draws=1)}
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
        rows |= {f"QRAND-1 {name}": vd.qge.QRand(metric, draws=1), f"QGE {name}": vd.qge.QGE(metric)}
    return Table((rows,), {"six methods": six(quick)}, QGE_5)


OTHERS: dict[str, Callable[[bool, int], Table]] = {"gef-a1": gef_a1, "gef-a2": gef_a2, "qge-5": qge_5}
