"""Normal noise equal to torch's CPU generator, seed for seed and draw for draw, so that a seed gives the same film.

source: ATen/native/cpu/DistributionTemplates.h (normal_fill), ATen/core/DistributionsHelper.h.
"""

from __future__ import annotations

import math

import numpy as np

MAX_SEED = 2**64 - 1
_GROUP = 16  # torch fills in groups of 16: 8 radii, 8 angles


class NormalGenerator:
    """Draws float32 normal values; state goes on from draw to draw."""

    def __init__(self, seed: int):
        """raises: ValueError when the seed is not in 0 ... 2^64 - 1."""
        if not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed {seed} is not between 0 and {MAX_SEED}")
        # torch seeds MT19937 with the low 32 bits; RandomState's scalar seeding is the same init_genrand.
        self._words = np.random.RandomState(seed & 0xFFFFFFFF)
        self._spare: float | None = None  # second half of a pair that a short draw left over

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal values, float32, of the given shape. Short arrays (under 16) take another road in torch."""
        size = math.prod(shape)
        values = self._fill(size) if size >= _GROUP else np.array([self._single() for _ in range(size)], np.float32)
        return values.reshape(shape)

    def _fill(self, size: int) -> np.ndarray:
        values = self._uniform(size)
        whole = size - size % _GROUP
        values[:whole] = _box_muller(values[:whole])
        if whole != size:  # torch redraws the last 16 values, over some that were already made
            values[-_GROUP:] = _box_muller(self._uniform(_GROUP))
        return values

    def _uniform(self, size: int) -> np.ndarray:
        words = self._words.randint(0, 2**32, size=size, dtype=np.uint32)
        return (words & np.uint32(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)

    def _single(self) -> float:
        """One value in double precision, from half of a pair."""
        if self._spare is not None:
            value, self._spare = self._spare, None
            return value
        angle, radius = self._uniform53(), self._uniform53()
        radius = math.sqrt(-2.0 * math.log1p(-radius))
        self._spare = radius * math.sin(2.0 * math.pi * angle)
        return radius * math.cos(2.0 * math.pi * angle)

    def _uniform53(self) -> float:
        high, low = (int(word) for word in self._words.randint(0, 2**32, size=2, dtype=np.uint32))
        return ((high << 32 | low) & (2**53 - 1)) * 2.0**-53


def _box_muller(uniform: np.ndarray) -> np.ndarray:
    """Normal values of uniform ones, float32, in groups of 16.

    Every float32 result is rounded from float64: numpy's float32 log and cos differ from CPU to CPU, a film must not.
    """
    groups = uniform.reshape(-1, 2, _GROUP // 2)
    log = np.log((np.float32(1) - groups[:, 0]).astype(np.float64)).astype(np.float32)
    radius = np.sqrt(np.float32(-2) * log)
    angle = (np.float32(2.0 * math.pi) * groups[:, 1]).astype(np.float64)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    return np.stack((radius * cos, radius * sin), 1).reshape(-1)
