"""GEF's tables on MNIST (LeNet), ours beside the paper's; `replications.gef.tabular` has those of tables.

    VERIDICAL_DATA=... python -m replications.gef.run --out results [--samples 250] [--only vision ...]

Every part writes its own JSON as soon as it is done; README.md says where the data come from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from replications.gef.data import accuracy, adult, avila, mnist
from replications.gef.visualisers import DeepViz, Fourier
from veridical.explainers import as_explainer
from veridical.functional import kendall_tau_b, spearman
from veridical.gef import Maco, class_task
from veridical.gef.noise_path import even_levels

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "SMG": ("smoothgrad", {"samples": 10}),
    "SHAP-G": ("gradient_shap", {"samples": 10}),
    "SAL": ("saliency", {}),
    "RAN": ("random", {}),
    "LRP-eps": ("lrp_epsilon", {}),
    "LRP-z+": ("lrp_z_plus", {}),
    "IXG": ("input_x_gradient", {}),
    "INTG": ("integrated_gradients", {"steps": 10}),
    "GRAD": ("gradient", {}),
    "GBP": ("guided_backprop", {}),
}
EIGHT = ("SMG", "SHAP-G", "SAL", "LRP-z+", "IXG", "INTG", "GRAD", "GBP")


def explainer(label: str) -> vd.Explainer:
    name, settings = METHODS[label]
    return as_explainer(name, **settings)


def row(scores: vd.Scores) -> dict[str, Any]:
    """A cell of a table: mean, standard error, and what the score should be read beside."""
    kept = scores.values[~scores.values.isnan()]
    return {
        "mean": float(kept.mean()) if len(kept) else float("nan"),
        "error": float(kept.std() / len(kept) ** 0.5) if len(kept) > 1 else float("nan"),
        "ceiling": float(scores.details["ceiling"].nanmean()),
        "rho_sigma_explanation": float(scores.details["rho_sigma_explanation"].nanmean()),
        "partial": float(scores.details["partial"].nanmean()),
        "interval": scores.ci(),
        "flagged": scores.flagged,
        "rows": [scores.cost.forward, scores.cost.backward],
        **({"iso_sigma": sure} if (sure := scores.provenance.get("iso_sigma")) else {}),
    }


def table(task: vd.Task, metric: vd.gef.GEF, labels: tuple[str, ...], seed: int = 0) -> dict[str, Any]:
    """A row per method; scores under all seeds rest on the path of the first."""
    if seed:
        metric = replace(metric, path=metric.noise_path(task).levels)
    out: dict[str, Any] = {}
    for label in labels:
        start = time.perf_counter()
        try:
            out[label] = row(vd.score(metric, task, explainer(label), seed=seed))
        except vd.errors.NotApplicableError as error:
            out[label] = {"does not apply": str(error)}
            continue
        out[label]["seconds"] = round(time.perf_counter() - start, 2)
        print(f"  {label}: {out[label]['mean']:.3f} in {out[label]['seconds']} s", flush=True)
    return out


def vision(samples: int) -> dict[str, Any]:
    """Table A.5, MNIST column: Fast-GEF on the published path."""
    task = mnist(samples)
    metric = vd.gef.FastGEF(path="published")
    found = table(task, metric, tuple(METHODS))
    ours = vd.gef.FastGEF().noise_path(task)
    return {
        "accuracy": accuracy(task),
        "published path": str(metric.noise_path(task)),
        "our path": str(ours),
        "scores": found,
    }


def forms(samples: int) -> dict[str, Any]:
    """Rank agreement of fast and arc over eight explainers, and all forms on three."""
    task = mnist(samples)
    out: dict[str, Any] = {"fast": table(task, vd.gef.FastGEF(), (*EIGHT, "RAN"))}
    out["arc"] = table(task, vd.gef.GEF(form="arc"), (*EIGHT, "RAN"))
    fast, arc = (
        torch.tensor([out[form][label]["mean"] for label in EIGHT], dtype=torch.float64)
        for form in ("fast", "arc")
    )
    out["spearman of fast and arc"] = float(spearman(fast, arc))
    out["kendall of fast and arc"] = float(kendall_tau_b(fast, arc))
    few = task[: min(32, samples)]
    # K = 2C explanations a step: one draw is enough to see what it does to random maps
    out["jacobian"] = table(few, vd.gef.GEF(form="jacobian", draws=1), ("GRAD", "RAN"))
    out["reference"] = table(task, vd.gef.GEF(form="reference"), (*EIGHT, "RAN"))
    out["agreement"] = agreements({form: out[form] for form in ("fast", "arc", "reference")}, EIGHT)
    return out


def agreements(tables: dict[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
    """How far forms rank explainers alike (figure A.9): rank correlations, and each form's order."""
    kept = [label for label in labels if all("mean" in own.get(label, {}) for own in tables.values())]
    means = {
        form: torch.tensor([own[label]["mean"] for label in kept], dtype=torch.float64)
        for form, own in tables.items()
    }
    out: dict[str, Any] = {
        f"order by {form}": [kept[i] for i in own.argsort(descending=True).tolist()]
        for form, own in means.items()
    }
    for a, b in itertools.combinations(means, 2):
        out[f"{a} and {b}"] = {
            "spearman": float(spearman(means[a], means[b])),
            "kendall": float(kendall_tau_b(means[a], means[b])),
        }
    return out


def controls(samples: int) -> dict[str, Any]:
    """Table A.3 on MNIST: three controls and one method under five metrics."""
    task = mnist(samples)
    metrics: dict[str, Any] = {
        "GEF (arc)": vd.gef.GEF(form="arc"),
        "GEF (reference)": vd.gef.GEF(form="reference"),
        "Fast-GEF": vd.gef.FastGEF(),
        "FC": "faithfulness_correlation",
        "MPRT": "mprt",
        "RIS": "relative_input_stability",
    }
    out: dict[str, Any] = {}
    for who in ("constant", "random", "sobel", "gradient"):
        out[who] = {}
        for what, metric in metrics.items():
            scores = vd.score(metric, task, who)
            values = scores.values[~scores.values.isnan()]
            out[who][what] = {
                "mean": float(values.mean()) if len(values) else None,
                "std": float(values.std()) if len(values) > 1 else None,
                "without a value": len(scores) - len(values),
                "flagged": scores.flagged,
            }
            print(f"  {who}, {what}: {out[who][what]['mean']}", flush=True)
    return out


def global_methods(samples: int) -> dict[str, Any]:
    """Table A.5, global methods: ten classes as samples."""
    task = class_task(mnist(samples))
    out = {}
    for kind, label in ((DeepViz, "DV"), (Fourier, "FO"), (Maco, "MACO")):
        for steps in (50, 100, 250):
            scores = vd.score(vd.gef.FastGEF(path="published"), task, kind(steps=steps))
            out[f"{label}-{steps}"] = row(scores)
            print(f"  {label}-{steps}: {out[f'{label}-{steps}']['mean']:.3f}", flush=True)
    out["RAN"] = row(vd.score(vd.gef.FastGEF(path="published"), task, "random"))
    return out


def assumed(samples: int) -> dict[str, Any]:
    """Appendix A.5 (figures A.3 to A.5): how often Assumptions 1 to 3 fail, and how far D_f moved."""
    out: dict[str, Any] = {}
    for task in (mnist(samples), avila(samples), adult(samples)):
        found = vd.gef.assumptions(task, draws=2)
        rises = torch.linspace(0, 1, len(found.path.levels), dtype=torch.float64)
        follows = spearman(rises.expand_as(found.noise.distortion), found.noise.distortion.double())
        out[task.name] = {
            "path": str(found.path),
            "failing": found.to_frame().to_dict("records"),
            "rank correlation of input noise and D_f, by sample": [
                float(follows.nanmean()),
                *follows.flatten().nanquantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist(),
            ],
        }
        print(task.name, found, flush=True)
    return out


def noises(samples: int) -> dict[str, Any]:
    """Figures 3, A.6 and A.7: do model and explanation distortion go together, by kind of noise?"""
    kinds = {
        "input noise": vd.gef.FastGEF(perturb="input", draws=1),
        "Fast-GEF": vd.gef.FastGEF(draws=1),
        "GEF": vd.gef.GEF(draws=1),
    }
    out: dict[str, Any] = {}
    for task in (avila(samples), adult(samples), mnist(samples)):
        for label, (kind, metric) in itertools.product(("GRAD", "SHAP-G", "SAL"), kinds.items()):
            if kind == "GEF" and label != "GRAD":
                continue  # figure A.7 has the gradient alone
            scores = vd.score(metric, task, explainer(label))
            model, explanation = (
                scores.details[f"{what}_distortion"][:, 0] for what in ("model", "explanation")
            )
            at_level = spearman(model.T, explanation.T).tolist()
            cell = {
                "over all points": float(spearman(model.flatten(), explanation.flatten())),
                "over samples, by level": at_level,
                "by sample, over levels": row(scores),
                "quadrants": vd.gef.quadrants(scores).mean().drop("sigma").to_dict(),
            }
            out[f"{task.name}, {label}, {kind}"] = cell
            print(f"  {task.name}, {label}, {kind}: {cell['over all points']:.3f}", flush=True)
    return out


VALUES = (1, 2, 3, 5, 10, 20)
ABLATION: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "SAL, Avila": ("SAL", {"reference": ("levels", "draws", "steps", "output_draws")}),
    "RAN, MNIST": ("RAN", {"reference": ("levels", "draws", "steps", "output_draws")}),
    "GRAD, MNIST": ("GRAD", {"fast": ("levels", "draws"), "arc": ("steps",)}),
}


def metric_of(form: str) -> type[vd.gef.GEF]:
    """The metric that takes a form."""
    return vd.gef.FastGEF if form == "fast" else vd.gef.GEF


def ablation(samples: int) -> dict[str, Any]:
    """Figures A.1 and A.8: score, spread and seconds over Z, M, T and K, the others at 5."""
    tasks = {"Avila": avila(samples), "MNIST": mnist(samples)}
    ends = {name: vd.gef.FastGEF().noise_path(task).sigma_max for name, task in tasks.items()}
    out: dict[str, Any] = {"sigma_max": ends}
    for label, (who, forms_of) in ABLATION.items():
        where = label.split(", ")[1]
        for form, settings in forms_of.items():
            for what, value in itertools.product(settings, VALUES):
                if what == "levels" and value < 2:
                    continue
                path = even_levels(ends[where], value if what == "levels" else 5)
                other = {} if what == "levels" else {what: value}
                metric = metric_of(form)(form=form, path=path, **other)
                start = time.perf_counter()
                scores = vd.score(metric, tasks[where], explainer(who))
                cell = {
                    "mean": scores.mean(),
                    "std": float(scores.values.std()),
                    "seconds": round(time.perf_counter() - start, 3),
                    "rows": [scores.cost.forward, scores.cost.backward],
                }
                if what == "levels":
                    cell |= model_path(scores.details["model_distortion"])
                out[f"{label}, {form}, {what} = {value}"] = cell
                print(f"  {label}, {form}, {what} = {value}: {cell['mean']:.3f}", flush=True)
    return out


def model_path(distortion: torch.Tensor) -> dict[str, Any]:
    """Figure A.1: model distortion over its largest value by level, and how many paths ever fall."""
    share = distortion / distortion.amax(-1, keepdim=True)
    flat = share.flatten(0, 1)
    return {
        "model distortion by level": flat.mean(0).tolist(),
        "its deviation": flat.std(0).tolist(),
        "paths that fall somewhere": float((flat.diff(dim=-1) < 0).any(-1).double().mean()),
    }


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "vision": vision,
    "forms": forms,
    "controls": controls,
    "global": global_methods,
    "assumptions": assumed,
    "noises": noises,
    "ablation": ablation,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        print(name, flush=True)
        start = time.perf_counter()
        found = PARTS[name](given.samples)
        found |= {"samples": given.samples, "total seconds": round(time.perf_counter() - start, 1)}
        (given.out / f"{name}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
