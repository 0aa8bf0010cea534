"""Golden vectors made by the reference implementation, and the one way tests compare against them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent / "golden"
TINY = GOLDEN / "tiny-h3"
TINY_ORIGINAL = GOLDEN / "tiny-h3-original"

COMPONENT = 1e-5  # relative L2 a float32 engine must reach on one component
WHOLE_RUN = 1e-4  # and on a whole run
comparisons = 0  # how many golden comparisons this test session made; printed at its end


def golden(name: str) -> dict[str, np.ndarray]:
    """All arrays of golden/<name>.safetensors."""
    return load_file(GOLDEN / f"{name}.safetensors")


def golden_json(name: str) -> dict:
    """The parameters that go with the vectors."""
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """|got - want| / |want| in float64; |got| when want is zero everywhere."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    size = np.linalg.norm(want)
    return float(np.linalg.norm(got - want) / size) if size else float(np.linalg.norm(got))


def compare(name: str, got: np.ndarray, want: np.ndarray, tolerance: float = COMPONENT) -> None:
    """Shapes equal, and relative L2 within the tolerance; 0 asks for equal values."""
    global comparisons
    comparisons += 1
    got = np.asarray(got)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, golden {want.shape}"
    if tolerance == 0:
        assert np.array_equal(got, want), f"{name}: differs from the golden values"
        return
    assert np.isfinite(got).all(), f"{name}: not finite"
    error = relative_l2(got, want)
    assert error <= tolerance, f"{name}: relative L2 {error:.2e}, allowed {tolerance:.0e}"


def compare_uint8(name: str, got: np.ndarray, want: np.ndarray) -> None:
    """8-bit images: equal but for one grey level in a thousandth of the values."""
    global comparisons
    comparisons += 1
    assert got.dtype == np.uint8 and got.shape == want.shape, f"{name}: {got.dtype} {got.shape}, golden {want.shape}"
    difference = np.abs(got.astype(np.int16) - want.astype(np.int16))
    assert difference.max(initial=0) <= 1, f"{name}: off by {difference.max()} grey levels"
    assert np.count_nonzero(difference) <= got.size / 1000, f"{name}: {np.count_nonzero(difference)} values differ"
