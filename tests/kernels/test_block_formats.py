"""Products with weights in GGUF's block formats, every instruction set; values and gates in different formats."""

import numpy as np
import pytest

from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.rows import Rows
from h3core.kernels.table import FORMATS, Kernels
from tests.kernels.isas import ISAS, make, normal, relative
from tests.kernels.test_matmul import AGAINST_C

# the inputs' own rounding; random scales differ sixtyfold inside the 256 values that share one of int8
AGAINST_EXACT = {"f32": 2e-6, "bf16": 6e-3, "int8": 4e-2}
BLOCKS = [name for name, (_, values, _) in FORMATS.items() if values > 1 and not name.startswith("i8")]
SCALED = {
    "q2_k": (80, 84),
    "q3_k": (108, 110),
    "q6_k": (208, 210),
    "nvfp4": (),
}  # float16 scales; else first


def blocks(name: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """An (n, k) weight of random blocks with scales near 1, uint8, at an odd address."""
    _, values, size = FORMATS[name]
    raw = np.random.default_rng([seed, n, k]).integers(0, 256, (n * k // values, size), np.uint8)
    start, end = SCALED.get(name, (0, 4 if name in ("q4_1", "q5_1", "q4_k", "q5_k") else 2)) or (0, 0)
    for place in range(start, end, 2):
        scale = np.random.default_rng([seed, place]).uniform(0.5, 1.5, len(raw)).astype("<f2")
        raw[:, place : place + 2] = scale.view(np.uint8).reshape(-1, 2)
    if name == "nvfp4":
        raw[:, :4] = raw[:, :4] % 16 + 0x30
    data = np.zeros(raw.size + 1, np.uint8)
    data[1:] = raw.reshape(-1)
    return data[1:]


def packed(x: np.ndarray, kind: str, kernels: Kernels) -> Rows:
    rows = Rows(np.zeros(Rows.size_bytes(*x.shape, kind), np.uint8), x.shape[1], kind, kernels)
    rows.pack(x)
    return rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ("f32", "bf16", "int8"))
@pytest.mark.parametrize("name", BLOCKS)
def test_product_is_right_and_equals_c(isa, kind, name):
    kernels, c = make(isa), Kernels("c", 1)
    length = FORMATS[name][1]
    for m, n, k in ((1, 5, 256), (5, 33, 512 + length % 256), (14, 40, 1024 + length % 256)):
        data, x, y = blocks(name, n, k), normal(m, k), {}
        for who in (kernels, c):
            y[who] = np.full((m, n), np.nan, np.float32)
            matrix = QuantMatrix(data, name, n, k, who)
            matrix.matmul(packed(x, kind, who), y[who])
        w = matrix.dequantize()
        assert np.array_equal(w, QuantMatrix(data, name, n, k, kernels).dequantize())
        exact = x.astype(np.float64) @ w.astype(np.float64).T
        assert relative(y[kernels], exact) <= AGAINST_EXACT[kind], (m, n, k)
        assert relative(y[kernels], y[c].astype(np.float64)) <= AGAINST_C[kind], (m, n, k)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ("f32", "bf16", "int8"))
@pytest.mark.parametrize(("name", "other"), (("q4_k", "q6_k"), ("bf16", "q8_0"), ("f32", "bf16")))
def test_value_and_gate_may_differ_in_format(isa, kind, name, other):
    kernels = make(isa)
    for m, n, k in ((2, 20, 256), (13, 37, 512)):
        x, floats = normal(m, k), normal(2 * n, k).astype(np.float32)
        half = floats.view("<u4") >> 16
        made = {"f32": floats, "bf16": half.astype("<u2")}
        data = [
            made[each][i * n : (i + 1) * n].reshape(-1).view(np.uint8).copy() if each in made else blocks(each, n, k, i)
            for i, each in enumerate((name, other))
        ]
        value, gate = QuantMatrix(data[0], name, n, k, kernels), QuantMatrix(data[1], other, n, k, kernels)
        rows, y = packed(x, kind, kernels), np.full((m, n), np.nan, np.float32)
        value.swiglu(rows, gate, y)
        a, b = np.empty((2, m, n), np.float32)
        value.matmul(rows, a)
        gate.matmul(rows, b)
        assert relative(y, a * (b / (1 + np.exp(-b.astype(np.float64))))) <= 1e-6


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ("f32", "bf16", "int8"))
@pytest.mark.parametrize("name", ("i8", "i8_rot64", "i8_rot256", "f32"))
def test_rows_have_scales(isa, kind, name):
    """In every product, and of each stored row, wherever the row order finds it."""
    kernels, n, k = make(isa), 37, 512
    random = np.random.default_rng(3)
    scale = random.uniform(0.5, 2, n + 5).astype(np.float32)
    data = (
        normal(n + 5, k).reshape(-1).view(np.uint8) if name == "f32" else random.integers(0, 256, (n + 5) * k, np.uint8)
    )
    plain = QuantMatrix(data, name, n + 5, k, kernels).dequantize()
    matrix = QuantMatrix(data, name, n, k, kernels, (n + 4, 1, -1), scale)
    w = matrix.dequantize()
    assert np.array_equal(w, (plain * scale[:, None])[::-1][:n])
    for m in (2, 14):
        x = normal(m, k)
        rows, y = packed(x, kind, kernels), np.full((m, n - 3), np.nan, np.float32)
        matrix.rows(3, n - 3).matmul(rows, y)
        assert relative(y, (x.astype(np.float64) @ w.astype(np.float64).T)[:, 3:]) <= AGAINST_EXACT[kind]
        both, a, b = np.empty((3, m, 18), np.float32)
        value, gate = matrix.rows(0, 18), QuantMatrix(data, name, n + 5, k, kernels).rows(18, 18)
        value.swiglu(rows, gate, both)
        value.matmul(rows, a)
        gate.matmul(rows, b)
        assert relative(both, a * (b / (1 + np.exp(-b.astype(np.float64))))) <= 1e-6
    with pytest.raises(ValueError, match="36 scales for 42 stored rows"):
        QuantMatrix(data, name, n + 5, k, kernels, None, scale[:36])
