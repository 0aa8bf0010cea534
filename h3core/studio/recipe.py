"""The recipe that a film carries, read back: from the MP4 itself or from the JSON beside it.

What comes from a file is data: a value that this program can use is taken, each other one is left out with a sentence
that says so, and no path in it is ever followed. Knows the schema, no engine and no page.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from h3core.studio import schema
from h3core.studio.schema import FIELDS, ModelFacts, RequestError

VERSION = 1  # of what the engine writes
MAX_TEXT = 4 << 20  # bytes; a recipe is a few KB, a prompt of the greatest length well below this
BOXES = 10_000  # more in one place is no film
COMMENT = (b"moov", b"udta", b"meta", b"ilst", b"\xa9cmt", b"data")  # where players look for a comment
PATHS = ("model", "output", "start_latents")


class RecipeError(ValueError):
    """There is no recipe in that file; the message is one sentence."""


@dataclass(frozen=True)
class Recalled:
    """What a file gave back. values: raw values by field, all of them legal.   notes: what was not taken and why.

    model: its name as the file has it.   weights: identity of each part.
    """

    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    model: str = ""
    weights: dict[str, str] = field(default_factory=dict)


def read(path: str | os.PathLike) -> dict[str, Any]:
    """The recipe in an MP4 or a JSON file, as it was written. raises: RecipeError."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            head = file.read(12)
            file.seek(0)
            text = _comment(file) if head[4:8] == b"ftyp" else _small(file)
    except OSError as error:
        raise RecipeError(f"The file could not be read: {error.strerror}.") from error
    if not text:
        raise RecipeError("This film carries no recipe: it was made without, or by another program.")
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise RecipeError("There is no recipe in this file; films made here and the JSON beside them have one.")
    return found


def _small(file: BinaryIO) -> bytes:
    data = file.read(MAX_TEXT + 1)
    return data if len(data) <= MAX_TEXT else b"?"


def _comment(file: BinaryIO) -> bytes:
    """The comment of an MP4, b"" without one. source: ISO/IEC 14496-12 boxes; the ilst list is QuickTime's."""
    start, end = 0, file.seek(0, os.SEEK_END)
    for name in COMMENT:
        found = next(((a, b) for kind, a, b in _boxes(file, start, end) if kind == name), None)
        if found is None:
            return b""
        start, end = found
        start += 4 if name == b"meta" else 0  # version and flags
    if not 8 <= end - start <= MAX_TEXT:
        return b""
    file.seek(start + 8)  # type and locale
    return file.read(end - start - 8)


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(name, where its content starts, where it ends) of each box; stops at one that cannot be right."""
    for _ in range(BOXES):
        if end - start < 8:
            return
        file.seek(start)
        size, name = struct.unpack(">I4s", file.read(8))
        content = start + 8
        if size == 1 and end - start >= 16:
            size, content = struct.unpack(">Q", file.read(8))[0], start + 16
        elif size == 0:
            size = end - start
        if size < content - start or size > end - start:
            return
        yield name, content, start + size
        start += size


def recall(found: Mapping[str, Any], facts: ModelFacts, version: str) -> Recalled:
    """What of a recipe can be used here, field by field.

    facts: the model it will be used with.   version: this program's.
    """
    notes: list[str] = []
    given = dict(found["settings"])
    if found.get("recipe") != VERSION:
        notes.append("The recipe was written in another version's form; what is understood was taken.")
    elif found.get("version") != version:
        notes.append(f"It was made by version {_shown(found.get('version'))}, this is {version}.")
    if "width" in given or "height" in given:
        given["size"] = f"{given.pop('width', '?')}x{given.pop('height', '?')}"
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in PATHS:
            notes.append(f"{name}: paths in files are not followed; choose it again.")
        elif name not in FIELDS:
            notes.append(f"{_shown(name)}: this program has no such setting, so it was left out.")
        elif value not in (None, "") and (name, value) != ("guidance", 1):  # a guidance of 1 is none
            try:
                request = schema.parse({"prompt": "x", name: value}, facts)
                notes += request.notes
                values[name] = value
            except RequestError as error:
                notes.append(f"{next(iter(error.faults.values()))} It was left as it is.")
    return Recalled(values, notes, _shown(found.get("model") or ""), _identities(found.get("weights")))


def _identities(weights: Any) -> dict[str, str]:
    pairs = weights.items() if isinstance(weights, dict) else ()
    return {kind: value for kind, value in pairs if isinstance(value, str)}


def same_weights(wanted: Mapping[str, str], candidates: Sequence[tuple[str, Mapping[str, str]]]) -> str | None:
    """Path of the candidate whose parts are all the wanted ones; None when there is none."""
    return next((path for path, own in candidates if wanted and dict(wanted) == dict(own)), None)


def _shown(value: Any) -> str:
    return schema.shown(value)
