"""A disk of 50 MB for the film, the run and its temporary files, full before and at every stage of a run: one sentence,
no half file, the worker lives, and with room again the run goes on from what was rendered.
"""

import os
import subprocess
from pathlib import Path

import pytest

from h3core.engine import media
from h3core.engine.cache import Cache
from h3core.engine.pipeline import Engine, Run
from h3core.engine.worker import describe
from h3core.kernels.table import Kernels
from h3core.weights.identify import open_model
from tests.engine.test_golden_runs import settings
from tests.golden_files import TINY


@pytest.fixture
def disk(tmp_path, monkeypatch):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can only be mounted by root")
    monkeypatch.setenv("H3_HOME", str(folder / "home"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Not a byte is left."""
    with open(folder / "filler", "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


def generate(engine, model, run, at=None, folder=None):
    """What was told. at: the phase in which the disk is filled."""
    told = []

    def tell(kind, **values):
        told.append((kind, values))
        if at and at in (values.get("phase"), f"step {values.get('step')}"):
            fill(folder)

    engine.generate(run, model, tell, lambda: False)
    return told


@pytest.mark.parametrize("at", ["load", "step 1", "audio", "video", "mux"])
def test_a_disk_that_is_full(disk, at):
    model, engine = open_model(TINY), Engine(Kernels(threads=2), Cache(disk / "cache"))
    generate(engine, model, Run("quiet", settings(), disk / "quiet", disk / "out" / "quiet.mp4"))
    run = Run("film", settings(), disk / "run", disk / "out" / "film.mp4")
    before = set(os.listdir(disk / "out"))
    with pytest.raises((media.MediaError, OSError)) as caught:
        generate(engine, model, run, at, disk)
    kind, sentence = describe(caught.value)
    assert kind in ("media", "disk") and "\n" not in sentence and sentence.endswith("."), sentence
    assert set(os.listdir(disk / "out")) == before  # nothing half, nothing hidden
    (disk / "filler").unlink()
    told = generate(engine, model, run)
    steps = [values["step"] for kind, values in told if kind == "step"]
    assert steps == {"load": [1, 2, 3], "step 1": [2, 3]}.get(at, [])  # what was rendered is not rendered again
    assert (disk / "out" / "film.mp4").read_bytes() == (disk / "out" / "quiet.mp4").read_bytes()


def test_a_folder_that_is_gone_or_read_only_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("H3_HOME", str(tmp_path / "home"))
    model, engine = open_model(TINY), Engine(Kernels(threads=2))
    out = tmp_path / "out"
    run = Run("film", settings(), tmp_path / "run", out / "film.mp4")

    def tell(kind, **values):
        if values.get("phase") == "mux":
            out.rename(tmp_path / "away")

    with pytest.raises((media.MediaError, OSError)):
        engine.generate(run, model, tell, lambda: False)
    told = generate(engine, model, run)
    assert not any(kind == "step" for kind, _ in told) and (out / "film.mp4").stat().st_size > 0
