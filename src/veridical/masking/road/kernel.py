"""Fill the holes of small images inside a GPU's multiprocessors: one block of threads per image, one launch.

For images as small as digits the operations of `multigrid` are over before the next one is launched, and the
whole costs ten times the network that judges the result. Here an image stays in the fast memory of its
multiprocessor from beginning to end. The kernel is compiled when it is first needed, by the compiler that
torch brings along; where that is not to be had, `filled` gives None and `multigrid` does the work.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("veridical")

_FAST_MEMORY = 48 * 1024  # bytes a block may have
_WARP = 32  # threads that run together
_MOST_THREADS = 1024  # a block
_REGISTERS = 40  # per thread and square: fewer would not do, with more fewer blocks run at once
_MOST_REGISTERS = 64  # per thread in the largest block

# Over-relaxation in four colours: no pixel is a neighbour of another of its colour. What is known is averaged
# from fine to coarse; then every grid starts from the coarser one. Sweeps and factors leave an error, as root
# mean square, below 0.004 of the range where nine tenths are missing.
#
# A thread holds SQUARES of 2 x 2 pixels, one pixel of each colour; a square is one pixel of the next coarser
# grid. Its pixels and the twelve around them stay in registers. Of the twelve three change with a colour,
# and only they are fetched: even the fast memory is slow beside the arithmetic.
_SOURCE = r"""
struct Grid {
    int height, width, down, across, plane;  // in pixels, in squares, and numbers of one colour

    __device__ Grid(int height, int width)
        : height(height), width(width), down((height + 1) / 2), across((width + 1) / 2),
          plane((down + 1) * across) {}

    // Where a pixel lies. Those of one colour lie side by side, a row begins where the one before ends, and
    // so the threads of a warp ask each bank of the memory once. Above and below is a row of nothing.
    __device__ int at(int y, int x) const {
        return (2 * (y & 1) + (x & 1)) * plane + ((y + 1) >> 1) * across + (x >> 1);
    }
};

// A sum over its weight, 12 or less: rounded as a division rounds it, in a third of a division's steps.
__device__ float over(float sum, float weight, float inverse) {
    const float about = sum * inverse;
    return fmaf(fmaf(-about, weight, sum), inverse, about);
}

struct Square {
    float* own[4];
    float seen[4][4], weight[4], inverse[4];
    int missing;  // one bit a colour
    int left, right;  // is there a neighbour? Rows have no nothing at their ends

    __device__ void relax(int colour, float factor) {
        const int y = 1 + (colour >> 1), x = 1 + (colour & 1);
        const float near = seen[y][x - 1] + seen[y][x + 1] + seen[y - 1][x] + seen[y + 1][x];
        const float far = seen[y - 1][x - 1] + seen[y - 1][x + 1] + seen[y + 1][x - 1] + seen[y + 1][x + 1];
        const float mean = over(2.0f * near + far, weight[colour], inverse[colour]);
        // Asked only now: a warp takes as long for one missing pixel as for all, and less without a branch
        if (missing >> colour & 1) {
            seen[y][x] += factor * (mean - seen[y][x]);
            *own[colour] = seen[y][x];
        }
    }

    // Fetches the three pixels of a colour that touch the square
    __device__ void look(int colour, int across) {
        const int y = 1 + (colour >> 1), x = 1 + (colour & 1), v = (y + 2) % 4, u = (x + 2) % 4;
        const int row = y == 1 ? across : -across, step = x == 1 ? 1 : -1;
        seen[v][x] = own[colour][row];
        if (x == 1 ? right : left) {
            seen[y][u] = own[colour][step];
            seen[v][u] = own[colour][row + step];
        }
    }
};

// Sweeps over all colours. A warp that has the grid alone waits for no other.
template <bool alone>
__device__ __forceinline__ void settle(Square* held, int across, int sweeps, float factor) {
    for (int sweep = 0; sweep < sweeps; ++sweep)
        #pragma unroll
        for (int colour = 0; colour < 4; ++colour) {
            for (int k = 0; k < SQUARES; ++k) held[k].relax(colour, factor);
            if (alone) __syncwarp(); else __syncthreads();
            for (int k = 0; k < SQUARES; ++k) held[k].look(colour, across);
        }
}

extern "C" __global__ void fill_holes(
    const float* images, const unsigned char* holes, float* out,
    int height, int width, int channels, int hole_channels, int cells)
{
    enum { NOTHING, KNOWN, MISSING };
    extern __shared__ float values[];
    unsigned char* kinds = (unsigned char*)(values + cells);
    const int image = blockIdx.x, me = threadIdx.x, all = blockDim.x;
    const int mask = image / channels * hole_channels + (hole_channels == 1 ? 0 : image % channels);
    const long long pixels = height * width;
    const float* source = images + image * pixels;
    const unsigned char* hole = holes + mask * pixels;

    #pragma unroll 1  // or the compiler divides, to know how often
    for (int i = me; i < cells / 4 * 5; i += all) values[i] = 0.0f;  // the kinds, too: NOTHING
    __syncthreads();

    const Grid finest(height, width);
    for (int square = me; square < finest.down * finest.across; square += all)
        for (int colour = 0; colour < 4; ++colour) {
            const int y = 2 * (square / finest.across) + (colour >> 1);
            const int x = 2 * (square % finest.across) + (colour & 1);
            if (y >= height || x >= width) continue;
            const int i = y * width + x, at = finest.at(y, x);
            kinds[at] = hole[i] ? MISSING : KNOWN;
            values[at] = hole[i] ? 0.0f : source[i];
        }
    __syncthreads();

    int level = 0, first = 0;
    for (; max(height - 1, width - 1) >> level; ++level) {
        const Grid grid(((height - 1) >> level) + 1, ((width - 1) >> level) + 1);
        const Grid coarse(grid.down, grid.across);
        for (int square = me; square < grid.down * grid.across; square += all) {
            const int i = square / grid.across, j = square % grid.across;
            float sum = 0.0f; int known = 0;
            for (int colour = 0; colour < 4; ++colour) {
                const int at = first + grid.at(2 * i + (colour >> 1), 2 * j + (colour & 1));
                if (kinds[at] == KNOWN) { sum += values[at]; ++known; }
            }
            const int at = first + 4 * grid.plane + coarse.at(i, j);
            values[at] = known ? sum / known : 0.0f;
            kinds[at] = known ? KNOWN : MISSING;
        }
        first += 4 * grid.plane;
        __syncthreads();
    }

    while (level--) {
        const Grid grid(((height - 1) >> level) + 1, ((width - 1) >> level) + 1);
        const Grid coarse(grid.down, grid.across);
        const float* parents = values + first;
        first -= 4 * grid.plane;
        Square held[SQUARES] = {};
        int any = 0;
        for (int k = 0; k < SQUARES; ++k) {
            Square& square = held[k];
            const int i = (me + k * all) / grid.across, j = (me + k * all) % grid.across;
            for (float*& pixel : square.own) pixel = values + grid.across;  // a place, if there is no square
            if (i >= grid.down) continue;
            square.left = j > 0;
            square.right = j < grid.across - 1;
            for (int colour = 0; colour < 4; ++colour) {
                const int y = 2 * i + (colour >> 1), x = 2 * j + (colour & 1);
                const int at = first + grid.at(y, x);
                square.own[colour] = values + at;
                if (kinds[at] == MISSING) {
                    values[at] = parents[coarse.at(i, j)];
                    square.missing |= 1 << colour;
                }
                square.seen[1 + (colour >> 1)][1 + (colour & 1)] = values[at];
                const int down = 2 + (y > 0) + (y < grid.height - 1);
                const int across = 2 + (x > 0) + (x < grid.width - 1);
                square.weight[colour] = max(1, down * across - 4);
                square.inverse[colour] = 1.0f / square.weight[colour];
            }
            any |= square.missing;
        }
        if (!__syncthreads_or(any)) continue;  // coarse grids often have no holes
        for (int k = 0; k < SQUARES; ++k)
            for (int colour = 0; colour < 4; ++colour) held[k].look(colour, grid.across);

        if (!level) settle<false>(held, grid.across, 32, 1.7f);
        else if (grid.down * grid.across > 32) settle<false>(held, grid.across, 8, 1.4f);
        else if (me < 32) settle<true>(held, grid.across, 8, 1.4f);
        __syncthreads();
    }

    for (int square = me; square < finest.down * finest.across; square += all)
        for (int colour = 0; colour < 4; ++colour) {
            const int y = 2 * (square / finest.across) + (colour >> 1);
            const int x = 2 * (square % finest.across) + (colour & 1);
            if (y < height && x < width)
                out[image * pixels + y * width + x] = values[finest.at(y, x)];
        }
}
"""


def filled(x: Tensor, hole: Tensor) -> Tensor | None:
    """Holes of float32 images (R, C, H, W) on a GPU filled, `hole` with as many channels or one; None if not.

    Not where images do not fit the fast memory, or no kernel can be compiled.
    """
    height, width = x.shape[2:]
    cells = _cells(height, width)
    needed = 5 * cells
    if x.dtype != torch.float32 or needed > _FAST_MEMORY or not len(x):
        return None
    held = -(-_squares(height, width) // _MOST_THREADS)
    kernel = _compiled(x.device.index, held)
    if kernel is None:
        return None
    x, hole = x.contiguous(), hole.contiguous()
    out = torch.empty_like(x)
    images, threads = len(x) * x.shape[1], _threads(height, width, held)
    with torch.cuda.device(x.device):
        kernel(images, threads, needed, (x, hole, out), (height, width, x.shape[1], hole.shape[1], cells))
    return out


def _cells(height: int, width: int) -> int:
    """Numbers that all grids of an image have together, with the nothing above and below them."""
    total = 0
    while True:
        down, across = -(-height // 2), -(-width // 2)
        total += 4 * (down + 1) * across
        if height == width == 1:
            return total
        height, width = down, across


def _squares(height: int, width: int) -> int:
    """Squares of 2 x 2 pixels that cover an image."""
    return -(-height // 2) * -(-width // 2)


def _threads(height: int, width: int, held: int) -> int:
    """Threads that an image takes, in whole warps, if each holds `held` squares."""
    return _WARP * -(-_squares(height, width) // (held * _WARP))


class _Kernel:
    """A function on a GPU, called through the driver."""

    def __init__(self, binary: bytes, name: bytes) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        torch.cuda.current_stream().synchronize()  # a context must be there
        _check(self._driver.cuModuleLoadData(ctypes.byref(self._module), binary))
        _check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name))

    def __call__(
        self, blocks: int, threads: int, memory: int, tensors: tuple[Tensor, ...], numbers: tuple[int, ...]
    ) -> None:
        values: list[Any] = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        values += [ctypes.c_int(number) for number in numbers]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(
            self._driver.cuLaunchKernel(
                self._function, blocks, 1, 1, threads, 1, 1, memory, stream, places, None
            )
        )


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"the GPU's driver or compiler answered error {code}")


@lru_cache(maxsize=16)
def _compiled(device: int, held: int) -> _Kernel | None:
    """The kernel for a device and `held` squares per thread, or None, said once, if it cannot be compiled."""
    try:
        major, minor = torch.cuda.get_device_capability(device)
        with torch.cuda.device(device):
            return _Kernel(_binary(f"sm_{major}{minor}", held), b"fill_holes")
    except (OSError, RuntimeError, AttributeError) as error:
        log.info("holes in images are filled by the slower way: %s", error)
        return None


def _binary(architecture: str, held: int) -> bytes:
    """The kernel's machine code, for `held` squares per thread."""
    compiler = _compiler()
    program = ctypes.c_void_p()
    source = _SOURCE.encode()
    _check(compiler.nvrtcCreateProgram(ctypes.byref(program), source, b"fill_holes.cu", 0, None, None))
    registers = min(held * _REGISTERS, _MOST_REGISTERS)
    said = (
        f"--gpu-architecture={architecture}",
        f"--define-macro=SQUARES={held}",
        f"--maxrregcount={registers}",
    )
    options = (ctypes.c_char_p * len(said))(*(option.encode() for option in said))
    code = compiler.nvrtcCompileProgram(program, len(said), options)
    if code:
        size = ctypes.c_size_t()
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        answer = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, answer)
        raise RuntimeError(answer.value.decode())
    size = ctypes.c_size_t()
    _check(compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    binary = ctypes.create_string_buffer(size.value)
    _check(compiler.nvrtcGetCUBIN(program, binary))
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


def _compiler() -> ctypes.CDLL:
    """NVIDIA's run-time compiler: one that is loaded or installed, or the one that came with torch."""
    major = str(torch.version.cuda).partition(".")[0]
    name = f"libnvrtc.so.{major}"
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    roots.append(Path(torch.__file__).parent / "lib")
    found = [str(path) for root in roots for path in sorted(root.rglob(f"{name}*"))]
    for candidate in (name, *found):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise OSError(f"{name} is not to be found")
