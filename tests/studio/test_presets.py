"""Presets that are shipped, changed, saved, taken along and brought back."""

import json

import pytest

from h3core.studio import presets, schema
from h3core.studio.presets import PresetError, Saved
from h3core.studio.schema import ModelFacts, RequestError

FACTS = {name: ModelFacts(name=name, path="/m") for name in (schema.MICRO, schema.H3)}
MICRO = FACTS[schema.MICRO]


@pytest.mark.parametrize("model", FACTS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_everything_shipped_can_run(model, language):
    found = presets.shipped(model, language)
    assert len({each.id for each in found}) == len(found) >= 12
    for each in found:
        assert each.name and not set(each.values) - set(presets.FIELDS)
        request = schema.parse({"prompt": "x", **each.values}, FACTS[model])
        assert request.notes == ()


@pytest.mark.parametrize(
    ("gb", "name"), [(1, None), (7.6, "8 GB"), (16, "16 GB"), (23, "24 GB"), (31, "32 GB"), (999, "128 GB")]
)
def test_which_memory(gb, name):
    found = presets.for_memory(presets.shipped(schema.H3, "en"), int(gb * 1e9))
    assert (found.name if found else None) == name


def test_change_save_rename_reset_delete(tmp_path):
    saved = Saved(tmp_path)
    (first, *_) = saved.all(schema.MICRO, "en")
    saved.save(first.id, "Mine", {"steps": "9", "size": ""}, MICRO)
    own = saved.save(None, " a  b\n猫 ", {"size": "64x96"}, MICRO)
    found = {each.id: each for each in Saved(tmp_path).all(schema.MICRO, "en")}
    assert (found[first.id].name, found[first.id].values, found[first.id].changed) == ("Mine", {"steps": "9"}, True)
    assert (found[own].name, found[own].kind, found[own].values) == ("a b 猫", "own", {"size": "64x96"})
    saved.save(own, "renamed", found[own].values, MICRO)
    saved.remove(first.id)
    found = {each.id: each for each in saved.all(schema.MICRO, "zh")}
    assert not found[first.id].changed and found[own].name == "renamed"
    saved.remove(own)
    saved.remove("nonsense")
    assert own not in {each.id for each in saved.all(schema.MICRO, "en")}


def test_what_cannot_be_saved(tmp_path):
    saved = Saved(tmp_path)
    with pytest.raises(RequestError):
        saved.save(None, "x", {"size": "500x500"}, MICRO)
    with pytest.raises(PresetError):
        saved.save(None, "  ", {"steps": 3}, MICRO)
    assert not (tmp_path / "presets.json").exists()


def test_taken_along(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = Saved(tmp_path / "a"), Saved(tmp_path / "b")
    one.save(None, "good", {"steps": 7}, MICRO)
    assert other.take(one.export(), MICRO) == [] and other.take(one.export(), MICRO) == []
    assert [each.values for each in other.all(schema.MICRO, "en") if each.kind == "own"] == [{"steps": 7}] * 2
    mixed = {
        "a": {"name": "m", "values": {"steps": 0, "size": "64x64", "model": "/etc"}},
        "b": 7,
        "c": {"name": 3, "values": {}},
    }
    notes = other.take(json.dumps({"schema": 1, "presets": mixed}).encode(), MICRO)
    assert len(notes) == 4 and any("paths in files" in note for note in notes)
    assert other.all(schema.MICRO, "en")[-1].values == {"size": "64x64"}


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"schema": 1, "presets": 3}', b'{"schema": 2, "presets": {}}', b"[" * 9999]
)
def test_what_holds_no_presets(tmp_path, data):
    with pytest.raises(PresetError):
        Saved(tmp_path).take(data, MICRO)
    (tmp_path / "presets.json").write_bytes(data)
    assert all(each.kind != "own" for each in Saved(tmp_path).all(schema.MICRO, "en"))
