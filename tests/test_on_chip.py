"""The kernel that fills holes on a GPU: its source is C++ enough to be compiled and run by a processor."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
import torch

from veridical import on_chip
from veridical.imputation import solve_holes

COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")

AS_ON_A_PROCESSOR = """
#include <algorithm>
using std::max; using std::min;
struct Place { int x, y; };
static Place blockIdx = {0, 0}, threadIdx = {0, 0}, blockDim = {1, 1};
extern "C" void choose(int block) { blockIdx.x = block; }
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One thread takes all steps of a block in turn: pixels of one colour do not depend on each other."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    source = on_chip._SOURCE.replace("__global__", "").replace("__syncthreads();", "")
    source = source.replace("extern __shared__ float values[];", "static float values[65536];")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "fill.cpp").write_text(AS_ON_A_PROCESSOR + source.replace("__shared__", ""))
    call = [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(folder / "fill.so"), str(folder / "fill.cpp")]
    subprocess.run(call, check=True, capture_output=True)
    library = ctypes.CDLL(str(folder / "fill.so"))

    def run(x, hole):
        x, hole = x.contiguous(), hole.contiguous()
        out = torch.empty_like(x)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, hole, out)]
        for block in range(len(x) * x.shape[1]):
            library.choose(block)
            library.fill_holes(*pointers, *x.shape[2:], x.shape[1], hole.shape[1])
        return out

    return run


def cases(shape, channels=1, share=0.7):
    g = torch.Generator().manual_seed(sum(shape))
    x = torch.rand(5, channels, *shape, generator=g)
    hole = torch.rand(5, 1, *shape, generator=g) < share
    hole[0] = True
    return x, hole


def check(fill, x, hole):
    got, exact = fill(x, hole), solve_holes(x.double(), hole)
    hole = hole.expand_as(x)
    assert torch.equal(got[~hole], x[~hole])
    assert (got[0] == 0).all()
    assert (got - exact)[hole].square().mean().sqrt() < 0.004


@pytest.mark.parametrize("shape", [(28, 28), (13, 9), (64, 64), (1, 7), (32, 20)])
@pytest.mark.parametrize("share", [0.2, 0.7, 0.95])
def test_the_kernel_solves_what_the_solver_does(kernel, shape, share):
    check(kernel, *cases(shape, share=share))


def test_channels_share_a_hole_or_have_their_own(kernel):
    x, hole = cases((12, 10), channels=3)
    check(kernel, x, hole)
    own = torch.cat([hole, hole.flip(-1), hole], 1)
    check(kernel, x, own)


def test_a_wide_hole_in_a_smooth_image(kernel):
    g = torch.Generator().manual_seed(0)
    x = torch.nn.functional.interpolate(torch.rand(4, 1, 5, 5, generator=g), size=(40, 40), mode="bilinear")
    hole = torch.zeros(4, 1, 40, 40, dtype=torch.bool)
    hole[:, :, 3:-3, 3:-3] = True
    exact = solve_holes(x.double(), hole)
    assert (kernel(x, hole) - exact)[hole].square().mean().sqrt() < 0.003


def test_a_solver_that_forgets_the_diagonals_fails_the_check(kernel):
    wrong = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])[None, None]
    inside = torch.nn.functional.conv2d(torch.ones(1, 1, 28, 28), wrong, padding=1)

    def four_neighbours(x, hole):
        v = torch.where(hole, 0.0, x)
        for _ in range(300):
            v = torch.where(hole, torch.nn.functional.conv2d(v, wrong, padding=1) / inside, v)
        return v

    with pytest.raises(AssertionError):
        check(four_neighbours, *cases((28, 28)))


def test_what_does_not_fit_is_left_to_others(monkeypatch):
    small = torch.zeros(1, 1, 28, 28)
    asked = []
    monkeypatch.setattr(on_chip, "_compiled", lambda device: asked.append(device))
    hole = torch.ones(1, 1, 28, 28, dtype=torch.bool)
    assert on_chip.filled(small, hole) is None
    assert len(asked) == 1  # no kernel
    assert on_chip.filled(small.double(), hole) is None
    assert on_chip.filled(torch.zeros(1, 1, 224, 224), torch.ones(1, 1, 224, 224, dtype=torch.bool)) is None
    assert len(asked) == 1  # not even asked for
    assert 5 * on_chip._cells(28, 28) < on_chip._FAST_MEMORY < 5 * on_chip._cells(224, 224)


def test_a_missing_compiler_is_said_once_and_is_no_error(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: pytest.MonkeyPatch.context())
    monkeypatch.setattr(torch.version, "cuda", "0.0")
    on_chip._compiled.cache_clear()
    with caplog.at_level("INFO", "veridical"):
        assert on_chip._compiled(0) is None
        assert on_chip._compiled(0) is None
    assert caplog.text.count("slower way") == 1
    on_chip._compiled.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(28, 28), (64, 64), (13, 9)])
def test_on_a_gpu(shape):
    x, hole = cases(shape, channels=3)
    got = on_chip.filled(x.cuda(), hole.cuda())
    assert got is not None
    check(lambda *_: got.cpu(), x, hole)
