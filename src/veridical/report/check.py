"""A check of explanations as build systems and model cards take it, and a page to sign."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import yaml

from veridical.auditing import Audit, Recheck
from veridical.core.files import write_file
from veridical.errors import visible
from veridical.report.audit import contents
from veridical.report.rendering import render


def junit(found: Recheck) -> str:
    """One test case per method, and one for the drift, as JUnit XML.

    Parameters
    ----------
    found : Recheck
        What `vd.check` gave.

    Returns
    -------
    str
        XML that build systems read.
    """
    suite = ElementTree.Element("testsuite", name="veridical check")
    failures = skipped = 0
    moved = [f"{c.explainer}: {c.feature} {c.before:.0%} to {c.after:.0%} {c.group}" for c in found.moved]
    cases = [(method.explainer, method.status, method.sentence) for method in found.methods]
    cases.append(("drift", "moved" if moved else "holds", "; ".join(moved) or "no share moved"))
    for name, status, sentence in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="veridical", name=visible(name))
        if status == "not decided":
            ElementTree.SubElement(case, "skipped", message=visible(sentence))
            skipped += 1
        elif status != "holds":
            ElementTree.SubElement(case, "failure", message=visible(sentence))
            failures += 1
    counts = {"tests": len(cases), "failures": failures, "skipped": skipped, "errors": 0}
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def summary(found: Recheck) -> str:
    """The check as Markdown, for a pull request.

    Parameters
    ----------
    found : Recheck
        What `vd.check` gave.

    Returns
    -------
    str
        A heading, a table of methods, and the features whose share moved.
    """
    head, *others = found.sentences
    methods = [asdict(method) for method in found.methods]
    return render({"kind": "check", "head": head, "methods": methods, "sentences": others}, "md")


def model_card(audit: Audit) -> str:
    """The verdict as a model card's YAML block, in the form of Hugging Face's `model-index`, and Markdown.

    Parameters
    ----------
    audit : Audit
        What `vd.audit` gave.

    Returns
    -------
    str
        Text that starts with the block between `---` lines.
    """
    results = [
        {
            "task": {"type": "explanation-faithfulness"},
            "dataset": {
                "name": audit.task.name,
                "type": audit.task.modality,
                "samples": audit.verdict.samples,
            },
            "metrics": [
                {"type": "verdict", "name": place.explainer, "value": place.status},
                *(
                    {"type": name, "name": place.explainer, "value": round(value, 4)}
                    for name, value in (
                        ("beats-controls", place.score),
                        ("grade", place.grade.value if place.grade else float("nan")),
                    )
                    if value == value
                ),
            ],
        }
        for place in audit.ranking
    ]
    block = {"tags": ["veridical"], "model-index": [{"name": audit.task.name, "results": results}]}
    text = yaml.safe_dump(block, sort_keys=False, allow_unicode=True)
    said = render({"kind": "audit", **contents(audit)}, "md")
    return f"---\n{text}---\n\n{said}"


def evidence_page(audit: Audit, path: str | Path) -> Path:
    """Write a page to fill in and sign: what was asked, on which data, what was found, and its limits.

    Its headings follow what a person affected, or who manages model risk, may ask for; it claims no
    compliance with anything.

    Parameters
    ----------
    audit : Audit
        What `vd.audit` gave.
    path : path
        The HTML file; printed from a browser it fits two sheets.

    Returns
    -------
    Path
        The file.
    """
    return write_file(path, render({**contents(audit), "kind": "evidence"}), private=False)
