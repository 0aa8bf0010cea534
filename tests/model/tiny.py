"""Weights of the tiny checkpoint as the model takes them: blocks of stored matrices and float32 arrays."""

import functools
import json
import re
import struct

import numpy as np

from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.table import Kernels

# one-dimensional tensors and these are not linear layers
NOT_LINEAR = re.compile(r"embed_tokens|pos_embed|register_tokens")


@functools.cache
def kernels() -> Kernels:
    return Kernels()


def allocate(buffers):
    """A phase's arrays, filled with what must not be read: NaN, or 255 in bytes."""
    return {
        name: np.full(buffer.shape, 255 if buffer.dtype == "uint8" else np.nan, buffer.dtype)
        for name, buffer in buffers.items()
    }


@functools.cache
def tensors(folder):
    """All tensors of a folder: name -> (format, shape, bytes)."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        for name, entry in json.loads(raw[8 : 8 + size]).items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                found[name] = entry["dtype"].lower(), tuple(entry["shape"]), raw[8 + size + start : 8 + size + end]
    return found


def load(folder, names):
    """names: name in the file -> name in the block."""
    block = {}
    for stored, name in names.items():
        form, shape, data = tensors(folder)[stored]
        if len(shape) == 2 and name.endswith(".weight") and not NOT_LINEAR.search(name):
            block[name] = QuantMatrix(np.frombuffer(data, np.uint8), form, *shape, kernels())
        elif form == "bf16":
            words = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
            block[name] = words.view(np.float32).reshape(shape)
        else:
            stored_dtype = {"f32": np.float32, "f16": np.float16}[form]
            block[name] = np.frombuffer(data, stored_dtype).astype(np.float32).reshape(shape)
    return block


def load_blocks(folder, prefix, within=""):
    """Block after block: the tensors under prefix + number + '.' + within."""
    numbered = re.compile(re.escape(prefix) + r"(\d+)\." + re.escape(within) + "(.+)")
    blocks = {}
    for name in tensors(folder):
        if match := numbered.fullmatch(name):
            blocks.setdefault(int(match[1]), {})[name] = match[2]
    return [load(folder, blocks[number]) for number in sorted(blocks)]


def load_fixed(folder):
    """What is in no block."""
    return load(folder, {name: name for name in tensors(folder) if not re.search(r"blocks\.\d+\.|layers\.\d+\.", name)})


class Recorder:
    """Blocks to iterate over; keeps the residual stream before each and after the last."""

    def __init__(self, blocks, residual):
        self.blocks, self.residual, self.states = blocks, residual, []

    def __iter__(self):
        for block in self.blocks:
            self.states.append(self.residual.copy())
            yield block
        self.states.append(self.residual.copy())


def as_weight(name, values):
    """float32 values as the model takes them under this name."""
    if values.ndim == 2 and name.endswith(".weight") and not NOT_LINEAR.search(name):
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return QuantMatrix(data, "f32", *values.shape, kernels())
    return np.array(values, np.float32)
