"""What a storage format says about itself. One small file per format; table.py lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Storage:
    """Layout of one storage format. Values are laid out row after row, low byte first."""

    name: str  # as the kernels' table calls it
    block: int  # values per block
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]  # uint8 (bytes,) at any alignment -> float32 (values,)

    def size_bytes(self, *shape: int) -> int:
        """Bytes of a tensor of this shape; the last axis must be a whole number of blocks."""
        values = 1
        for axis in shape:
            values *= axis
        return values // self.block * self.block_bytes
