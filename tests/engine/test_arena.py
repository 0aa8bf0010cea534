"""Working memory: every declared buffer, aligned, apart from its neighbours, zeroed."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from h3core.engine.arena import Arena
from h3core.engine.residency import allocate


@dataclass
class Declared:
    shape: tuple[int, ...]
    dtype: object


def test_buffers_are_aligned_zeroed_and_apart():
    declared = {
        "x": Declared((3, 5), np.float32),
        "bytes": Declared((7,), np.uint8),
        "index": Declared((11,), np.int32),
        "wide": Declared((2, 3), "float64"),
        "none": Declared((0, 8), np.float32),
        "large": Declared((3 << 20,), np.uint8),
    }
    arena = Arena(declared)
    assert set(arena.arrays) == set(declared)
    for name, each in declared.items():
        array = arena[name]
        assert array.shape == each.shape and array.dtype == np.dtype(each.dtype) and array.flags.c_contiguous
        assert not array.any() and (array.size == 0 or array.ctypes.data % 64 == 0)
        array[...] = 1
    assert arena.size_bytes >= sum(array.nbytes for array in arena.arrays.values())
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arena.arrays.values() if a.size)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_memory_outlives_the_arena_while_an_array_does():
    array = Arena({"x": Declared((1 << 20,), np.float32)})["x"]
    array[:] = 3
    assert array.sum() == 3 << 20


def test_no_memory_is_one_sentence():
    with pytest.raises(MemoryError, match="memory could not be had"):
        allocate(1 << 60)


def test_an_empty_arena():
    assert Arena({}).size_bytes == 0 and allocate(0).size == 0
