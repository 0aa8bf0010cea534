"""Presets: sizes, examples, quality and hardware presets shipped as data, and those that a person saved or changed.

A saved preset is kept by the number it has in the user folder; a changed one under the name of the shipped one, so that
a reset brings that back. Knows the schema, no engine and no page.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h3core.studio import recipe, schema
from h3core.studio.schema import ModelFacts

_PACKAGE = Path(__file__).parent.parent


def folder() -> Path:
    """`presets/` of the checkout this package lies in, else the copy inside the package."""
    checkout = _PACKAGE.parent / "presets"
    return checkout if (checkout / "models.json").exists() else _PACKAGE / "_presets"


@functools.cache
def _models() -> dict[str, Any]:
    return json.loads((folder() / "models.json").read_text(encoding="utf-8"))


def sizes(model: str) -> list[str]:
    """Canvases to offer for a model, as the schema writes them."""
    return list((_models().get(model) or _models()[schema.H3])["sizes"])


def examples(model: str, language: str) -> list[str]:
    """Prompts that show what the model can do."""
    prompts = (_models().get(model) or _models()[schema.H3])["examples"]
    return list(prompts.get(language) or prompts["en"])


SCHEMA = 1  # of the files; raise when an older reader would misread them
FIELDS = ("size", "frames", "steps", "precision", "residency", "guidance")  # what a preset may set
MOST, MOST_BYTES, LONGEST_NAME = 500, 1 << 20, 80


class PresetError(ValueError):
    """That preset cannot be kept or read; the message is one sentence."""


@dataclass(frozen=True)
class Preset:
    """kind: "quality" | "hardware" | "own".   values: raw values by field.   changed: a shipped one with other numbers.

    weights: which quantization fits that memory.   memory_gb: of a hardware preset.
    """

    id: str
    kind: str
    name: str
    values: dict[str, Any]
    note: str = ""
    changed: bool = False
    weights: str = ""
    memory_gb: int = 0


@functools.cache
def _shipped(name: str) -> dict[str, Any]:
    return json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))


def shipped(model: str, language: str) -> list[Preset]:
    """What comes with the program for a model. A toy takes no canvas from presets that were made for H3."""

    def said(text: Mapping[str, str]) -> str:
        return text.get(language) or text["en"]

    family = model if model == schema.MICRO else schema.H3
    found = [
        Preset(f"quality:{each['id']}", "quality", said(each["name"]), each["values"], said(each["note"]))
        for each in _shipped("quality")["presets"]
        if each["model"] == family
    ]
    for each in _shipped("hardware")["by_memory"]:
        values = each["values"] if family == schema.H3 else {"residency": each["values"]["residency"]}
        name = f"{each['memory_gb']} GB"
        found.append(
            Preset(f"hardware:{each['id']}", "hardware", name, values, "", False, each["weights"], each["memory_gb"])
        )
    return found


def for_memory(presets: list[Preset], memory_bytes: int) -> Preset | None:
    """The hardware preset of a computer with so much memory: the largest that it has, within a tenth."""
    gb = memory_bytes / 1e9 * 1.1  # a machine sold with 16 GB shows a little less
    fitting = [each for each in presets if each.kind == "hardware" and each.memory_gb <= gb]
    return max(fitting, key=lambda each: each.memory_gb, default=None)


class Saved:
    """The presets of one user folder: shipped ones, changed ones, own ones."""

    def __init__(self, home: Path):
        self._path, self._guard = home / "presets.json", threading.Lock()

    def all(self, model: str, language: str) -> list[Preset]:
        """Shipped ones as they are now, then own ones."""
        mine = self._read()
        found = []
        for each in shipped(model, language):
            if each.id in mine:
                new = mine.pop(each.id)
                found.append(replace(each, name=new["name"], values=new["values"], changed=True))
            else:
                found.append(each)
        own = [(id, each) for id, each in mine.items() if id.startswith("own:")]
        return found + [Preset(id, "own", each["name"], each["values"]) for id, each in own]

    def save(self, id: str | None, name: str, values: Mapping[str, Any], facts: ModelFacts) -> str:
        """Keeps a preset under its id, None: as a new one. Returns the id.

        raises: PresetError, RequestError when a value is not possible.
        """
        name = " ".join(name.split())[:LONGEST_NAME]
        if not name:
            raise PresetError("A preset needs a name.")
        given = {field: values[field] for field in FIELDS if values.get(field) not in (None, "")}
        schema.parse({"prompt": "x", **given}, facts)
        with self._guard:
            mine = self._read()
            if id is None:
                if len(mine) >= MOST:
                    raise PresetError(f"There are {MOST} presets already; delete one first.")
                numbers = [int(each[4:]) for each in mine if each.startswith("own:") and each[4:].isdigit()]
                id = f"own:{max(numbers, default=0) + 1}"
            mine[id] = {"name": name, "values": given}
            self._write(mine)
        return id

    def remove(self, id: str) -> None:
        """Deletes an own preset; a changed one is as it was shipped again."""
        with self._guard:
            mine = self._read()
            if mine.pop(id, None) is not None:
                self._write(mine)

    def export(self) -> bytes:
        """All that was saved or changed, as a file for another computer."""
        return _dump(self._read())

    def take(self, data: bytes, facts: ModelFacts) -> list[str]:
        """Adds the presets of an exported file as own ones; what was left out, a sentence each. raises: PresetError."""
        try:
            found = json.loads(data[:MOST_BYTES])
            entries = list(found["presets"].values())[:MOST]
            version = found["schema"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PresetError("There are no presets in this file.") from error
        if version != SCHEMA:
            raise PresetError(f"This file has version {schema.shown(version)}; this program reads version {SCHEMA}.")
        notes: list[str] = []
        for each in entries:
            if not (
                isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("values"), dict)
            ):
                notes.append("One entry is no preset, so it was left out.")
                continue
            recalled = recipe.recall({"settings": each["values"], "recipe": recipe.VERSION}, facts, "")
            notes += [note for note in recalled.notes if not note.startswith("It was made by")]
            self.save(None, each["name"] or "?", recalled.values, facts)
        return notes

    def _read(self) -> dict[str, dict[str, Any]]:
        """By id. A file that is broken or of another version counts as empty, and is kept until something is saved."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            presets = found["presets"] if found["schema"] == SCHEMA else {}
            return {
                id: each
                for id, each in presets.items()
                if isinstance(each.get("name"), str) and each["values"] is not None
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _write(self, presets: dict[str, dict[str, Any]]) -> None:
        temporary = self._path.with_suffix(".part")
        temporary.write_bytes(_dump(presets))
        os.replace(temporary, self._path)


def _dump(presets: dict[str, dict[str, Any]]) -> bytes:
    return json.dumps({"schema": SCHEMA, "presets": presets}, ensure_ascii=False, indent=1).encode("utf-8")
