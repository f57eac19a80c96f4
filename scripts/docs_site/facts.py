"""Facts of metrics and explainers that pages show: families, costs, reliability, papers, formulas."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml

import veridical as vd
from veridical.explainers import registry as explainers
from veridical.meta.dependence import BLIND, HARDLY, PLACELESS
from veridical.metrics import ExplainerMetric
from veridical.metrics import registry as metrics
from veridical.report.citations import entries, key_of, papers_in

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
FORMULAS: dict[str, dict[str, str]] = yaml.safe_load((HERE / "formulas.yml").read_text("utf-8"))
ORDER = ["faithfulness", "robustness", "randomisation", "complexity", "localisation", "axiomatic"]
FAMILIES = {
    "Gradients": ("gradients", "smoothing", "backprop"),
    "Relevance handed down": ("lrp", "deeplift"),
    "Class activation maps": ("cam",),
    "Attention": ("attention",),
    "Asking with features removed": ("occlusion", "rise", "surrogates"),
    "Shapley values": ("shapley", "partition_shap", "trees"),
    "Controls": ("controls",),
}
"""Families of explainers by the modules that hold them."""
ASCII_FORMULA = re.compile(r"[_‖=∩|]|\b(?:mean|max) over\b")
"""First sentences that say a formula in plain letters, which a page has in real ones."""


# --- families -----------------------------------------------------------------------------------------------


def kinds(modalities: Iterable[str]) -> str:
    """Kinds of input in words that a stranger knows."""
    return ", ".join("parts of prompts and models" if one == "units" else one for one in sorted(modalities))


def categories() -> dict[str, list[str]]:
    """The names of the metrics by family."""
    made = {name: metrics.make(name).category for name in metrics}
    order = [*ORDER, *sorted(set(made.values()) - set(ORDER))]
    found = {family: [name for name, own in made.items() if own == family] for family in order}
    return {family: names for family, names in found.items() if names}


def families() -> dict[str, list[str]]:
    """The names of the explainers by what they do."""
    home = {name: type(explainers.make(name)).__module__.rpartition(".")[2] for name in explainers}
    out = {
        family: [name for name, module in home.items() if module in own] for family, own in FAMILIES.items()
    }
    rest = [name for name in home if not any(name in names for names in out.values())]
    return {family: names for family, names in {**out, "Others": rest}.items() if names}


# --- costs --------------------------------------------------------------------------------------------------


@functools.cache
def sample_task() -> vd.Task:
    """Eight digits with a made-up object mask, so that nearly every metric applies."""
    task = vd.tasks.load("digits")[:8]
    masks = torch.zeros(8, 8, 8, dtype=torch.bool)
    masks[:, 2:6, 2:6] = True
    return vd.Task(task.model, task.inputs, masks=masks, train=task.train, ids=task.ids)


def cost_line(cost: vd.models.Cost, samples: int) -> str:
    """Rows per sample in words."""
    if not cost.forward and not cost.backward:
        return "none"
    back = f", {cost.backward / samples:g} backward" if cost.backward else ""
    return f"{cost.forward / samples:g} forward{back}"


@functools.cache
def metric_cost(name: str) -> str:
    """Rows per sample on 8 x 8 digits; metrics that explain again are given the plain gradient."""
    metric, task = metrics.make(name), sample_task()
    if metric.inapplicable_reason(task) is not None:
        return "not measured on digits"
    subject: Any = "gradient" if isinstance(metric, ExplainerMetric) else vd.explain("gradient", task)
    return cost_line(vd.score(metric, task, subject).cost, len(task))


@functools.cache
def explainer_cost(name: str) -> str:
    explainer, task = explainers.make(name), sample_task()
    if explainer.inapplicable_reason(task) is not None:
        return "not measured on digits"
    return cost_line(vd.explain(explainer, task).cost, len(task))


# --- reliability --------------------------------------------------------------------------------------------


@functools.cache
def reliability() -> dict[str, dict[str, dict[str, Any]]]:
    """What scripts/measure_reliability.py found, by metric and task."""
    return json.loads((DOCS / "reliability.json").read_text("utf-8"))


def mc(found: dict[str, Any]) -> str:
    return "no value" if found["mc"] is None else f"{found['mc']:.2f} ± {found['mc_std']:.2f}"


def reads_the_map(found: dict[str, Any]) -> str:
    """What permuting maps does to the scores, in words."""
    remark = found.get("remark", "")
    if remark.startswith((BLIND, HARDLY)):
        return "hardly: its MC says nothing here"
    if remark == PLACELESS:
        return "its values, not its places"
    return "unknown" if found["dependence"] is None else f"yes, in {found['dependence']:.0%} of scores"


def short_reliability(name: str, task: str) -> str:
    """One cell of the table of all metrics."""
    found = reliability().get(name, {}).get(task)
    if found is None:
        return ""
    if found["mc"] is None:
        return "no value"
    remark = found.get("remark", "")
    mark = ", blind" if remark.startswith((BLIND, HARDLY)) else ", values" if remark == PLACELESS else ""
    return f"{found['mc']:.2f}{mark}"


# --- papers and formulas ------------------------------------------------------------------------------------


def references(paper: str) -> list[str]:
    """The papers a class names, with authors, title, place and year where the bibliography has them."""
    out = []
    for named in papers_in(paper):
        slug = re.escape(key_of(named))
        found = [text for key, text in entries().items() if re.fullmatch(slug + "[a-z]?", key)]
        out += [_entry(text) for text in found] or [named]
    return out or [escaped(paper)]


def _entry(bibtex: str) -> str:
    fields = dict(re.findall(r"^\s*(\w+) = \{(.*)\},?$", bibtex, re.MULTILINE))
    plain = {key: re.sub(r"\\['\"`^~c]\{?(\w)\}?|[{}]", r"\1", value) for key, value in fields.items()}
    authors = plain["author"].replace(" and ", "; ").replace("; others", " et al.").rstrip(".")
    title = f"[{plain['title']}]({plain['url']})" if "url" in plain else f"*{plain['title']}*"
    place = plain.get("booktitle") or plain.get("journal")
    return f"{authors}. {title}. " + (f"{place}, {plain['year']}." if place else f"{plain['year']}.")


def escaped(text: str) -> str:
    """Text of a docstring as Markdown: the signs of mathematics are not markup."""
    parts = re.split(r"(`[^`]*`)", text)
    marked = [
        p if p.startswith("`") else re.sub(r"([*_\[\]|\\])", r"\\\1", p).replace("<", "&lt;") for p in parts
    ]
    return "".join(marked)


def formula(name: str, kind: type) -> str:
    """The formula with what its letters are, and the rest of the docstring."""
    parts = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    first, rest = parts[0], "\n\n".join(p for p in parts[1:] if not p.startswith((">>>", "Examples\n")))
    first = " ".join(first.split())
    known = FORMULAS.get(name, {})
    parts = [] if "math" in known and ASCII_FORMULA.search(first) else [escaped(first)]
    if "math" in known:
        parts.append(f"```math\n{known['math'].strip()}\n```")
    if "where" in known:
        where = known["where"]
        parts.append(f"Here {where}" if where.startswith("$") else where[:1].upper() + where[1:])
    if "math" in known:
        # sentences that say the formula again in plain letters
        rest = " ".join(part for part in re.split(r"(?<=\.)\s+(?=[A-Z`])", rest) if "sum_" not in part)
    return "\n\n".join([*parts, escaped(rest)])
