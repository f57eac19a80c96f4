"""GEF's score and distortions, rewritten slowly: plain loops over samples, draws and levels."""

import itertools

import numpy as np
from scipy import stats


def score(model: np.ndarray, explanation: np.ndarray) -> np.ndarray:
    """Mean over draws of Spearman over levels, (N, M, Z) -> (N,)."""
    out = []
    for sample_model, sample_explanation in zip(model, explanation, strict=True):
        kept = []
        for d_f, d_phi in zip(sample_model, sample_explanation, strict=True):
            if np.ptp(d_f) == 0:
                continue
            kept.append(0.0 if np.ptp(d_phi) == 0 else stats.spearmanr(d_f, d_phi).statistic)
        out.append(np.mean(kept) if kept else np.nan)
    return np.array(out)


def program_distortion(
    clean: np.ndarray, steps: list[list[np.ndarray]], noisy: list[list[list[np.ndarray]]]
) -> list[float]:
    """The running mean over levels and steps of (de . j)^2 for one sample.

    `steps[z][t]` is the map at step t of level z, `noisy[z][t][k]` the maps of the same model with noise on
    its output.
    """
    seen, out = [], []
    for level, copies in zip(steps, noisy, strict=True):
        for moved, others in zip(level, copies, strict=True):
            change = clean - moved
            towards = np.mean([clean - other for other in others], axis=0)
            seen.append(float(np.dot(change, towards)) ** 2)
        out.append(float(np.mean(seen)))
    return out


def arc_length(maps: list[np.ndarray]) -> float:
    """The sum of the straight pieces between successive maps."""
    return float(sum(np.linalg.norm(b - a) for a, b in itertools.pairwise(maps)))


def jacobian_step(outputs: np.ndarray, maps: np.ndarray, step: np.ndarray) -> float:
    """||J step|| with J (V x C) from least squares: maps (K, V) = outputs (K, C) J^T."""
    jacobian = np.linalg.lstsq(outputs, maps, rcond=None)[0].T
    return float(np.linalg.norm(jacobian @ step))
