"""What a run's precision means for each part of the model: one table."""

from __future__ import annotations

PRECISIONS = ("exact", "bf16", "int8")

# Islands stay float32 whatever the run: input and output projections, time embedding and AdaLN (they set noise levels,
# cost little, and the release stores most of them in float32). So do the video VAE's encoder and the audio VAE, where
# bfloat16 is audible. In an int8 run the decoder and the refiner stay bf16: their share of the time is small.
_KINDS = {
    "exact": {},
    "bf16": {"dit.block": "bf16", "dit.refiner": "bf16", "text": "bf16", "vision": "bf16", "video_decoder": "bf16"},
    "int8": {"dit.block": "int8", "dit.refiner": "bf16", "text": "int8", "vision": "bf16", "video_decoder": "bf16"},
}
PARTS = ("dit.block", "dit.refiner", "dit.island", "text", "vision", "video_decoder", "video_encoder", "audio")


def kind(precision: str, part: str) -> str:
    """The kind of matrix product, "f32", "bf16" or "int8", of a part in a run of this precision.

    raises: ValueError for an unknown precision or part.
    """
    if precision not in _KINDS:
        raise ValueError(f"precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    if part not in PARTS:
        raise ValueError(f"no part of the model is called {part!r}")
    return _KINDS[precision].get(part, "f32")


def attention_kind(precision: str, part: str) -> str:
    """The kind of a part's attention: as its products, but never int8."""
    product = kind(precision, part)
    return "bf16" if product == "int8" else product
