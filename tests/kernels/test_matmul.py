"""Matrix products: every instruction set against float64 and against portable C, every kind, format and epilogue."""

import threading

import numpy as np
import pytest

from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels

ISAS = ["c", "avx2", "avx512", "neon"]
KINDS = ["f32", "bf16", "int8"]
AGAINST_C = {"f32": 2e-6, "bf16": 1e-5, "int8": 0.0}
AGAINST_EXACT = {"f32": 2e-6, "bf16": 5e-3, "int8": 1.6e-2}  # the inputs' own rounding
# odd on purpose: one row, one column, K below a block, K not a multiple of 2, 4, 16, 256, 512
SHAPES = [(1, 1, 1), (3, 5, 7), (4, 33, 24), (5, 31, 48), (12, 32, 96), (13, 65, 112), (25, 16, 81), (37, 96, 256),
          (12, 40, 300), (30, 70, 513), (26, 100, 1344), (2, 64, 2050), (97, 64, 1024)]  # fmt: skip


def make(isa: str | None, threads: int = 2) -> Kernels:
    try:
        return Kernels(isa, threads)
    except ValueError as error:
        pytest.skip(str(error))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    assert np.isfinite(got).all()
    return float(np.linalg.norm(got.astype(np.float64) - want) / (np.linalg.norm(want) or 1))


def stored(values: np.ndarray, format: str) -> tuple[np.ndarray, np.ndarray]:
    """(bytes in the format, at an odd address; the float32 values they hold)."""
    if format == "f32":
        raw, exact = values.astype(np.float32), values.astype(np.float32)
    elif format == "f16":
        raw = values.astype(np.float16)
        exact = raw.astype(np.float32)
    else:
        bits = values.astype(np.float32).view(np.uint32)
        raw = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        exact = (raw.astype(np.uint32) << 16).view(np.float32)
    data = np.zeros(raw.nbytes + 1, np.uint8)
    data[1:] = raw.reshape(-1).view(np.uint8)
    return data[1:], exact


def pack(x: np.ndarray, kind: str, kernels: Kernels, **how) -> Rows:
    m, k = x.shape
    storage = np.full(Rows.size_bytes(m, k, kind) + 3, 0xFF, np.uint8)[3:]  # NaN in every format; an odd address
    rows = Rows(storage, k, kind, kernels)
    rows.pack(x, **how)
    return rows


def product(kernels: Kernels, kind: str, format: str, m: int, n: int, k: int, seed: int = 0):
    """(y of the kernels, x . w^T in float64)"""
    random = np.random.default_rng(seed)
    x = random.standard_normal((m, k), np.float32)
    data, w = stored(random.standard_normal((n, k), np.float32), format)
    y = np.full((m, n), np.nan, np.float32)
    QuantMatrix(data, format, n, k, kernels).matmul(pack(x, kind, kernels), y)
    return y, x.astype(np.float64) @ w.astype(np.float64).T


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_product_is_right_and_equals_c(isa: str, kind: str, format: str) -> None:
    kernels, c = make(isa), Kernels("c", 1)
    for m, n, k in SHAPES:
        y, exact = product(kernels, kind, format, m, n, k)
        assert relative(y, exact) <= AGAINST_EXACT[kind] * (4 if n * k < 100 else 1), (m, n, k)
        reference, _ = product(c, kind, format, m, n, k)
        assert relative(y, reference.astype(np.float64)) <= AGAINST_C[kind], (m, n, k)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_the_same_whatever_its_neighbours(isa: str, kind: str) -> None:
    """1 to 12 rows in the last block; the values must not depend on how many."""
    kernels, c = make(isa), Kernels("c", 1)
    for m in range(1, 14):
        y, exact = product(kernels, kind, "bf16", m, 34, 260, seed=m)
        assert relative(y, exact) <= AGAINST_EXACT[kind], m
        reference, _ = product(c, kind, "bf16", m, 34, 260, seed=m)
        assert relative(y, reference.astype(np.float64)) <= AGAINST_C[kind], m


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_a_byte(kind: str) -> None:
    for m, n, k in [(400, 96, 320), (50, 1000, 64), (3, 700, 96)]:
        one, _ = product(make(None, 1), kind, "bf16", m, n, k)
        for threads in (2, 3, 7):
            many, _ = product(make(None, threads), kind, "bf16", m, n, k)
            assert one.tobytes() == many.tobytes(), (m, n, k, threads)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [2, 30])
def test_epilogues(isa: str, kind: str, m: int) -> None:
    kernels = make(isa)
    random = np.random.default_rng(5)
    n, k, g = 50, 160, 3
    x = random.standard_normal((m, k), np.float32)
    (wd, w), (vd, v) = (stored(random.standard_normal((n, k), np.float32) / 12, "bf16") for _ in range(2))
    bias, gate_bias = random.standard_normal((2, n), np.float32)
    gate = random.standard_normal((g, n), np.float32)
    index = random.integers(0, g, m).astype(np.int32)
    rows, first, second = pack(x, kind, kernels), QuantMatrix(wd, "bf16", n, k, kernels), QuantMatrix(vd, "bf16", n, k, kernels)
    a, b = (x.astype(np.float64) @ matrix.astype(np.float64).T for matrix in (w, v))
    tolerance = 2 * AGAINST_EXACT[kind]

    y = np.full((m, n), np.nan, np.float32)
    first.matmul(rows, y, bias)
    assert relative(y, a + bias) <= tolerance

    start = random.standard_normal((m, n), np.float32)
    for gate_in, index_in, factor in [(gate, index, gate[index]), (gate, None, gate[0]), (None, None, 1.0)]:
        for bias_in in (bias, None):
            y = start.copy()
            first.add(rows, y, bias_in, gate_in, index_in)
            assert relative(y, start + factor * (a + (0 if bias_in is None else bias))) <= tolerance

    for bias_in, gate_bias_in in [(None, None), (bias, gate_bias)]:
        p, q = (a, b) if bias_in is None else (a + bias, b + gate_bias)
        y = np.full((m, n), np.nan, np.float32)
        first.swiglu(rows, second, y, bias_in, gate_bias_in)
        assert relative(y, p * q / (1 + np.exp(-q))) <= tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_row_orders(kind: str) -> None:
    """Rows interleaved per head, and two halves swapped: the same values as a reordered copy, bit for bit."""
    kernels = make(None)
    random = np.random.default_rng(6)
    heads, d, k, m = 3, 40, 96, 20
    x = pack(random.standard_normal((m, k), np.float32), kind, kernels)
    values = random.standard_normal((heads * 3 * d, k), np.float32)
    data, w = stored(values, "bf16")
    for part in range(3):
        matrix = QuantMatrix(data, "bf16", heads * d, k, kernels, (d * part, d, 3 * d))
        index = (np.arange(heads)[:, None] * 3 * d + d * part + np.arange(d)).reshape(-1)
        assert np.array_equal(matrix.dequantize(), w[index])
        y, want = np.full((m, heads * d), np.nan, np.float32), np.empty((m, heads * d), np.float32)
        matrix.matmul(x, y)
        QuantMatrix(stored(values[index], "bf16")[0], "bf16", heads * d, k, kernels).matmul(x, want)
        assert y.tobytes() == want.tobytes()
    half = w.shape[0] // 2
    swapped = QuantMatrix(data, "bf16", 2 * half, k, kernels, (half, half, -half))
    assert np.array_equal(swapped.dequantize(), np.concatenate([w[half:], w[:half]]))
    view = swapped.rows(half - 5, 20).rows(2, 10)
    assert np.array_equal(view.dequantize(), np.concatenate([w[half:], w[:half]])[half - 3 : half + 7])
    y = np.full((m, 10), np.nan, np.float32)
    view.matmul(x, y)
    assert np.isfinite(y).all()


def test_half_formats_keep_special_values() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for isa in ISAS:
        try:
            kernels = Kernels(isa, 1)
        except ValueError:
            continue
        got = QuantMatrix(bits.view(np.uint8), "f16", 1, 1 << 16, kernels).dequantize()[0]
        assert np.array_equal(got, bits.view(np.float16).astype(np.float32), equal_nan=True), isa
        got = QuantMatrix(bits.view(np.uint8), "bf16", 1, 1 << 16, kernels).dequantize()[0]
        assert np.array_equal(got.view(np.uint32) >> 16, bits), isa


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible(kind: str, bad: float) -> None:
    kernels = make(None)
    for m in (2, 20):
        x = np.ones((m, 64), np.float32)
        x[1, 5] = bad
        data, _ = stored(np.ones((40, 64), np.float32), "bf16")
        y = np.zeros((m, 40), np.float32)
        QuantMatrix(data, "bf16", 40, 64, kernels).matmul(pack(x, kind, kernels), y)
        assert not np.isfinite(y[1]).any() and np.isfinite(y[0]).all()


def test_python_goes_on_during_a_product() -> None:
    kernels = make(None, 1)
    random = np.random.default_rng(7)
    m, n, k = 1500, 2048, 2048
    rows = pack(random.standard_normal((m, k), np.float32), "f32", kernels)
    data, _ = stored(random.standard_normal((n, k), np.float32), "f32")
    matrix, y = QuantMatrix(data, "f32", n, k, kernels), np.empty((m, n), np.float32)
    counted, going = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not going.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    matrix.matmul(rows, y)
    during = counted - before
    going.set()
    thread.join()
    assert during > 1000  # with the lock held it would be 0 or one slice's worth at each end


def test_wrong_shapes_are_refused() -> None:
    kernels = make(None, 1)
    data, _ = stored(np.zeros((8, 16)), "f32")
    for build in (
        lambda: QuantMatrix(data, "f64", 8, 16, kernels),
        lambda: QuantMatrix(data, "f32", 9, 16, kernels),
        lambda: QuantMatrix(data[:-1], "f32", 8, 16, kernels),
        lambda: QuantMatrix(data, "f32", 0, 16, kernels),
        lambda: QuantMatrix(data, "f32", 8, 16, kernels, (1, 8, 8)),
        lambda: QuantMatrix(data, "f32", 8, 16, kernels, (0, 4, -4)),
        lambda: QuantMatrix(data, "f32", 9, 16, kernels, (0, 4, 5)),
        lambda: QuantMatrix(data, "f32", 8, 16, kernels, (0, 0, 0)),
        lambda: QuantMatrix(data, "f32", 8, 16, kernels).rows(4, 5),
    ):
        with pytest.raises(ValueError):
            build()
    matrix, rows = QuantMatrix(data, "f32", 8, 16, kernels), pack(np.zeros((3, 16), np.float32), "f32", kernels)
    y = np.zeros((3, 8), np.float32)
    for call in (
        lambda: matrix.matmul(rows, np.zeros((3, 9), np.float32)),
        lambda: matrix.matmul(rows, np.zeros((4, 8), np.float32)),
        lambda: matrix.matmul(rows, y, np.zeros(7, np.float32)),
        lambda: matrix.add(rows, y, gate=np.zeros((2, 8), np.float32), index=np.array([0, 1, 2], np.int32)),
        lambda: matrix.add(rows, y, gate=np.zeros((2, 8), np.float32), index=np.array([0, 1], np.int32)),
        lambda: matrix.swiglu(rows, matrix.rows(0, 4), y),
    ):
        with pytest.raises(ValueError):
            call()
    empty = pack(np.zeros((0, 16), np.float32), "f32", kernels)
    matrix.matmul(empty, np.zeros((0, 8), np.float32))
