"""Names of film files: time, seed and a few words of the prompt; every system can write them and no two are equal."""

from __future__ import annotations

import sys
import time
import unicodedata
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
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{seed}_{slug(prompt)}"
    number = 1
    path = folder / f"{stem}.mp4"
    while path.exists():
        number += 1
        path = folder / f"{stem}_{number}.mp4"
    return path
