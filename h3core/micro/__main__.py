"""`python -m h3core.micro [STAGE ...]`: build the embedded model from nothing, in resumable slices.

Without a stage all of them run in order, each for its planned minutes; with stages, each runs for `--minutes` and goes on
from its checkpoint in `--work`. Planned minutes are for one CPU core with AVX-512 BF16; text, video-vae and audio-vae may run side by side,
and dit needs only tokenizer, text, cache and sounds.

  tokenizer 1 · text 10 · cache 4 · sounds 1 · video-vae 75 · audio-vae 32 · dit 90 · export 1 · score (measures, makes nothing)

`--from-model DIR` fills an empty work folder from an exported tree first, so that training goes on from shipped weights.
`--curriculum full` also draws moving cameras; `first` keeps the camera still.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

PLAN = {
    "tokenizer": 1.0,
    "text": 10.0,
    "cache": 9.0,
    "sounds": 1.0,
    "video-vae": 75.0,
    "audio-vae": 32.0,
    "dit": 90.0,
    "export": 1.0,
    "score": 5.0,
}
MOVING_CAMERA = {"first": 0.0, "full": 0.5}


def log(line: str) -> None:
    print(line, flush=True)


def run(stage: str, args: argparse.Namespace, minutes: float) -> None:
    """One stage, imported only when it runs: torch takes seconds to load and not every stage needs all of it."""
    work: Path = args.work
    if stage == "tokenizer":
        import numpy as np

        from h3core.micro import language, text_encoder, tokenizer

        rng = np.random.default_rng(11)
        films = [text_encoder.random_film(rng) for _ in range(24000)]
        tokenizer.train((language.describe_film(film, rng, "all") for film in films), work / "tokenizer")
    elif stage == "text":
        from h3core.micro import text_encoder

        text_encoder.train(work, minutes, log=log)
    elif stage == "cache":
        from h3core.micro import latents

        latents.grow(work, minutes, args.parts, MOVING_CAMERA[args.curriculum], log=log)
    elif stage == "sounds":
        from h3core.micro import latents

        latents.encode_sounds(work, log=log)
    elif stage == "video-vae":
        from h3core.micro import video_vae

        video_vae.train(work, minutes, end=args.plan or PLAN[stage], log=log)
    elif stage == "audio-vae":
        from h3core.micro import audio_vae

        audio_vae.train(work, minutes, end=args.plan or PLAN[stage], log=log)
    elif stage == "dit":
        from h3core.micro import transformer

        transformer.train(work, minutes, end=args.plan or PLAN[stage], log=log)
    elif stage == "export":
        from h3core.micro import export

        export.export(work, args.out or export.MODEL, log=log)
    elif stage == "score":
        from h3core.micro import score

        score.score(work, args.count, tuple(args.guidance), args.frames, log=log)


def main() -> int:
    parser = argparse.ArgumentParser(prog="h3core.micro", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[[], *PLAN], help="default: all, in order")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "h3-micro", help="checkpoints and caches")
    parser.add_argument("--minutes", type=float, help="length of this slice; default: the whole plan")
    parser.add_argument("--plan", type=float, help="total minutes planned for the stage, which its learning rate follows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--from-model", type=Path, help="an exported tree to go on from")
    parser.add_argument("--curriculum", choices=tuple(MOVING_CAMERA), default="first")
    parser.add_argument("--parts", type=int, default=14, help="size of the cache, 256 clips each")
    parser.add_argument("--out", type=Path, help="where export writes; default: the package's own model folder")
    parser.add_argument("--count", type=int, default=40, help="prompts to score")
    parser.add_argument("--guidance", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--frames", type=int, default=22)
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(args.threads)
    if args.from_model:
        from h3core.micro import export

        export.import_tree(args.from_model, args.work)
    for stage in args.stages or PLAN:
        run(stage, args, args.minutes or PLAN[stage])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
