"""Relevance through a two-layer ReLU network by plain loops over neurons, one rule at a time."""

import numpy as np


def contributions(rule, a, w, b, z, gamma, low, high):
    """Modified contributions c of each input to one neuron with their denominator: [(factor, c, total)]."""
    c = a * w
    up, down = np.where(c > 0, c, 0.0), np.where(c < 0, c, 0.0)
    if rule == "epsilon":
        return [(1.0, c, c.sum() + b)]
    if rule == "z_plus":
        return [(1.0, up, up.sum() + max(b, 0.0))]
    if rule == "alpha_beta":
        return [(2.0, up, up.sum() + max(b, 0.0)), (-1.0, down, down.sum() + min(b, 0.0))]
    if rule == "flat":
        return [(1.0, np.ones_like(w), float(len(w)))]
    if rule == "w_square":
        return [(1.0, w**2, (w**2).sum())]
    if rule == "z_box":
        box = c - low * np.where(w > 0, w, 0.0) - high * np.where(w < 0, w, 0.0)
        return [(1.0, box, box.sum())]
    if rule == "gamma":
        extra, bias = (up, max(b, 0.0)) if z >= 0 else (down, min(b, 0.0))
        changed = c + gamma * extra
        return [(1.0, changed, changed.sum() + b + gamma * bias)]
    raise ValueError(rule)


def one_layer(rule, a, W, b, R, gamma=0.25, low=0.0, high=1.0):
    """R_i = sum_j share of i in neuron j times R_j."""
    out = np.zeros_like(a)
    for j in range(len(W)):
        bias = 0.0 if b is None else b[j]
        z = float(a @ W[j]) + bias
        for factor, c, total in contributions(rule, a, W[j], bias, z, gamma, low, high):
            if total != 0:
                out += factor * c / total * R[j]
    return out


def relevance(rule, x, layers, target, **constants):
    """Layers are (W, b) pairs with ReLU between them; all follow one rule."""
    activations = [x]
    for k, (W, b) in enumerate(layers):
        z = W @ activations[-1] + (0.0 if b is None else b)
        activations.append(np.maximum(z, 0.0) if k + 1 < len(layers) else z)
    R = np.zeros_like(activations[-1])
    R[target] = activations[-1][target]
    for a, (W, b) in reversed(list(zip(activations[:-1], layers, strict=True))):
        R = one_layer(rule, a, W, b, R, **constants)
    return R
