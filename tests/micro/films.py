"""Films that the engine makes of held-out sentences, read back by the analyser: how many show what was said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from imageio_ffmpeg import read_frames

from h3core.engine.cache import Cache
from h3core.engine.pipeline import Engine, Run
from h3core.engine.plan import Settings
from h3core.kernels.table import Kernels
from h3core.micro import language, world
from h3core.weights.identify import open_model
from tests.micro import analyse

MODEL = Path(__file__).parents[2] / "h3core" / "micro" / "model"
READ = ("place", "colour", "shape", "motion")


@dataclass(frozen=True)
class Made:
    """One film: what was asked, in which words and language, its frames, and what was seen."""

    shot: world.Shot
    prompt: str
    language: str
    frames: np.ndarray
    seen: analyse.Reading

    def right(self, what: str) -> bool:
        return getattr(self.seen, what) == getattr(self.shot, what)


def shots(count: int, frames: int) -> list[world.Shot]:
    """Every colour and motion about equally often, the rest at random."""
    rng = np.random.default_rng(2026)
    return [
        world.Shot(
            shape=str(rng.choice(world.SHAPES)),
            colour=list(world.COLOURS)[i % len(world.COLOURS)],
            size=str(rng.choice(list(world.SIZES))),
            place=str(rng.choice(world.PLACES)),
            motion=world.MOTIONS[i % len(world.MOTIONS)],
            frames=frames,
        )
        for i in range(count)
    ]


def films(folder: Path, count: int, frames: int = 39, steps: int = 20, guidance: float | None = None) -> Iterator[Made]:
    """Held-out sentences, every fourth in Chinese, each made into an MP4 by the engine and decoded from it.

    guidance None: what the engine does when nothing is asked.
    """
    engine, model = Engine(Kernels(threads=2), Cache(folder / "cache")), open_model(MODEL)
    rng = np.random.default_rng(7)
    for number, shot in enumerate(shots(count, frames)):
        tongue = "zh" if number % 4 == 3 else "en"
        prompt = language.describe(shot, rng, "held out", tongue)
        strength = {} if guidance is None else {"guidance": guidance}
        settings = Settings(prompt=prompt, width=128, height=128, frames=frames, steps=steps, seed=1000 + number, **strength)
        run = Run(f"film-{number}", settings, folder / f"run-{number}", folder / f"{number:03d}.mp4")
        engine.generate(run, model, lambda *_, **__: None, lambda: False)
        pictures = decoded(run.output)
        yield Made(shot, prompt, tongue, pictures, analyse.read(pictures))


def decoded(path: Path) -> np.ndarray:
    """(F, H, W, 3) uint8, as a player would show them."""
    reader = read_frames(str(path))
    width, height = next(reader)["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


def shares(made: list[Made]) -> dict[str, float]:
    """Share of films in which each attribute was seen as asked; "direction" over those that move right, left, up or down."""
    hits = defaultdict(list)
    for film in made:
        for what in READ:
            hits[what].append(film.right(what))
        if film.shot.motion in ("moves right", "moves left", "moves up", "moves down"):
            hits["direction"].append(film.right("motion"))
        hits[f"colour, {film.language}"].append(film.right("colour"))
        hits[f"motion, {film.language}"].append(film.right("motion"))
    return {what: float(np.mean(values)) for what, values in hits.items()}
