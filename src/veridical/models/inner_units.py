"""A model seen from switches inside it: what can be switched off, and what takes its place.

Units are attention heads, channels, blocks, feed-forward layers or atoms of a dictionary. What "off" means is
zero, the mean over reference inputs, or the value in a paired input.
"""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from veridical.core.allowed import Count, Index
from veridical.core.settings import check_settings
from veridical.errors import InputError, ModelError, NotApplicableError, ShapeError, unknown_name
from veridical.models.private_copy import version

if TYPE_CHECKING:
    from veridical.models.cost import Meter

# --- what takes the place of a unit that is off ---------------------------------------------------------

Change = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Zeroed:
    """A unit that is off is zero."""


@dataclass(frozen=True, eq=False)
class MeanOver:
    """A unit that is off has its mean over reference inputs (rows of the task's kind, or a task of them)."""

    inputs: Any
    """The reference inputs: a tensor of rows, or a task."""
    side: Any = ()
    """Their side inputs, as the task has them."""


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """A unit that is off has the value it has in a paired input, one for each sample of the task."""

    inputs: Any
    """The paired inputs, in the order of the samples: a tensor, or a task that has the same shapes."""


@dataclass(frozen=True)
class Site:
    """One layer whose state is switched in parts: `count` units from number `first` on."""

    layer: str
    """Name of the layer in the model."""
    first: int
    """The number of its first unit."""
    count: int
    """How many units it has."""
    axis: int = -1
    """The axis of its state along which units lie."""
    reads_input: bool = False
    """Whether the state is what goes into the layer, not what comes out."""
    added: bool = False
    """Whether the state is what the layer adds to its input, or to an argument called residual."""
    whole: bool = False
    """Whether the whole state is one unit."""
    dictionary: Any = None
    """Encodes the state as codes, which are the units."""
    chosen: tuple[int, ...] = ()
    """Which of the codes are units."""

    def laid(self, gates: Tensor, state: Tensor) -> Tensor:
        """Gates (rows, units) over a state, to multiply it with."""
        shape = [len(state)] + [1] * (state.dim() - 1)
        if self.whole:
            return gates.reshape(shape)
        axis = self.axis % state.dim()
        if self.chosen:
            full = gates.new_ones(len(gates), state.shape[axis])
            full[:, list(self.chosen)] = gates
            gates = full
        shape[axis] = state.shape[axis]
        return gates.repeat_interleave(state.shape[axis] // gates.shape[1], 1).reshape(shape)

    def total_of(self, state: Tensor, seen: Tensor | None) -> tuple[Tensor, int | Tensor]:
        """The sum of a state over rows and places, and of how many: padding (not `seen`) has no part in it.

        It is 1 long along every axis but that of the units' values.
        """
        kept = self.axis % state.dim()
        others = [axis for axis in range(state.dim()) if axis != kept]
        if seen is None or state.dim() < 3 or state.shape[:2] != seen.shape:
            return state.sum(others, keepdim=True), state.numel() // state.shape[kept]
        laid = seen.reshape(*seen.shape, *[1] * (state.dim() - 2))
        further = state[0, 0].numel() // (state.shape[kept] if kept > 1 else 1)
        return torch.where(laid, state, 0.0).sum(others, keepdim=True), seen.sum() * further

    def hooked(self, model: nn.Module, change: Change) -> list[Any]:
        """Let `change` see, and replace, the state whenever the layer is called."""
        layer = model.get_submodule(self.layer)
        if self.reads_input:

            def before(_m: nn.Module, given: tuple[Any, ...]) -> Any:
                new = change(given[0])
                return None if new is None else (new, *given[1:])

            return [layer.register_forward_pre_hook(before)]

        def after(_m: nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> Any:
            out = made[0] if isinstance(made, tuple) else made
            new = self._changed(layer, given, named, out, change)
            if new is None:
                return None
            return (new, *made[1:]) if isinstance(made, tuple) else new

        return [layer.register_forward_hook(after, with_kwargs=True)]

    def _changed(
        self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], out: Tensor, change: Change
    ) -> Tensor | None:
        if self.added:
            added = out - _added_to(layer, given, named)
            new = change(added)
            # so that nothing is rounded where all is on
            return None if new is None else out + (new - added)
        if self.dictionary is None:
            return change(out)
        own: Any = (
            self.dictionary.to(out.device) if isinstance(self.dictionary, nn.Module) else self.dictionary
        )
        codes = own.encode(out)
        new = change(codes)
        # what the dictionary does not reconstruct stays as it is
        return None if new is None else out + (own.decode(new) - own.decode(codes))


def takes_residual(layer: nn.Module) -> bool:
    """Whether a layer is handed what it adds to, as an argument apart from its input."""
    return "residual" in inspect.signature(layer.forward).parameters


def _added_to(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    place = 0
    if takes_residual(layer):
        place = list(inspect.signature(layer.forward).parameters).index("residual")
        named = {"residual": named.get("residual")}
    found = given[place] if place < len(given) else None
    return found if found is not None else next(v for v in named.values() if isinstance(v, Tensor))


# --- kinds of units -------------------------------------------------------------------------------------

Layers = str | tuple[str, ...] | None
Row = Callable[[], Any]


@dataclass(frozen=True)
class InnerUnits:
    """Base of the kinds of units: where they are, and how many a state has."""

    layers: Layers = None
    """Names of layers as `model.named_modules()` gives them; None is all of this kind that are found."""

    def __post_init__(self) -> None:
        if isinstance(self.layers, list):
            object.__setattr__(self, "layers", tuple(self.layers))
        check_settings(self)
        if self.layers is not None and not self.layers:
            raise InputError(f"{type(self).__name__}(layers={self.layers!r}) names no layer; None is all")

    def sites(self, model: nn.Module, row: Row) -> list[Site]:
        """The layers whose states are switched, their units not yet counted; `row` runs the model on one."""
        raise NotApplicableError(f"{type(self).__name__} does not say where its units are")

    def sized(self, site: Site, state: Tensor, number: int) -> tuple[Site, list[str]]:
        """The site with its units counted on a state of one row, and their names; `number` counts sites."""
        return replace(site, count=1, whole=True), [site.layer]

    def _named(self, model: nn.Module) -> list[str]:
        there = dict(model.named_modules())
        given = (self.layers,) if isinstance(self.layers, str) else tuple(self.layers or ())
        # a task of prompts holds the caller's model as `model`
        names = [name if name in there else f"model.{name}" for name in given]
        for name, said in zip(names, given, strict=True):
            if name not in there or not said:
                raise unknown_name("layer", said, [n for n in there if n])
        return names

    def _found(self, model: nn.Module, pattern: str, what: str) -> list[str]:
        """The layers named, or those whose last name is like the pattern."""
        if self.layers is not None:
            return self._named(model)
        names = _of_text(n for n, _ in model.named_modules() if re.fullmatch(pattern, n.rsplit(".", 1)[-1]))
        if not names:
            raise NotApplicableError(f"no {what} is found in the model by its name; say layers=(...)")
        return names


def _of_text(names: Iterable[str]) -> list[str]:
    """Layers outside towers that read pictures or sound, where a model has others."""
    found = list(names)
    return [n for n in found if not re.search("vision|visual|image|audio", n)] or found


@dataclass(frozen=True)
class Mlps(InnerUnits):
    """Whole feed-forward layers: the output of each is one unit."""

    def sites(self, model: nn.Module, row: Row) -> list[Site]:
        names = self._found(model, "mlp|feed_forward|ffn|ff", "feed-forward layer")
        return [Site(name, 0, 0, added=takes_residual(model.get_submodule(name))) for name in names]


@dataclass(frozen=True)
class Blocks(InnerUnits):
    """Whole blocks: what each adds to its input is one unit, so that a block that is off is skipped."""

    def sites(self, model: nn.Module, row: Row) -> list[Site]:
        found = self._named(model) or _of_text(
            f"{name}.{place}" if name else str(place)
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList)
            and re.fullmatch("h|layers|layer|blocks", name.rsplit(".", 1)[-1])
            for place in range(len(module))
        )
        if not found:
            raise NotApplicableError("no list of blocks is found in the model by its name; say layers=(...)")
        for name in found:
            if takes_residual(model.get_submodule(name)):
                raise NotApplicableError(
                    f"block '{name}' is handed a residual apart from its input, so that what it adds is not "
                    "the difference of the two; switch Mlps, Heads or Channels"
                )
        return [Site(name, 0, 0, added=True) for name in found]


@dataclass(frozen=True)
class Channels(InnerUnits):
    """The channels of a layer's output: feature maps of a convolution, neurons of a linear layer."""

    axis: int | None = None
    """The axis of channels; None is the first behind the rows for convolutions, else the last."""

    def sites(self, model: nn.Module, row: Row) -> list[Site]:
        if self.layers is None:
            raise InputError("Channels needs the name of a layer, such as Channels('conv1')")
        return [Site(name, 0, 0) for name in self._named(model)]

    def sized(self, site: Site, state: Tensor, number: int) -> tuple[Site, list[str]]:
        axis = self.axis
        if axis is None:
            axis = 1 if state.dim() > 3 else -1
        if not -state.dim() < axis < state.dim() or axis == 0:
            raise ShapeError(f"axis {axis} is no axis of channels in a state {tuple(state.shape)}")
        count = state.shape[axis]
        return replace(site, count=count, axis=axis), [f"{site.layer} channel {i}" for i in range(count)]


@dataclass(frozen=True)
class Atoms(InnerUnits):
    """Atoms of a dictionary over a layer's output; what it does not reconstruct stays as it is."""

    dictionary: Any = None
    """Has encode(states) -> codes and decode(codes) -> states, over the last axis."""
    atoms: tuple[Index, ...] | None = None
    """Which atoms are units, the others staying on; None is all of them."""

    def sites(self, model: nn.Module, row: Row) -> list[Site]:
        if not (hasattr(self.dictionary, "encode") and hasattr(self.dictionary, "decode")):
            raise InputError("Atoms needs a dictionary with encode(states) and decode(codes)")
        names = self._named(model)
        if len(names) != 1:
            raise InputError("a dictionary is one of one layer: say Atoms('layer', dictionary)")
        return [Site(names[0], 0, 0, dictionary=self.dictionary)]

    def sized(self, site: Site, state: Tensor, number: int) -> tuple[Site, list[str]]:
        atoms = tuple(range(state.shape[-1])) if self.atoms is None else tuple(self.atoms)
        if not atoms or len(set(atoms)) < len(atoms) or max(atoms) >= state.shape[-1]:
            raise InputError(f"atoms are different numbers below {state.shape[-1]}; got {atoms!r:.60}")
        return replace(site, count=len(atoms), chosen=atoms), [f"atom {atom}" for atom in atoms]


@dataclass(frozen=True)
class Heads(InnerUnits):
    """The attention heads of a transformer, each where it enters the projection that joins them.

    A layer is such a projection if what goes into it for one row is what attention made of the values, (rows,
    heads, places, width), with the heads side by side: what a model computes says it, not its names.
    """

    count: Count | None = None
    """Heads per layer, where `layers` are the projections themselves; else it is found."""

    def sites(self, model: nn.Module, row: Row) -> list[Site]:
        names = self._named(model)
        if self.count is not None and names:
            return [Site(name, 0, self.count, reads_input=True) for name in names]
        found = {
            name: count
            for name, count in _joining(model, row).items()
            if self.layers is None or any(f"{name}.".startswith(f"{own}.") for own in names)
        }
        if not found:
            hidden = any(isinstance(module, nn.MultiheadAttention) for module in model.modules())
            raise NotApplicableError(
                "nn.MultiheadAttention joins its heads out of reach of hooks; write its attention "
                "with a projection of its own, or switch Channels of another layer"
                if hidden
                else "no projection is found here that attention heads enter side by side, and nothing else; "
                "if you know one, say Heads(('its name',), count=...)"
            )
        return [Site(name, 0, count, reads_input=True) for name, count in found.items()]

    def sized(self, site: Site, state: Tensor, number: int) -> tuple[Site, list[str]]:
        if state.shape[-1] % site.count:
            raise ShapeError(
                f"the state {tuple(state.shape)} of '{site.layer}' does not divide into {site.count} heads"
            )
        return site, [f"layer {number} head {head}" for head in range(site.count)]


class _Products(TorchFunctionMode):
    """Keeps the latest products of matrices, among which is what attention makes of the values."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: deque[Tensor] = deque(maxlen=4)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        names = ("scaled_dot_product_attention", "matmul", "bmm", "einsum")
        if getattr(func, "__name__", "").strip("_") in names and made.dim() > 2 + (len(made) == 1):
            self.latest.append((made if made.dim() == 4 else made[None]).clone())  # it may be added to
        return made


def _joining(model: nn.Module, row: Row) -> dict[str, int]:
    """The projections that heads enter side by side, in the order they are called, and how many heads."""
    found: dict[str, int] = {}

    def entered(name: str, _layer: nn.Module, given: tuple[Any, ...]) -> None:
        for product in products.latest if given else ():
            for laid in (product.transpose(1, 2), product):
                count, state = laid.shape[-2], given[0]
                side_by_side = state.shape[-1] == count * laid.shape[-1] and state.numel() == laid.numel()
                if side_by_side and torch.equal(laid.reshape(state.shape).to(state), state):
                    found[name] = count

    projections = [
        (name, layer)
        for name, layer in model.named_modules()
        if getattr(getattr(layer, "weight", None), "ndim", 0) == 2 and not isinstance(layer, nn.Embedding)
    ]
    handles = [layer.register_forward_pre_hook(partial(entered, name)) for name, layer in projections]
    try:
        with _Products() as products:
            row()
    finally:
        for handle in handles:
            handle.remove()
    return found


# --- the model with its switches ------------------------------------------------------------------------

INPUTS, SAMPLE, PAIRED = "inputs of the task", "number of the sample", "paired "
"""Side inputs of a switched model by name; no argument of a model can be called so."""
KEPT_MIB = 512
"""Memory for the states of paired inputs that are kept between chunks."""

Visit = Callable[[int, Tensor], Tensor | None]


class Switched(nn.Module):
    """The child model evaluated with gates (rows, units) inside it, each 1 (on) or 0 (off) or between.

    At each site the state becomes gate * state + (1 - gate) * off, where off is zero, the mean state over
    reference inputs, or the state in a paired input; these are computed with the weights that the copy
    has at that moment. Hooks are there for as long as a row is evaluated.
    """

    def __init__(
        self,
        module: nn.Module,
        sites: tuple[Site, ...],
        off: str,
        positional: int = 0,
        reference: tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]] | None = None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.sites = sites
        self.off = off
        self.positional = positional
        """How many side inputs of the child go by their position."""
        self.reference = reference
        """Rows over which states are averaged."""
        self.meter = meter
        """Counts the rows that are evaluated for what stands in for units that are off."""
        self.expensive = bool(getattr(module, "expensive", False))
        self._known: OrderedDict[Any, list[Tensor]] = OrderedDict()
        self._seen: tuple[int, ...] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Switched:
        import copy

        made = object.__new__(type(self))
        memo[id(self)] = made
        memo[id(self.meter)] = self.meter
        # what is known belongs to the weights of one copy
        for name, value in {**vars(self), "_known": OrderedDict(), "_seen": None}.items():
            made.__dict__[name] = copy.deepcopy(value, memo)
        return made

    def holding(self, child: nn.Module, sites: tuple[Site, ...] | None = None) -> Switched:
        """The same switches in another child."""
        sites = self.sites if sites is None else sites
        return Switched(child, sites, self.off, self.positional, self.reference, self.meter)

    def around(self, wrap: Callable[[nn.Module], nn.Module]) -> Switched:
        """The same switches in a child that is wrapped: `wrap` holds it as `module`."""
        sites = tuple(replace(site, layer=f"module.{site.layer}") for site in self.sites)
        return self.holding(wrap(self.module), sites).eval()

    def forget(self) -> None:
        """Let the states go that stand in for units that are off: who needs them next computes them."""
        self._known.clear()

    def forward(self, gates: Tensor, /, **side: Tensor) -> Any:
        off = self._states(side)

        def switch(place: int, state: Tensor) -> Tensor:
            site = self.sites[place]
            own = gates[:, site.first : site.first + site.count].to(state.dtype)
            share = site.laid(own, state)
            kept = share * state
            return kept if off is None else kept + (1 - share) * off[place].to(state)

        with self._visited(switch):
            return self._outputs(side, "")

    def _outputs(self, side: dict[str, Tensor], prefix: str) -> Any:
        own = {n.removeprefix(prefix): v for n, v in side.items() if n.startswith(PAIRED) == bool(prefix)}
        x = own.pop(INPUTS)
        own.pop(SAMPLE, None)
        given = [own.pop(f"side {place}") for place in range(self.positional)]
        return self.module(x, *given, **own)

    @contextmanager
    def _visited(self, visit: Visit) -> Iterator[None]:
        handles = []
        try:
            for place, site in enumerate(self.sites):
                handles += site.hooked(self.module, partial(visit, place))
            yield
        finally:
            for handle in handles:
                handle.remove()

    # --- what stands in for states that are off -----------------------------------------------------

    @torch.no_grad()
    def _states(self, side: dict[str, Tensor]) -> list[Tensor] | None:
        if self.off == "zero":
            return None
        written = tuple(version(tensor) for tensor in (*self.parameters(), *self.buffers()))
        if written != self._seen:
            self._known.clear()
            self._seen = written
        if self.off == "mean":
            if "mean" not in self._known:
                self._known["mean"] = self._means(side[INPUTS].device)
            return self._known["mean"]
        samples = side[SAMPLE].tolist()
        wanted = {sample: row for row, sample in enumerate(samples) if sample not in self._known}
        if wanted:
            rows = torch.tensor(list(wanted.values()), device=side[SAMPLE].device)
            found = self._record(
                lambda: self._outputs({n: v[rows] for n, v in side.items()}, PAIRED), len(rows)
            )
            for place, sample in enumerate(wanted):
                self._known[sample] = [state[place : place + 1] for state in found]
        out = [torch.cat(states) for states in zip(*(self._known[s] for s in samples), strict=True)]
        self._keep_few()
        return out

    def _record(self, evaluate: Callable[[], Any], rows: int) -> list[Tensor]:
        found: list[list[Tensor]] = [[] for _ in self.sites]
        with self._visited(lambda place, state: found[place].append(state.detach())):
            evaluate()
        if self.meter is not None:
            self.meter.here.forward += rows
            self.meter.here.rows += rows
        for site, states in zip(self.sites, found, strict=True):
            if len(states) != 1 or len(states[0]) != rows:
                raise ModelError(
                    f"layer '{site.layer}' was called {len(states)} times for {rows} rows; units are "
                    "switched in layers that are called once and keep the rows apart"
                )
        return [states[0] for states in found]

    def _means(self, device: torch.device) -> list[Tensor]:
        """The mean state over places of the reference rows that are read, one per site, for all rows."""
        assert self.reference is not None
        x, given, named = self.reference
        seen_in = getattr(self.module, "read_places", None)
        parts: list[list[tuple[Tensor, Any]]] = []
        for at in range(0, len(x), 8):
            some = slice(at, at + 8)
            rows = [g[some].to(device) for g in (x, *given)]
            by_name = {n: v[some].to(device) for n, v in named.items()}
            states = self._record(partial(self.module, *rows, **by_name), len(rows[0]))
            seen = None if seen_in is None else seen_in(by_name)
            parts.append([site.total_of(s, seen) for site, s in zip(self.sites, states, strict=True)])
        return [sum(p[0] for p in each) / sum(p[1] for p in each) for each in zip(*parts, strict=True)]

    def _keep_few(self) -> None:
        size = sum(s.numel() * s.element_size() for states in self._known.values() for s in states)
        while size > KEPT_MIB * 2**20 and len(self._known) > 1:
            _, states = self._known.popitem(last=False)
            size -= sum(s.numel() * s.element_size() for s in states)
