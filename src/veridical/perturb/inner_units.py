"""The parts of a model that can be switched off: heads, channels, feed-forward layers, blocks, atoms."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from veridical.core.allowed import Count, Index
from veridical.core.settings import check_settings
from veridical.errors import InputError, NotApplicableError, ShapeError, unknown_name
from veridical.perturb.interventions import Site, takes_residual

Layers = str | tuple[str, ...] | None


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

    def sites(self, model: nn.Module) -> list[Site]:
        """The layers whose states are switched, their units not yet counted."""
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
        names = [n for n, _ in model.named_modules() if re.fullmatch(pattern, n.rsplit(".", 1)[-1])]
        if not names:
            raise NotApplicableError(f"no {what} is found in the model by its name; say layers=(...)")
        return names


@dataclass(frozen=True)
class Mlps(InnerUnits):
    """Whole feed-forward layers: the answer of each is one unit."""

    def sites(self, model: nn.Module) -> list[Site]:
        names = self._found(model, "mlp|feed_forward|ffn|ff", "feed-forward layer")
        return [Site(name, 0, 0, added=takes_residual(model.get_submodule(name))) for name in names]


@dataclass(frozen=True)
class Blocks(InnerUnits):
    """Whole blocks: what each adds to its input is one unit, so that a block that is off is skipped."""

    def sites(self, model: nn.Module) -> list[Site]:
        found = self._named(model) or [
            f"{name}.{place}" if name else str(place)
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList)
            and re.fullmatch("h|layers|layer|blocks", name.rsplit(".", 1)[-1])
            for place in range(len(module))
        ]
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
    """The channels of a layer's answer: feature maps of a convolution, neurons of a linear layer."""

    axis: int | None = None
    """The axis of channels; None is the first behind the rows for convolutions, else the last."""

    def sites(self, model: nn.Module) -> list[Site]:
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
    """Atoms of a dictionary over a layer's answer; what the dictionary does not tell stays as it is."""

    dictionary: Any = None
    """Has encode(states) -> codes and decode(codes) -> states, over the last axis."""
    atoms: tuple[Index, ...] | None = None
    """Which atoms are units, the others staying on; None is all of them."""

    def sites(self, model: nn.Module) -> list[Site]:
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


_JOINING = ("o_proj", "c_proj", "out_proj", "wo", "to_out", "proj", "out", "dense")
_COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "heads")


@dataclass(frozen=True)
class Heads(InnerUnits):
    """The attention heads of a transformer, each where it enters the projection that joins them."""

    count: Count | None = None
    """Heads per layer, where the layer does not say it itself."""

    def sites(self, model: nn.Module) -> list[Site]:
        there = dict(model.named_modules())
        names = (
            self._named(model) if self.layers is not None else [n for n, m in there.items() if _attends(n, m)]
        )
        sites = [site for name in names if (site := self._site(there, name)) is not None]
        if not sites:
            raise NotApplicableError(
                "no attention layer with a projection of its heads is found; say Heads((...), count=...)"
            )
        return sites

    def _site(self, there: dict[str, nn.Module], name: str) -> Site | None:
        module = there[name]
        if isinstance(module, nn.MultiheadAttention):
            raise NotApplicableError(
                f"'{name}' is an nn.MultiheadAttention, which joins its heads out of reach of hooks; write "
                "the attention with a projection of its own, or switch Channels of another layer"
            )
        count = self.count or _heads(module) or _heads(there.get(name.rpartition(".")[0]))
        child = next((c for c in _JOINING if isinstance(getattr(module, c, None), nn.Module)), None)
        alone = not list(module.children())
        if count is None or (child is None and not alone and self.layers is None and not _answers(module)):
            if self.layers is None:
                return None
            raise InputError(f"'{name}' does not say how many heads it has; say Heads(..., count=...)")
        if child is not None:
            return Site(f"{name}.{child}", 0, count, reads_input=True)
        return Site(name, 0, count, reads_input=alone)

    def sized(self, site: Site, state: Tensor, number: int) -> tuple[Site, list[str]]:
        if state.shape[-1] % site.count:
            raise ShapeError(
                f"the state {tuple(state.shape)} of '{site.layer}' does not divide into {site.count} heads"
            )
        return site, [f"layer {number} head {head}" for head in range(site.count)]


def _attends(name: str, module: nn.Module) -> bool:
    own = name.rsplit(".", 1)[-1] + " " + type(module).__name__
    return bool(re.search("attn|attention", own, re.IGNORECASE)) and bool(list(module.children()))


def _answers(module: nn.Module) -> bool:
    """Whether a layer answers with its heads side by side, and another one joins them."""
    return bool(re.search("SelfAttention$", type(module).__name__))


def _heads(module: nn.Module | None) -> int | None:
    """How many heads a layer says it has, itself or in its configuration."""
    for holder in (module, getattr(module, "config", None)):
        for name in _COUNTS:
            found = getattr(holder, name, None)
            if isinstance(found, int) and found > 0:
                return found
    return None
