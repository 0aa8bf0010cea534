"""A worker that is killed between any two writes, renames or messages: the run goes on and ends in the same bytes."""

import os
import subprocess
import sys

from h3core import fault
from tests.golden_files import TINY

HOME = TINY.parents[2]


def film(folder, points=()):
    """(bytes of the film, how many workers it took, points that killed one)."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.engine.worker_that_dies", str(folder), ",".join(points)]
    environment = {**os.environ, "H3_HOME": str(folder / "home")}
    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return (folder / "film.mp4").read_bytes(), int(done.stdout), set(os.listdir(folder / "marks"))


def test_every_fault_point_once_and_the_same_film(tmp_path):
    undisturbed, workers, hit = film(tmp_path / "quiet")
    assert (workers, hit) == (1, set())
    disturbed, workers, hit = film(tmp_path / "killed", fault.WORKER)
    assert hit == set(fault.WORKER)
    assert workers == len(fault.WORKER) + 1  # each point ends one worker, and the last one is left alone
    assert disturbed == undisturbed
    names = {path.name for path in (tmp_path / "killed").iterdir()}
    assert names == {"film.mp4", "film.png", "film.json", "home", "run", "marks"}  # nothing half or hidden is left


def test_points_have_names_of_their_own():
    assert len({*fault.WORKER, *fault.SERVER}) == len(fault.WORKER) + len(fault.SERVER)
    fault.point("state.synced")  # nothing was asked for, so nothing happens
