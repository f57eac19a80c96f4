"""What every explainer is: settings, a statement of what it needs, and `(task, key) -> Explanation`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.core.registry import Registry, made
from veridical.core.settings import Settings
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError
from veridical.explainers.diagnostics import check_completeness, check_repeatability
from veridical.models.context import Context, Memo
from veridical.models.cost import Cost
from veridical.models.predictor import free_memory, out_of_memory
from veridical.perturb.probe import fewer_fill_rows
from veridical.values.explanation import Explanation
from veridical.values.task import Task

# A deterministic method stays one under a random fill: the rows it draws do not follow the caller's seed
FILL_KEY = Key(0) / "fill of explainers"
MODALITIES = frozenset({"image", "series", "text", "table", "concept", "units"})


@dataclass(frozen=True)
class Explainer(Settings):
    """Base of the explainers. Whoever writes one defines four things; the rest is done here.

    - `attribute(task, context)` gets a task that fits one chunk and returns maps (n, *input shape) or (n, V);
      its draws follow `context.key`.
    - `needs`: what is checked first, among "gradient", "train", "convolution", "embedding", "attention".
    - `stochastic`: whether two keys give two maps.
    - `rows_per_sample(task)`: rows evaluated at once for one sample, so that chunks fit the plan.

    Beside them stand the facts of its card (`name`, `summary`, `paper`, `modalities`) and, where the method
    states what the values of a map sum to, its `completeness`. Names with an underscore are the toolkit's.
    """

    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    modalities: ClassVar[frozenset[str]] = MODALITIES
    needs: ClassVar[frozenset[str]] = frozenset()
    stochastic: ClassVar[bool] = False
    """Whether two keys give two maps."""
    control: ClassVar[bool] = False
    """A control reads nothing of the model; GEF redraws it at every call."""
    _one_key: ClassVar[bool] = False
    """Whether GEF gives it one key for all perturbed models: an optimisation from the same noise."""

    completeness: ClassVar[str] = ""
    """What the values of each map sum to, in words; empty where the method states nothing."""

    exact: ClassVar[bool] = True
    """Whether completeness holds of each map, so that one far from it is at fault; else in the mean."""
    one_model: ClassVar[str] = ""
    """Why it cannot explain another model than the one it was made for; empty where it can."""

    def _expected_sum(self, task: Task, key: Key) -> Tensor | None:
        """What the values of each sample must sum to (n,); None where the method does not say."""
        return None

    def _draws_on(self, task: Task) -> bool:
        """Whether two keys give two maps on this very task; a method may be exact on a small one."""
        return self.stochastic

    def rows_per_sample(self, task: Task) -> int:
        """Rows evaluated at once for one sample, so that chunks fit the plan."""
        return 1

    def _declared(self, task: Task) -> Cost:
        """The rows that a call on this task evaluates, forward and backward, known before it is made."""
        rows = 0 if self.control else len(task) * self.rows_per_sample(task)
        return Cost(rows, rows if "gradient" in self.needs else 0)

    def _many_rows(self, task: Task) -> str:
        """What takes the rows of a call, and what takes fewer."""
        counts = {name: value for name, value in self.to_json().items() if type(value) is int}
        settings = ", ".join(f"{name}={value}" for name, value in counts.items() if name != "version")
        each = self._declared(task).forward // len(task)
        own = f" or settings of its own ({settings})" if settings else ""
        fill = "" if "gradient" in self.needs else fewer_fill_rows(task.fill.repeats_on(task))
        lower = f"Fewer samples, features (space=){own} lower it{fill}"
        return f"'{self.name}' {each:,} for each of {len(task)} samples. {lower}"

    @property
    def _plain(self) -> bool:
        """Whether `maps` is all that its call does to a map: whoever transforms maps does so in the call."""
        return type(self).__call__ is Explainer.__call__

    def _pieces(self, task: Task) -> Iterator[Task]:
        """The pieces that `attribute` gets: each fills one chunk, unless a method cuts its own."""
        return task.chunks(self.rows_per_sample(task))

    def _tells_outputs(self, task: Task) -> bool:
        """Whether the outputs that it leaves with its pieces are those of the task's own model."""
        return type(self)._prepared is Explainer._prepared

    def _space_of(self, task: Task) -> Space:
        """The features its maps are over: the task's, unless it explains by others, such as sparse codes."""
        return task.space

    def attribute(self, task: Task, context: Context) -> Tensor:
        """The maps of a task that fits one chunk."""
        raise NotApplicableError(f"explainer '{self.name}' does not say how it attributes")

    def inapplicable_reason(self, task: Task) -> str | None:
        """Why this explainer cannot work on the task, or None if it can."""
        if task.members is not None and not self.control:
            return "the samples of this task are classes, which have no input to explain"
        if "gradient" in self.needs and (layer := _quantised(task)) is not None:
            return f"it needs gradients, and torch passes none back through the quantised layer '{layer}'"
        if task.modality not in self.modalities:
            return f"it works on {', '.join(sorted(self.modalities))}, this task is {task.modality}"
        if "gradient" in self.needs and not task.differentiable:
            if not task.predictor.differentiable:
                why = getattr(task.predictor.source.module, "no_gradient", "")
                return f"it needs gradients, and {why or 'the model is not a torch function'}"
            if task.modality != "text":
                return f"it needs gradients and inputs are {task.inputs.dtype}; pass inputs.float()"
            if not _embeds(task):
                return (
                    "token ids have no gradient and the model has no embedding layer; if they are numbers, "
                    "pass inputs.float()"
                )
        if "train" in self.needs and task.train is None:
            return "it needs reference rows; give the task train=..."
        return None

    def _stated(self, task: Task) -> dict[str, Any]:
        """What the provenance says of a choice made for this task, such as the layer that is read."""
        return {}

    def _prepared(self, task: Task) -> Task:
        """The task as this explainer works on it: text goes through its embeddings for gradients."""
        at_tokens = "gradient" in self.needs and not task.inputs.is_floating_point()
        return task.at_embeddings() if at_tokens else task

    def __call__(
        self,
        task: Task,
        key: Key = Key(0),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> Explanation:
        """Explain every sample of the task; with `memo` as a part of a larger call."""
        context = Context.begun(task.predictor, key, memo)
        self.check(task)
        stated, space = self._stated(task), self._space_of(task)
        halves: list[Tensor] = []
        values = self.maps(task, replace(context, halves=halves))
        cost = context.cost
        # where some features are not the task's (special tokens), their part is not in the map; units
        # that a prompt does not have are nothing
        complete = bool(self.completeness) and (task.space.valid is None or task.modality == "units")
        expected = None
        if complete:
            name = ("expected sum", str(self), key)
            expected = context.memo.once(task, name, lambda: self._expected_sum(task, key / self.name))
        provenance: dict[str, Any] = {
            "explainer": self.to_json(),
            "seed": key.seed,
            "plan": asdict(task.predictor.plan),
            "halvings": context.halvings,
            **stated,
        }
        if expected is not None:
            provenance |= check_completeness(self.name, self.completeness, self.exact, expected, values)
        if halves:
            provenance |= check_repeatability(self.name, halves)
        return Explanation(
            values,
            space,
            task.targets,
            task.ids,
            self.name,
            cost=cost,
            provenance=provenance,
            draw_ids=task.draw_ids,
        )

    def maps(self, task: Task, context: Context) -> Tensor:
        """The values (N, V) alone, unchecked: for callers that explain a task under many weights."""
        space, worked_on = self._space_of(task), self._prepared(task)
        pieces = self._pieces(worked_on)
        context.memo.expect(
            task.predictor.meter.here, self._declared(worked_on).forward, lambda: self._many_rows(task)
        )
        # evaluated before anything hooks into the model
        _ = task.targets
        own = replace(context, key=context.key / self.name, notice=None)
        noisy = task.reference is not task and self._tells_outputs(task)
        parts: list[Tensor] = []
        outputs: list[Any] = []
        with worked_on.predictor.session("gradient" in self.needs):
            for piece in pieces:
                parts.append(self._maps(piece, own))
                outputs += [context.memo.found(piece, "outputs")] if noisy else []
        if noisy and all(part is not None for part in outputs):
            keep_outputs(context, task, torch.cat(outputs))
        values = torch.cat(parts) if len(parts) > 1 else parts[0]
        return values if space.valid is None else values.masked_fill(~space.valid, 0.0)

    def _values_on(self, task: Task, context: Context) -> Tensor:
        """The values (N, V) that a call gives, by the shorter way where there is one."""
        values = self.maps(task, context) if self._plain else self(task, context.key, context.memo).values
        if context.notice is not None:
            context.notice(task, self._space_of(task), values)
        return values

    def _maps(self, piece: Task, context: Context) -> Tensor:
        """The maps of one piece, cut in two and tried again when memory runs out."""
        space, halves = self._space_of(piece), context.halves
        before = 0 if halves is None else len(halves)
        try:
            # a copy: maps may be the very weights of the copy, or a view of the inputs
            return piece.values(self.attribute(piece, context), f"the map of '{self.name}'", space, copy=True)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(piece) == 1:
                raise
        piece.predictor.meter.here.halvings += 1
        if halves is not None:
            del halves[before:]
        free_memory(piece.device)
        half = len(piece) // 2
        return torch.cat([self._maps(part, context) for part in (piece[:half], piece[half:])])

    def check(self, task: Task) -> None:
        """Raise, naming the explainers that do apply, if this one does not."""
        reason = self.inapplicable_reason(task)
        if reason is not None:
            raise NotApplicableError(
                f"explainer '{self.name}' does not apply here: {reason}. "
                f"These do: {', '.join(applicable(task))}"
            )


def _quantised(task: Task) -> str | None:
    """The first layer that computes in quantised numbers."""
    layers = task.predictor.source.module.named_modules()
    return next((name for name, layer in layers if ".quantized." in type(layer).__module__), None)


def _embeds(task: Task) -> bool:
    from veridical.models.embeddings import embedding_layer

    return embedding_layer(task.predictor.model) is not None


registry: Registry[Explainer] = Registry("explainer", "veridical.explainers", homes=("veridical.explainers",))


def register(cls: type[Explainer]) -> type[Explainer]:
    """Class decorator: make an explainer known by its name."""
    registry.add(cls.name, cls)
    return cls


def applicable(task: Task) -> list[str]:
    """The names of all registered explainers that work on this task."""
    return [name for name in registry if registry.make(name).inapplicable_reason(task) is None]


def as_explainer(explainer: Any, **settings: Any) -> Explainer:
    """Accept an explainer, its name or class (with settings), or the user's function."""
    if isinstance(explainer, str):
        return registry.make(explainer, **settings)
    if isinstance(explainer, type) and issubclass(explainer, Explainer):
        return made(explainer, explainer.__name__, settings)
    if settings:
        raise InputError(
            f"settings {sorted(settings)} go with an explainer's name or class, not with an object"
        )
    if isinstance(explainer, Explainer):
        return explainer
    from veridical.explainers.adapters import adapted

    other = adapted(explainer)
    if other is not None:
        return other
    if isinstance(explainer, type):
        name = explainer.__name__
        raise InputError(f"{name} is a class, and an explainer is an object of one: {name}(...)")
    if callable(explainer):
        from veridical.explainers.adapters import FunctionExplainer

        return FunctionExplainer(explainer)
    raise InputError(
        f"an explainer is a name, an Explainer, or a function (model, inputs, targets) -> maps; "
        f"got {type(explainer).__name__}"
    )


def keep_outputs(context: Context, task: Task, outputs: Tensor) -> None:
    """Keep in the call's memo the outputs of a perturbed model, computed on the way to a map.

    The outputs of an unperturbed task are evaluated, and checked, by the task itself.
    """
    if task.reference is not task:
        context.memo.once(task, "outputs", lambda: outputs.detach().clone())


def selected(outputs: Tensor, targets: Tensor) -> Tensor:
    """The explained output of each row."""
    return outputs.gather(1, targets[:, None])[:, 0]
