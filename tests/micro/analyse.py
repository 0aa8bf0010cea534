"""Reads back what a film shows: place, colour, shape and motion from its frames, the side from its sound. Pure numpy.

Made for h3-micro's world (h3core/micro/world.py): plain places, six colours, one subject. Measures films; trains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from h3core.micro import world

FEW_PIXELS = 30
NEAR = 75.0  # RGB distance within which a pixel counts as a subject's colour


@dataclass(frozen=True)
class Reading:
    """What was seen. track: centre x, y and area per frame, NaN where no subject was found, (frames, 3)."""

    place: str
    colour: str
    shape: str
    motion: str
    track: np.ndarray


def _places(height: int, width: int) -> dict[str, np.ndarray]:
    unit = world.SPAN / min(height, width)
    y, x = np.meshgrid((np.arange(height) + 0.5) * unit, (np.arange(width) + 0.5) * unit, indexing="ij")
    return {name: world.draw_place(name, x, y - (height * unit - world.SPAN), unit) for name in world.PLACES}


def read_place(frames: np.ndarray) -> str:
    """The place whose drawing is nearest, by the median difference over all pixels: the subject covers less than half."""
    small = frames[:: max(len(frames) // 4, 1)].astype(np.float32)
    errors = {name: np.median(np.abs(small - ground).max(-1)) for name, ground in _places(*frames.shape[1:3]).items()}
    return min(errors, key=errors.get)


def subject_mask(frames: np.ndarray, place: str) -> np.ndarray:
    """Pixels that differ clearly from the place as drawn, without specks, (f, h, w) bool."""
    ground = _places(*frames.shape[1:3])[place]
    mask = np.abs(frames.astype(np.float32) - ground).max(-1) > 55
    # A pixel stays if most of its 5x5 neighbourhood differs too: the night's stars and soft seams do not.
    padded = np.pad(mask, ((0, 0), (2, 2), (2, 2))).astype(np.int32)
    total = padded.cumsum(1).cumsum(2)
    total = np.pad(total, ((0, 0), (1, 0), (1, 0)))
    window = total[:, 5:, 5:] - total[:, :-5, 5:] - total[:, 5:, :-5] + total[:, :-5, :-5]
    return mask & (window >= 13)


def read_colour(frames: np.ndarray, mask: np.ndarray) -> str:
    """The palette colour most subject pixels are near to; the ball's dark band is near none."""
    pixels = frames[mask].astype(np.float32)
    if not len(pixels):
        return "none"
    palette = np.array(list(world.COLOURS.values()), np.float32)
    distance = np.linalg.norm(pixels[:, None] - palette, axis=-1)
    votes = np.bincount(distance.argmin(1)[distance.min(1) < NEAR], minlength=len(palette))
    return list(world.COLOURS)[int(votes.argmax())] if votes.max() else "none"


def track_subject(mask: np.ndarray) -> np.ndarray:
    """Centre x, y and area of the mask per frame, (f, 3); NaN centres where there are too few pixels."""
    f, h, w = mask.shape
    area = mask.sum((1, 2)).astype(np.float64)
    x = (mask.sum(1) @ np.arange(w)) / np.maximum(area, 1)
    y = (mask.sum(2) @ np.arange(h)) / np.maximum(area, 1)
    lost = area < FEW_PIXELS
    return np.stack([np.where(lost, np.nan, x), np.where(lost, np.nan, y), area], axis=1)


def _profile(mask: np.ndarray) -> np.ndarray | None:
    """Distance from the centre to the outline in 72 directions, relative to its mean; None if there is no subject."""
    y, x = np.nonzero(mask)
    if len(x) < FEW_PIXELS:
        return None
    dx, dy = x - x.mean(), y - y.mean()
    angle = ((np.arctan2(dy, dx) + np.pi) / (2 * np.pi) * 72).astype(int) % 72
    reach = np.zeros(72)
    np.maximum.at(reach, angle, np.hypot(dx, dy))
    empty = reach == 0
    if empty.mean() > 0.3:
        return None
    reach[empty] = np.interp(np.nonzero(empty)[0], np.nonzero(~empty)[0], reach[~empty], period=72)
    return reach / reach.mean()


def read_shape(mask: np.ndarray) -> str:
    """From the outline's 3-, 4- and 5-fold unevenness, over the frames in which the subject is largest."""
    order = np.argsort(-mask.sum((1, 2)))[: max(len(mask) // 2, 1)]
    profiles = [p for p in (_profile(mask[i]) for i in order) if p is not None]
    if not profiles:
        return "none"
    folds = np.mean([np.abs(np.fft.rfft(p))[3:6] / 36 for p in profiles], axis=0)
    if folds.max() < 0.06:
        return "ball"
    return ("triangle", "box", "star")[int(folds.argmax())]


def _spin(mask: np.ndarray) -> float:
    """Mean change of the outline from frame to frame."""
    profiles = [p for p in map(_profile, mask) if p is not None]
    return float(np.mean(np.abs(np.diff(profiles, axis=0)))) if len(profiles) > 2 else 0.0


def _band_turns(frames: np.ndarray, mask: np.ndarray, track: np.ndarray, colour: str) -> bool:
    """Whether the ball's dark band stands clearly askew in some frame."""
    dark = np.asarray(world.COLOURS.get(colour, (0, 0, 0)), np.float32) * 0.55
    steep = 0
    for frame, inside, (x, y, _) in zip(frames, mask, track, strict=True):
        band = inside & (np.linalg.norm(frame.astype(np.float32) - dark, axis=-1) < 60)
        ys, xs = np.nonzero(band)
        if len(xs) >= 12:
            steep += abs(np.std(ys - y)) > 0.8 * abs(np.std(xs - x))
    return steep >= 0.2 * len(frames)


def read_motion(frames: np.ndarray, mask: np.ndarray, colour: str, shape: str) -> str:
    """The motion from the subject's centre, area and outline over time (static camera)."""
    track = track_subject(mask)
    seen = ~np.isnan(track[:, 0])
    if seen.sum() < max(4, len(track) // 3):
        return "none"
    time = np.nonzero(seen)[0]
    x, y, area = track[seen].T
    unit = world.SPAN / min(frames.shape[1:3])
    slope_x, slope_y = (np.polyfit(time, v * unit, 1)[0] * (len(track) - 1) for v in (x, y))
    rest = y * unit - np.polyval(np.polyfit(time, y * unit, 1), time)
    third = max(len(area) // 4, 1)
    growth = np.median(area[-third:]) / max(np.median(area[:third]), 1)
    if np.std(rest) > 6:
        return "bounces"
    if max(abs(slope_x), abs(slope_y)) > 22:
        if abs(slope_x) > abs(slope_y):
            return "moves right" if slope_x > 0 else "moves left"
        return "moves down" if slope_y > 0 else "moves up"
    if growth > 1.8:
        return "grows"
    turning = _band_turns(frames, mask, track, colour) if shape == "ball" else _spin(mask) > 0.035
    return "spins" if turning else "stays still"


def read(frames: np.ndarray) -> Reading:
    """Everything, from a film's frames (f, h, w, 3) uint8 of one static shot."""
    place = read_place(frames)
    mask = subject_mask(frames, place)
    colour, shape = read_colour(frames, mask), read_shape(mask)
    return Reading(place, colour, shape, read_motion(frames, mask, colour, shape), track_subject(mask))


def loudness(sound: np.ndarray, frames: int) -> np.ndarray:
    """Root mean square of each side over each frame's time; sound (2, samples) -> (2, frames)."""
    edges = np.linspace(0, sound.shape[1], frames + 1).astype(int)
    power = np.pad(np.cumsum(sound.astype(np.float64) ** 2, axis=1), ((0, 0), (1, 0)))
    return np.sqrt(np.maximum(np.diff(power[:, edges], axis=1), 0) / np.diff(edges))


def read_side(sound: np.ndarray) -> str:
    """How the sound travels: "right" (from left to right), "left", "middle", or "silent"."""
    level = loudness(sound, 8)
    if level.max() < 0.02:
        return "silent"
    balance = (level[1] - level[0]) / np.maximum(level.sum(0), 0.01)
    drift = np.polyfit(np.arange(8), balance, 1)[0] * 7
    return "right" if drift > 0.6 else "left" if drift < -0.6 else "middle"
