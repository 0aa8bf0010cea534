"""The sound of a shot: a timbre per shape, a gesture per motion, heard on the side where the subject is. 32 kHz, stereo.

Pitches are multiples of 40 Hz and change only every 1/40 s, so a glide is a quick scale: each audio latent (800 samples)
then holds whole periods and always starts at phase zero, which lets a very small decoder play in tune. A small subject
sounds higher than a large one; a bounce knocks at the moment of impact; stillness is near silence.
"""

from __future__ import annotations

import numpy as np

from h3core.micro import world

RATE = 32000
HOP = 800  # samples of one audio latent; 40 of them a second
STEP_HZ = RATE / HOP
PITCH_HZ = {"ball": 240.0, "box": 160.0, "triangle": 320.0, "star": 440.0}
PARTIALS = {  # (multiple of the pitch, loudness)
    "ball": ((1, 1.0), (2, 0.12)),
    "box": ((1, 0.8), (3, 0.3), (5, 0.16), (7, 0.08)),
    "triangle": ((1, 0.6), (2, 0.32), (3, 0.22), (4, 0.16), (5, 0.12)),
    "star": ((1, 0.6), (3, 0.3), (7, 0.2)),
}
LOUDNESS = 0.4
FADE_S = 0.0125


def latents(frames: int) -> int:
    """Audio latents of a film of `frames` video frames (Python's round: half to even)."""
    return round(frames / world.FPS * 40)


def _tone(shape: str, pitch_hz: np.ndarray) -> np.ndarray:
    """pitch_hz per sample -> the tone, its pitch taken at the start of every 1/40 s and rounded to a multiple of 40 Hz."""
    samples = np.arange(len(pitch_hz))
    periods = np.rint(pitch_hz[samples // HOP * HOP] / STEP_HZ)
    phase = 2 * np.pi * periods * (samples % HOP) / HOP
    return sum(loud * np.sin(multiple * phase) for multiple, loud in PARTIALS[shape])


def shot_sound(shot: world.Shot, samples: int) -> np.ndarray:
    """The soundtrack of one shot, (2, samples) float32 in -1..1, left then right."""
    time_s = np.arange(samples) / RATE
    u = time_s * world.FPS / shot.frames
    pitch = np.full(samples, PITCH_HZ[shot.shape] * (1.25 if shot.size == "small" else 0.8))
    loud = np.full(samples, LOUDNESS)
    side = np.zeros(samples)  # -1 left, 0 middle, 1 right
    if shot.motion in ("moves right", "moves left"):
        sign = 1 if shot.motion == "moves right" else -1
        side = sign * np.clip(2 * u - 1, -1, 1)
        pitch = pitch * (1 + 0.4 * u)
    elif shot.motion == "moves up":
        pitch = pitch * (0.8 + 0.9 * u)
    elif shot.motion == "moves down":
        pitch = pitch * (1.7 - 0.9 * u)
    elif shot.motion == "bounces":
        loud = np.zeros(samples)
        for frame in world.impacts(shot):
            since = time_s - frame / world.FPS
            loud += np.where(since >= 0, 2 * LOUDNESS * np.exp(-np.maximum(since, 0) / 0.06), 0)
    elif shot.motion == "spins":
        loud = loud * (0.55 + 0.45 * np.sin(2 * np.pi * 6 * time_s))
    elif shot.motion == "grows":
        loud = loud * (0.1 + 1.2 * u)
        pitch = pitch * (1.3 - 0.6 * u)
    else:
        loud = np.full(samples, 0.006)
    fade = np.clip(np.minimum(time_s, time_s[-1] - time_s) / FADE_S, 0, 1) if samples else time_s
    mono = _tone(shot.shape, pitch) * loud * fade
    angle = (side + 1) * np.pi / 4
    return np.clip(np.stack([mono * np.cos(angle), mono * np.sin(angle)]) * np.sqrt(2) * 0.8, -1, 1).astype(np.float32)


def film_sound(film: world.Film) -> np.ndarray:
    """The soundtrack of a film, (2, latents * 800) float32; every shot's sound ends with its picture."""
    total = latents(film.frames) * HOP
    ends = np.cumsum([shot.frames for shot in film.shots])
    cuts = [0, *(round(int(end) / world.FPS * RATE) for end in ends[:-1]), total]
    return np.concatenate(
        [shot_sound(shot, stop - start) for shot, start, stop in zip(film.shots, cuts[:-1], cuts[1:], strict=True)], axis=1
    )
