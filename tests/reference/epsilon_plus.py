"""The EpsilonPlus composite by plain loops: z+ in convolutions, epsilon in linear layers, ReLUs pass.

As zennit has it: relevance starts at 1 for one output, every denominator is pushed off 0 by 1e-6 in the
direction of its sign (0 counts as positive), and z+ takes a+ w+ + a- w- with the positive part of the bias.
"""

import numpy as np


def pushed(z: float) -> float:
    return z + (1e-6 if z >= 0 else -1e-6)


def convolved(a: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    outputs, _, height, width = w.shape
    z = np.zeros((outputs, a.shape[1] - height + 1, a.shape[2] - width + 1))
    for o, r, c in np.ndindex(*z.shape):
        z[o, r, c] = b[o] + (w[o] * a[:, r : r + height, c : c + width]).sum()
    return z


def through_convolution(a: np.ndarray, w: np.ndarray, b: np.ndarray, R: np.ndarray) -> np.ndarray:
    out = np.zeros_like(a)
    for o, r, c in np.ndindex(*R.shape):
        window = (slice(None), slice(r, r + w.shape[2]), slice(c, c + w.shape[3]))
        parts = np.maximum(a[window] * w[o], 0.0)
        out[window] += parts / pushed(parts.sum() + max(b[o], 0.0)) * R[o, r, c]
    return out


def through_linear(a: np.ndarray, w: np.ndarray, b: np.ndarray, R: np.ndarray) -> np.ndarray:
    out = np.zeros_like(a)
    for o in range(len(w)):
        out += a * w[o] / pushed(float(w[o] @ a + b[o])) * R[o]
    return out


def relevance(x: np.ndarray, convolutions: list, linear: tuple, target: int) -> np.ndarray:
    """Relevance of x (channels, height, width) in [convolution, ReLU] * n, flatten, linear."""
    inputs = []
    for w, b in convolutions:
        inputs.append(x)
        x = np.maximum(convolved(x, w, b), 0.0)
    start = np.zeros(len(linear[0]))
    start[target] = 1.0
    R = through_linear(x.reshape(-1), *linear, start).reshape(x.shape)
    for (w, b), a in zip(reversed(convolutions), reversed(inputs), strict=True):
        R = through_convolution(a, w, b, R)
    return R
