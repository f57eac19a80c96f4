"""Layer-wise relevance propagation: the output is handed back to the input, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from torch import Tensor

from veridical.core.allowed import LARGE, NotNegative, Value, Within
from veridical.core.key import Key
from veridical.explainers.base import register
from veridical.explainers.diagnostics import output_of_target
from veridical.explainers.layout import at_logits
from veridical.explainers.trace.operations import tensors
from veridical.explainers.trace.relevance import Relevance
from veridical.explainers.trace.relevance_rules import RuleName, Rules
from veridical.explainers.trace.tracer import TracingExplainer
from veridical.values.task import Task


@dataclass(frozen=True)
class _Propagation(TracingExplainer):
    """Base of the LRP explainers: a subclass says which rules hold where.

    Every operation of the model is traced while it runs (`explainers.trace`), so functions, reused layers,
    residual sums and concatenations count as they are. What has no stated rule is refused by name.
    Activations pass relevance on as it is; maximum pooling gives it to the winner; averages and sums share it
    in proportion; a batch norm is folded into the layer before it; attention weights and the spread of a norm
    are constants. Rows: each x forward and backward; a rule that changes weights runs its layer again, which
    is no row.
    """

    version: ClassVar[int] = 2
    paper: ClassVar[str] = "Bach et al. 2015"
    completeness: ClassVar[str] = "values sum to y(x), less what biases and the rules' denominators take"
    exact: ClassVar[bool] = False

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        return output_of_target(at_logits(task))

    def rules(self) -> Rules:
        """The rule of each kind of layer."""
        return Rules()

    def tracer(self, task: Task, x: Tensor) -> Relevance:
        return Relevance(x, self.rules(), tensors(task.side))


@register
@dataclass(frozen=True)
class Lrp(_Propagation):
    """Relevance by the composite that suits convolutional networks: another rule for each kind of layer.

    (Montavon et al. 2019; Kohlbrenner et al. 2020.)
    """

    first: RuleName = "flat"
    """Rule of a first convolution; "flat" spreads relevance over its window."""
    convolution: RuleName = "z_plus"
    """Rule of the other convolutions; "z_plus" counts positive contributions only."""
    dense: RuleName = "epsilon"
    """Rule of linear layers; "epsilon" counts all contributions."""
    epsilon: NotNegative = 1e-6
    """Added to denominators, with their sign, under the rule "epsilon"."""
    gamma: NotNegative = 0.25
    """Extra weight of contributions of the sign of the sum, under the rule "gamma"."""
    alpha: Annotated[float, Within(1, LARGE)] = 2.0
    """Weight of positive contributions under the rule "alpha_beta"; negative ones have alpha - 1."""
    low: Value = 0.0
    """The smallest value an input can take, under the rule "z_box"."""
    high: Value = 1.0
    """The largest value an input can take, under the rule "z_box"."""
    name: ClassVar[str] = "lrp"
    summary: ClassVar[str] = "relevance propagation, a rule for each kind of layer"
    paper: ClassVar[str] = "Montavon et al. 2019"

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> Rules:
        return Rules(**{setting.name: getattr(self, setting.name) for setting in fields(Rules)})


@register
@dataclass(frozen=True)
class LrpEpsilon(_Propagation):
    """R_i = sum_j a_i w_ij / (z_j + epsilon sign(z_j)) R_j in every layer (Bach et al. 2015, eq. 58).

    On a ReLU network without biases it tends to input times gradient as epsilon goes to 0.
    """

    epsilon: NotNegative = 1e-6
    """Added to each denominator, with its sign."""
    name: ClassVar[str] = "lrp_epsilon"
    summary: ClassVar[str] = "relevance propagation by all contributions"

    def rules(self) -> Rules:
        return Rules(epsilon=self.epsilon)


@register
@dataclass(frozen=True)
class LrpGamma(_Propagation):
    """Contributions of the sign of z_j count 1 + gamma times in every layer (Montavon et al. 2019, 10.2.3).

    For inputs of any sign and a negative z_j the same holds with the signs exchanged.
    """

    gamma: NotNegative = 0.25
    """Extra weight of contributions of the sign of the sum; 0 treats all alike."""
    name: ClassVar[str] = "lrp_gamma"
    summary: ClassVar[str] = "relevance propagation that favours contributions of the output's sign"
    paper: ClassVar[str] = "Montavon et al. 2019"

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

    alpha: Annotated[float, Within(1, LARGE)] = 2.0
    """Weight of positive contributions; negative ones have alpha - 1."""
    name: ClassVar[str] = "lrp_alpha_beta"
    summary: ClassVar[str] = "relevance propagation, positive and negative contributions apart"

    def rules(self) -> Rules:
        return Rules("alpha_beta", "alpha_beta", "alpha_beta", alpha=self.alpha)


__all__ = ["Lrp", "LrpAlphaBeta", "LrpEpsilon", "LrpGamma", "LrpZPlus"]
