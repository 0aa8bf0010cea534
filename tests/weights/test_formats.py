"""Each storage format against numpy, torch's rounding, and the `gguf` package's own de-quantizers; in C too."""

import numpy as np
import pytest

from h3core.weights.formats.table import FORMATS, GGUF, SAFETENSORS

VALUES = np.array([0.0, -0.0, 1.0, -2.5, 65504.0, 6.0e-8, np.inf, -np.inf], np.float32)
BLOCKS = sorted({name for name in GGUF.values() if FORMATS[name].block > 1})
ISAS = ("c", "avx2", "avx512", "neon")


def test_every_format_has_a_file_type():
    assert set(SAFETENSORS.values()) | set(GGUF.values()) == set(FORMATS)


@pytest.mark.parametrize(("name", "stored"), (("f32", VALUES), ("f16", VALUES.astype(np.float16))))
@pytest.mark.parametrize("start", (0, 1, 3))
def test_floats(name, stored, start):
    raw = np.frombuffer(bytes(start) + stored.tobytes(), np.uint8)[start:]
    got = FORMATS[name].decode(raw)
    assert got.dtype == np.float32 and np.array_equal(got, stored.astype(np.float32))
    assert FORMATS[name].size_bytes(2, 4) == raw.size


def test_bfloat16_is_the_upper_half():
    bits = np.array([0x0000, 0x8000, 0x3F80, 0xC020, 0x7F80, 0x0001, 0x4049], "<u2")
    got = FORMATS["bf16"].decode(bits.view(np.uint8))
    assert got.dtype == np.float32
    assert np.array_equal(got.view(np.uint32), bits.astype(np.uint32) << 16)
    assert got[2:4].tolist() == [1.0, -2.5] and got[6] == 3.140625


def random_blocks(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Any bytes, uint8 (count * block bytes,), but no float16 scale (first or last four bytes) that is infinite."""
    size = FORMATS[name].block_bytes
    raw = np.random.default_rng([seed, size]).integers(0, 256, (count, size), np.uint8)
    raw[:, [0, 1, 2, 3, -4, -3, -2, -1]] &= 0xBF
    return raw.reshape(-1)


def quantized(name: str, values: np.ndarray) -> np.ndarray:
    """Bytes of float32 values in a format, uint8; by the gguf package where it can, else skips."""
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name.upper()]
    try:
        return gguf.quants.quantize(values, kind).view(np.uint8).reshape(-1)
    except NotImplementedError:
        pytest.skip(f"the gguf package does not write {name}")


def oracle(name: str, raw: np.ndarray) -> np.ndarray:
    gguf = pytest.importorskip("gguf")
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()]).reshape(-1)


def decoders(name: str):
    """(who, uint8 bytes -> float32) for numpy and for each instruction set this processor has."""
    from h3core.kernels.quant_matrix import QuantMatrix
    from h3core.kernels.table import Kernels

    yield "numpy", FORMATS[name].decode
    for isa in ISAS:
        try:
            kernels = Kernels(isa, 1)
        except ValueError:
            continue

        def decode(raw: np.ndarray, kernels: Kernels = kernels) -> np.ndarray:
            odd = np.zeros(raw.size + 1, np.uint8)[1:]  # a file may put a tensor anywhere
            odd[...] = raw
            values = raw.size // FORMATS[name].block_bytes * FORMATS[name].block
            return QuantMatrix(odd, name, 1, values, kernels).dequantize().reshape(-1)

        yield isa, decode


@pytest.mark.parametrize("name", BLOCKS)
def test_sizes_are_the_kernels_and_ggufs(name):
    gguf = pytest.importorskip("gguf")
    from h3core.kernels.table import FORMATS as KERNELS

    own = FORMATS[name]
    assert (own.block, own.block_bytes) == KERNELS[name][1:]
    assert (own.block, own.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
    assert {number for number, each in GGUF.items() if each == name} == {gguf.GGMLQuantizationType[name.upper()].value}
    assert own.size_bytes(3, 5 * own.block) == 15 * own.block_bytes


@pytest.mark.parametrize("name", BLOCKS)
def test_any_bytes_mean_what_gguf_says(name):
    raw = random_blocks(name, 500)
    want = oracle(name, raw)
    for who, decode in decoders(name):
        got = decode(raw)
        assert got.dtype == np.float32 and np.array_equal(got, want), who


@pytest.mark.parametrize("name", BLOCKS)
def test_quantized_values_come_back(name):
    values = np.random.default_rng(1).standard_normal((8, 1024), np.float32)
    raw = quantized(name, values)
    want = oracle(name, raw)
    for who, decode in decoders(name):
        assert np.array_equal(decode(raw), want), who
    assert np.linalg.norm(want - values.reshape(-1)) < 0.2 * np.linalg.norm(values)


def test_every_nvfp4_scale():
    blocks = np.zeros((64, 36), np.uint8)
    blocks[:, :4] = np.arange(256).reshape(64, 4)
    blocks[:, 4:] = 0x52  # 1 and 3
    for who, decode in decoders("nvfp4"):
        assert np.array_equal(decode(blocks.reshape(-1)), oracle("nvfp4", blocks.reshape(-1))), who


# ComfyUI's


def every_decoder_says(name: str, raw: np.ndarray, want: np.ndarray) -> None:
    for who, decode in decoders(name):
        got = decode(raw)
        assert got.dtype == np.float32 and np.array_equal(got.view(np.uint32), want.view(np.uint32)), who


def test_signed_bytes():
    raw = np.arange(256, dtype=np.uint8)
    every_decoder_says("i8", raw, raw.view(np.int8).astype(np.float32))


@pytest.mark.parametrize(("name", "kind"), (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")))
def test_eight_bit_floats(name, kind):
    dtype = getattr(pytest.importorskip("ml_dtypes"), kind)
    raw = np.arange(256, dtype=np.uint8)
    want = raw.view(dtype).astype(np.float32)
    finite = np.isfinite(want)
    every_decoder_says(name, raw[finite], want[finite])
    for who, decode in decoders(name):
        got = decode(raw)
        assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(np.isinf(got), np.isinf(want)), who


H4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], np.float64)


def hadamard(size: int) -> np.ndarray:
    """The rotation of a group: the Kronecker power of H4 over the root of its size.   source: ConvRot"""
    made = np.ones((1, 1))
    while len(made) < size:
        made = np.kron(made, H4)
    return made / size**0.5


@pytest.mark.parametrize("size", (64, 256))
def test_rotated_bytes(size):
    h = hadamard(size)
    assert np.allclose(h @ h, np.eye(size)) and np.array_equal(h, h.T)
    raw = np.random.default_rng(size).integers(0, 256, 20 * size, np.uint8)
    want = raw.view(np.int8).reshape(-1, size).astype(np.float64) @ h
    every_decoder_says(f"i8_rot{size}", raw, want.astype(np.float32).reshape(-1))
