"""A strict reader of GGUF headers: nothing is trusted, no tensor is read, nothing is allocated on the file's word.

Which model a file holds is told by its tensors' names, never by `general.architecture`: the same model goes around
under three different ones, and without any.   source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from pathlib import Path

from h3core.weights.formats.table import FORMATS, GGUF
from h3core.weights.model_files import ModelError, shown
from h3core.weights.safetensors import MAX_DIMENSIONS, MAX_HEADER, NAMES_SHOWN, Header, Tensor, check_spans

MAX_COUNT = 1_000_000  # tensors, or keys; a text encoder with its vision tower has 1058 tensors
MAX_NAME = 4096  # bytes; ggml itself allows 64
MAX_ALIGNMENT = 1 << 20
KEPT_TEXT = 1 << 16  # longer strings, and arrays of more than KEPT_VALUES, are passed over: vocabularies, licences
KEPT_VALUES = 64
SHAPE_KEY = "comfy.gguf.orig_shape."  # rows that no block divides lie flat; this key has the shape

# type number of a value -> how struct reads it.   source: enum gguf_type
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

# What files may be stored in that this build cannot run, by type number.   source: enum ggml_type
_OTHERS = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 41: "Q1_0",
}  # fmt: skip


class _Cursor:
    """Reads on through a header; every step is checked against the file's end before anything is read or made."""

    def __init__(self, file, path: Path, size: int):
        self.file, self.path, self.size = file, path, size
        self.data, self.position = b"", 0

    def take(self, count: int) -> int:
        """Passes over `count` bytes that are then in `data`; returns where they begin."""
        start, end = self.position, self.position + count
        if end > self.size:
            raise ModelError(
                f"{shown(self.path)} ends inside its header (has {self.size} bytes); download this file again."
            )
        if end > MAX_HEADER:
            raise ModelError(f"{shown(self.path)} has a header of more than {MAX_HEADER} bytes; download it again.")
        if end > len(self.data):  # no more than twice what is needed, and never past the file
            self.data += self.file.read(max(end - len(self.data), min(len(self.data), MAX_HEADER), 1 << 16))
            if end > len(self.data):
                raise ModelError(f"{shown(self.path)} became shorter while it was read; download this file again.")
        self.position = end
        return start

    def number(self, code: str) -> int | float:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code)))[0]

    def whole(self, code: str) -> int:
        return int(self.number(code))

    def text(self, most: int) -> str | None:
        """A string; None when it is longer than `most` and only passed over. Broken UTF-8 is kept readable."""
        length = self.whole("<Q")
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8", "replace") if length <= most else None


def read_header(path: Path) -> Header:
    """Read and check one file's header. Shapes are rows first, as everywhere else; offsets count from the file's start.

    The metadata has each number, short text and short list as a string; lists as JSON.
    raises: ModelError in one sentence.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise ModelError(f"{shown(path)} is not a file; put the weights themselves there.")
        with open(path, "rb") as file:
            return _read(_Cursor(file, path, os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise ModelError(
            f"{shown(path)} cannot be read ({error.strerror}); check that it is there and readable."
        ) from error


def _read(cursor: _Cursor) -> Header:
    path, name, again = cursor.path, shown(cursor.path), "download this file again"
    if cursor.size == 0:
        raise ModelError(f"{name} is empty; {again}.")
    if cursor.size < 24:
        raise ModelError(f"{name} has only {cursor.size} bytes, too few for a header; {again}.")
    start = cursor.take(4)
    if cursor.data[start : start + 4] != b"GGUF":
        raise ModelError(f"{name} is not a GGUF file in spite of its name; {again}.")
    version = cursor.whole("<I")
    if version & 0xFFFF == 0 and version:
        raise ModelError(f"{name} was written for big-endian machines; use the usual file of this model.")
    if version not in (2, 3):
        raise ModelError(f"{name} has GGUF version {version}, this program reads 2 and 3; use a newer file.")
    tensor_count, key_count = cursor.whole("<Q"), cursor.whole("<Q")
    # a key takes 13 bytes or more, a tensor 24
    if tensor_count > MAX_COUNT or key_count > MAX_COUNT or 24 * tensor_count + 13 * key_count > cursor.size:
        raise ModelError(f"{name} has an impossible number of tensors or keys; {again}.")
    metadata = _keys(cursor, key_count)
    alignment = _alignment(metadata, name)
    infos = [_info(cursor) for _ in range(tensor_count)]
    data = -(-cursor.position // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for key, shape, kind, offset in infos:
        if key in tensors:
            raise ModelError(f"{name} lists {key[:NAMES_SHOWN]!r} twice; {again}.")
        tensors[key] = _tensor(path, key, shape, kind, data + offset, metadata)
    unused = check_spans(path, tensors, min(data, cursor.size), cursor.size, alignment)
    return Header(path, tensors, metadata, cursor.size, unused)


def _keys(cursor: _Cursor, count: int) -> dict[str, str]:
    metadata: dict[str, str] = {}
    seen: set[str] = set()
    for _ in range(count):
        key = cursor.text(MAX_NAME)
        if key is None:
            raise ModelError(f"{shown(cursor.path)} has a damaged key; download this file again.")
        if key in seen:
            raise ModelError(f"{shown(cursor.path)} has the key {key[:NAMES_SHOWN]!r} twice; download this file again.")
        seen.add(key)
        value = _value(cursor, key)
        if value is not None:
            metadata[key] = value
    return metadata


def _value(cursor: _Cursor, key: str) -> str | None:
    """A key's value as text; None when it is too long to keep."""
    kind = cursor.whole("<I")
    if kind in _NUMBERS:
        return str(cursor.number(_NUMBERS[kind]))
    if kind == _STRING:
        return cursor.text(KEPT_TEXT)
    if kind != _ARRAY:
        raise ModelError(
            f"{shown(cursor.path)}: key {key[:NAMES_SHOWN]!r} has the unknown type {kind}; download this file again."
        )
    item, length = cursor.whole("<I"), cursor.whole("<Q")
    if item in _NUMBERS:
        size = struct.calcsize(_NUMBERS[item])
        start = cursor.take(length * size)
        if length > KEPT_VALUES:
            return None
        return json.dumps([struct.unpack_from(_NUMBERS[item], cursor.data, start + i * size)[0] for i in range(length)])
    if item != _STRING or length * 8 > cursor.size:  # a list of lists is possible, and nobody writes one
        raise ModelError(f"{shown(cursor.path)}: key {key[:NAMES_SHOWN]!r} has a damaged list; download it again.")
    for _ in range(length):
        cursor.take(cursor.whole("<Q"))
    return None


def _alignment(metadata: dict[str, str], name: str) -> int:
    text = metadata.get("general.alignment", "32")
    alignment = int(text) if text.isdecimal() else 0
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ModelError(f"{name} has the alignment {_said(text)}, not a power of two; download it again.")
    return alignment


def _said(text: str) -> str:
    """A key's value as a message repeats it."""
    return text[:NAMES_SHOWN] if text.isprintable() else repr(text[:NAMES_SHOWN])


def _info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape (rows first), type number, offset in the data."""
    name = cursor.text(MAX_NAME)
    if name is None:
        raise ModelError(f"{shown(cursor.path)} has a damaged tensor name; download this file again.")
    dimensions = cursor.whole("<I")
    if dimensions > MAX_DIMENSIONS:
        raise ModelError(
            f"{shown(cursor.path)}: tensor {name[:NAMES_SHOWN]!r} has {dimensions} dimensions, more than any part of "
            "this model; download this file again."
        )
    shape = tuple(cursor.whole("<Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.whole("<I"), cursor.whole("<Q")


def _tensor(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int, metadata: dict[str, str]) -> Tensor:
    where, again = f"{shown(path)}: tensor {name[:NAMES_SHOWN]!r}", "download this file again"
    if kind not in GGUF:
        word = f"as {_OTHERS[kind]}" if kind in _OTHERS else f"in the unknown type {kind}"
        raise ModelError(
            f"{where} is stored {word}, which this version cannot run; "
            "use a Q4_K, Q5_K, Q6_K or Q8_0 file of the same part."
        )
    storage = FORMATS[GGUF[kind]]
    values = math.prod(shape)
    if values >= 1 << 63 or offset >= 1 << 63 or any(axis >= 1 << 63 for axis in shape):
        raise ModelError(f"{where} has an impossible shape or place; {again}.")
    if (shape[-1] if shape else 1) % storage.block:
        raise ModelError(
            f"{where} has rows of {shape[-1] if shape else 1} values, {storage.name.upper()} packs {storage.block} "
            f"together; {again}."
        )
    size = values // storage.block * storage.block_bytes
    original = metadata.get(SHAPE_KEY + name)
    if original is not None:
        shape = _original_shape(original, values, where)
    return Tensor(name, storage.name.upper(), shape, path, offset, size)


def _original_shape(text: str, values: int, where: str) -> tuple[int, ...]:
    """The shape that a key gives to a flattened tensor."""
    try:
        shape = json.loads(text)
    except ValueError:
        shape = None
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= MAX_DIMENSIONS
        or not all(type(axis) is int and axis >= 0 for axis in shape)
        or math.prod(shape) != values
    ):
        raise ModelError(f"{where} has {values} values, its key says {_said(text)}; download this file again.")
    return tuple(shape)


# llama.cpp's key, after the architecture's name -> field of a Qwen3-VL config; the rest is seen from the tensors.
_CONFIG = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "rope.dimension_sections": "mrope_section",
}


def text_config(metadata: dict[str, str]) -> dict:
    """What a llama.cpp file of a text encoder says about itself, as fields of its config; {} when it says nothing."""
    found: dict = {}
    for key, value in metadata.items():
        field = next((ours for theirs, ours in _CONFIG.items() if key.endswith("." + theirs)), None)
        if field:
            try:
                found[field] = json.loads(value)
            except ValueError:
                continue
    if isinstance(found.get("mrope_section"), list):
        found["mrope_section"] = found["mrope_section"][:3]  # llama.cpp keeps a place for a fourth axis
    if "rms_norm_eps" in found:
        found["rms_norm_eps"] = float(f"{found['rms_norm_eps']:.6g}")  # stored as float32: 1e-06 is 9.99999997e-07
    return found
