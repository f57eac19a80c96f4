"""A model seen from switches inside it: heads, channels, blocks or dictionary atoms that are on or off."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from veridical.errors import ModelError
from veridical.models.private_copy import version

if TYPE_CHECKING:
    from veridical.models.cost import Meter
    from veridical.perturb.interventions import Site

INPUTS, SAMPLE, PAIRED = "inputs of the task", "number of the sample", "paired "
"""Side inputs of a switched model by name; no argument of a model can be called so."""
KEPT_MIB = 512
"""Memory for the states of paired inputs that are kept between chunks."""

Visit = Callable[[int, Tensor], Tensor | None]


class Switched(nn.Module):
    """The child model asked with gates (rows, units) inside it, each 1 (on) or 0 (off) or between.

    At each site the state becomes gate * state + (1 - gate) * off, where off is zero, the mean state over
    reference inputs, or the state in a paired input; these are computed with the weights that the copy
    has at that moment. Hooks are there for as long as a row is asked.
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
        """Counts the rows that are asked for what stands in for units that are off."""
        self.dear = bool(getattr(module, "dear", False))
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

    def reference_rows(self, samples: int) -> int:
        """Rows asked for what stands in for units of so many samples that are off, once a weight world."""
        mean = 0 if self.reference is None else len(self.reference[0])
        return {"zero": 0, "mean": mean, "paired": samples}[self.off]

    def forget(self) -> None:
        """Let the states go that stand in for units that are off: whoever needs them next asks, and pays."""
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
            return self._ask(side, "")

    def _ask(self, side: dict[str, Tensor], prefix: str) -> Any:
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
            found = self._record(lambda: self._ask({n: v[rows] for n, v in side.items()}, PAIRED), len(rows))
            for place, sample in enumerate(wanted):
                self._known[sample] = [state[place : place + 1] for state in found]
        out = [torch.cat(states) for states in zip(*(self._known[s] for s in samples), strict=True)]
        self._keep_few()
        return out

    def _record(self, ask: Callable[[], Any], rows: int) -> list[Tensor]:
        found: list[list[Tensor]] = [[] for _ in self.sites]
        with self._visited(lambda place, state: found[place].append(state.detach())):
            ask()
        if self.meter is not None:
            self.meter.here.forward += rows
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
