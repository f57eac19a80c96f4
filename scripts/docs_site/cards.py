"""One page for each metric and explainer, and the two pages that list them; all from the code."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scripts.docs_site import examples, facts, pictures, settings_table
from veridical.explainers import Explainer
from veridical.explainers import registry as explainers
from veridical.metrics import AnyMetric, ExplainerMetric
from veridical.metrics import registry as metrics

QUESTIONS = {
    "faithfulness": "Does the model's answer move when what the map calls relevant is removed?",
    "robustness": "Does the map stay the same when the input hardly changes?",
    "randomisation": "Does the map change when the model is no longer the same?",
    "complexity": "How few features carry the map? The model is never asked.",
    "localisation": "Does the map lie on the object? These need object masks.",
    "axiomatic": "Does the map obey a rule that it should obey?",
}
TASKS = {
    "digits": "digits (images)",
    "breast_cancer": "breast cancer (table)",
    "known/planted_window": "planted window (series)",
    "reviews": "reviews (text)",
}
NOTATION = (
    "In the formulas $`x`$ is the input, $`e`$ its map with values $`e_i`$ for $`D`$ features, $`y(x)`$ the "
    "model's response for the explained output, and $`x_{\\setminus S}`$ the input without the features "
    "$`S`$, which are replaced by the task's fill."
)
TEMPLATES = Environment(
    loader=FileSystemLoader(facts.HERE / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters["cell"] = settings_table.cell
TEMPLATES.filters["kinds"] = facts.kinds


def quietly(work: Callable[..., Any]) -> Callable[..., Any]:
    """A function without warnings: pages show what is, not what a reader's terminal would say."""

    @functools.wraps(work)
    def silent(*given: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work(*given, **named)

    return silent


@quietly
def metric_page(name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a metric, and its pictures by file name."""
    metric: AnyMetric = metrics.make(name)
    example, made = _metric_example(metric)
    text = TEMPLATES.get_template("metric.md").render(
        name=name,
        entry=metric,
        again=isinstance(metric, ExplainerMetric),
        cost=facts.metric_cost(name),
        formula=facts.formula(name, type(metric)),
        example=example,
        settings="\n".join(settings_table.lines(type(metric))),
        reliability=_reliability(name),
        papers=facts.references(metric.paper),
        cited=facts.escaped(metric.paper),
        others=[other for other in facts.categories().get(metric.category, []) if other != name],
    )
    return text, made


def _metric_example(metric: AnyMetric) -> tuple[dict[str, str] | None, dict[str, bytes]]:
    setup = examples.setup_for(metric)
    if setup is None:
        return None, {}
    code = examples.metric_code(setup, metric.name)
    left, printed = examples.run(code)
    asks, caption = pictures.metric_asks(metric, left["task"])
    made = {
        f"{metric.name}-asks.png": asks,
        f"{metric.name}-result.png": pictures.metric_result(left["table"]),
    }
    return {"code": code, "printed": printed.rstrip(), "caption": caption}, made


def _reliability(name: str) -> dict[str, Any] | None:
    found = facts.reliability().get(name)
    if not found:
        return None
    one = next(iter(found.values()))
    return {
        "size": f"{one['samples']} samples, {one['iterations']} iterations of {one['draws']} draws, "
        f"{one['date']}",
        "rows": [
            {"task": TASKS.get(task, task), "mc": facts.mc(each), "reads": facts.reads_the_map(each)}
            for task, each in found.items()
        ],
    }


@quietly
def explainer_page(name: str) -> tuple[str, dict[str, bytes]]:
    """The page of an explainer, and its pictures by file name."""
    explainer: Explainer = explainers.make(name)
    example, made = _explainer_example(explainer)
    text = TEMPLATES.get_template("explainer.md").render(
        name=name,
        entry=explainer,
        cost=facts.explainer_cost(name),
        formula=facts.formula(name, type(explainer)),
        misleads=facts.FORMULAS.get(name, {}).get("misleads", ""),
        example=example,
        settings="\n".join(settings_table.lines(type(explainer))),
        papers=facts.references(explainer.paper),
        cited=facts.escaped(explainer.paper),
    )
    return text, made


def _explainer_example(explainer: Explainer) -> tuple[dict[str, str] | None, dict[str, bytes]]:
    setup = examples.setup_for(explainer)
    if setup is None:
        return None, {}
    name = explainer.name
    code = examples.explainer_code(setup, name)
    left, printed = examples.run(code)
    made = {f"{name}-result.png": pictures.explainer_result(left["explanation"], left["task"])}
    asks = pictures.explainer_asks(explainer, left["task"])
    if asks is not None:
        made[f"{name}-asks.png"] = asks[0]
    return {"code": code, "printed": printed.rstrip(), "caption": asks[1] if asks else ""}, made


@quietly
def metrics_list() -> str:
    arrows = {"higher": "↑", "lower": "↓"}
    return TEMPLATES.get_template("metrics.md").render(
        notation=NOTATION,
        families=facts.categories(),
        questions=QUESTIONS,
        entry=metrics.make,
        arrow=lambda name: arrows[metrics.make(name).better.value],
        cost=facts.metric_cost,
        tasks=TASKS,
        short=facts.short_reliability,
    )


@quietly
def explainers_list() -> str:
    return TEMPLATES.get_template("explainers.md").render(
        notation=NOTATION, families=facts.families(), entry=explainers.make, cost=facts.explainer_cost
    )


def everything() -> dict[str, str | bytes]:
    """Every generated file by its path in the site's sources."""
    out: dict[str, str | bytes] = {"metrics.md": metrics_list(), "explainers.md": explainers_list()}
    for folder, names, page in (
        ("metrics", metrics, metric_page),
        ("explainers", explainers, explainer_page),
    ):
        for name in names:
            text, made = page(name)
            out[f"{folder}/{name}.md"] = text
            out |= {f"{folder}/{file}": data for file, data in made.items()}
    return out
