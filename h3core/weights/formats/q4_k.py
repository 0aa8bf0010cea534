"""Q4_K: four bits; of 256 values each 32 have a six-bit scale and minimum.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage


def scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Twelve bytes -> the eight six-bit scales and minima, uint8 (blocks, 8) each."""
    scale, least, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([scale & 63, both & 15 | scale >> 6 << 4], axis=1)
    minima = np.concatenate([least & 63, both >> 4 | least >> 6 << 4], axis=1)
    return scales, minima


def decode(raw: np.ndarray) -> np.ndarray:
    d, dmin, packed, q = fields(raw, 2, 2, 12, 128)
    scales, minima = scales_and_minima(packed)
    by, minus = float16(d) * grouped(scales, 8), float16(dmin) * grouped(minima, 8)
    return (by * grouped(bits(q, 32, (0, 4), 15), 8) - minus).reshape(-1)


Q4_K = Storage("q4_k", 256, 144, decode)
