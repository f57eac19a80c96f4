"""The kernel that fills holes on a GPU: its source is C++ enough to be compiled and run by a processor."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import torch

from veridical.masking.mask_aware_fills import solve_holes
from veridical.masking.road import kernel as road_kernel

COLOURS = [np.s_[y::2, x::2] for y in (0, 1) for x in (0, 1)]
COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")

# Every thread of a block has a stack of its own and runs until it has to wait for the others. Whoever may run
# next is asked in order, or in the opposite one: a kernel that forgets to wait gives two answers.
AS_ON_A_PROCESSOR = """
#include <algorithm>
#include <cmath>
#include <cstring>
#include <ucontext.h>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
using std::max; using std::min;
struct Place { int x; };
static Place blockIdx, threadIdx, blockDim;
enum State { READY, AT_WARP, AT_BLOCK, DONE };
struct Thread { ucontext_t place; State state; std::vector<char> stack; };
static std::vector<Thread> threads;
static ucontext_t home_of_all;
static int said, heard;

static void wait(State at) {
    Thread& thread = threads[threadIdx.x];
    thread.state = at;
    swapcontext(&thread.place, &home_of_all);
}
static void __syncthreads() { wait(AT_BLOCK); }
static void __syncwarp() { wait(AT_WARP); }
static int __syncthreads_or(int value) { said |= value != 0; wait(AT_BLOCK); return heard; }
"""

BLOCK_BY_BLOCK = """
static const float* images_; static const unsigned char* holes_; static float* out_; static int numbers[5];
static void body() {
    fill_holes(images_, holes_, out_, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]);
    threads[threadIdx.x].state = DONE;
    swapcontext(&threads[threadIdx.x].place, &home_of_all);
}

static bool release(int from, int to, State waiting) {
    for (int i = from; i < to; ++i) if (threads[i].state != waiting) return false;
    for (int i = from; i < to; ++i) threads[i].state = READY;
    return true;
}

// 0, or 1 if threads wait for ones that do not come, 2 if memory was written that is not the block's
extern "C" int run(const float* images, const unsigned char* holes, float* out, int height, int width,
                   int channels, int hole_channels, int cells, int blocks, int count, int memory,
                   int backwards) {
    images_ = images; holes_ = holes; out_ = out; blockDim.x = count;
    const int given[] = {height, width, channels, hole_channels, cells};
    memcpy(numbers, given, sizeof(given));
    threads.resize(count);
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        memset(values, 0x7f, sizeof(values));
        said = 0;
        for (Thread& thread : threads) {
            thread.stack.resize(16384);
            thread.state = READY;
            getcontext(&thread.place);
            thread.place.uc_stack.ss_sp = thread.stack.data();
            thread.place.uc_stack.ss_size = thread.stack.size();
            makecontext(&thread.place, body, 0);
        }
        for (bool going = true; going;) {
            for (int i = 0; i < count; ++i) {
                threadIdx.x = backwards ? count - 1 - i : i;
                Thread& thread = threads[threadIdx.x];
                if (thread.state == READY) swapcontext(&home_of_all, &thread.place);
            }
            going = false;
            for (int i = 0; i < count; i += 32) going |= release(i, i + 32, AT_WARP);
            if (!going && release(0, count, AT_BLOCK)) { going = true; heard = said; said = 0; }
        }
        for (const Thread& thread : threads) if (thread.state != DONE) return 1;
        const char* bytes = (const char*)values;
        for (size_t i = memory; i < sizeof(values); ++i) if (bytes[i] != 0x7f) return 2;
    }
    return 0;
}

// How many of all sums from 1 to 2 are not rounded as a division rounds them
extern "C" int misrounded(float weight) {
    int wrong = 0;
    const float inverse = 1.0f / weight;
    for (int i = 0; i < 1 << 23; ++i) {
        const float sum = 1.0f + i * 0x1p-23f;
        wrong += over(sum, weight, inverse) != sum / weight;
    }
    return wrong;
}
"""


class OnAProcessor:
    """A kernel compiled for a processor, called as one on a GPU is."""

    def __init__(self, folder, source, held=1):
        if COMPILER is None:
            pytest.skip("needs a C++ compiler")
        self.held = held
        source = source.replace("extern __shared__ float values[];", "")
        memory = f"static float values[{road_kernel._FAST_MEMORY // 4 + 64}];\n#define SQUARES {held}\n"
        (folder / "fill.cpp").write_text(AS_ON_A_PROCESSOR + memory + source + BLOCK_BY_BLOCK)
        options = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
        call = [COMPILER, *options, "-o", str(folder / "fill.so"), str(folder / "fill.cpp")]
        subprocess.run(call, check=True, capture_output=True)
        self.library = ctypes.CDLL(str(folder / "fill.so"))
        self.library.misrounded.argtypes = [ctypes.c_float]

    def launch(self, blocks, threads, memory, tensors, numbers, backwards=False):
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        assert self.library.run(*pointers, *numbers, blocks, threads, memory, backwards) == 0

    def __call__(self, x, hole, threads=None, backwards=False):
        x, hole, out = x.contiguous(), hole.contiguous(), torch.full_like(x, torch.nan)
        height, width = x.shape[2:]
        cells = road_kernel._cells(height, width)
        numbers = (height, width, x.shape[1], hole.shape[1], cells)
        threads = threads or road_kernel._threads(height, width, self.held)
        self.launch(len(x) * x.shape[1], threads, 5 * cells, (x, hole, out), numbers, backwards)
        return out


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """The kernel whose threads hold one square."""
    return OnAProcessor(tmp_path_factory.mktemp("kernel"), road_kernel._SOURCE)


@pytest.fixture(scope="module")
def kernel_of_two(tmp_path_factory):
    """The kernel whose threads hold two squares."""
    return OnAProcessor(tmp_path_factory.mktemp("kernel_of_two"), road_kernel._SOURCE, held=2)


def by_hand(x, hole):
    """What the kernel computes, one image and colour after the other, in the order in which it adds."""
    images = x.numpy().reshape(-1, *x.shape[2:])
    holes = hole.expand_as(x).numpy().reshape(images.shape)
    filled = [four_colours(image, gone) for image, gone in zip(images, holes, strict=True)]
    return torch.from_numpy(np.stack(filled)).view(x.shape)


def four_colours(image, gone):
    grids = [(np.where(gone, np.float32(0), image), gone)]
    while grids[-1][0].size > 1:
        value, gone = grids[-1]
        odd = [(0, side % 2) for side in value.shape]
        value, known = np.pad(value, odd), np.pad(~gone, odd)
        total, count = np.float32(0), np.float32(0)
        for part in COLOURS:
            total, count = total + np.where(known[part], value[part], 0), count + known[part]
        mean = np.divide(total, count, where=count > 0, out=np.zeros_like(total))
        grids.append((mean.astype(np.float32), count == 0))
    value = grids[-1][0]
    for level in reversed(range(len(grids) - 1)):
        start, gone = grids[level]
        height, width = start.shape
        value = np.where(gone, value.repeat(2, 0).repeat(2, 1)[:height, :width], start)
        sides = [2 + (np.arange(n) > 0) + (np.arange(n) < n - 1) for n in (height, width)]
        weight = np.maximum(1, np.outer(*sides) - 4).astype(np.float32)
        factor = np.float32(1.4 if level else 1.7)
        for _ in range(8 if level else 32):
            for part in COLOURS:
                v = np.pad(value, 1)
                near = v[1:-1, :-2] + v[1:-1, 2:] + v[:-2, 1:-1] + v[2:, 1:-1]
                far = v[:-2, :-2] + v[:-2, 2:] + v[2:, :-2] + v[2:, 2:]
                better = value + factor * ((2 * near + far) / weight - value)
                value[part] = np.where(gone[part], better[part], value[part])
    return value


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


def same(fill, x, hole):
    """Bit for bit what is computed by hand, whichever thread is asked first."""
    expected = by_hand(x, hole)
    for backwards in (False, True):
        assert torch.equal(fill(x, hole, backwards=backwards), expected)


@pytest.mark.parametrize("shape", [(28, 28), (13, 9), (32, 20), (1, 1), (1, 7), (9, 1), (2, 2), (3, 66)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_the_kernel_computes_what_is_computed_by_hand(kernel, kernel_of_two, shape, share):
    x, hole = cases(shape, share=share)
    hole[1], hole[2] = False, False
    hole[2, 0, shape[0] // 2, shape[1] // 2] = True  # nothing is missing, one pixel, and in the first all are
    for fill in (kernel, kernel_of_two):
        same(fill, x - 0.5, hole)


@pytest.mark.parametrize("own", [False, True])
def test_channels_are_images_of_their_own(kernel, own):
    x, hole = cases((12, 15), channels=3)
    same(kernel, x, torch.cat([hole, hole.flip(-1), ~hole], 1) if own else hole)


def test_any_number_of_threads_computes_the_same(kernel, kernel_of_two):
    x, hole = cases((22, 30))  # 165 squares
    expected = by_hand(x, hole)
    assert all(torch.equal(kernel(x, hole, threads), expected) for threads in (192, 224, 1024))
    assert all(torch.equal(kernel_of_two(x, hole, threads), expected) for threads in (96, 128, 192))


@pytest.mark.parametrize("weight", [1, 2, 4, 5, 8, 12])
def test_a_weight_divides_as_a_division_does(kernel, weight):
    assert kernel.library.misrounded(weight) == 0


def test_a_sum_times_one_over_its_weight_is_not_its_mean(tmp_path):
    exact = "fmaf(fmaf(-about, weight, sum), inverse, about)"
    assert OnAProcessor(tmp_path, road_kernel._SOURCE.replace(exact, "about")).library.misrounded(12) > 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("if (alone) __syncwarp(); else __syncthreads();", "", id="nobody waits"),
        pytest.param("__syncwarp();", "{}", id="a warp does not wait"),
        pytest.param("grid.down * grid.across > 32", "false", id="one warp for more than it holds"),
        pytest.param("held[k].look(colour, across);\n        }", "{}\n}", id="nobody looks again"),
        pytest.param("x == 1 ? right : left", "true", id="rows run into each other"),
        pytest.param("grid.across, 32, 1.7f", "grid.across, 32, 1.6f", id="another factor"),
        pytest.param("relax(colour, factor)", "relax(3 - colour, factor)", id="another order"),
        pytest.param("kinds[at] == KNOWN", "kinds[at] != MISSING", id="nothing counts as known"),
    ],
)
def test_a_kernel_with_a_fault_is_found(tmp_path, right, wrong):
    assert road_kernel._SOURCE.count(right) == 1
    faulty = OnAProcessor(tmp_path, road_kernel._SOURCE.replace(right, wrong))
    x, hole = cases((27, 25), share=0.95)
    with pytest.raises(AssertionError):
        same(faulty, x, hole)


@pytest.mark.parametrize(("shape", "held"), [((28, 28), 1), ((64, 64), 1), ((82, 82), 2)])
def test_what_is_launched_fills_the_images(monkeypatch, kernel, kernel_of_two, shape, held):
    asked = []

    def compiled(device, held):
        asked.append(held)
        return {1: kernel, 2: kernel_of_two}[held].launch

    monkeypatch.setattr(road_kernel, "_compiled", compiled)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    x, hole = cases(shape, channels=2)
    x, hole = x[:2], hole[:2].expand(-1, 2, -1, -1)
    assert torch.equal(road_kernel.filled(x, hole), by_hand(x, hole))
    assert asked == [held]


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
    monkeypatch.setattr(road_kernel, "_compiled", lambda *which: asked.append(which))
    hole = torch.ones(1, 1, 28, 28, dtype=torch.bool)
    assert road_kernel.filled(small, hole) is None
    assert len(asked) == 1  # no kernel
    assert road_kernel.filled(small.double(), hole) is None
    assert (
        road_kernel.filled(torch.zeros(1, 1, 224, 224), torch.ones(1, 1, 224, 224, dtype=torch.bool)) is None
    )
    assert len(asked) == 1  # not even asked for
    assert 5 * road_kernel._cells(28, 28) < road_kernel._FAST_MEMORY < 5 * road_kernel._cells(224, 224)


def test_a_missing_compiler_is_said_once_and_is_no_error(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: pytest.MonkeyPatch.context())
    monkeypatch.setattr(torch.version, "cuda", "0.0")
    road_kernel._compiled.cache_clear()
    with caplog.at_level("INFO", "veridical"):
        assert road_kernel._compiled(0, 1) is None
        assert road_kernel._compiled(0, 1) is None
    assert caplog.text.count("slower way") == 1
    road_kernel._compiled.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(28, 28), (64, 64), (13, 9), (82, 82)])
def test_on_a_gpu(shape):
    x, hole = cases(shape, channels=3)
    got = road_kernel.filled(x.cuda(), hole.cuda())
    assert got is not None
    check(lambda *_: got.cpu(), x, hole)
