"""The slow forms that SURF's solvers are timed against: `python -m benchmarks.surf --solvers`.

They are what was here before: non-negative least squares that adds one concept at a time, which gives the
same answers, and self-expression in at most 64 others by sweeps of coordinate descent, which gives worse
unless it gets more others and more sweeps. scikit-learn's Lasso is the rival for one row at a time.
"""

from __future__ import annotations

import torch
from sklearn.linear_model import Lasso
from torch import Tensor


def nnls_one_by_one(gram: Tensor, seen: Tensor) -> Tensor:
    """Lawson and Hanson for systems (G, K, K) and right-hand sides (G, N, K), all rows together."""
    groups, rows, count = seen.shape
    flat = seen.reshape(-1, count)
    own = gram.repeat_interleave(rows, 0)
    answer, passive = torch.zeros_like(flat), torch.zeros_like(flat, dtype=torch.bool)
    left = torch.arange(len(flat))
    for _ in range(3 * count + 10):
        slope = flat[left] - torch.einsum("nkj,nj->nk", own[left], answer[left])
        best, at = slope.masked_fill(passive[left], -torch.inf).max(-1)
        going = best > 1e-10 * flat[left].abs().amax(-1)
        left, at = left[going], at[going]
        if not len(left):
            break
        passive[left, at] = True
        now, on = answer[left], passive[left].clone()
        for _ in range(count + 1):
            both = on[:, :, None] & on[:, None, :]
            system = torch.where(both, own[left], 0.0) + torch.diag_embed(torch.where(on, 1e-13, 1.0))
            wanted = torch.linalg.solve(system, torch.where(on, flat[left], 0.0)[..., None]).squeeze(-1)
            bad = on & (wanted <= 0)
            if not bool(bad.any()):
                now = torch.where(on, wanted, 0.0)
                break
            share = torch.where(bad, now / (now - wanted).clamp(min=1e-300), torch.inf)
            step = share.amin(-1, keepdim=True).clamp(max=1.0)
            now = now + step * (wanted - now)
            on = on & ~(bad & ((share <= step) | (now <= 0)))
            now = torch.where(on, now, 0.0)
        answer[left], passive[left] = now, on
    return answer.reshape(groups, rows, count)


def self_expression_by_descent(
    rows: Tensor,
    gamma: float = 50.0,
    active: int = 64,
    rounds: int = 3,
    which: Tensor | None = None,
    enough: float = 0.0,
) -> Tensor:
    """Every row, or those of `which`, in `active` others, by up to 100 sweeps over coordinates a round.

    Which others they are changes after each round. It ends where the mean loss is `enough`.
    """
    unit = torch.nn.functional.normalize(rows, dim=-1)
    own = torch.arange(len(rows)) if which is None else which
    gram = unit @ unit.T
    off = gram[own].scatter_(1, own[:, None], 0.0)
    penalty = off.abs().amax(-1)
    penalty /= gamma
    chosen = off.abs().scatter_(1, own[:, None], -1.0).topk(active, -1).indices
    now = torch.zeros_like(chosen, dtype=rows.dtype)
    whole = torch.zeros_like(off)
    for turn in range(rounds):
        systems = gram[chosen[:, :, None], chosen[:, None, :]]
        seen = off.gather(1, chosen)
        left = seen - torch.einsum("bij,bj->bi", systems, now)
        loss = torch.inf
        for sweep in range(100):
            before = now.clone()
            for k in range(active):
                rest = left[:, k] + now[:, k]
                after = rest.sign() * (rest.abs() - penalty).clamp(min=0)
                left -= (after - now[:, k])[:, None] * systems[:, k]
                now[:, k] = after
            if sweep % 10 == 9:
                loss = float((0.5 - (now * (seen + left)).sum(-1) / 2 + penalty * now.abs().sum(-1)).mean())
                if loss <= enough or float((now - before).abs().max()) < 1e-4:
                    break
        whole = torch.zeros_like(off).scatter_(1, chosen, now)
        if loss <= enough or turn == rounds - 1:
            break
        unexplained = (off - whole @ gram).abs()
        kept = torch.where(now != 0, torch.inf, unexplained.gather(1, chosen))
        wanted = unexplained.scatter(1, chosen, kept).scatter_(1, own[:, None], -1.0)
        chosen = wanted.topk(active, -1).indices
        now = whole.gather(1, chosen)
    return whole


def self_expression_by_lasso(rows: Tensor, which: Tensor, tolerance: float, gamma: float = 50.0) -> Tensor:
    """Some rows in all others, one by one, by scikit-learn."""
    unit = torch.nn.functional.normalize(rows, dim=-1)
    whole = torch.zeros(len(which), len(rows), dtype=rows.dtype)
    for found, j in zip(whole, which, strict=True):
        others = torch.arange(len(rows)) != j
        penalty = float((unit[others] @ unit[j]).abs().max()) / gamma
        fit = Lasso(penalty / rows.shape[1], fit_intercept=False, tol=tolerance, max_iter=10_000)
        found[others] = torch.from_numpy(fit.fit(unit[others].T.numpy(), unit[j].numpy()).coef_)
    return whole


def leading_eigenvectors(coefficients: Tensor, count: int) -> Tensor:
    """Of the normalised affinity, from a random start."""
    affinity = coefficients.abs() + coefficients.abs().T
    scale = affinity.sum(-1).clamp(min=1e-12).rsqrt()
    start = torch.randn(len(scale), count, generator=torch.Generator().manual_seed(0), dtype=scale.dtype)
    found = torch.lobpcg(scale[:, None] * affinity * scale, X=start, niter=200)[1]
    return torch.nn.functional.normalize(found, dim=-1)
