"""Data shipped with the program: canvas sizes and example prompts of each model."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from h3core.studio import schema

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
