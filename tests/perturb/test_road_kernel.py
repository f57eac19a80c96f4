"""The kernels that fill holes on a GPU: their source is C++ enough to be compiled and run by a processor."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
import torch

from veridical.perturb.mask_aware_fills import solve_holes
from veridical.perturb.road import kernel as road_kernel
from veridical.perturb.road.gpu_solver import GpuSolver

COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")

# No thread waits for another, so they may run one after another, in any order
AS_ON_A_PROCESSOR = """
#include <algorithm>
#define __device__
#define __global__
using std::min;
struct Place { int x; };
static Place blockIdx, threadIdx, blockDim;
"""

ONE_AFTER_ANOTHER = """
template <class Body> static void all(int blocks, int threads, Body body) {
    blockDim.x = threads;
    for (blockIdx.x = blocks - 1; blockIdx.x >= 0; --blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) body();
}
#define TRIPLE int height, int width, int share
extern "C" void run_settle(int blocks, int threads, const float* a, const float* b, const float* c,
    const unsigned char* hole, float* out, TRIPLE, int flag)
{ all(blocks, threads, [&] { settle(a, b, c, hole, out, height, width, share, flag); }); }
extern "C" void run_relax(int blocks, int threads, const float* a, const float* b, const float* c,
    const unsigned char* hole, float* out, TRIPLE, int flag)
{ all(blocks, threads, [&] { relax(a, b, c, hole, out, height, width, share, flag); }); }
extern "C" void run_residual(int blocks, int threads, const float* a, const unsigned char* hole, float* out,
    TRIPLE) { all(blocks, threads, [&] { residual(a, hole, out, height, width, share); }); }
extern "C" void run_begin(int blocks, int threads, const float* a, float* b, float* c, TRIPLE)
{ all(blocks, threads, [&] { begin(a, b, c, height, width, share); }); }
"""


class Compiled:
    """A kernel compiled for a processor, called as torch calls one on a GPU."""

    def __init__(self, library, name):
        self.run = getattr(library, f"run_{name}")

    def __call__(self, grid, block, args):
        given = [ctypes.c_void_p(arg.data_ptr()) if isinstance(arg, torch.Tensor) else arg for arg in args]
        assert all(not isinstance(arg, torch.Tensor) or arg.is_contiguous() for arg in args)
        self.run(grid[0], block[0], *given)


def compiled(folder, source=road_kernel.SOURCE):
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    (folder / "road.cpp").write_text(AS_ON_A_PROCESSOR + source + ONE_AFTER_ANOTHER)
    options = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    call = [COMPILER, *options, "-o", str(folder / "road.so"), str(folder / "road.cpp")]
    subprocess.run(call, check=True, capture_output=True)
    library = ctypes.CDLL(str(folder / "road.so"))
    return road_kernel.Steps({name: Compiled(library, name) for name in road_kernel.KERNELS})


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("kernel"))


def images(shape, share, channels=1, seed=0):
    """Images and holes in them that take so large a share, in pieces of every size."""
    made = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=made)
    rough = torch.rand(shape[0], channels, *shape[2:], generator=made)
    smooth = torch.nn.functional.avg_pool2d(rough, 3, 1, 1, count_include_pad=False)
    hole = smooth.flatten(2)
    count = max(1, round(share * hole.shape[-1]))
    return x, (smooth <= hole.kthvalue(count, -1).values[..., None, None])


SHAPES = [
    (3, 1, 28, 28),
    (2, 3, 33, 70),
    (2, 3, 8, 8),
    (1, 1, 1, 1),
    (2, 2, 1, 9),
    (1, 1, 15, 130),
    (2, 1, 65, 9),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_the_kernels_solve_what_the_solver_does(steps, shape, share):
    x, hole = images(shape, share)
    ours = GpuSolver(x, hole, steps).solve(3)
    assert torch.allclose(ours, solve_holes(x, hole, iterations=3), atol=2e-5)
    # what is known stays, bit for bit
    assert torch.equal(ours.masked_fill(hole, 0.0), x.masked_fill(hole, 0.0))


def test_channels_share_a_hole_or_have_their_own(steps):
    x, hole = images((2, 3, 20, 24), 0.5, channels=3)
    own = GpuSolver(x, hole, steps).solve(3)
    one = GpuSolver(x[:, :1], hole[:, :1], steps).solve(3)
    assert torch.equal(own[:, :1], one)
    shared = GpuSolver(x, hole[:, 1:2], steps).solve(3)
    assert torch.equal(shared[:, 1:2], own[:, 1:2])


def test_a_wide_hole_in_a_smooth_image_is_a_straight_line(steps):
    x = torch.linspace(0, 1, 64).expand(1, 1, 48, 64).contiguous()
    hole = torch.zeros(1, 1, 48, 64, dtype=torch.bool)
    hole[..., 16:48] = True
    assert (GpuSolver(x, hole, steps).solve(12) - x).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("2.0f * look(y, x)", "1.0f * look(y, x)"),
        ("x < width - 1) sum", "x < width - 2) sum"),
        ("above = here", "above = below"),
        ("image / share * height", "image * height"),
        ("sum - image.sum(y, image.x) * value[i]", "sum - value[i]"),
        ("over((y == 0) + (y == height - 1))", "over((y == 0) + (y == height))"),
        ("coarse[y / 2 * half + x / 2] : own", "coarse[x / 2] : own"),
    ],
)
def test_a_kernel_with_a_fault_is_found(tmp_path, right, wrong):
    assert road_kernel.SOURCE.count(right) == 1
    faulty = compiled(tmp_path, road_kernel.SOURCE.replace(right, wrong))
    x, hole = images((2, 3, 33, 40), 0.5)
    found = GpuSolver(x, hole, faulty).solve(3)
    assert not torch.allclose(found, solve_holes(x, hole, iterations=3), atol=2e-5)


def test_only_float32_on_a_gpu_is_solved_so(monkeypatch):
    monkeypatch.setattr(road_kernel, "compiled", lambda device: pytest.fail("asked for"))
    assert road_kernel.steps_for(torch.zeros(1, 1, 4, 4)) is None


def test_a_missing_compiler_is_said_once_and_is_no_error(monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no compiler")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", refuse)
    monkeypatch.setattr(torch.cuda, "device", lambda _: __import__("contextlib").nullcontext())
    road_kernel.compiled.cache_clear()
    with caplog.at_level("INFO", logger="veridical"):
        assert road_kernel.compiled(0) is None
        assert road_kernel.compiled(0) is None
    assert caplog.text.count("no compiler") == 1
    road_kernel.compiled.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 1, 28, 28), (5, 3, 33, 70), (8, 3, 224, 224), (1, 1, 1, 1)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_on_a_gpu(shape, share):
    x, hole = images(shape, share)
    assert road_kernel.steps_for(x.cuda()) is not None
    assert torch.allclose(solve_holes(x.cuda(), hole.cuda()).cpu(), solve_holes(x, hole), atol=1e-4)
