"""Recipes in films and beside them: what comes back, what is refused, what is noted."""

import json
import struct

import pytest

from h3core.studio import recipe, schema
from h3core.studio.recipe import RecipeError
from h3core.studio.schema import ModelFacts
from h3core.studio.studio import Studio
from h3core.version import VERSION
from h3core.weights.identify import open_model
from tests.golden_files import TINY

PROMPT = 'a fox\n"quoted" = ; # \\ 🐱 红狐狸'
SETTINGS = {
    "prompt": PROMPT,
    "negative_prompt": "",
    "width": 128,
    "height": 64,
    "frames": 39,
    "steps": 7,
    "seed": "18446744073709551615",
    "precision": "exact",
    "guidance": 1.0,
}
WRITTEN = {"recipe": 1, "program": "h3-studio", "version": VERSION, "settings": SETTINGS, "model": "tiny-h3"}
FREE = ModelFacts(name=schema.MICRO, path="/m", guidance_distilled=False)


def box(name: bytes, *inside: bytes) -> bytes:
    content = b"".join(inside)
    return struct.pack(">I4s", 8 + len(content), name) + content


def film(text: bytes) -> bytes:
    data = box(b"data", struct.pack(">II", 1, 0), text)
    meta = box(b"meta", bytes(4), box(b"hdlr", bytes(25)), box(b"ilst", box(b"\xa9too", b"x"), box(b"\xa9cmt", data)))
    return (
        box(b"ftyp", b"isom", bytes(4))
        + box(b"moov", box(b"mvhd", bytes(9)), box(b"udta", meta))
        + box(b"mdat", b"x" * 9)
    )


def read(tmp_path, data: bytes, name: str = "film.mp4"):
    path = tmp_path / name
    path.write_bytes(data)
    return recipe.read(path)


def test_a_film_and_the_file_beside_it_say_the_same(tmp_path):
    assert read(tmp_path, film(json.dumps(WRITTEN).encode())) == WRITTEN
    assert read(tmp_path, json.dumps(WRITTEN, ensure_ascii=False).encode(), "film.json") == WRITTEN


def test_every_field_comes_back():
    recalled = recipe.recall(WRITTEN, FREE, VERSION)
    request = schema.parse(recalled.values, FREE)
    assert (request.prompt, request.size, request.frames, request.steps) == (PROMPT, "128x64", 39, 7)
    assert (request.seed, request.precision, request.guidance) == (2**64 - 1, "exact", None)
    assert recalled.notes == [] and recalled.model == "tiny-h3"


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"colour": "red"}, "colour: this program has no such setting"),
        ({"width": 500}, "500x64 is not possible"),
        ({"steps": "many"}, "steps: "),
        ({"steps": {"a": [1]}}, "steps: "),
        ({"frames": 40}, "raised to 56"),
        ({"frames": 1e400}, "frames: "),
        ({"seed": 2**64}, "out of range"),
        ({"precision": "fp4"}, "precision: "),
        ({"prompt": 7}, "prompt: "),
        ({"output": "/etc/passwd.mp4"}, "paths in files are not followed"),
        ({"model": "/etc"}, "paths in files are not followed"),
        ({"start_latents": {"name": "x"}}, "paths in files are not followed"),
        ({"shift_video": 6.0}, "shift_video: this program has no such setting"),
    ],
)
def test_what_cannot_be_used_is_noted_and_the_rest_is_taken(changes, note):
    recalled = recipe.recall(WRITTEN | {"settings": SETTINGS | changes}, FREE, VERSION)
    assert len(recalled.notes) == 1 and note in recalled.notes[0]
    assert not {"output", "model", "start_latents"} & recalled.values.keys()
    schema.parse({"prompt": "x"} | recalled.values, FREE)
    assert len(recalled.values) >= 5


def test_another_version_is_noted():
    assert "version 9.9" in recipe.recall(WRITTEN | {"version": "9.9"}, FREE, VERSION).notes[0]
    assert "another version" in recipe.recall(WRITTEN | {"recipe": 2}, FREE, VERSION).notes[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"settings": 3}',
        b"\xff\xfe",
        b'{"settings": {}' + b" " * (5 << 20),
        box(b"ftyp", b"isom"),
        film(b"made with love"),
        film(b'{"settings": []}'),
        film(b"x")[:90],
        box(b"ftyp", b"isom") + struct.pack(">I4sQ", 1, b"moov", 2**63),
        box(b"ftyp", b"isom") + struct.pack(">I4s", 2**31, b"moov"),
        box(b"ftyp", b"isom") + struct.pack(">I4s", 3, b"moov") * 9,
        box(b"ftyp", b"isom") + box(b"free") * 20_000,
    ],
)
def test_what_holds_no_recipe(tmp_path, data):
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, data)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_the_model_is_found_by_its_weights_never_by_its_path(tmp_path):
    weights = {part.kind: part.identity for part in open_model(TINY).parts}
    (tmp_path / "film.json").write_text(json.dumps(WRITTEN | {"weights": weights}))
    (tmp_path / "other.json").write_text(json.dumps(WRITTEN | {"weights": {"transformer": "00"}}))
    with Studio(tmp_path / "home", models=[TINY]) as studio:
        recalled = studio.recall(tmp_path / "film.json")
        assert recalled.values["model"] == str(TINY) and recalled.notes == []
        other = studio.recall(tmp_path / "other.json")
        assert "model" not in other.values and "are not here" in other.notes[0]
