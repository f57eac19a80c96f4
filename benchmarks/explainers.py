"""Every explainer that applies: rows asked, seconds, seconds of the bare rows, and their ratio.

Bare rows are as many as the explainer's meter counted, in chunks of the same plan: forward passes, or forward
and backward passes of the plain model where it asks for gradients. The meter counts the rows that enter the
model, that of DeepLIFT's baseline among them; layers that LRP's rules run again are part of its ratio.
"""

from __future__ import annotations

import veridical as vd
from benchmarks.metrics import tasks
from benchmarks.timing import Timing, compare
from veridical.explainers import Explainer, applicable, registry


def settings(size: str, on_cpu: bool = False) -> dict[str, dict[str, object]]:
    """Hyper-parameters that bound the number of evaluations on large inputs; the others are defaults.

    On a processor, which takes a tenth of a second for one large image, more of them than on a GPU.
    """
    if size == "lenet":
        return {}
    window = 56 if on_cpu else 32
    out: dict[str, dict[str, object]] = {"occlusion": {"window": window, "stride": window}}
    if not on_cpu:
        return out
    out |= {"lime": {"draws": 32}, "rise": {"draws": 32}, "kernel_shap": {"budget": 32}}
    repeated = ("smoothgrad", "smoothgrad_squared", "vargrad", "gradient_shap", "expected_gradients")
    out |= {name: {"samples": 8} for name in repeated}
    out["integrated_gradients"] = {"steps": 8}
    return out


def left_out(size: str, on_cpu: bool) -> set[str]:
    """One feature at a time where there are 50,000, and one channel at a time where 512 take a minute."""
    if size == "lenet":
        return set()
    one_by_one = {"feature_ablation", "permutation_importance", "shapley_sampling"}
    return one_by_one | ({"scorecam"} if on_cpu else set())


def measure(
    device: str,
    size: str,
    names: list[str] | None = None,
    rounds: int = 3,
    samples: int | None = None,
    clock: str | None = None,
) -> list[Timing]:
    """One timing an explainer.

    On a CPU the clock counts what this process computed, whatever else the machine does.
    """
    on_cpu = device == "cpu"
    few = {"lenet": 64, "resnet18": 2}[size] if on_cpu else None
    task = tasks(device, size, samples or few)
    skipped, chosen = left_out(size, on_cpu), settings(size, on_cpu)
    out = []
    for name in names or [name for name in applicable(task) if name not in skipped]:
        explainer = registry.make(name, **chosen.get(name, {}))

        def work(explainer: Explainer = explainer) -> vd.models.Cost:
            return vd.explain(explainer, task).cost

        timing = compare(name, work, task, rounds, clock=clock or ("cpu" if on_cpu else "wall"))
        if timing.forward:
            out.append(timing)
            print(f"  {name}: {timing.seconds:.3f} s, overhead {timing.overhead:.2f}", flush=True)
    return out
