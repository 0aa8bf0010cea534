"""Generating films with the training modules and scoring them with the analyser in tests/: the yardstick while training."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from h3core.micro import export, language, text_encoder, transformer, video_vae, world
from h3core.micro.tokenizer import MicroTokenizer


@torch.no_grad()
def generate(
    parts: dict, tokenizer: MicroTokenizer, prompts: list[str], frames: int = 22, steps: int = 20, guidance: float = 1.0, seed: int = 0
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Frames (f, 128, 128, 3) uint8 and sound (2, samples) of every prompt, batched by token count."""
    films: list = [None] * len(prompts)
    tracks: list = [None] * len(prompts)
    by_length = defaultdict(list)
    for i, prompt in enumerate(prompts):
        by_length[len(tokenizer.encode(prompt))].append(i)
    blank = text_encoder.states(parts["text_encoder"], torch.tensor([[tokenizer.unconditional]]))[0]
    vae, audio_vae = parts["vae"], parts["audio_vae"]
    v_mean, v_std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    a_mean, a_std = torch.tensor(audio_vae.config.latents_mean), torch.tensor(audio_vae.config.latents_std)
    for n, members in by_length.items():
        ids = torch.tensor([tokenizer.encode(prompts[i]) for i in members])
        with torch.autocast("cpu", torch.bfloat16):
            text = text_encoder.states(parts["text_encoder"], ids)[0]
            video, audio = transformer.sample(
                parts["transformer"], text.float(), blank.float(), frames, 128, 128, steps, guidance, seed + n
            )
            for i, z, sound_latents in zip(members, video.float() * v_std + v_mean, audio.float() * a_std + a_mean, strict=True):
                films[i] = video_vae.to_bytes(decode(vae, z[None]))[0]
                with torch.autocast("cpu", enabled=False):
                    tracks[i] = audio_vae.decode(sound_latents.transpose(1, 2)).sample[:, 0].numpy()
    return films, tracks


def decode(vae, z: torch.Tensor) -> torch.Tensor:
    """Latents (1, 24, 5n + 2, h, w) -> normalised frames, chunk by chunk with the cross-fade of five frames."""
    chunks = [video_vae.decode_chunk(vae, z[:, :, i : i + 7]).float() for i in range(0, z.shape[2] - 2, 5)]
    out = chunks[0][:, :, :17]
    fade = (torch.arange(5) / 5).view(1, 1, 5, 1, 1)
    for before, chunk in zip(chunks[:-1], chunks[1:], strict=True):
        head = before[:, :, 17:] * (1 - fade) + chunk[:, :, :5] * fade
        out = torch.cat([out, head, chunk[:, :, 5:17]], dim=2)
    return torch.cat([out, chunks[-1][:, :, 17:]], dim=2)


def balanced_shots(count: int, frames: int, seed: int) -> list[world.Shot]:
    """Shots in which every motion, place and colour appears about equally often."""
    rng = np.random.default_rng(seed)
    shots = []
    for i in range(count):
        shots.append(
            world.Shot(
                shape=world.SHAPES[int(rng.integers(4))],
                colour=tuple(world.COLOURS)[i % 6],
                size=tuple(world.SIZES)[int(rng.integers(2))],
                place=world.PLACES[int(rng.integers(4))],
                motion=world.MOTIONS[i % 8],
                frames=frames,
            )
        )
    return shots


def contact_sheet(films: list[np.ndarray], path: Path, columns: int = 2, shown: int = 6) -> None:
    from PIL import Image

    strips = [np.concatenate(list(f[np.linspace(0, len(f) - 1, shown).astype(int)]), axis=1) for f in films]
    strips += [np.zeros_like(strips[0])] * (-len(strips) % columns)
    rows = [np.concatenate(strips[i : i + columns], axis=1) for i in range(0, len(strips), columns)]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(rows)).save(path)


def score(
    work: Path, count: int = 40, guidance: tuple[float, ...] = (1.0, 3.0), frames: int = 22, steps: int = 20, split: str = "held out", log=print
) -> None:
    """Print how many films show what their prompt says, per attribute and guidance; write contact sheets into work."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.micro import analyse

    parts = {name: model.float() for name, model in export.parts(work).items()}
    tokenizer = MicroTokenizer(work / "tokenizer")
    shots, rng = balanced_shots(count, frames, 99), np.random.default_rng(98)
    prompts = [language.describe(shot, rng, split, "zh" if i % 3 == 2 else "en") for i, shot in enumerate(shots)]
    sides = {"moves right": "right", "moves left": "left", "stays still": "silent"}
    for strength in guidance:
        films, tracks = generate(parts, tokenizer, prompts, frames, steps, strength)
        hits = defaultdict(list)
        for i, (shot, film, track) in enumerate(zip(shots, films, tracks, strict=True)):
            seen = analyse.read(film)
            for name in ("place", "colour", "shape", "motion"):
                hits[name].append(getattr(seen, name) == getattr(shot, name))
                hits[f"{name} {'zh' if i % 3 == 2 else 'en'}"].append(hits[name][-1])
            if shot.motion in world.MOTIONS[:4]:
                hits["direction"].append(hits["motion"][-1])
            hits["side"].append(analyse.read_side(track) == sides.get(shot.motion, "middle"))
            if not (hits["motion"][-1] and hits["colour"][-1]):
                log(f"  miss {i}: {prompts[i]!r} -> {seen.colour} {seen.shape} {seen.motion} in {seen.place}")
        log(f"guidance {strength:g}: " + ", ".join(f"{k} {np.mean(v):.2f}" for k, v in hits.items()))
        contact_sheet(films[:24], work / f"films-guidance-{strength:g}.png")
