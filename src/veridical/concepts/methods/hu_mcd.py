"""HU-MCD: MCD on segments of images that people would name."""

from __future__ import annotations

from dataclasses import dataclass

from veridical.concepts.methods.mcd import MCD
from veridical.core.allowed import Count


@dataclass(frozen=True)
class HUMCD(MCD):
    """HU-MCD (Grobruegge et al. 2025): MCD fitted on `segment_embeddings(split, train images, segmenter)`.

    Only where concepts are found differs: each row is the embedding of one segment under masked convolution.
    Coordinates and importances are MCD's.
    """

    name = "hu-mcd"
    fits_on = "segments"
    segments: Count = 12
    """Superpixels that an image is cut into, about, where no other segments are given."""
