"""What concept methods are given: a name becomes a method, and each method gets the rows it is fitted on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from veridical.concepts.concepts import Concepts
from veridical.concepts.dictionary import Dictionary, MatchingPursuit
from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.concepts.image_parts import crop_embeddings, segment_embeddings, superpixels
from veridical.concepts.methods import METHODS, ConceptMethod
from veridical.concepts.methods.base import needed
from veridical.concepts.methods.craft import CRAFT
from veridical.concepts.methods.mcd import HUMCD
from veridical.concepts.splitting import Split, split
from veridical.core.settings import why_not
from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.values.task import Task

Entry = ConceptMethod | Concepts | Dictionary | MatchingPursuit
"""What can be compared: a method to fit, concepts that are ready, a dictionary that was loaded."""


def method_of(name: str) -> ConceptMethod:
    """The concept method of a name, with its defaults."""
    if name.lower() not in METHODS:
        raise unknown_name("concept method", name, METHODS)
    return METHODS[name.lower()]()


def entries(given: Any) -> dict[str, Entry]:
    """Methods, names, ready concepts and dictionaries under one label each.

    Settings tell apart what has one name: `pca(n_concepts=3)` beside `pca(n_concepts=5)`. A mapping brings
    its own labels.
    """
    if isinstance(given, Mapping):
        return {str(label): _entry(item) for label, item in given.items()}
    if isinstance(given, str | Entry):
        given = [given]
    elif why_not(given, Sequence[Any]) is not None:
        raise InputError(f"concepts are several methods, names or concepts, got {given!r:.80}")
    items: Sequence[Any] = list(given)
    made = [_entry(item) for item in items]
    names = [_name(item) for item in made]
    labels = [
        name
        if names.count(name) == 1
        else _with_settings(item, [o for o, n in zip(made, names, strict=True) if n == name])
        for name, item in zip(names, made, strict=True)
    ]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise InputError(
            f"two entries have one name and the same settings: {', '.join(twice)}; give a mapping from labels"
        )
    return dict(zip(labels, made, strict=True))


def _entry(item: Any) -> Entry:
    if isinstance(item, str):
        return method_of(item)
    if isinstance(item, type) and issubclass(item, ConceptMethod):
        return item()
    if isinstance(item, Entry):
        return item
    raise InputError(
        f"concepts come from a method (PCA()), its name ('pca'), ready Concepts or a loaded dictionary; got "
        f"a {type(item).__name__}"
    )


def _name(item: Entry) -> str:
    if isinstance(item, Concepts):
        return item.method
    return item.name if isinstance(item, ConceptMethod) else "dictionary"


def _with_settings(item: Entry, rivals: Sequence[Entry]) -> str:
    """The name with the settings in which it differs from others of its kind."""
    if not isinstance(item, ConceptMethod):
        return _name(item)
    differ = [
        f.name for f in fields(item) if any(getattr(o, f.name, None) != getattr(item, f.name) for o in rivals)
    ]
    return f"{item.name}({', '.join(f'{n}={getattr(item, n)}' for n in differ)})" if differ else item.name


@dataclass(eq=False)
class Materials:
    """The rows that methods are fitted on, by kind: given ones, and what a split model can supply."""

    given: Mapping[Kind, Embeddings]
    split: Split | None = None
    _made: dict[tuple[str, Any], Embeddings] = field(default_factory=dict)

    @classmethod
    def of(cls, train: Embeddings, given: Mapping[Kind, Embeddings] | None = None) -> Materials:
        """Of embeddings at hand: they are what they say they are, and whole samples beside it."""
        own: dict[Kind, Embeddings] = {}
        if train.kind in (None, "pooled", "positions"):
            own["pooled"] = train.as_pooled()
            if train.spatial:
                own["positions"] = train
        elif train.kind is not None:
            own[train.kind] = train
        return cls({**own, **(given or {})})

    def rows(self, method: ConceptMethod) -> Embeddings:
        """What the method is fitted on; refused where it cannot be had, never replaced by something else."""
        kind = method.fits_on
        if kind in self.given:
            return self.given[kind]
        parts = self.split
        if parts is None:
            raise NotApplicableError(
                needed(method, f"give them as materials={{'{kind}': ...}}, or compare on a task")
            )
        if kind == "pooled":
            return parts.train()
        if kind == "positions":
            # a layer with one vector per sample has one position
            return parts.train(spatial=True) if parts.positions else replace(parts.train(), kind=kind)
        size: Any = None
        images = parts.train().outputs, parts.task.train
        assert images[1] is not None
        if images[1].dim() != 4:
            shape = tuple(images[1].shape[1:])
            raise NotApplicableError(needed(method, f"the inputs of this task are no images but {shape}"))
        make: Callable[[], Embeddings]
        if isinstance(method, CRAFT):
            size = max(1, round(method.crop_share * min(images[1].shape[2:])))
            make = partial(crop_embeddings, parts, images[1], size, images[0])
        elif isinstance(method, HUMCD):
            size = method.segments
            make = partial(segment_embeddings, parts, images[1], partial(superpixels, segments=size))
        else:
            raise NotApplicableError(needed(method, f"give them as materials={{'{kind}': ...}}"))
        if (kind, size) not in self._made:
            self._made[kind, size] = make()
        return self._made[kind, size]

    def concepts(self, item: Entry, head: Head, seed: Any) -> Concepts:
        """Fit a method on its rows; what is ready is taken as it is."""
        if isinstance(item, Concepts):
            return item
        if isinstance(item, ConceptMethod):
            return item.fit(self.rows(item), head, seed)
        return item.concepts(head, "dictionary")


def materials_of(
    train: Task | Split | Embeddings,
    test: Embeddings | None,
    head: Head | None,
    given: Mapping[Kind, Embeddings] | None,
    layer: str | None = None,
) -> tuple[Materials, Embeddings, Embeddings, Head]:
    """What methods are fitted on, train and test embeddings and the head: of a task, or of embeddings."""
    if not isinstance(train, Embeddings):
        parts = train if isinstance(train, Split) else split(train, layer)
        return Materials(given or {}, parts), parts.train(), parts.test(), parts.head
    if test is None or head is None:
        raise InputError("give a task, or train and test embeddings with their head")
    return Materials.of(train, given), train, test, head
