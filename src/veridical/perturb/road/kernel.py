"""The steps of `gpu_solver` that look at neighbours, each one launch that reads and writes its images once.

Made of torch's operations, blurring alone would fetch an image twelve times. The kernels are compiled when
they are first needed, by the compiler that torch brings along.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("veridical")

_WARP, _MOST_THREADS = 32, 256  # of one block, side by side
_ROWS = 16  # that a thread walks down

# Images (images, height, width) lie one after another; `share` of them have one mask. A thread walks down a
# column and keeps the sums of three rows, so that each row is fetched once.
SOURCE = (
    f"#define ROWS {_ROWS}\n"
    + r"""
struct Image {
    int height, width, x, top;
    long long first, hole;

    __device__ Image(int height, int width, int share) : height(height), width(width) {
        const int across = (width + blockDim.x - 1) / blockDim.x, down = (height + ROWS - 1) / ROWS;
        const long long image = blockIdx.x / (across * down);
        const int tile = blockIdx.x % (across * down);
        x = tile % across * blockDim.x + threadIdx.x;
        top = tile / across * ROWS;
        first = image * height * width;
        hole = image / share * height * width;
    }

    // how much of the weights 1 2 1 lies inside the image along both sides; a mean multiplies, never divides
    __device__ float sum(int y, int x) const {
        return (4.0f - (y == 0) - (y == height - 1)) * (4.0f - (x == 0) - (x == width - 1));
    }
    __device__ static float over(int ends) { return ends == 0 ? 0.25f : ends == 1 ? 1.0f / 3.0f : 0.5f; }
    __device__ float mean(float total, int y, int x) const {
        return total * over((y == 0) + (y == height - 1)) * over((x == 0) + (x == width - 1));
    }

    // (1 2 1) x (1 2 1) sums of what `look(y, x)` gives, with nothing beyond the edges
    template <class Look, class Put> __device__ void blur(Look look, Put put) const {
        if (x >= width) return;
        const auto row = [&](int y) {
            if (y < 0 || y >= height) return 0.0f;
            float sum = 2.0f * look(y, x);
            if (x > 0) sum += look(y, x - 1);
            if (x < width - 1) sum += look(y, x + 1);
            return sum;
        };
        float above = row(top - 1), here = row(top);
        for (int y = top; y < min(top + ROWS, height); ++y) {
            const float below = row(y + 1);
            put(y, y * width + x, above + 2.0f * here + below);
            above = here;
            here = below;
        }
    }
};

// a missing pixel becomes the mean of its neighbours and itself; a first time itself is what `coarse` says
extern "C" __global__ void settle(
    const float* value, const float* coarse, const float* known, const unsigned char* hole, float* out,
    int height, int width, int share, int from_coarse)
{
    const Image image(height, width, share);
    value += image.first; known += image.first; out += image.first; hole += image.hole;
    const int half = (width + 1) / 2;
    coarse += image.first / (height * width) * ((height + 1) / 2 * half);
    const auto look = [&](int y, int x) {
        if (!from_coarse) return value[y * width + x];
        return hole[y * width + x] ? coarse[y / 2 * half + x / 2] : known[y * width + x];
    };
    image.blur(look, [&](int y, int i, float sum) {
        out[i] = hole[i] ? image.mean(sum, y, image.x) : known[i];
    });
}

// what is left of the equations: the neighbours' weighted sum less the pixel times their weights
extern "C" __global__ void residual(
    const float* value, const unsigned char* hole, float* out, int height, int width, int share)
{
    const Image image(height, width, share);
    value += image.first; out += image.first; hole += image.hole;
    image.blur([&](int y, int x) { return value[y * width + x]; }, [&](int y, int i, float sum) {
        out[i] = hole[i] ? sum - image.sum(y, image.x) * value[i] : 0.0f;
    });
}

// smooth once from nothing: `value`, and what that leaves of `right`
extern "C" __global__ void begin(
    const float* right, float* value, float* rest, int height, int width, int share)
{
    const Image image(height, width, share);
    right += image.first; value += image.first; rest += image.first;
    image.blur(
        [&](int y, int x) { return image.mean(right[y * width + x], y, x); },
        [&](int y, int i, float sum) {
            value[i] = image.mean(right[i], y, image.x);
            rest[i] = sum;
        });
}

// smooth once more, after the coarser grid's correction where there is one
extern "C" __global__ void relax(
    const float* value, const float* coarse, const float* right, const unsigned char* hole, float* out,
    int height, int width, int share, int from_coarse)
{
    const Image image(height, width, share);
    value += image.first; right += image.first; out += image.first; hole += image.hole;
    const int half = (width + 1) / 2;
    coarse += image.first / (height * width) * ((height + 1) / 2 * half);
    const auto look = [&](int y, int x) {
        const float own = value[y * width + x];
        return from_coarse ? own + 0.9f * coarse[y / 2 * half + x / 2] : own;
    };
    image.blur(look, [&](int y, int i, float sum) {
        out[i] = hole[i] ? image.mean(sum + right[i], y, image.x) : 0.0f;
    });
}
"""
)

KERNELS = ("settle", "residual", "begin", "relax")


class Steps:
    """The compiled steps of one device."""

    def __init__(self, kernels: dict[str, Any]) -> None:
        self._kernels = kernels

    def __call__(self, name: str, tensors: tuple[Tensor, ...], share: int, *more: int) -> None:
        """Launch a step on images (images, height, width); `share` of them have one mask."""
        images, height, width = tensors[0].shape
        threads = min(_MOST_THREADS, -(-width // _WARP) * _WARP)
        tiles = -(-width // threads) * -(-height // _ROWS)
        self._kernels[name](
            grid=(images * tiles, 1, 1),
            block=(threads, 1, 1),
            args=[*tensors, height, width, share, *more],
        )


def steps_for(x: Tensor) -> Steps | None:
    """The steps for these images; None where they are not float32 on a GPU of NVIDIA's."""
    return compiled(x.device.index) if x.is_cuda and x.dtype == torch.float32 else None


@lru_cache(maxsize=16)
def compiled(device: int) -> Steps | None:
    """The steps for a device, or None, said once, if they cannot be compiled."""
    try:
        with torch.cuda.device(device):
            return Steps({name: torch.cuda._compile_kernel(SOURCE, name) for name in KERNELS})
    except (OSError, RuntimeError, AttributeError, ImportError) as error:
        log.info("holes in images are filled by the slower way: %s", error)
        return None
