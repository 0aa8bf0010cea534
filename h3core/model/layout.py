"""Geometry of a request, and the packed sequence the transformer sees: which row is what, where and of which modality.

Knows sizes and positions only: no weights, no noise levels (those are schedule.py's). source: diffusers 0.42.1,
modular_pipelines/minimax_h3 (before_denoise.py, modular_pipeline.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FRAME_RATE = 24
SPACE_RATIO = 16  # pixels per latent, each side
PATCH = 2  # latents per row, each side
CANVAS_MULTIPLE = SPACE_RATIO * PATCH
CLIP_FRAMES, CLIP_LATENTS = 17, 5  # the video VAE turns 17 frames into 5 latents
LEAD_FRAMES, LEAD_LATENTS = 5, 2  # what the last, shortened clip adds: 17n + 5 frames <-> 5n + 2 latents
AUDIO_RATE = 40  # audio latents per second; also the unit of the media clock
AUDIO_CHANNELS = 2
VIDEO, TEXT, AUDIO = 0, 1, 2  # modality tags

CANVAS_SHORT_EDGE = 768
CANVAS_MAX_PIXELS = 768 * 1344
FRAME_SPAN = 5.0 / 3.0  # clock units per frame: 40 / 24
FRAMES_PER_LATENT = (1, 4, 4, 4, 4)
SPATIAL_SPAN = 32.0  # a square canvas covers [0, 32)


def snap_frames(frames: int) -> int:
    """The next frame count the video VAE can make: 17n + 5."""
    return CLIP_FRAMES * max(0, -(-(frames - LEAD_FRAMES) // CLIP_FRAMES)) + LEAD_FRAMES


def latent_frames(frames: int) -> int:
    """Latent frames of 17n + 5 frames: 5n + 2.

    raises: ValueError for any other count.
    """
    clips, rest = divmod(frames - LEAD_FRAMES, CLIP_FRAMES)
    if frames < LEAD_FRAMES or rest:
        raise ValueError(f"{frames} frames: the count must be 17n + 5, the next is {snap_frames(frames)}")
    return CLIP_LATENTS * clips + LEAD_LATENTS


def audio_latents(frames: int) -> int:
    """Audio latents per channel beside so many frames, rounded half to even."""
    return round(frames / FRAME_RATE * AUDIO_RATE)


def snap_canvas(
    aspect_width: float,
    aspect_height: float,
    short_edge: int = CANVAS_SHORT_EDGE,
    max_pixels: int = CANVAS_MAX_PIXELS,
) -> tuple[int, int]:
    """The canvas (height, width), in pixels, of an aspect ratio.

    raises: ValueError outside 1:4 ... 4:1.
    """
    if aspect_width <= 0 or aspect_height <= 0:
        raise ValueError(f"aspect ratio {aspect_width}:{aspect_height}: both sides must be positive")
    ratio = aspect_width / aspect_height
    if not 0.25 <= ratio <= 4:
        raise ValueError(f"aspect ratio {aspect_width}:{aspect_height} is outside 1:4 to 4:1")
    width = short_edge * ratio if ratio >= 1 else float(short_edge)
    height = float(short_edge) if ratio >= 1 else short_edge / ratio
    if width * height > max_pixels:
        scale = math.sqrt(max_pixels / (width * height))
        width, height = width * scale, height * scale
    return _snap_side(height), _snap_side(width)


def _snap_side(side: float) -> int:
    return max(CANVAS_MULTIPLE, round(side / CANVAS_MULTIPLE) * CANVAS_MULTIPLE)


@dataclass(frozen=True)
class Segment:
    """A run of rows of one kind; `height` and `width` count patches, both 0 for text and sound."""

    kind: str  # "text", "video" or "audio"
    start: int
    rows: int
    condition: bool  # given, not to be denoised
    frames: int = 0
    height: int = 0
    width: int = 0


@dataclass(frozen=True, eq=False)
class Layout:
    """One packed sequence of S rows.

    positions: float64 (S, 3), (time, height, width); time in 1/40 s.   tags: int32 (S,), VIDEO, TEXT or AUDIO.
    video_indices, audio_indices: int32, rows of each modality, conditions first.   text_indices: vision rows too.
    """

    segments: tuple[Segment, ...]
    positions: np.ndarray
    tags: np.ndarray
    text_indices: np.ndarray
    video_indices: np.ndarray
    audio_indices: np.ndarray
    condition_video_rows: int
    condition_audio_rows: int

    @property
    def rows(self) -> int:
        return self.tags.shape[0]

    @property
    def text_rows(self) -> int:
        return self.text_indices.shape[0]

    @property
    def target_video(self) -> Segment:
        return self.segments[-1]

    @property
    def target_audio(self) -> Segment:
        return self.segments[-2]


@dataclass(frozen=True)
class Reference:
    """Something the film should resemble.

    kind: "image", "video" or "audio".   latent: (frames, height, width) of its video latent, None for sound alone.
    audio_latents: per channel, 0 when silent.
    """

    kind: str
    latent: tuple[int, int, int] | None = None
    audio_latents: int = 0


def row_count(text_rows: int, frames: int, height: int, width: int, keyframes: int = 0) -> int:
    """Rows of the packed sequence of a film (with so many keyframes), without building it."""
    patches = (height // CANVAS_MULTIPLE) * (width // CANVAS_MULTIPLE)
    return text_rows + (latent_frames(frames) + keyframes) * patches + AUDIO_CHANNELS * audio_latents(frames)


def t2va(text: int | np.ndarray, frames: int, height: int, width: int) -> Layout:
    """Layout of a film from text.

    text: number of text rows, or their tags, int (n,).   frames: 17n + 5.   height, width: pixels, multiples of 32.
    raises: ValueError for a size the model has no rows for.
    """
    return fl2va(text, frames, height, width, ())


def fl2va(text: int | np.ndarray, frames: int, height: int, width: int, keyframes: Sequence[str]) -> Layout:
    """Layout of a film from text and keyframes.

    keyframes: "first", "last" or both, in that order.
    raises: ValueError for a size the model has no rows for.
    """
    packer = _Packer(text, frames, height, width)
    times = {"first": packer.clock, "last": packer.clock + float(packer.spans.sum()) - FRAME_SPAN}
    for keyframe in keyframes:
        packer.add_video(packer.grid, np.array([times[keyframe]]), condition=True)
    return packer.finish()


def ref2va(text: int | np.ndarray, references: Sequence[Reference], frames: int, height: int, width: int) -> Layout:
    """Layout of a film from text and references, which advance the media clock one after the other.

    raises: ValueError for a size the model has no rows for.
    """
    packer = _Packer(text, frames, height, width)
    for reference in references:
        packer.add_reference(reference)
    return packer.finish()


def frame_spans(latents: int) -> np.ndarray:
    """Clock units that each latent frame covers, float64 (latents,)."""
    return FRAME_SPAN * np.resize(np.array(FRAMES_PER_LATENT, np.float64), latents)


@dataclass(frozen=True)
class _Grid:
    """Spatial coordinates of one latent canvas, float64: `rows` down, `columns` across."""

    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, height: int, width: int) -> _Grid:
        """height, width: latents."""
        if height < PATCH or width < PATCH or height % PATCH or width % PATCH:
            raise ValueError(f"a latent canvas of {height} x {width} is not made of 2 x 2 patches")
        return cls(_axis(height, height, width), _axis(width, height, width))


def _axis(size: int, height: int, width: int) -> np.ndarray:
    """Coordinates of one axis: centred, relative to the canvas's area."""
    ratio = size / math.sqrt(height * width)
    left = (1.0 - ratio) / 2.0
    return np.linspace(left, left + ratio, size // PATCH, endpoint=False) * SPATIAL_SPAN


def _latent_times(latents: int, origin: float) -> np.ndarray:
    """Clock of each latent frame, which is that of the first frame it covers."""
    return origin + np.concatenate(([0.0], np.cumsum(frame_spans(latents)[:-1])))


class _Packer:
    """Rows are added in packed order, and the media clock with them."""

    def __init__(self, text: int | np.ndarray, frames: int, height: int, width: int):
        if height % CANVAS_MULTIPLE or width % CANVAS_MULTIPLE or height < 1 or width < 1:
            raise ValueError(f"a canvas of {height} x {width}: both sides must be multiples of {CANVAS_MULTIPLE}")
        tags = np.full(text, TEXT, np.int32) if isinstance(text, int) else np.asarray(text, np.int32)
        if tags.size == 0:
            raise ValueError("the sequence needs at least one text row")
        self.grid = _Grid.of(height // SPACE_RATIO, width // SPACE_RATIO)
        self.latents, self.audio_latents = latent_frames(frames), audio_latents(frames)
        self.spans = frame_spans(self.latents)
        self.segments: list[Segment] = []
        self.positions: list[np.ndarray] = []
        self.tags: list[np.ndarray] = []
        self.rows = 0
        text_positions = np.zeros((tags.size, 3))
        text_positions[:, 0] = np.arange(tags.size)
        self._append(Segment("text", 0, tags.size, condition=True), text_positions, tags)
        self.clock = float(tags.size)

    def add_video(self, grid: _Grid, times: np.ndarray, condition: bool) -> None:
        positions = np.stack(np.meshgrid(times, grid.rows, grid.columns, indexing="ij"), -1).reshape(-1, 3)
        sizes = (times.size, grid.rows.size, grid.columns.size)
        segment = Segment("video", self.rows, len(positions), condition, *sizes)
        self._append(segment, positions, np.full(len(positions), VIDEO, np.int32))

    def add_audio(self, grid: _Grid, latents: int, condition: bool) -> None:
        """All of the left channel, then all of the right: at the canvas's first and last column."""
        positions = np.zeros((AUDIO_CHANNELS, latents, 3))
        positions[:, :, 0] = self.clock + np.arange(latents)
        positions[:, :, 2] = np.array([grid.columns[0], grid.columns[-1]])[:, None]
        rows = AUDIO_CHANNELS * latents
        segment = Segment("audio", self.rows, rows, condition, frames=latents)
        self._append(segment, positions.reshape(rows, 3), np.full(rows, AUDIO, np.int32))

    def add_reference(self, reference: Reference) -> None:
        """source: diffusers, build_ref2va_packed_sequence. A sounding video's audio rows precede its video rows."""
        if reference.latent is None:
            self.add_audio(self.grid, reference.audio_latents, condition=True)
            self.clock += float(reference.audio_latents)
            return
        latents, height, width = reference.latent
        grid = _Grid.of(height, width)
        if reference.kind == "image":
            self.add_video(grid, np.full(latents, self.clock), condition=True)
            self.clock += 1.0
            return
        if reference.audio_latents:
            self.add_audio(grid, reference.audio_latents, condition=True)
        self.add_video(grid, _latent_times(latents, self.clock), condition=True)
        self.clock += max(float(reference.audio_latents), sum(frame_spans(latents).tolist()))

    def finish(self) -> Layout:
        self.add_audio(self.grid, self.audio_latents, condition=False)
        self.add_video(self.grid, _latent_times(self.latents, self.clock), condition=False)
        tags = np.concatenate(self.tags)

        def indices(kind: str) -> np.ndarray:
            spans = [np.arange(s.start, s.start + s.rows, dtype=np.int32) for s in self.segments if s.kind == kind]
            return np.concatenate(spans)

        def conditions(kind: str) -> int:
            return sum(s.rows for s in self.segments if s.kind == kind and s.condition)

        return Layout(
            segments=tuple(self.segments),
            positions=np.concatenate(self.positions),
            tags=tags,
            text_indices=indices("text"),
            video_indices=indices("video"),
            audio_indices=indices("audio"),
            condition_video_rows=conditions("video"),
            condition_audio_rows=conditions("audio"),
        )

    def _append(self, segment: Segment, positions: np.ndarray, tags: np.ndarray) -> None:
        self.segments.append(segment)
        self.positions.append(positions)
        self.tags.append(tags)
        self.rows += segment.rows


def patchify(latent: np.ndarray) -> np.ndarray:
    """Rows of a video latent: (C, T, h, w) -> (T h/2 w/2, 4C); a row's order is channel, row, column."""
    channels, frames, height, width = latent.shape
    split = latent.reshape(channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    return np.ascontiguousarray(split.transpose(1, 2, 4, 0, 3, 5)).reshape(-1, channels * PATCH * PATCH)


def unpatchify(rows: np.ndarray, frames: int, height: int, width: int) -> np.ndarray:
    """The video latent of its rows: (T h/2 w/2, 4C) -> (C, T, h, w); height and width in latents."""
    channels = rows.shape[1] // (PATCH * PATCH)
    split = rows.reshape(frames, height // PATCH, width // PATCH, channels, PATCH, PATCH)
    return np.ascontiguousarray(split.transpose(3, 0, 1, 4, 2, 5)).reshape(channels, frames, height, width)


def audio_to_rows(latent: np.ndarray) -> np.ndarray:
    """Rows of a stereo audio latent: (2, C, A) -> (2A, C), all of left first."""
    return np.ascontiguousarray(latent.transpose(0, 2, 1)).reshape(-1, latent.shape[1])


def rows_to_audio(rows: np.ndarray) -> np.ndarray:
    """The stereo audio latent of its rows: (2A, C) -> (2, C, A)."""
    return np.ascontiguousarray(rows.reshape(AUDIO_CHANNELS, -1, rows.shape[1]).transpose(0, 2, 1))
