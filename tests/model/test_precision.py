"""The precision table."""

import pytest

from h3core.model.precision import PARTS, PRECISIONS, attention_kind, kind


def test_exact_is_float32_everywhere():
    assert {kind("exact", part) for part in PARTS} == {"f32"}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("part", ["dit.island", "video_encoder", "audio"])
def test_islands_stay_float32(precision, part):
    assert kind(precision, part) == "f32"


def test_attention_is_never_int8():
    assert kind("int8", "dit.block") == "int8" and attention_kind("int8", "dit.block") == "bf16"


@pytest.mark.parametrize(("precision", "part"), [("fp4", "text"), ("exact", "wheels")])
def test_unknown_words_are_refused(precision, part):
    with pytest.raises(ValueError, match=r"precision|part"):
        kind(precision, part)
