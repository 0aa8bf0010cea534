"""Each storage format against values written with numpy, and with torch's rounding where numpy has no such type."""

import numpy as np
import pytest

from h3core.weights.formats.table import FORMATS, SAFETENSORS

VALUES = np.array([0.0, -0.0, 1.0, -2.5, 65504.0, 6.0e-8, np.inf, -np.inf], np.float32)


def test_every_dtype_has_its_format():
    assert set(SAFETENSORS.values()) == set(FORMATS)


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
