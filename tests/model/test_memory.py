"""Sizes the plan uses, against the kernels that use the bytes."""

import pytest

from h3core.kernels.attention import Attention
from h3core.kernels.rows import Rows
from h3core.model import memory


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (11, 96), (12, 256), (13, 257), (1008, 5376), (127, 112)])
def test_rows_twin(m, k, kind):
    assert memory.rows_size_bytes(m, k, kind) == Rows.size_bytes(m, k, kind)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize(("rows", "heads", "width"), [(1, 1, 16), (31, 2, 32), (127, 3, 96), (4758, 56, 128)])
def test_attention_twin(rows, heads, width, kind):
    assert memory.attention_size_bytes(rows, heads, width, kind) == Attention.size_bytes(rows, heads, width, kind)


def test_only_the_stream_and_keys_and_values_grow_with_the_rows():
    small = memory.transformer_buffers({}, 2000, 1500, 300, "bf16")
    large = memory.transformer_buffers({}, 40000, 35000, 830, "bf16")
    grown = {name for name in small if large[name].size_bytes > small[name].size_bytes}
    assert grown == {"residual", "attention", "video_velocity", "audio_velocity"}


def test_size_of_a_phase_is_the_sum_of_its_buffers():
    assert memory.size_bytes({"a": memory.Buffer((2, 3)), "b": memory.Buffer((5,), "uint8")}) == 29
