"""What explainers do to every activation, as kernels: each gives the bits of the steps it stands for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from tests.core.test_hash_kernels import compiled
from tests.reference.small_nets import conv_net, image_task
from veridical.core import hash_kernels
from veridical.explainers.graph.difference_steps import RESCALED, rescaled_steps
from veridical.explainers.graph.products import BOTH, FURTHER, both_steps, further_steps
from veridical.explainers.graph.relevance_elements import (
    FAVOURED,
    MORE,
    OVER,
    OVER_PRODUCT,
    OVER_PRODUCT_SCALED,
    OVER_SCALED,
    TINY,
    _by_sign_vectorised,
    by_sign,
    favoured_steps,
    more_steps,
    over_product_scaled_steps,
    over_product_steps,
    over_scaled_steps,
    over_steps,
)

CASES = {
    "over": (OVER, over_steps),
    "over_scaled": (OVER_SCALED, over_scaled_steps),
    "over_product": (OVER_PRODUCT, over_product_steps),
    "over_product_scaled": (OVER_PRODUCT_SCALED, over_product_scaled_steps),
    "both": (BOTH, both_steps),
    "further": (FURTHER, further_steps),
    "favoured": (FAVOURED, favoured_steps),
    "more": (MORE, more_steps),
    "rescaled": (RESCALED, rescaled_steps),
}
KINDS = {torch.float32: "float", torch.float64: "double"}


@pytest.mark.parametrize("dtype", KINDS, ids=KINDS.values())
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_the_bits_of_its_steps(name: str, dtype: torch.dtype, tmp_path) -> None:
    source, steps = CASES[name]
    trial = hash_kernels.trials(source, dtype, torch.device("cpu"))
    run = compiled(name, source, KINDS[dtype], len(trial), tmp_path)
    draw = torch.Generator().manual_seed(0)
    many = [torch.randn(2000, generator=draw, dtype=dtype) for _ in trial]
    assert hash_kernels.same(run(*trial), steps(*trial))
    assert hash_kernels.same(run(*many), steps(*many))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("over", "-away :", "away :"),
        ("over", "|| 1 / z < 0", ""),
        ("over_scaled", "* scale", "/ scale"),
        ("over_product", "a * b", "a + b"),
        ("over_product_scaled", "* scale", ""),
        ("both", "c * d", "c - d"),
        ("further", "R +", "R -"),
        ("rescaled", "2 -", "2 +"),
        ("favoured", ">=", ">"),
        ("more", ">=", "<"),
    ],
)
def test_a_changed_kernel_is_found_by_the_trial(name: str, right: str, wrong: str, tmp_path) -> None:
    source, steps = CASES[name]
    assert right in source
    trial = hash_kernels.trials(source, torch.float32, torch.device("cpu"))
    run = compiled(name, source.replace(right, wrong), "float", len(trial), tmp_path)
    assert not hash_kernels.same(run(*trial), steps(*trial))


def test_gamma_is_the_same_by_choice_and_by_arithmetic() -> None:
    draw = torch.Generator().manual_seed(1)
    R, z, p = (torch.randn(4000, generator=draw, dtype=torch.float64) for _ in range(3))
    z[:5] = 0.0
    p = p.abs()
    expected = _by_sign_vectorised(R, z, p, 0.25)
    chosen = _as_on_a_gpu(R, z, p, 0.25)
    for found, known in zip(chosen, expected, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-12, atol=0)
    assert not torch.allclose(_as_on_a_gpu(R, z, p, 0.3)[0], expected[0])
    torch.testing.assert_close(by_sign(R, z, p, 0.25), expected, rtol=0, atol=0)


def _as_on_a_gpu(R: torch.Tensor, z: torch.Tensor, p: torch.Tensor, gamma: float) -> tuple[torch.Tensor, ...]:
    whole = over_steps(R, z + gamma * favoured_steps(z, p), torch.tensor([TINY], dtype=z.dtype))
    return tuple(more_steps(whole, z, torch.tensor([factor], dtype=z.dtype)) for factor in (1 + gamma, -1.0))


def test_what_is_no_number_is_the_same_as_itself() -> None:
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    assert hash_kernels.same(odd, odd.clone())
    assert not hash_kernels.same(odd, torch.tensor([0.0, float("inf"), 1.0]))
    assert not hash_kernels.same(odd, odd.double())


def test_steps_are_taken_on_a_processor_and_for_mixed_numbers() -> None:
    two = torch.ones(2), torch.ones(2, dtype=torch.float64)
    assert hash_kernels.at_once("no source", torch.add, *two).tolist() == [2.0, 2.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", KINDS, ids=KINDS.values())
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_takes_the_kernel(name: str, dtype: torch.dtype) -> None:
    source, steps = CASES[name]
    device = torch.device("cuda", torch.cuda.current_device())
    assert hash_kernels.kernel(source, steps, dtype, device) is not None
    given = [
        torch.randn(5, 3, 4, 4, dtype=dtype, device=device)
        for _ in hash_kernels.trials(source, dtype, device)
    ]
    if name == "rescaled":
        given[2] = given[2][:1].contiguous()
    found = hash_kernels.at_once(source, steps, *given)
    torch.testing.assert_close(found.cpu(), steps(*(each.cpu() for each in given)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "name", ["deeplift", "lrp", "lrp_epsilon", "lrp_gamma", "lime", "kernel_shap", "rise"]
)
def test_a_gpu_gives_the_maps_of_a_processor(name: str) -> None:
    for pool in (nn.AvgPool2d, nn.MaxPool2d):
        task = image_task(conv_net(pool=pool))
        found = vd.explain(name, task.to("cuda")).values.cpu()
        torch.testing.assert_close(found, vd.explain(name, task).values, rtol=0, atol=1e-9)
