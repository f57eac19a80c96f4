"""A check of explanations as build systems and model cards take it, and a page to sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from veridical.auditing import Audit, Recheck
from veridical.core.files import write_file
from veridical.errors import InputError, visible
from veridical.report.audit import contents
from veridical.report.rendering import read, render


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
    moved = [f"{c.explainer}: {c.feature} {c.before:.0%} to {c.after:.0%} {c.group}" for c in found.moved]
    cases = [(method.explainer, method.status, method.sentence) for method in found.methods]
    cases.append(("drift", "moved" if moved else "holds", "; ".join(moved)))
    kinds = [{"holds": "", "not decided": "skipped"}.get(status, "failure") for _, status, _ in cases]
    counts = {"tests": len(cases), "failures": kinds.count("failure"), "skipped": kinds.count("skipped")}
    about = {"name": "veridical check", "errors": "0"} | {name: str(count) for name, count in counts.items()}
    suite = ElementTree.Element("testsuite", about)
    for kind, (name, _, sentence) in zip(kinds, cases, strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname="veridical", name=visible(name))
        if kind:
            ElementTree.SubElement(case, kind, message=visible(sentence))
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
    return render({"kind": "check", "head": head, "methods": found.methods, "sentences": others}, "md")


def model_card(audit: Audit | str | Path) -> str:
    """The verdict as a model card's YAML block, in the form of Hugging Face's `model-index`, and Markdown.

    Parameters
    ----------
    audit : Audit or path
        What `vd.audit` gave, or the folder that it was written to.

    Returns
    -------
    str
        Text that starts with the block between `---` lines.
    """
    found = _of(audit)
    results = []
    for place in found["ranking"]:
        scores = {"beats-controls": place["score"], "grade": (place["grade"] or {}).get("value")}
        known = [(name, round(score, 4)) for name, score in scores.items() if score is not None]
        metrics = [("verdict", place["word"]), *known]
        results.append(
            {
                "task": {"type": "explanation-faithfulness"},
                "dataset": {
                    "name": found["name"],
                    "type": "samples",
                    "revision": found["identity"]["digests"]["samples"],
                    "args": {"samples": place["samples"]},
                },
                "metrics": [
                    {"type": kind, "name": place["explainer"], "value": value} for kind, value in metrics
                ],
            }
        )
    block = {"tags": ["veridical"], "model-index": [{"name": found["name"], "results": results}]}
    text = yaml.safe_dump(block, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---\n\n{render(found, 'md')}"


def evidence_page(audit: Audit | str | Path, path: str | Path) -> Path:
    """Write a page to fill in and sign: what was asked, on which data, what was found, and its limits.

    Its headings follow what a person affected, or who manages model risk, may ask for; it claims no
    compliance with anything.

    Parameters
    ----------
    audit : Audit or path
        What `vd.audit` gave, or the folder that it was written to.
    path : path
        The HTML file; printed from a browser it fits two sheets.

    Returns
    -------
    Path
        The file.
    """
    return write_file(path, render({**_of(audit), "kind": "evidence"}), private=False)


def _of(audit: Audit | str | Path) -> dict[str, Any]:
    """All that the report of an audit shows."""
    found = contents(audit) if isinstance(audit, Audit) else read(audit)
    if found["kind"] != "audit":
        raise InputError(f"{audit} is the report of a {found['kind']}, not of an audit")
    return found
