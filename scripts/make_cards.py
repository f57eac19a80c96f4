"""Write docs/metrics.md and docs/explainers.md: the facts each class states, and costs measured on digits.

Run `python scripts/make_cards.py` after a metric or explainer changed; `--check` only tells whether to.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from veridical.explainers import Explainer
from veridical.explainers import registry as explainers
from veridical.meta.dependence import BLIND, HARDLY, PLACELESS
from veridical.metrics import AnyMetric, ExplainerMetric
from veridical.metrics import registry as metrics

DOCS = Path(__file__).resolve().parents[1] / "docs"
ORDER = ["faithfulness", "robustness", "randomisation", "complexity", "localisation", "axiomatic"]
TASKS = ("digits", "breast_cancer", "known/planted_window", "reviews")
"""An image, a table, a series and a text, as scripts/measure_reliability.py measures them."""
QUESTIONS = {
    "faithfulness": "does the model's answer move when what the map calls relevant is removed?",
    "robustness": "does the map stay the same when the input hardly changes?",
    "randomisation": "does the map change when the model is no longer the same?",
    "complexity": "how few features carry the map? (never asks the model)",
    "localisation": "does the map lie on the object? (needs object masks)",
    "axiomatic": "does the map obey a rule that it should?",
}


def sample_task() -> vd.Task:
    """Eight digits with a made-up object mask, so that every metric applies."""
    task = vd.tasks.load("digits")[:8]
    masks = torch.zeros(8, 8, 8, dtype=torch.bool)
    masks[:, 2:6, 2:6] = True
    return vd.Task(task.model, task.inputs, masks=masks, train=task.train, ids=task.ids)


def cost_line(cost: vd.Cost, samples: int) -> str:
    """Rows a sample in words."""
    if not cost.forward and not cost.backward:
        return "none"
    back = f", {cost.backward / samples:g} backward" if cost.backward else ""
    return f"{cost.forward / samples:g} forward{back}"


def metric_cost(metric: AnyMetric, task: vd.Task) -> str:
    if metric.why_not(task) is not None:
        return "not measured on digits"
    subject: Any = "gradient" if isinstance(metric, ExplainerMetric) else vd.explain("gradient", task)
    return cost_line(vd.score(metric, task, subject).cost, len(task))


def stored_reliability() -> dict[str, dict[str, dict[str, Any]]]:
    """What scripts/measure_reliability.py found, by metric and task."""
    path = DOCS / "reliability.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def reliability_table(made: dict[str, AnyMetric]) -> list[str]:
    """Every metric on every task side by side: MC, and the share of scores that permuted maps change."""
    stored = stored_reliability()
    tasks = [task for task in TASKS if any(task in found for found in stored.values())]
    lines = [
        "## Reliability side by side",
        "",
        f"| metric | {' | '.join(tasks)} |",
        "|---" * (1 + len(tasks)) + "|",
    ]
    for name in sorted(
        made,
        key=lambda name: ORDER.index(made[name].category) if made[name].category in ORDER else len(ORDER),
    ):
        found = stored.get(name, {})
        lines.append(f"| [`{name}`](#{name}) | {' | '.join(_short(found.get(task)) for task in tasks)} |")
    return [*lines, ""]


def _short(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["mc"] is None:
        return "no value"
    share = "?" if found["dependence"] is None else f"{found['dependence']:.0%}"
    remark = found.get("remark", "")
    mark = ", blind" if remark.startswith((BLIND, HARDLY)) else ", values" if remark == PLACELESS else ""
    return f"{found['mc']:.2f} ({share}{mark})"


def reliability_lines(name: str) -> list[str]:
    """What was found of one metric: MC a task, never without its dependence on the map."""
    stored = stored_reliability()
    lines = [
        f"| reliable on {task} | {_reliability(found)} |" for task, found in stored.get(name, {}).items()
    ]
    return lines or ["| reliable | not measured |"]


def _reliability(found: dict[str, Any]) -> str:
    size = (
        f"{found['samples']} samples, {found['iterations']} x {found['draws']} draws, "
        f"{len(found['explainers'])} explainers, {found['date']}"
    )
    if found["mc"] is None:
        return f"no value ({found['why'] or 'undefined scores'}; {size})"
    share = "unknown" if found["dependence"] is None else f"{found['dependence']:.0%}"
    remark = f", {found['remark']}" if "remark" in found else ""
    value = f"MC {found['mc']:.2f} ± {found['mc_std']:.2f}"
    return f"{value}; permuted maps change {share} of scores{remark} ({size})"


def metrics_page() -> str:
    task = sample_task()
    made = {name: metrics.make(name) for name in metrics}
    lines = [
        "# Metrics",
        "",
        "Start from the question. Then read when the metric misleads, and judge the map with two that",
        "mislead in different ways. Costs are rows asked of the model a sample, measured on 8 x 8 digits",
        "with default settings (for metrics that explain again, with the plain gradient).",
        "",
        "Reliability is meta-consistency ([how it is measured](how-to/reliability.md)) on the small tasks",
        "that are named, as an example: ask it of your own model and explainers with `vd.meta_evaluate`.",
        "",
        *reliability_table(made),
        "In brackets: the share of scores that permuted maps change. *Blind*: on this task the metric does",
        "not read the map, and its MC says nothing. *Values*: it reads the values of a map, not its places.",
        "Where a metric does not apply to a task, there is no entry.",
        "",
    ]
    for category in [*ORDER, *sorted({m.category for m in made.values()} - set(ORDER))]:
        chosen = {n: m for n, m in made.items() if m.category == category}
        if not chosen:
            continue
        lines += [f"## {category.capitalize()}", "", f"*{QUESTIONS.get(category, '')}*", ""]
        for name, metric in chosen.items():
            judges = "methods (it explains again)" if isinstance(metric, ExplainerMetric) else "maps"
            lines += [
                f"### `{name}`",
                "",
                f"{metric.summary}",
                "",
                "| | |",
                "|---|---|",
                f"| better | {metric.better.value} |",
                f"| judges | {judges} |",
                f"| applies to | {', '.join(sorted(metric.modalities))} |",
                f"| needs | {', '.join(sorted(metric.needs)) or 'nothing else'} |",
                f"| assumes | {metric.assumes or 'nothing stated'} |",
                f"| misleads | {metric.misleads or 'nothing stated'} |",
                f"| cost | {metric_cost(metric, task)} |",
                *reliability_lines(name),
                f"| paper | {metric.paper} |",
                "",
            ]
    return "\n".join(lines)


EXPLAINERS_NOTE = """\
## What counts as a row

A row is one pass of one input forward through the whole model, or back. Everything a method runs is counted.
DeepLIFT compares every activation with that of a baseline, which is asked forward once a call, or once a
sample where samples have side inputs: with eight digits that is an eighth of a row more for each. LRP goes
through a layer again where its rule changes the weights. Each such pass counts by what the layer weighs in
the model: its multiplications over those of all layers with weights. The sum over the layers is a number of
further passes through the whole model, and the rows of a call are rounded once, so that counts do not depend
on chunks. A rule that holds in every layer so takes as many rows a sample as the table has passes; `lrp`,
which holds `z_plus` in its inner convolutions alone, takes between 1 and 2 forward.

| rule | passes forward | passes back | inputs of any sign |
|---|---|---|---|
| a gradient, for comparison | 1 | 1 | |
| `epsilon`, `flat` | 1 | 1 | the same |
| `w_square` | 2 | 1 | the same |
| `z_plus` | 2 | 1 | 3 and 2 |
| `gamma` | 2 | 2 | 3 and 3 |
| `alpha_beta` | 3 | 2 | 5 and 4 |
| `z_box` | 4 | 3 | the same |

## What a map promises

A method with a law states what the values of each map sum to: `y(x) - y(baseline)` for integrated gradients
and DeepLIFT, `y(x) - y(everything removed)` for Shapley sampling, `y(x)` less what biases take for LRP. Every
explanation measures it: `explanation.provenance["law"]` holds the law in words, the largest and the mean
residual as a share of what was promised, and how many maps are `broken`: off by more than 5%, or made of
values that cancel a million times over. Maps that break an exact law give a warning, and reports say so below
their gallery. Where features are left out (special tokens) nothing is measured.

## How many features a fit can tell apart

KernelSHAP and LIME fit one unknown per feature. On 28 x 28 digits (a LeNet, 12 images) 512 rows for 784
pixels are noise: two seeds of KernelSHAP correlate by .04, and pixel flipping gives .389, as good as random.
Joined into 49 cells they correlate by .87, and flipping gives .059; LIME in 196 cells .79 and .039 instead of
.27 and .110. So both join neighbouring pixels or patches into as many cells as their rows can tell apart: one
for 8 rows of KernelSHAP, one for 2 of LIME. `explanation.provenance["cells"]` says so, `join=False` keeps the
pixels, and a fit of fewer answers than unknowns gives a warning. RISE draws coins on a 7 x 7 grid: two seeds
correlate by .91 there, and by .95 with the map of 8,000 draws.

## What is followed

LRP, DeepLIFT, guided backpropagation and deconvolution share one engine (`explainers.graph`). It follows a
model while it runs: each torch operation on what depends on the input is done by the rule of its kind, so
that functions, layers that run twice, operations in place, branches and rectifiers written by hand
(`h * (h > 0)`, `masked_fill`, `h[h < 0] = 0`) count as what they are. What no rule covers, and what cannot be
seen (an own autograd function, a compiled part), is refused by name.

In LRP sums share relevance in proportion; a batch norm is folded into the layer before it; an activation
hands relevance on; attention weights and the spread of a norm are held constant (Ali et al. 2022); a gate
gives all to the signal, also in LSTM and GRU (Arras et al. 2017); a product with an activation, as in SwiGLU,
is shared in halves (Achtibat et al. 2024). Where a model has no convolution, `lrp` is `lrp_epsilon`. DeepLIFT
gives a product of two activations to each by the mean of the other, and takes norms, softmax, attention and
recurrent layers apart into such steps, so that no difference is lost.

Class activation maps look at what the model computes last on the grid of its last convolution, behind the
activation, the residual sum and the concatenation; in a vision transformer at the last residual sum of tokens
by which patches reach the output. Attention is read in the row that the answer reads: the first token, the
last one, or all. `explanation.provenance` says which layer and which row; `layer=` and `reading=` choose.

## Which explainer works on which architecture

Small models of random weights, in the tests. The colour says how a map is known to be right in that cell; the
pointer on a cell shows it in words, or the reason of a refusal. Those that read nothing but answers to masked
inputs are run on the smallest inputs alone. LRP-epsilon is compared with a model whose held parts are
detached (not with recurrent layers), guided backpropagation and deconvolution with replaced rectifiers,
gradients with finite differences, DeepLIFT and the Shapley methods by their law (DeepLIFT not on Llama, whose
norm divides by next to nothing at a baseline of zeros).

![Explainers by architectures](assets/coverage.svg)"""


def explainers_page() -> str:
    task = sample_task()
    lines = [
        "# Explainers",
        "",
        "All go through one door, `vd.explain(name, task)`. `vd.applicable(task)` lists those that work on a",
        "task; one that does not says why and names those that do. The cost is rows asked of the model a",
        "sample, measured on 8 x 8 digits with default settings.",
        "",
        "| name | what it is | applies to | needs | random | cost | law | paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in explainers:
        explainer: Explainer = explainers.make(name)
        applies = explainer.why_not(task) is None
        cost = cost_line(vd.explain(explainer, task).cost, len(task)) if applies else "not on digits"
        lines.append(
            f"| `{name}` | {explainer.summary} | {', '.join(sorted(explainer.modalities))} "
            f"| {', '.join(sorted(explainer.needs)) or 'nothing'} "
            f"| {'yes' if explainer.stochastic else 'no'} "
            f"| {cost} | {explainer.law or 'none'} | {explainer.paper} |"
        )
    return "\n".join([*lines, "", EXPLAINERS_NOTE, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    warnings.simplefilter("ignore", vd.errors.VeridicalWarning)
    stale = []
    for name, text in (("metrics.md", metrics_page()), ("explainers.md", explainers_page())):
        path = DOCS / name
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    print(f"out of date: {', '.join(stale)}" if stale else "cards are up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
