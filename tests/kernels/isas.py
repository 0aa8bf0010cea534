"""What the kernel tests share: the instruction sets, and how far two arrays are apart."""

import numpy as np
import pytest

from h3core.kernels.table import Kernels

ISAS = ["c", "avx2", "avx512", "neon"]


def make(isa: str | None, threads: int = 2) -> Kernels:
    """The kernels of one level; skips, by name, a level this processor lacks."""
    try:
        return Kernels(isa, threads)
    except ValueError as error:
        pytest.skip(str(error))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """|got - want| / |want|; got must be finite, so an output that was left at NaN fails."""
    assert np.isfinite(got).all()
    return float(np.linalg.norm(got.astype(np.float64) - want) / (np.linalg.norm(want) or 1))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def nan(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)
