"""Cached latents of drawn clips and of their sounds, for the transformer.

Pictures: a list of parts on disk (`latents/part-000.pickle`), so that the cache can grow in slices. Sounds: there are few
distinct ones (a shot's takes sound alike), so one file has them all. Both are kept raw and normalised when loaded, with
statistics that then ship in the VAEs' configs.
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from h3core.micro import audio_vae, sound, training, video_vae, world

PART = 256
LENGTHS = ((22, 0.85), (39, 0.15))


@dataclass
class Statistics:
    """Per-channel mean and standard deviation of raw latents, as the configs carry them."""

    video_mean: list[float]
    video_std: list[float]
    audio_mean: list[float]
    audio_std: list[float]


def sound_key(shot: world.Shot) -> tuple:
    """What the sound of a shot depends on."""
    return shot.shape, shot.size, shot.motion, shot.frames


class Cache:
    """Shots with their normalised latents: video (24, t, h, w), audio (2, A, 32)."""

    def __init__(self, work: Path) -> None:
        self.statistics = statistics(work)
        self.shots: list[world.Shot] = []
        self.video: list[torch.Tensor] = []
        video_mean, video_std = (
            torch.tensor(v).view(-1, 1, 1, 1) for v in (self.statistics.video_mean, self.statistics.video_std)
        )
        for path in sorted((work / "latents").glob("part-*.pickle")):
            for shot, video in pickle.loads(path.read_bytes()):
                self.shots.append(shot)
                self.video.append((torch.from_numpy(video).float() - video_mean) / video_std)
        mean, std = torch.tensor(self.statistics.audio_mean), torch.tensor(self.statistics.audio_std)
        raw = pickle.loads((work / "latents" / "sounds.pickle").read_bytes())
        self.sounds = {key: (torch.from_numpy(value).float() - mean) / std for key, value in raw.items()}

    def batch(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """video (b, 24, t, h, w) and audio (b, 2, A, 32), float32."""
        return torch.stack([self.video[i] for i in indices]), torch.stack([self.sounds[sound_key(self.shots[i])] for i in indices])


def statistics(work: Path) -> Statistics:
    return pickle.loads((work / "latents" / "statistics.pickle").read_bytes())


def keep_statistics(work: Path, found: Statistics) -> None:
    (work / "latents").mkdir(parents=True, exist_ok=True)
    (work / "latents" / "statistics.pickle").write_bytes(pickle.dumps(found))


def grow(work: Path, minutes: float, parts: int = 14, moving_camera: float = 0.0, log=print) -> None:
    """Add parts of PART clips each until there are `parts` of them or the minutes are over."""
    folder, clock = work / "latents", training.Clock(minutes)
    folder.mkdir(parents=True, exist_ok=True)
    have = len(list(folder.glob("part-*.pickle")))
    while have < parts and clock.minutes < minutes:
        rng = np.random.default_rng(5000 + have)
        items = []
        for _ in range(PART):
            frames = int(rng.choice([length for length, _ in LENGTHS], p=[share for _, share in LENGTHS]))
            shot = world.random_shot(rng, frames, moving_camera)
            items.append((shot, video_vae.area_latents(world.draw_shot(shot)).astype(np.float16)))
        partial = folder / "part.partial"
        partial.write_bytes(pickle.dumps(items))
        partial.rename(folder / f"part-{have:03d}.pickle")
        have += 1
        log(f"cache part {have} of {parts}, {clock.minutes:.1f} min")


def encode_sounds(work: Path, log=print) -> None:
    """The latents of every distinct sound of a single shot, and all statistics unless a shipped tree brought them."""
    sounds = {}
    for shape, size, motion, (frames, _) in itertools.product(world.SHAPES, world.SIZES, world.MOTIONS, LENGTHS):
        shot = world.Shot(shape=shape, size=size, motion=motion, frames=frames)
        sounds[sound_key(shot)] = audio_vae.band_latents(sound.film_sound(world.Film((shot,))))
    (work / "latents").mkdir(parents=True, exist_ok=True)
    (work / "latents" / "sounds.pickle").write_bytes(pickle.dumps(sounds))
    if not (work / "latents" / "statistics.pickle").exists():
        items = pickle.loads((work / "latents" / "part-000.pickle").read_bytes())
        video = np.concatenate([video.reshape(24, -1) for _, video in items], axis=1).astype(np.float64)
        audio = np.concatenate([value.reshape(-1, 32) for value in sounds.values()]).astype(np.float64)
        parts = (video.mean(1), video.std(1), audio.mean(0), audio.std(0))
        keep_statistics(work, Statistics(*(value.round(6).tolist() for value in parts)))
    log(f"{len(sounds)} sounds")
