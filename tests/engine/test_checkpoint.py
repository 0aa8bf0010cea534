"""State on disk: whole or absent, and only used by the run it belongs to. The cache: never wrong, never in the way."""

import os

import numpy as np
import pytest

from h3core.engine import cache as cache_module
from h3core.engine import checkpoint
from h3core.engine.cache import Cache
from h3core.engine.checkpoint import Checkpoint, State, load_arrays, save_arrays, write_whole


def state(step: int = 3) -> State:
    rng = np.random.default_rng(step)
    rows = [rng.standard_normal(shape).astype(np.float32) for shape in ((42, 96), (74, 32))]
    return State(step, *rows, {"denoise": 1.5})


def test_a_state_comes_back_bit_for_bit(tmp_path):
    saved = state()
    Checkpoint(tmp_path, "key").save(saved)
    loaded = Checkpoint(tmp_path, "key").load()
    assert loaded.step == 3 and loaded.seconds == {"denoise": 1.5}
    assert loaded.video_rows.tobytes() == saved.video_rows.tobytes()
    assert loaded.audio_rows.tobytes() == saved.audio_rows.tobytes()
    loaded.video_rows[0] = 0  # a run steps it in place
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_another_run_does_not_use_it(tmp_path):
    Checkpoint(tmp_path, "key").save(state())
    assert Checkpoint(tmp_path, "other").load() is None
    Checkpoint(tmp_path, "key").remove()
    assert Checkpoint(tmp_path, "key").load() is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_state_is_as_good_as_none(tmp_path, damage):
    kept = Checkpoint(tmp_path, "key")
    kept.save(state())
    data = bytearray(kept.path.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    kept.path.write_bytes({"cut": data[:-7], "flip": data, "empty": b"", "text": b"{}" * 40}[damage])
    assert kept.load() is None


@pytest.mark.parametrize("place", ["write", "fsync", "replace"])
def test_a_failed_save_leaves_the_old_state(tmp_path, monkeypatch, place):
    kept = Checkpoint(tmp_path, "key")
    kept.save(state(1))

    def fail(*_):
        raise OSError(28, "No space left on device")

    if place == "write":
        with pytest.raises(OSError):
            write_whole(kept.path, fail, "state")
    else:
        monkeypatch.setattr(checkpoint.os, place, fail)
        with pytest.raises(OSError):
            kept.save(state(2))
    monkeypatch.undo()
    assert kept.load().step == 1
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_the_reference_library_reads_it(tmp_path):
    from safetensors.numpy import load_file

    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.int64)}
    save_arrays(tmp_path / "x.safetensors", arrays, {"note": "雪 fox"})
    for name, array in load_file(tmp_path / "x.safetensors").items():
        assert array.dtype == arrays[name].dtype and np.array_equal(array, arrays[name])
    assert load_arrays(tmp_path / "x.safetensors")[1] == {"note": "雪 fox"}


def test_cache_gives_back_what_was_put(tmp_path):
    kept = Cache(tmp_path / "cache")
    key = {"encoder": "abc", "ids": [1, 2, 3]}
    assert kept.get("prompts", key) is None
    kept.put("prompts", key, {"states": np.ones((3, 4), np.float32)})
    assert np.array_equal(kept.get("prompts", key)["states"], np.ones((3, 4)))
    assert kept.get("prompts", {**key, "ids": [1, 2]}) is None
    assert kept.get("adaln", key) is None


def test_cache_forgets_the_oldest(tmp_path):
    entry = {"x": np.zeros(2500, np.float32)}
    kept = Cache(tmp_path, limit_bytes=35_000)
    for number in range(3):
        kept.put("prompts", {"n": number}, entry)
        os.utime(kept.path("prompts", {"n": number}), (number, number))
    assert kept.get("prompts", {"n": 0})  # now the newest
    kept.put("prompts", {"n": 3}, entry)
    assert [kept.get("prompts", {"n": n}) is not None for n in range(4)] == [True, False, True, True]
    kept.put("prompts", {"n": 4}, {"x": np.zeros(25_000, np.float32)})
    assert kept.get("prompts", {"n": 4}) is None  # larger than the whole cache


def test_a_cache_without_a_disk_is_only_slow(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    kept = Cache(tmp_path / "file" / "cache")
    kept.put("prompts", {}, {"x": np.zeros(4, np.float32)})
    assert kept.get("prompts", {}) is None
    monkeypatch.setattr(cache_module, "SPARE_BYTES", 1 << 60)
    full = Cache(tmp_path / "full")
    full.put("prompts", {}, {"x": np.zeros(4, np.float32)})
    assert full.get("prompts", {}) is None


def test_a_damaged_entry_is_computed_again(tmp_path):
    kept = Cache(tmp_path)
    kept.put("prompts", {}, {"x": np.zeros(4, np.float32)})
    path = kept.path("prompts", {})
    path.write_bytes(path.read_bytes()[:-3])
    assert kept.get("prompts", {}) is None
    kept.put("prompts", {}, {"x": np.ones(4, np.float32)})
    assert kept.get("prompts", {})["x"].sum() == 4
