"""A meta-evaluation on disk, and one made of parts: iterations may run in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veridical.core import files
from veridical.errors import InputError
from veridical.meta.dependence import Dependence
from veridical.meta.result import MetaEvaluation
from veridical.meta.scoring import Book, Tally
from veridical.meta.worlds import Amount, Mode, Test
from veridical.models.cost import Cost
from veridical.values.evaluation import Failure
from veridical.values.scores import Direction

KIND = "meta-evaluation"
PLAIN = ("explainers", "tests", "remarks", "iterations")
FLAGS = ("published", "average_first", "resamples", "level", "seed", "interrupted")


def save(result: MetaEvaluation, path: str | Path) -> Path:
    """Write all scores to one safetensors file: every table can be made of them again."""
    return files.save_tensors(path, KIND, *packed(result))


def load(path: str | Path) -> MetaEvaluation:
    """Read what `save` wrote."""
    return unpacked(*files.load_tensors(path, KIND))


def packed(result: MetaEvaluation) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a result by name, and the rest as plain data."""
    tensors = {f"kept/{test}/{mode}": kept for (test, mode), kept in result.kept.items()}
    books = []
    for place, (label, book) in enumerate(result.books.items()):
        tensors |= {f"{place}/base/{test}": scores for test, scores in book.base.items()}
        tensors |= {f"{place}/{test}/{mode}": scores for (test, mode), scores in book.scores.items()}
        books.append(
            {
                "label": label,
                "metric": book.metric,
                "category": book.category,
                "direction": str(book.direction),
                "checks": {who: asdict(check) for who, check in book.checks.items()},
                "cost": asdict(book.cost),
            }
        )
    header: dict[str, Any] = {
        "books": books,
        "amounts": [[*place, asdict(amount)] for place, amount in result.amounts.items()],
        "failures": [asdict(failure) for failure in result.failures],
        "shared": asdict(result.shared),
        "shared_cost": asdict(result.shared_cost),
    }
    header |= {name: list(getattr(result, name)) for name in PLAIN}
    header |= {name: getattr(result, name) for name in FLAGS}
    return tensors, header


def unpacked(tensors: dict[str, Tensor], header: dict[str, Any]) -> MetaEvaluation:
    """The result of which `packed` made these."""
    places = [(test, mode) for test, mode, _ in header["amounts"]]
    books = {}
    for place, about in enumerate(header["books"]):
        books[about["label"]] = Book(
            about["metric"],
            about["category"],
            Direction(about["direction"]),
            {test: tensors[f"{place}/base/{test}"] for test in header["tests"]},
            {(test, mode): tensors[f"{place}/{test}/{mode}"] for test, mode in places},
            {who: Dependence(**check) for who, check in about["checks"].items()},
            Cost(**about["cost"]),
        )
    plain: dict[str, Any] = {name: tuple(header[name]) for name in PLAIN}
    flags: dict[str, Any] = {name: header[name] for name in FLAGS}
    return MetaEvaluation(
        books,
        {(test, mode): tensors[f"kept/{test}/{mode}"] for test, mode in places},
        amounts={(test, mode): Amount(**amount) for test, mode, amount in header["amounts"]},
        failures=tuple(Failure(**failure) for failure in header["failures"]),
        shared=Tally(**header["shared"]),
        shared_cost=Cost(**header["shared_cost"]),
        **plain,
        **flags,
    )


def joined(results: Sequence[MetaEvaluation]) -> MetaEvaluation:
    """One result of several that differ in their iterations only, in the order of those.

    Counts are sums: each part made the explanations of its own unperturbed world. A metric that failed in
    one part is left out of the whole.
    """
    if not results:
        raise InputError("give at least one result to join")
    parts = sorted(results, key=lambda result: result.iterations)
    first = parts[0]
    for part in parts[1:]:
        for name in ("explainers", "tests", "amounts", "published", "average_first", "seed"):
            if getattr(part, name) != getattr(first, name):
                raise InputError(
                    f"results to join differ in {name}: {getattr(first, name)} and {getattr(part, name)}"
                )
    numbers = [number for part in parts for number in part.iterations]
    if len(set(numbers)) != len(numbers):
        raise InputError(f"an iteration is in two of the results to join: {numbers}")
    labels = [label for label in first.books if all(label in part.books for part in parts)]
    return replace(
        first,
        books={label: _joined_book([part.books[label] for part in parts]) for label in labels},
        kept={place: torch.cat([part.kept[place] for part in parts]) for place in first.kept},
        iterations=tuple(numbers),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
        failures=tuple(failure for part in parts for failure in part.failures),
        shared=Tally(sum(p.shared.calls for p in parts), sum(p.shared.samples for p in parts)),
        shared_cost=sum((part.shared_cost for part in parts), Cost()),
        interrupted=any(part.interrupted for part in parts),
    )


def _joined_book(books: list[Book]) -> Book:
    """One book of all iterations, beside the unperturbed scores of the first.

    Another process may have got those with other last bits. What equals them there equals them here: a score
    that no noise can change must not look changed.
    """
    first = books[0]

    def scores(book: Book, test: Test, mode: Mode) -> Tensor:
        found, own = book.scores[test, mode], book.base[test]
        return torch.where(found == own, first.base[test], found)

    return replace(
        first,
        scores={place: torch.cat([scores(book, *place) for book in books]) for place in first.scores},
        cost=sum((book.cost for book in books), Cost()),
    )
