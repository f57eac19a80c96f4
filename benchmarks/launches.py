"""Where time goes: operations that one score starts, times it waits for the device, and its costliest ones.

python -m benchmarks.launches [--device cuda] [--size lenet] [--metric NAME ...]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import veridical as vd
from benchmarks.metrics import cases, tasks

WAITS = {
    f"aten.{name}.default"
    for name in ("_local_scalar_dense", "_unique2", "equal", "is_nonzero", "masked_select", "nonzero")
} | {
    "aten.unique_consecutive.default",
    "aten.unique_dim.default",
    "host.tensor",
    "host.number",
    "host.tolist",
    "host.cpu",
}
"""Operations whose result the host must have before it goes on, and copies between it and the device."""
_TRIPS = {torch.tensor: "host.tensor", torch.Tensor.tolist: "host.tolist", torch.Tensor.cpu: "host.cpu"}


class Counting(TorchDispatchMode):
    """Counts the operations that run while it is open, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, then do as asked."""
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))

    @property
    def operations(self) -> int:
        """All of them but views, which start nothing."""
        return sum(n for name, n in self.seen.items() if name.startswith("aten.") and not _is_view(name))

    @property
    def waits(self) -> int:
        """Times the host waited."""
        return sum(count for name, count in self.seen.items() if name in WAITS)


class _Trips(TorchFunctionMode):
    """Counts, as "host...", what would go to a device or come from it: on a CPU nothing does."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, then do as asked."""
        if func in _TRIPS and (func is not torch.tensor or "device" in (kwargs or {})):
            self.seen[_TRIPS[func]] += 1
        elif func is torch.as_tensor and "device" in (kwargs or {}):
            self.seen["host.number"] += not isinstance(args[0], torch.Tensor)
        elif func is torch.Tensor.__setitem__ and not isinstance(args[2], torch.Tensor):
            # a number that is written to chosen places is sent there; one written to slices is not
            chosen = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.seen["host.number"] += any(isinstance(each, torch.Tensor) for each in chosen)
        return func(*args, **(kwargs or {}))


def _is_view(name: str) -> bool:
    words = (
        "view",
        "reshape",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "permute",
        "transpose",
        "detach",
        "alias",
    )
    return name.removeprefix("aten.").partition(".")[0].strip("_").startswith(words)


def counted(run: Callable[[], object]) -> Counting:
    """The operations of one call, as a GPU would be asked for them."""
    mode = Counting()
    with _Trips(mode.seen), mode:
        run()
    return mode


def costliest(run: Callable[[], object], device: str, count: int = 12) -> str:
    """The profiler's table of what took longest."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    with profile(activities=kinds) as record:
        run()
        if device != "cpu":
            torch.cuda.synchronize()
    by = "self_cuda_time_total" if device != "cpu" else "self_cpu_time_total"
    text = str(record.key_averages().table(sort_by=by, row_limit=count, max_name_column_width=50))
    if device != "cpu":
        text += "\n" + str(record.key_averages().table(sort_by="self_cpu_time_total", row_limit=count))
    return text


def main() -> None:
    """Print counts for every metric, or profiles of those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=["lenet", "resnet18"], default="lenet")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--metric", action="append")
    given = parser.parse_args()
    task: vd.Task = tasks(given.device, given.size, given.samples)
    for case in cases(task, given.size, given.metric, brief=given.device == "cpu"):
        case()
        seen = counted(case)
        print(f"{case.metric.name}: {seen.operations} operations, {seen.waits} waits", flush=True)
        if given.metric:
            print(costliest(case, given.device), flush=True)


if __name__ == "__main__":
    main()
