"""Names of film files: time, seed and a few words of the prompt; every system can write them and no two are equal."""

from __future__ import annotations

import sys
import time
import unicodedata
import zlib
from pathlib import Path

SLUG_BYTES = 60  # a name has at most 255 bytes, and Chinese takes three a character


def slug(prompt: str) -> str:
    """Letters and digits of the prompt, others as single dashes, at most SLUG_BYTES bytes; "film" if none is left."""
    text = unicodedata.normalize("NFC", prompt)
    if sys.getfilesystemencoding() != "utf-8":
        text = text.encode("ascii", "ignore").decode("ascii")
    words = "".join(c if c.isalnum() else " " for c in text).split()
    # cutting the bytes may leave part of a character at the end, which "ignore" drops
    cut = "-".join(words).encode("utf-8", "ignore")[:SLUG_BYTES].decode("utf-8", "ignore")
    return cut.strip("-") or "film"


def film_path(folder: Path, prompt: str, seed: int) -> Path:
    """A path in the folder that is not taken yet."""
    return _not_taken(folder / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{seed}_{slug(prompt)}.mp4")


def take_path(output: Path, take: int, takes: int) -> Path:
    """Where a take goes when the person named one film: film.mp4, or film_1.mp4, film_2.mp4, ... of several.

    A film that is there already stays: the new one is film_2.mp4.
    """
    return _not_taken(output if takes == 1 else output.with_name(f"{output.stem}_{take}{output.suffix}"))


def _not_taken(path: Path) -> Path:
    """The path, or the first of path_2, path_3, ... where neither film, poster nor recipe would replace a file."""
    found, number = path, 1
    while any(found.with_suffix(suffix).exists() for suffix in (found.suffix, ".png", ".json")):
        number += 1
        found = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return found


def leftovers(output: Path) -> list[Path]:
    """Hidden files that an encoder which was killed may leave beside a film, as the engine names them."""
    trial = f"{_hidden(output.name)}.test.mp4"
    names = (f"{_hidden(output.name)}.part.mp4", trial, f"{_hidden(trial)}.part.mp4")
    return [output.with_name(name) for name in (*names, f".{output.stem}.png.part", f".{output.stem}.json.part")]


def _hidden(name: str) -> str:
    return f".h3-{zlib.crc32(name.encode('utf-8', 'surrogateescape')):08x}"
