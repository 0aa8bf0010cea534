"""Packed rows: sizes, norms, modulation; the same bytes from every instruction set."""

import numpy as np
import pytest

from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels
from h3core.model.memory import rows_size_bytes

ISAS = ["c", "avx2", "avx512", "neon"]
KINDS = ["f32", "bf16", "int8"]
LENGTHS = [1, 3, 24, 48, 81, 96, 112, 256, 300, 513, 1344]


def make(isa: str | None, threads: int = 2) -> Kernels:
    try:
        return Kernels(isa, threads)
    except ValueError as error:
        pytest.skip(str(error))


def packed(kernels: Kernels, kind: str, x: np.ndarray, **how) -> tuple[Rows, np.ndarray]:
    """(the rows, their bytes from the first cache line on)"""
    m, k = x.shape
    storage = np.full(Rows.size_bytes(m, k, kind) + 64, 0xFF, np.uint8)
    storage = storage[-storage.ctypes.data % 64 :][: Rows.size_bytes(m, k, kind)]  # aligned: bytes can be compared
    rows = Rows(storage, k, kind, kernels)
    rows.pack(x, **how)
    return rows, storage[: Rows.size_bytes(m, k, kind) - 64]


def values_f32(data: np.ndarray, m: int, k: int) -> np.ndarray:
    """The (m, k) values of rows packed as f32: blocks of [k][12]."""
    blocks = data.reshape(-(-m // 12), -1)[:, : 48 * k].copy().view(np.float32)
    return blocks.reshape(-1, k, 12).transpose(0, 2, 1).reshape(-1, k)[:m]


def hadamard(n: int) -> np.ndarray:
    h = np.ones((1, 1))
    while h.shape[0] < n:
        h = np.block([[h, h], [h, -h]])
    return h


@pytest.mark.parametrize("kind", KINDS)
def test_size_is_what_the_plan_says(kind: str) -> None:
    for m in (0, 1, 12, 13, 1000):
        for k in (1, 2, 3, 5, 96, 256, 257, 5376):
            assert Rows.size_bytes(m, k, kind) == rows_size_bytes(m, k, kind)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_packs_the_same_bytes(isa: str, kind: str) -> None:
    kernels, c = make(isa), Kernels("c", 1)
    random = np.random.default_rng(1)
    for k in LENGTHS:
        for m in (1, 11, 12, 26):
            x = 3 * random.standard_normal((m, k), np.float32)
            weight, bias = random.standard_normal((2, k), np.float32)
            shift, scale = random.standard_normal((2, 3, k), np.float32)
            index = random.integers(0, 3, m).astype(np.int32)
            for how in (
                {},
                {"norm": "rms", "eps": 1e-6, "weight": weight},
                {"norm": "layer", "eps": 1e-5, "weight": weight, "bias": bias},
                {"norm": "rms", "eps": 1e-6, "shift": shift, "scale": scale, "index": index},
            ):
                _, got = packed(kernels, kind, x, **how)
                _, want = packed(c, kind, x, **how)
                assert used(got, kind, m, k) == used(want, kind, m, k), (m, k, sorted(how))


def used(data: np.ndarray, kind: str, m: int, k: int) -> bytes:
    """The bytes that pack defines: blocks without what rounds them up to a cache line."""
    groups = -(-k // 256)
    size = {"f32": 48 * k, "bf16": 48 * -(-k // 2), "int8": 48 * -(-k // 4) + 96 * groups}[kind]
    return data.reshape(-(-m // 12), -1)[:, :size].tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_norms_and_modulation(isa: str) -> None:
    kernels = make(isa)
    random = np.random.default_rng(2)
    for m, k in [(1, 5), (14, 96), (25, 1344)]:
        x = 2 + 3 * random.standard_normal((m, k), np.float32)
        weight, bias = random.standard_normal((2, k), np.float32)
        shift, scale = random.standard_normal((2, 4, k), np.float32)
        index = random.integers(0, 4, m).astype(np.int32)
        d = x.astype(np.float64)
        rms = d / np.sqrt((d**2).mean(1, keepdims=True) + 1e-6)
        layer = (d - d.mean(1, keepdims=True)) / np.sqrt(d.var(1, keepdims=True) + 1e-5)
        for how, want in (
            ({}, d),
            ({"norm": "rms", "eps": 1e-6}, rms),
            ({"norm": "rms", "eps": 1e-6, "weight": weight}, rms * weight),
            ({"norm": "layer", "eps": 1e-5, "weight": weight, "bias": bias}, layer * weight + bias),
            (
                {"norm": "layer", "eps": 1e-5, "shift": shift, "scale": scale, "index": index},
                layer * (1 + scale[index].astype(np.float64)) + shift[index],
            ),
            ({"norm": "rms", "eps": 1e-6, "shift": shift, "scale": scale}, rms * (1 + scale[0].astype(np.float64)) + shift[0]),
        ):
            _, data = packed(kernels, "f32", x, **how)
            got = values_f32(data, m, k)
            assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want), (m, k, sorted(how))


@pytest.mark.parametrize("isa", ISAS)
def test_int8_is_rotated_in_the_largest_power_of_two(isa: str) -> None:
    kernels = make(isa)
    for k, block in [(96, 32), (112, 16), (48, 16), (24, 8), (81, 1), (256, 256), (1344, 64)]:
        x = np.random.default_rng(3).standard_normal((1, k), np.float32)
        _, data = packed(kernels, "int8", x)
        words, groups = -(-k // 4), -(-k // 256)
        quantized = data[: 48 * words].view(np.int8).reshape(words, 12, 4)[:, 0].reshape(-1)[:k]
        tail = data[48 * words : 48 * words + 96 * groups]
        scale, total = tail[: 48 * groups].copy().view(np.float32), tail[48 * groups :].copy().view(np.int32)
        want = (x.reshape(-1, block).astype(np.float64) @ hadamard(block)).reshape(-1)
        got = quantized * np.repeat(scale.reshape(groups, 12)[:, 0], 256)[:k]
        assert np.linalg.norm(got - want) <= 0.01 * np.linalg.norm(want), (k, block)
        sums = [int(quantized[g * 256 : (g + 1) * 256].astype(int).sum()) for g in range(groups)]
        assert total.reshape(groups, 12)[:, 0].tolist() == sums
        assert np.abs(quantized.astype(int)).max() == 127


def test_rows_are_the_same_whatever_the_threads() -> None:
    x = np.random.default_rng(4).standard_normal((200, 320), np.float32)
    for kind in KINDS:
        _, one = packed(make(None, 1), kind, x, norm="rms", eps=1e-6)
        _, five = packed(make(None, 5), kind, x, norm="rms", eps=1e-6)
        assert one.tobytes() == five.tobytes()


def test_rows_are_packed_again_in_the_same_storage() -> None:
    kernels = make(None)
    random = np.random.default_rng(5)
    rows = Rows(np.zeros(Rows.size_bytes(30, 96, "bf16"), np.uint8), 96, "bf16", kernels)
    assert (rows.m, rows.k, rows.kind) == (0, 96, "bf16")
    for m in (30, 7, 25, 0):
        rows.pack(random.standard_normal((m, 96), np.float32))
        assert rows.m == m
    with pytest.raises(ValueError):
        rows.pack(np.zeros((37, 96), np.float32))  # 30 rows fill three blocks of 12: up to 36 fit


def test_wrong_arguments_are_refused() -> None:
    kernels = make(None, 1)
    storage = np.zeros(Rows.size_bytes(4, 16, "f32"), np.uint8)
    for build in (
        lambda: Rows(storage, 16, "f64", kernels),
        lambda: Rows(storage, 0, "f32", kernels),
        lambda: Rows(storage[:10], 16, "f32", kernels),
    ):
        with pytest.raises(ValueError):
            build()
    rows, x = Rows(storage, 16, "f32", kernels), np.zeros((4, 16), np.float32)
    for how in (
        {"norm": "batch"},
        {"weight": np.zeros(15, np.float32)},
        {"bias": np.zeros(17, np.float32)},
        {"shift": np.zeros((2, 15), np.float32)},
        {"shift": np.zeros((2, 16), np.float32), "index": np.array([0, 1, 2, 0], np.int32)},
        {"scale": np.zeros((2, 16), np.float32), "index": np.array([0, 1, -1, 0], np.int32)},
        {"scale": np.zeros((2, 16), np.float32), "index": np.array([0, 1], np.int32)},
    ):
        with pytest.raises(ValueError):
            rows.pack(x, **how)
    with pytest.raises(ValueError):
        rows.pack(np.zeros((4, 15), np.float32))
