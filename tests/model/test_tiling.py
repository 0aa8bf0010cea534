"""How the video VAE cuts a film, against the reference's plans and the spec's frame counts."""

import pytest

from h3core.model.tiling import decode_plan, decoded_frames, encode_plan, encoded_latents, tile_axis
from h3core.model.vae_config import VideoVaeConfig
from tests.golden_files import golden_json

RELEASED = VideoVaeConfig()


@pytest.mark.parametrize("case", golden_json("vae_tile_plans"))
def test_tile_plans(case):
    want = golden_json("vae_tile_plans")[case]
    length = int(case.split()[0])
    axis = tile_axis(length, 48, 16) if "tile 48" in case else tile_axis(length)
    assert list(axis.starts) == want["starts"]
    assert [axis.length] * len(axis.starts) == want["lengths"]
    assert list(axis.overlaps) == want["overlaps"]


def test_tiles_cover_every_canvas():
    for length in range(32, 2049, 16):
        axis = tile_axis(length)
        assert axis.starts[-1] + axis.length == length
        assert all(overlap >= 64 for overlap in axis.overlaps)


def test_released_geometry():
    assert (RELEASED.space, RELEASED.time, RELEASED.chunk, RELEASED.lead) == (16, 4, 5, 3)
    assert (RELEASED.window, RELEASED.tail, RELEASED.dim, RELEASED.patch) == (7, 5, 2048, 3072)


def test_frames_and_latents():
    assert [decoded_frames(t, RELEASED) for t in (1, 2, 3, 4, 5, 6, 7, 12, 37)] == [1, 5, 9, 13, 17, 18, 22, 39, 124]
    assert [encoded_latents(f, RELEASED) for f in (1, 5, 17, 22, 30, 39, 124)] == [1, 2, 2, 7, 7, 12, 37]
    for clips in range(1, 21):
        assert decoded_frames(encoded_latents(17 * clips + 5, RELEASED), RELEASED) == 17 * clips + 5


def test_decode_plan_of_a_released_film():
    plan = decode_plan(RELEASED, 37, 48, 84)
    assert (plan.clips, len(plan.tiles), plan.units, plan.rows, plan.frames) == (7, 28, 196, 1797, 124)
    assert [plan.passes(batch) for batch in (1, 100, 195, 196, 1000)] == [196, 2, 2, 1, 1]


def test_what_cannot_be_cut():
    with pytest.raises(ValueError, match="2 latent frames"):
        decode_plan(RELEASED, 2, 16, 16)
    with pytest.raises(ValueError, match="no frames"):
        encode_plan(RELEASED, 0, 256, 256)
    with pytest.raises(ValueError, match="multiples of 16"):
        encode_plan(RELEASED, 5, 250, 256)
