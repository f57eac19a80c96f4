"""SAELens' documented forward passes, one function an architecture, written slowly from their description.

`x` is one activation; each gives the feature activations and the reconstruction.
"""

from __future__ import annotations

import numpy as np


def _start(x, part, config):
    return x - part["b_dec"] if config.get("apply_b_dec_to_input", True) else x


def standard(x, part, config):
    before = _start(x, part, config) @ part["W_enc"] + part["b_enc"]
    acts = np.maximum(before, 0)
    if config.get("activation_fn") == "tanh-relu":
        acts = np.tanh(acts)
    if config.get("finetuning_scaling_factor"):
        acts = acts * part["finetuning_scaling_factor"]
    return acts, acts @ part["W_dec"] + part["b_dec"]


def _largest(values, k):
    return sorted(range(len(values)), key=lambda i: -values[i])[:k]


def topk(x, part, config, by_size=False):
    """The k largest before-activations are kept; with rescaling they are measured in units of the decoder."""
    before = _start(x, part, config) @ part["W_enc"] + part["b_enc"]
    norms = np.linalg.norm(part["W_dec"], axis=1)
    rescaled = config.get("rescale_acts_by_decoder_norm", False)
    if rescaled:
        before = before * norms
    acts = np.zeros_like(before)
    for i in _largest(np.abs(before) if by_size else before, config["k"]):
        acts[i] = before[i] if by_size else max(before[i], 0)
    shown = acts / norms if rescaled else acts
    return acts, shown @ part["W_dec"] + part["b_dec"]


def abstopk(x, part, config):
    return topk(x, part, config, by_size=True)


def jumprelu(x, part, config):
    before = _start(x, part, config) @ part["W_enc"] + part["b_enc"]
    acts = np.where(before > part["threshold"], np.maximum(before, 0), 0)
    return acts, acts @ part["W_dec"] + part["b_dec"]


def gated(x, part, config):
    given = _start(x, part, config)
    gate = given @ part["W_enc"] + part["b_gate"] > 0
    size = np.maximum(given @ (part["W_enc"] * np.exp(part["r_mag"])) + part["b_mag"], 0)
    acts = gate * size
    return acts, acts @ part["W_dec"] + part["b_dec"]


def matching_pursuit(x, part, config):
    left = _start(x, part, config).copy()
    acts = np.zeros(len(part["W_dec"]))
    for _ in range(config.get("max_iterations") or len(x)):
        products = np.maximum(part["W_dec"] @ left, 0)
        at = int(products.argmax())
        had = set(np.flatnonzero(acts))
        acts[at] += products[at]
        left = left - products[at] * part["W_dec"][at]
        if config.get("stop_on_duplicate_support", True) and set(np.flatnonzero(acts)) == had:
            break
        if np.linalg.norm(left) < config.get("residual_threshold", 1e-2):
            break
    return acts, acts @ part["W_dec"] + part["b_dec"]


ARCHITECTURES = {
    "standard": standard,
    "topk": topk,
    "abstopk": abstopk,
    "jumprelu": jumprelu,
    "gated": gated,
    "matching_pursuit": matching_pursuit,
}
