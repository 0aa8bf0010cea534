"""One phase's working memory: every buffer it declared, in one allocation that is freed as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from h3core.engine.residency import ALIGNMENT, allocate


class Declared(Protocol):
    """What a phase says about a buffer, as in model/memory.py."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


class Arena:
    """Zeroed arrays by name, 64-byte aligned, neighbours in one region. The region goes when the last array goes."""

    def __init__(self, buffers: Mapping[str, Declared]):
        """raises: MemoryError."""
        end, starts = 0, {}
        for name, each in buffers.items():
            starts[name] = -(-end // ALIGNMENT) * ALIGNMENT
            end = starts[name] + math.prod(each.shape) * np.dtype(each.dtype).itemsize
        self.size_bytes = end
        memory = allocate(end)
        self.arrays: dict[str, np.ndarray] = {}
        for name, each in buffers.items():
            dtype = np.dtype(each.dtype)
            size = math.prod(each.shape) * dtype.itemsize
            self.arrays[name] = memory[starts[name] : starts[name] + size].view(dtype).reshape(each.shape)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]
