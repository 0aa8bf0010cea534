"""What the block formats share: cutting bytes into blocks and fields, and numbers out of bits. Used by their files."""

from __future__ import annotations

import numpy as np


def fields(raw: np.ndarray, *sizes: int) -> list[np.ndarray]:
    """Blocks of sum(sizes) bytes -> one uint8 (blocks, size) array a field, in the order they lie."""
    blocks = raw.reshape(-1, sum(sizes))
    return np.split(blocks, np.cumsum(sizes)[:-1], axis=1)


def float16(field: np.ndarray) -> np.ndarray:
    """uint8 (blocks, 2) -> float32 (blocks, 1, 1), to multiply (blocks, groups, values)."""
    return np.ascontiguousarray(field).view("<f2").astype(np.float32).reshape(-1, 1, 1)


def bits(field: np.ndarray, run: int, shifts: tuple[int, ...], mask: int) -> np.ndarray:
    """Small numbers packed into bytes: of each run of bytes first those at shifts[0], then those at shifts[1], ...

    returns: uint8 (blocks, runs * len(shifts) * run).
    """
    runs = field.reshape(len(field), -1, 1, run)
    return (runs >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1) & np.uint8(mask)).reshape(len(field), -1)


def grouped(numbers: np.ndarray, groups: int) -> np.ndarray:
    """(blocks, values) -> float32 (blocks, groups, values / groups)."""
    return numbers.astype(np.float32).reshape(len(numbers), groups, -1)
