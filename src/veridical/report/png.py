"""Small pictures as data addresses: maps by palette, inputs in grey or colour."""

from __future__ import annotations

import base64
import struct
import zlib
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import interpolate

SIDE = 96
"""Longest side of a picture in the page; larger ones are averaged down to it."""
SIGNED = ((5, 70, 140), (120, 175, 215), (250, 250, 250), (232, 140, 105), (160, 25, 35))
POSITIVE = ((250, 250, 250), (247, 200, 175), (225, 110, 80), (160, 25, 35), (85, 5, 25))


def map_address(values: Tensor) -> str:
    """A map (H, W): blue to red about zero where it has both signs, else from least to most.

    The scale ends at the largest magnitude, except that the strongest hundredth may saturate, so that one
    bright pixel does not hide the rest.
    """
    values = shrunk(torch.nan_to_num(values.detach().double().cpu())[None])[0]
    low = float(values.min())
    if low >= 0:
        top = max(_bright(values - low), 1e-300)
        level = ((values - low) / top).clamp(0, 1)
        return _address(level.mul(255).round().to(torch.uint8), _palette(POSITIVE))
    top = max(_bright(values.abs()), 1e-300)
    level = (values / top).clamp(-1, 1).add(1).div(2)
    return _address(level.mul(254).round().to(torch.uint8), _palette(SIGNED, 255))


def _bright(values: Tensor) -> float:
    top = float(torch.quantile(values.reshape(-1), 0.99)) if values.numel() > 200 else float(values.max())
    return top if top > 0 else float(values.max())


def image_address(image: Tensor) -> str:
    """An input (C, H, W) stretched over its own range; anything but three channels becomes grey."""
    image = torch.nan_to_num(image.detach().double().cpu())
    image = shrunk(image if len(image) == 3 else image.mean(0, keepdim=True))
    low, high = float(image.min()), float(image.max())
    level = (image - low) / (high - low) if high > low else image * 0
    pixels = level.mul(255).round().to(torch.uint8)
    if len(pixels) == 1:
        return _address(pixels[0], _palette(((0, 0, 0), (255, 255, 255))))
    return _address(pixels.movedim(0, -1).contiguous(), None)


def shrunk(image: Tensor, side: int = SIDE) -> Tensor:
    """An image (C, H, W) of at most this many pixels per side."""
    longest = max(image.shape[-2:])
    if longest <= side:
        return image
    size = [max(1, round(side * n / longest)) for n in image.shape[-2:]]
    return interpolate(image[None], size=size, mode="area")[0]


@cache
def _palette(stops: tuple[tuple[int, int, int], ...], count: int = 256) -> bytes:
    """Colours between the stops, evenly."""
    out = bytearray()
    for place in range(count):
        at = place / (count - 1) * (len(stops) - 1)
        left = min(int(at), len(stops) - 2)
        part = at - left
        out += bytes(round(a + part * (b - a)) for a, b in zip(stops[left], stops[left + 1], strict=True))
    return bytes(out)


def _address(pixels: Tensor, palette: bytes | None) -> str:
    return "data:image/png;base64," + base64.b64encode(encode(pixels, palette)).decode()


def encode(pixels: Tensor, palette: bytes | None = None) -> bytes:
    """Bytes of a PNG file: indices (H, W) into a palette, or colours (H, W, 3)."""
    height, width = pixels.shape[:2]
    # a filter byte (none) before every row
    rows = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), pixels.reshape(height, -1)], 1)
    parts = [_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2 if palette is None else 3, 0, 0, 0))]
    if palette is not None:
        parts.append(_chunk(b"PLTE", palette))
    parts += [_chunk(b"IDAT", zlib.compress(rows.numpy().tobytes(), 9)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
