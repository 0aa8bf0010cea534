"""Signed bytes of rows that were rotated along K ("ConvRot"): in blocks of 64 or 256 values, w = stored . H.

H is the Kronecker power of H4 over the square root of its size: symmetric, its own inverse.
source: comfy-kitchen; checkpoint-formats §2.5
"""

import functools

import numpy as np

from h3core.weights.formats.storage import Storage


def unrotated(values: np.ndarray, size: int) -> np.ndarray:
    """float32 (n,) in blocks of `size`, a power of 4 -> (n,). Sums of whole numbers are exact."""
    step, y = 1, values
    while step < size:
        y = y.reshape(-1, 4, step)
        y = y.sum(axis=1, keepdims=True) - 2 * y[:, ::-1]  # H4: each sum without, and minus, one of the four
        step *= 4
    return (y / np.float32(size**0.5)).reshape(-1)


def decode(raw: np.ndarray, size: int) -> np.ndarray:
    return unrotated(raw.view(np.int8).astype(np.float32), size)


I8_ROT64 = Storage("i8_rot64", 64, 64, functools.partial(decode, size=64))
I8_ROT256 = Storage("i8_rot256", 256, 256, functools.partial(decode, size=256))
