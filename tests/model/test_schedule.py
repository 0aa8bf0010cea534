"""Schedules against the reference's, and the pairs a run's modulation table holds."""

import numpy as np
import pytest

from h3core.model import layout as packing
from h3core.model import schedule as noise_levels
from tests.golden_files import compare, golden

GRIDS = (2, 3, 5, 9, 20, 21, 30, 50, 51)


@pytest.mark.parametrize("shift", [12, 3])
@pytest.mark.parametrize("points", GRIDS)
def test_grid(shift, points):
    want, got = golden("scheduler"), noise_levels.schedule(points, shift)
    compare("sigmas", got.sigmas, want[f"shift{shift}.n{points}.sigmas"], 0)
    compare("timesteps", got.times, want[f"shift{shift}.n{points}.timesteps"], 0)
    assert got.evaluations == points - 1


@pytest.mark.parametrize(("points", "shift"), [(1, 12.0), (0, 12.0), (5, 0.0), (5, float("nan"))])
def test_impossible_grids_are_refused(points, shift):
    with pytest.raises(ValueError, match="schedule"):
        noise_levels.schedule(points, shift)


def test_equal_neighbours_collapse():
    grid = noise_levels.schedule(50, 1e9)
    assert grid.evaluations < 49 and (np.diff(grid.sigmas) < 0).all()


def test_pairs_cover_a_run_and_nothing_else():
    layout = packing.fl2va(5, 22, 64, 64, ("first",))
    video, audio = noise_levels.schedule(9, 12), noise_levels.schedule(9, 3)
    steps = list(zip(video.times, audio.times, strict=True))
    pairs = noise_levels.run_pairs(layout, steps)
    # text, target video and target sound at each time, and the keyframe at 0.999
    assert len(pairs) == 3 * 8 + 1
    for t_video, t_audio in steps:
        times = noise_levels.times_of_rows(layout, t_video, t_audio)
        index = pairs.index(times, layout.tags)
        assert index.dtype == np.int32
        assert np.array_equal(pairs.times[index], times) and np.array_equal(pairs.tags[index], layout.tags)


def test_a_row_outside_the_pairs_is_refused():
    layout = packing.t2va(5, 22, 64, 64)
    pairs = noise_levels.run_pairs(layout, [(0.0, 0.0)])
    with pytest.raises(ValueError, match="pair"):
        pairs.index(noise_levels.times_of_rows(layout, 0.5, 0.5), layout.tags)
