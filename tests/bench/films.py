"""How many films of held-out sentences show what was said, by attribute. Prints a table and writes a contact sheet.

    python -m tests.bench.films [--count 40] [--frames 39] [--steps 20] [--guidance 1 2 3] [--sheet FILE.png]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from h3core.engine import media
from tests.micro import films


def sheet(made: list[films.Made], columns: int = 2, shown: int = 6) -> np.ndarray:
    """Some frames of each film in a row, two films a line."""
    strips = [np.concatenate(list(film.frames[np.linspace(0, len(film.frames) - 1, shown).astype(int)]), axis=1) for film in made]
    strips = strips[: len(strips) // columns * columns]
    return np.concatenate([np.concatenate(strips[i : i + columns], axis=1) for i in range(0, len(strips), columns)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--frames", type=int, default=39)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, nargs="*", default=[None])
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    for guidance in options.guidance:
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            made = list(films.films(Path(folder), options.count, options.frames, options.steps, guidance))
            each_s = (time.monotonic() - started) / options.count
        for film in made:
            if not (film.right("colour") and film.right("motion")):
                print(f"  {film.prompt!r}: seen {film.seen.colour} {film.seen.shape} {film.seen.motion}, {film.seen.place}")
        strength = "the model's own guidance" if guidance is None else f"guidance {guidance:g}"
        print(f"{strength}, {options.count} films, {options.frames} frames, {options.steps} steps, {each_s:.1f} s each")
        for what, share in films.shares(made).items():
            print(f"  {what:14} {share:6.1%}")
        if options.sheet:
            media.write_png(options.sheet, sheet(made), "contact sheet")


if __name__ == "__main__":
    main()
