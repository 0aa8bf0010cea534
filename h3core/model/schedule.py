"""Noise levels: the two schedules, the time of every row, and which (time, modality) pairs a run needs.

Times go from 0 (noise) to 1 (clean) and enter the network unscaled; sigma = 1 - time. source: diffusers 0.42.1,
MiniMaxH3Scheduler and build_row_timesteps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from h3core.model.layout import Layout

CONDITION_TIME = 0.999  # keyframes and visual references carry a trace of noise, as in training
CLEAN_TIME = 1.0  # reference sound carries none


@dataclass(frozen=True, eq=False)
class Schedule:
    """sigmas: float32 (n + 1,), 1 down to 0.   times: float32 (n,), the time of each evaluation."""

    sigmas: np.ndarray
    times: np.ndarray

    @property
    def evaluations(self) -> int:
        return self.times.shape[0]


def schedule(grid_points: int, shift: float) -> Schedule:
    """The shifted grid from 1 to 0; a grid of N points makes N - 1 evaluations.

    Equal neighbours collapse, so a very large shift can give fewer.
    raises: ValueError for fewer than two points or a shift that is not positive.
    """
    if grid_points < 2:
        raise ValueError(f"a schedule needs at least one evaluation, got {grid_points - 1}")
    if not shift > 0:
        raise ValueError(f"the schedule's shift must be positive, got {shift}")
    base = _torch_linspace(grid_points)
    shift32, one = np.float32(shift), np.float32(1)
    sigmas = shift32 * base / (one + np.float32(shift - 1) * base)
    sigmas = sigmas[np.concatenate(([True], sigmas[1:] != sigmas[:-1]))]
    return Schedule(sigmas, one - sigmas[:-1])


def _torch_linspace(points: int) -> np.ndarray:
    """torch.linspace(1, 0, points) in float32: counted from the start in its first half, from the end in its second.

    torch multiplies and adds with one rounding; the float64 product here is exact, so the sum is rounded once too.
    """
    step = np.float64(np.float32(-1) / np.float32(points - 1))
    index = np.arange(points)
    return np.where(index < points // 2, 1 + step * index, 0 - step * (points - 1 - index)).astype(np.float32)


def times_of_rows(layout: Layout, t_video: float, t_audio: float) -> np.ndarray:
    """The time of every row, float32 (S,): text follows the video, conditions stay (almost) clean."""
    times = np.full(layout.rows, t_video, np.float32)
    video, audio = layout.condition_video_rows, layout.condition_audio_rows
    times[layout.video_indices[:video]] = max(np.float32(t_video), np.float32(CONDITION_TIME))
    times[layout.audio_indices[audio:]] = t_audio
    times[layout.audio_indices[:audio]] = CLEAN_TIME
    return times


def row_times(layout: Layout, t_video: float, t_audio: float) -> tuple[np.ndarray, np.ndarray]:
    """(sorted distinct times float32 (k,), which of them each row has, int32 (S,))."""
    distinct, index = np.unique(times_of_rows(layout, t_video, t_audio), return_inverse=True)
    return distinct, index.reshape(-1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Pairs:
    """The distinct (time, tag) pairs of a run: all that modulation can depend on. times: float32; tags: int32."""

    times: np.ndarray
    tags: np.ndarray

    def __len__(self) -> int:
        return self.times.shape[0]

    def index(self, times: np.ndarray, tags: np.ndarray) -> np.ndarray:
        """Which pair each row is, int32 (S,).

        times: float32 (S,).   tags: int32 (S,).   raises: ValueError when a row's pair is not among these.
        """
        own, wanted = _key(self.times, self.tags), _key(times, tags)
        index = np.searchsorted(own, wanted).clip(max=len(own) - 1)
        if not np.array_equal(own[index], wanted):
            raise ValueError("a row has a (time, modality) pair that the modulation table was not made for")
        return index.astype(np.int32)


def distinct_pairs(rows: Iterable[tuple[np.ndarray, np.ndarray]]) -> Pairs:
    """Every pair among the given (times, tags) of rows, ordered by time, then tag."""
    keys = np.unique(np.concatenate([np.unique(_key(times, tags)) for times, tags in rows]))
    return Pairs((keys >> np.uint64(2)).astype(np.uint32).view(np.float32), (keys & np.uint64(3)).astype(np.int32))


def run_pairs(layout: Layout, steps: Sequence[tuple[float, float]]) -> Pairs:
    """Every pair of a run whose evaluations have these (video time, audio time)."""
    return distinct_pairs((times_of_rows(layout, t_video, t_audio), layout.tags) for t_video, t_audio in steps)


def _key(times: np.ndarray, tags: np.ndarray) -> np.ndarray:
    """One sortable number per pair: the bits of a float32 that is not negative sort as its value does."""
    times = np.ascontiguousarray(times, np.float32) + np.float32(0)  # -0 becomes 0
    return (times.view(np.uint32).astype(np.uint64) << np.uint64(2)) | np.asarray(tags).astype(np.uint64)
