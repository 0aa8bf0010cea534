"""`python -m h3core.micro [STAGE ...]`: build the embedded model from nothing, in resumable slices."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def log(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="h3core.micro", description=__doc__)
    parser.add_argument("stages", nargs="*", default=["video-vae"])
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "h3-micro")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(args.threads)
    for stage in args.stages:
        if stage == "tokenizer":
            import numpy as np

            from h3core.micro import language, text_encoder, tokenizer

            rng = np.random.default_rng(11)
            films = [text_encoder.random_film(rng) for _ in range(24000)]
            tokenizer.train((language.describe_film(film, rng, "all") for film in films), args.work / "tokenizer")
        if stage == "text":
            from h3core.micro import text_encoder

            text_encoder.train(args.work, args.minutes, log=log)
        if stage == "cache":
            from h3core.micro import latents

            latents.grow(args.work, args.minutes, log=log)
        if stage == "sounds":
            from h3core.micro import latents

            latents.encode_sounds(args.work, log=log)
        if stage == "dit":
            from h3core.micro import transformer

            transformer.train(args.work, args.minutes, log=log)
        if stage == "score":
            from h3core.micro import score

            score.score(args.work, log=log)
        if stage == "export":
            from h3core.micro import export

            export.export(args.work, log=log)
        if stage == "audio-vae":
            from h3core.micro import audio_vae

            audio_vae.train(args.work, args.minutes, log=log)
        if stage == "video-vae":
            from h3core.micro import video_vae

            video_vae.train(args.work, args.minutes, log=log)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
