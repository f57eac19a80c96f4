"""Layer-wise relevance propagation: the output is handed back to the input, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, fx, nn

from veridical.errors import NotApplicableError, ShapeError
from veridical.explainers.base import Explainer, register
from veridical.explainers.gradients import gradient
from veridical.explainers.lrp_flow import RelevanceFlow
from veridical.explainers.lrp_graph import RelevanceGraph, traced, unwrapped
from veridical.explainers.lrp_rules import RuleName, Rules
from veridical.model.late_checks import AT_ONCE
from veridical.model.predictor import Predictor, call, plain_output, take_side
from veridical.random.keyed import Key
from veridical.values.task import Task


@dataclass(frozen=True)
class _Propagation(Explainer):
    """Base of the LRP explainers: a subclass says which rules hold where.

    The model is traced by torch.fx, so functional activations, reused modules, residual sums and
    concatenations are followed; one that cannot be traced, as those of Hugging Face, is followed while it
    runs. What has no stated rule is refused by name. Activations hand relevance on
    as it is; maximum pooling gives it to the winner; averages and sums share it in proportion; a batch norm
    is folded into the layer before it; attention weights and the spread of a layer norm are constants.
    Rows: each x forward and backward, and the further passes of the rules (`lrp_work`) as the rows of the
    whole model that they amount to.
    """

    paper: ClassVar[str] = "Bach et al. 2015"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def rules(self) -> Rules:
        """The rule of each kind of layer."""
        return Rules()

    def why_not(self, task: Task) -> str | None:
        reason = super().why_not(task)
        if reason is not None:
            return reason
        at = task.at_embeddings()

        def refusal() -> str | None:
            try:
                self._tried(at)
            except NotApplicableError as error:
                return str(error)
            return None

        # once for a model and its inputs: under noise both are built alike
        module, _ = unwrapped(at.predictor.model)
        refusals: dict[nn.Module, str | None] = task.reference.cached(f"refusals of {self.rules()}", dict)
        if module not in refusals:
            refusals[module] = refusal()
        return refusals[module]

    def prepared(self, task: Task) -> Task:
        targets = task.targets
        task = task.at_embeddings()
        predictor = self._predictor(task)
        return task.changed(predictor=predictor, targets=targets)

    def attribute(self, task: Task, key: Key) -> Tensor:
        relevance, model = gradient(task), task.predictor.model
        assert isinstance(model, RelevanceGraph | RelevanceFlow)
        model.further.count(len(task), model.work, task.predictor.meter)
        return relevance

    def _predictor(self, task: Task) -> Predictor:
        """The task's model as one whose gradient is relevance: by its graph, or as it runs if it has none."""
        model, output, graph = task.predictor.model, task.predictor.output, self._graph(task)
        # on a CPU a look is cheaper than the products with zeros it spares; on a GPU it would wait
        positive = task.device.type in AT_ONCE and bool(task.inputs.amin() >= 0)
        if graph is None:
            flow = RelevanceFlow(model, output, self.rules(), positive)
            return task.predictor.with_model(flow, plain_output)
        return task.predictor.with_model(RelevanceGraph(model, graph, self.rules(), positive))

    @staticmethod
    def _graph(task: Task) -> fx.Graph | None:
        module, embedding = unwrapped(task.predictor.model)
        named = set(task.side) if isinstance(task.side, dict) else set()
        given = 1 if isinstance(task.side, dict) else 1 + len(task.side) - (embedding is not None)

        # by the very module, which is kept: a place in memory may be given to another
        graphs: dict[nn.Module, fx.Graph | None] = task.reference.cached("graphs for relevance", dict)
        if module not in graphs:
            with task.session():
                graphs[module] = traced(module, given, named)
        return graphs[module]

    def _tried(self, task: Task) -> None:
        """Run one row through the rules, and compare with the model's own answer."""
        ours_by = self._predictor(task)
        row, side = task.inputs[:1].detach().requires_grad_(True), take_side(task.side, slice(0, 1))

        def ask() -> tuple[Tensor, Tensor]:
            with task.session(grad=True):
                return call(ours_by.view, row, side), call(task.predictor.view, row, side)

        try:
            ours, theirs = task.uncounted(ask)
        except ShapeError as error:
            raise NotApplicableError(f"the traced model does not run: {error}") from error
        size = theirs.detach().abs().max().clamp(min=1e-6)
        if not bool(((ours - theirs).detach().abs() <= 1e-3 * size).all()):
            raise NotApplicableError(
                "the model answers otherwise when its operations are followed one by one: its forward pass "
                "depends on more than its inputs, or changes tensors in place that it uses again"
            )


@register
@dataclass(frozen=True)
class Lrp(_Propagation):
    """Relevance by the composite that suits convolutional networks: another rule for each kind of layer.

    A first convolution follows `first` (flat: relevance is spread over its window), other convolutions
    `convolution` (z_plus: positive contributions only), linear layers `dense` (epsilon: all contributions).
    With `first="z_box"` inputs are taken to lie between `low` and `high`. (Montavon et al. 2019; Kohlbrenner
    et al. 2020.)
    """

    first: RuleName = "flat"
    convolution: RuleName = "z_plus"
    dense: RuleName = "epsilon"
    epsilon: float = 1e-6
    gamma: float = 0.25
    alpha: float = 2.0
    low: float = 0.0
    high: float = 1.0
    name: ClassVar[str] = "lrp"
    summary: ClassVar[str] = "relevance propagation, a rule for each kind of layer"
    paper: ClassVar[str] = "Montavon et al. 2019"

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> Rules:
        return Rules(
            self.first,
            self.convolution,
            self.dense,
            self.epsilon,
            self.gamma,
            self.alpha,
            self.low,
            self.high,
        )


@register
@dataclass(frozen=True)
class LrpEpsilon(_Propagation):
    """R_i = sum_j a_i w_ij / (z_j + epsilon sign(z_j)) R_j in every layer (Bach et al. 2015, eq. 58).

    On a ReLU network without biases it tends to input times gradient as epsilon goes to 0.
    """

    epsilon: float = 1e-6
    name: ClassVar[str] = "lrp_epsilon"
    summary: ClassVar[str] = "relevance propagation by all contributions"

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> Rules:
        return Rules(epsilon=self.epsilon)


@register
@dataclass(frozen=True)
class LrpGamma(_Propagation):
    """Contributions of the sign of z_j count 1 + gamma times in every layer (Montavon et al. 2019, 10.2.3).

    For inputs of any sign and a negative z_j the same holds with the signs exchanged.
    """

    gamma: float = 0.25
    name: ClassVar[str] = "lrp_gamma"
    summary: ClassVar[str] = "relevance propagation that favours contributions of the output's sign"
    paper: ClassVar[str] = "Montavon et al. 2019"

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> Rules:
        return Rules("gamma", "gamma", "gamma", gamma=self.gamma)


@register
@dataclass(frozen=True)
class LrpZPlus(_Propagation):
    """R_i = sum_j (a_i w_ij)+ / (sum_k (a_k w_kj)+ + b_j+) R_j in every layer (Montavon et al. 2017)."""

    name: ClassVar[str] = "lrp_z_plus"
    summary: ClassVar[str] = "relevance propagation by positive contributions"
    paper: ClassVar[str] = "Montavon et al. 2017"

    def rules(self) -> Rules:
        return Rules("z_plus", "z_plus", "z_plus")


@register
@dataclass(frozen=True)
class LrpAlphaBeta(_Propagation):
    """Shares of positive contributions times alpha, less negative ones times alpha - 1.

    (Bach et al. 2015, eq. 60.)
    """

    alpha: float = 2.0
    name: ClassVar[str] = "lrp_alpha_beta"
    summary: ClassVar[str] = "relevance propagation, positive and negative contributions apart"

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> Rules:
        return Rules("alpha_beta", "alpha_beta", "alpha_beta", alpha=self.alpha)


__all__ = ["Lrp", "LrpAlphaBeta", "LrpEpsilon", "LrpGamma", "LrpZPlus"]
