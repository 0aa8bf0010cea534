"""Geometry and packed layout against the reference's, value for value."""

import hashlib

import numpy as np
import pytest

from h3core.model import layout as packing
from h3core.model.layout import Reference
from h3core.model.schedule import row_times
from tests.golden_files import compare, golden, golden_json

PARAMETERS = golden_json("layout")


def build(case: dict) -> packing.Layout:
    tags = np.concatenate([np.full(count, tag, np.int32) for tag, count in case["text_runs_tag_count"]])
    size = (case["num_frames"], case["height"], case["width"])
    if "references" not in case:
        return packing.fl2va(tags, *size, case["anchors"])
    references = [
        Reference(r["kind"], tuple(r["latent_shape_thw"]) if r["latent_shape_thw"] else None, r["audio_latents"])
        for r in case["references"]
    ]
    return packing.ref2va(tags, references, *size)


@pytest.mark.parametrize("name", PARAMETERS["cases"])
def test_packed_layout(name):
    case, want = PARAMETERS["cases"][name], golden("layout")
    layout = build(case)
    assert layout.rows == case["rows"]
    compare("position_ids", layout.positions, want[f"{name}.position_ids"], 0)
    compare("token_tags", layout.tags, want[f"{name}.token_tags"], 0)
    for kind in ("text", "video", "audio"):
        compare(f"{kind}_indices", getattr(layout, f"{kind}_indices"), want[f"{name}.{kind}_indices"], 0)
    counts = np.array([layout.condition_video_rows, layout.condition_audio_rows])
    compare("condition_counts", counts, want[f"{name}.condition_counts"], 0)
    times, index = row_times(layout, case["t_video"], case["t_audio"])
    compare("timestep", times, want[f"{name}.timestep"], 0)
    compare("timestep_indices", index, want[f"{name}.timestep_indices"], 0)


@pytest.mark.parametrize("name", PARAMETERS["digests"])
def test_released_sizes(name):
    case = PARAMETERS["digests"][name]
    size = (case["num_frames"], case["height"], case["width"])
    layout = packing.fl2va(case["num_text_tokens"], *size, case["anchors"])
    assert layout.rows == case["rows"]
    assert layout.rows == packing.row_count(case["num_text_tokens"], *size, keyframes=len(case["anchors"]))

    def digest(array, dtype):
        return hashlib.sha256(array.astype(dtype).tobytes()).hexdigest()

    assert digest(layout.positions, "<f8") == case["sha256_position_ids_float64"]
    assert digest(layout.positions, "<f4") == case["sha256_position_ids_float32"]
    assert digest(layout.tags, "<i4") == case["sha256_token_tags_int32"]


def test_geometry():
    want = PARAMETERS["geometry"]
    for aspect, size in want["canvas_height_width_by_aspect"].items():
        width, height = map(int, aspect.split(":"))
        assert list(packing.snap_canvas(width, height)) == size, aspect
    for frames, aligned in want["aligned_num_frames"].items():
        assert packing.snap_frames(int(frames)) == aligned
    for frames, latents in want["latent_frames"].items():
        assert packing.latent_frames(int(frames)) == latents
    for frames, latents in want["audio_latents"].items():
        assert packing.audio_latents(int(frames)) == latents


def test_patchify_and_back():
    latents, rows = golden("layout")["patchify.latents"][0], golden("layout")["patchify.rows"]
    compare("rows", packing.patchify(latents), rows, 0)
    assert np.array_equal(packing.unpatchify(rows, 2, 4, 6), latents)


def test_audio_rows_and_back():
    latent = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    rows = packing.audio_to_rows(latent)
    assert np.array_equal(rows[:4], latent[0].T) and np.array_equal(rows[4:], latent[1].T)
    assert np.array_equal(packing.rows_to_audio(rows), latent)


def test_segments_say_what_each_row_is():
    layout = build(PARAMETERS["cases"]["ref2va_mixed"])
    conditions = [s.kind for s in layout.segments if s.condition]
    assert conditions == ["text", "video", "audio", "video", "audio", "video"]
    assert [s.kind for s in layout.segments if not s.condition] == ["audio", "video"]
    assert sum(s.rows for s in layout.segments) == layout.rows
    assert (layout.target_video.frames, layout.target_video.height, layout.target_video.width) == (7, 2, 3)
    assert layout.target_audio.rows == 2 * 37


@pytest.mark.parametrize(
    ("text", "frames", "height", "width"),
    [(0, 22, 64, 64), (3, 21, 64, 64), (3, 22, 500, 500), (3, 0, 64, 64), (3, 22, 0, 64)],
)
def test_sizes_without_rows_are_refused(text, frames, height, width):
    with pytest.raises(ValueError, match=r"row|frames|canvas"):
        packing.t2va(text, frames, height, width)


@pytest.mark.parametrize("aspect", [(5, 1), (1, 5), (0, 1), (1, -1)])
def test_extreme_aspects_are_refused(aspect):
    with pytest.raises(ValueError, match="aspect"):
        packing.snap_canvas(*aspect)
