"""The queue with a stand-in for the engine: order, cancel, a worker that dies, two studios on one folder."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from h3core.studio import executor, jobs, names
from h3core.studio.jobs import Store
from h3core.studio.schema import RequestError
from h3core.studio.studio import Studio
from tests.golden_files import TINY

STAND_IN = (sys.executable, str(Path(__file__).parent / "stand_in_worker.py"))
QUICK = {"size": "64x64", "frames": 22, "steps": 3, "model": str(TINY)}


@pytest.fixture
def studio(tmp_path):
    with Studio(tmp_path / "home", worker=STAND_IN) as studio:
        yield studio


def until(condition, seconds=20):
    """Waits for something that must happen; how soon is not the question."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_job_ends_in_a_film(studio):
    job = studio.wait(studio.add(QUICK, prompt="a red ball", seed="18446744073709551615"))
    assert job.state == jobs.DONE and job.seed == 2**64 - 1
    film = Path(job.output)
    assert (
        film.parent == studio.films
        and film.stat().st_size > 0
        and "a-red-ball" in film.name
        and str(job.seed) in film.name
    )
    until(lambda: not (studio.home / "runs" / str(job.run)).exists())
    kinds = [message["type"] for message in studio.events(job.id)]
    assert kinds[0] == "phase" and kinds[-1] == "finished" and kinds.count("step") == 3
    assert all(message["at"] > 0 for message in studio.events(job.id))
    assert studio.machine()["cpu"] == "Stand-in"


def test_a_job_that_is_seen_before_it_is_known_to_be_ours(studio, monkeypatch):
    studio.wait(studio.add(QUICK, prompt="first"))
    claim = studio._queued

    def late(job):
        time.sleep(3 * executor.TURN_S)
        return claim(job)

    monkeypatch.setattr(studio, "_queued", late)
    second = studio.add(QUICK, prompt="second")
    until(lambda: studio.job(second).state == jobs.DONE)


def test_jobs_run_in_order_and_random_seeds_differ(studio):
    added = [studio.add(QUICK, prompt=f"take {n}", seed=-1) for n in range(3)]
    done = [studio.wait(job) for job in added]
    assert [job.started for job in done] == sorted(job.started for job in done)
    assert len({job.seed for job in done}) == len({job.output for job in done}) == 3
    assert all(0 <= job.seed < 2**53 for job in done)


def test_a_worker_that_dies_takes_nothing_with_it(studio):
    first, second = studio.add(QUICK, prompt="crash please"), studio.add(QUICK, prompt="after that")
    job = studio.wait(first)
    assert job.state == jobs.FAILED and "killed" in job.error and "step 2 of 3" in job.error
    assert "smaller size" in job.error
    said = [message["type"] for message in studio.events(first)]
    assert said.count("interrupted") == 1 and said[-1] == "failed"  # it was tried once more in a fresh worker
    assert studio.wait(second).state == jobs.DONE


def test_failure_is_one_sentence_and_the_queue_goes_on(studio):
    first, second = studio.add(QUICK, prompt="fail now"), studio.add(QUICK, prompt="then this")
    assert studio.wait(first).error == "The stand-in failed as asked." and studio.wait(first).state == jobs.FAILED
    assert studio.wait(second).state == jobs.DONE


def test_success_must_be_earned(studio):
    job = studio.wait(studio.add(QUICK, prompt="nofilm"))
    assert job.state == jobs.FAILED and "no film" in job.error


def test_cancel_a_running_job_then_the_next_one_starts(studio):
    first, second, third = (studio.add(QUICK, prompt=text, steps=50) for text in ("slow one", "never", "slow too"))
    until(lambda: studio.job(first).progress.get("step"))
    assert studio.cancel(second) == jobs.CANCELLED
    assert studio.cancel(first) == jobs.RUNNING and studio.cancel(first) == jobs.RUNNING
    assert studio.wait(first).state == jobs.CANCELLED and studio.wait(first).error == ""
    until(lambda: studio.job(third).state == jobs.RUNNING)
    assert studio.job(second).started is None
    studio.cancel(third)
    assert studio.wait(third).state == jobs.CANCELLED
    assert not list(studio.films.glob("*.mp4"))
    with pytest.raises(KeyError):
        studio.cancel(99)


def test_a_worker_that_ignores_a_cancel_is_ended(studio, monkeypatch):
    monkeypatch.setattr(executor, "CANCEL_GRACE_S", 0.3)
    job = studio.add(QUICK, prompt="stuck slow", steps=100)
    until(lambda: studio.job(job).progress.get("step"))
    studio.cancel(job)
    assert studio.wait(job).state == jobs.CANCELLED
    assert studio.wait(studio.add(QUICK, prompt="next")).state == jobs.DONE


@pytest.mark.parametrize("code", ["raise SystemExit('no such thing')", "import os; os.kill(os.getpid(), 11)"])
def test_a_worker_that_cannot_start(tmp_path, code):
    with Studio(tmp_path, worker=(sys.executable, "-c", code)) as studio:
        for _ in range(2):
            job = studio.wait(studio.add(QUICK, prompt="x"))
            assert job.state == jobs.FAILED and job.error.startswith("The engine could not start: ")


def test_closing_in_mid_run_says_so(tmp_path):
    with Studio(tmp_path, worker=STAND_IN) as studio:
        job = studio.add(QUICK, prompt="slow", steps=100)
        until(lambda: studio.job(job).progress.get("step"))
    with Studio(tmp_path, worker=STAND_IN) as studio:
        assert studio.job(job).state == jobs.INTERRUPTED and "closed while it was denoising" in studio.job(job).error


def test_a_run_whose_program_was_killed_is_not_called_running(tmp_path):
    store = Store(tmp_path)
    job = store.job(store.add({}))
    store.start(job.run, 1, "x")
    store.close()
    with Studio(tmp_path, worker=STAND_IN) as studio:
        assert studio.job(job.id).state == jobs.INTERRUPTED


def test_a_second_studio_joins_the_queue_of_the_first(tmp_path):
    with (
        Studio(tmp_path, worker=STAND_IN, whole_queue=True) as page,
        Studio(tmp_path, worker=("/does/not/exist",)) as command,
    ):
        until(lambda: page.serving)
        job = command.add(QUICK, prompt="from the command line")
        kinds = [message["type"] for message in command.events(job)]
        assert kinds[-1] == "finished" and not command.serving
        slow = command.add(QUICK, prompt="slow", steps=100)
        until(lambda: page.job(slow).progress.get("step"))
        command.cancel(slow)
        assert command.wait(slow).state == jobs.CANCELLED


def test_a_waiting_studio_takes_over_when_the_first_ends(tmp_path):
    first, second = Studio(tmp_path, worker=STAND_IN), Studio(tmp_path, worker=STAND_IN)
    first.wait(first.add(QUICK, prompt="hold the lock"))
    job = second.add(QUICK, prompt="mine")
    time.sleep(0.3)
    assert second.job(job).state == jobs.QUEUED  # the first runs only what was added there
    first.close()
    assert second.wait(job).state == jobs.DONE and second.serving
    second.close()


def test_what_cannot_run_is_refused_when_added(studio, tmp_path):
    for values, field in (
        ({"model": str(tmp_path / "nowhere")}, "model"),
        ({"model": str(tmp_path)}, "model"),
        ({"output": str(tmp_path / "no folder" / "a.mp4")}, "output"),
        ({"output": str(tmp_path / ("x" * 300 + ".mp4"))}, "output"),
    ):
        with pytest.raises(RequestError) as caught:
            studio.add({**QUICK, "prompt": "x", **values})
        assert list(caught.value.faults) == [field] and str(caught.value).count("\n") == 0
    assert studio.jobs() == []


def test_output_where_it_was_asked_for(studio, tmp_path):
    folder = tmp_path / "odd 'names' %04d 猫"
    folder.mkdir()
    job = studio.wait(studio.add(QUICK, prompt="x", output=str(folder / "film.mp4")))
    assert job.output == str(folder / "film.mp4") and Path(job.output).exists()


def test_settings_are_the_engines(studio):
    request = studio.parse({**QUICK, "prompt": "x", "seed": "5"})
    assert json.loads(json.dumps(executor.settings(request, 5)))["seed"] == 5


@pytest.mark.parametrize(
    "prompt",
    [
        "红" * 300,
        'a/b\\c:d*e?f"g<h>i|j',
        "..",
        "CON",
        "dot. ",
        "two\nlines",
        "🐱" * 99,
        "é" * 99,
        "x" * 999,
        "%04d",
        "-rf",
    ],
)
def test_names_of_films(tmp_path, prompt):
    path = names.film_path(tmp_path, prompt, 2**64 - 1)
    assert len(os.fsencode(path.name)) <= 120 and path.parent == tmp_path
    assert not set('/\\:*?"<>|\n%') & set(path.name) and path.stem == path.stem.strip(" .-")
    path.write_bytes(b"")
    again = names.film_path(tmp_path, prompt, 2**64 - 1)
    assert again != path and not again.exists()


def test_a_film_that_is_there_is_kept(tmp_path):
    first = names.take_path(tmp_path / "film.mp4", 1, 1)
    first.write_bytes(b"the first film")
    assert names.take_path(first, 1, 1) == tmp_path / "film_2.mp4"
    assert names.take_path(first, 2, 3) == tmp_path / "film_2.mp4"  # takes are numbered anyway
    (tmp_path / "film_2.json").touch()  # somebody's own
    assert names.take_path(first, 1, 1) == tmp_path / "film_3.mp4" and first.read_bytes() == b"the first film"
