"""GGUF files written byte by byte for the tests, right or wrong, and random weights in every block format."""

import struct
from pathlib import Path

import numpy as np

from h3core.weights.formats.table import FORMATS, GGUF

NUMBERS = {name: number for number, name in GGUF.items()}
VALUE_TYPES = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "u64": (10, "<Q"), "i64": (11, "<q")}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value: object, kind: str = "u32") -> bytes:
    """One key: a string, a number, or a list of numbers of the given kind."""
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    number, code = VALUE_TYPES[kind]
    if isinstance(value, list):
        items = b"".join(struct.pack(code, each) for each in value)
        return text(name) + struct.pack("<IIQ", 9, number, len(value)) + items
    return text(name) + struct.pack("<I", number) + struct.pack(code, value)


def info(name: str, shape: list[int], kind: int, offset: int) -> bytes:
    """One tensor of a header; shape rows first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)


def header(tensors: bytes, count: int, keys: bytes = b"", key_count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, count, key_count) + keys + tensors


def write_gguf(path: Path, tensors: dict, keys: list[bytes] = (), alignment: int = 32) -> Path:
    """Write {name: (format, shape, bytes)}."""
    infos, data = b"", b""
    for name, (format, shape, raw) in tensors.items():
        data += bytes(-len(data) % alignment)
        infos += info(name, list(shape), NUMBERS[format], len(data))
        data += bytes(raw)
    keys = [*keys, *([key("general.alignment", alignment)] if alignment != 32 else [])]
    start = header(infos, len(tensors), b"".join(keys), len(keys))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(start + bytes(-len(start) % alignment) + data)
    return path


def float_gguf(tensors: dict) -> dict:
    """The tensors of a safetensors file, {name: (dtype, shape, bytes)}, for `write_gguf`."""
    return {name: (dtype.lower(), shape, data) for name, (dtype, shape, data) in tensors.items()}


# Where a block's float16 scales lie; of NVFP4 the scales are the first four bytes.
SCALES = {
    "q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,),
    "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,), "iq4_xs": (0,), "nvfp4": (),
}  # fmt: skip


def random_blocks(format: str, shape: tuple[int, ...], size: float, seed: int = 0) -> np.ndarray:
    """A tensor of random blocks whose values have about this root mean square, uint8 (bytes,)."""
    storage, random = FORMATS[format], np.random.default_rng([seed, *shape])
    raw = random.integers(0, 256, (storage.size_bytes(*shape) // storage.block_bytes, storage.block_bytes), np.uint8)
    scale = np.ones((len(raw), 1))
    for _ in range(2):  # first with scales of 1, to see how large the values become
        for place in SCALES[format]:
            stored = (scale * random.uniform(0.5, 1.5, scale.shape)).astype("<f2")
            if place == 2 and format.endswith("_1"):
                stored = -stored * (2 ** int(format[1]) / 2)  # the minimum, so that values lie on both sides of 0
            raw[:, place : place + 2] = stored.view(np.uint8)
        if format == "nvfp4":
            raw[:, :4] = random.integers(0x08, 0x18, (len(raw), 4))
        values = storage.decode(raw.reshape(-1)).astype(np.float64)
        scale = scale * size / np.sqrt(np.mean(values**2))
    return raw.reshape(-1)
