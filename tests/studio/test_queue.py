"""What a person can do with jobs: change, move, copy, retry, delete, start later, pause; takes; going on alone."""

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from h3core.engine import media
from h3core.studio import executor, jobs, names
from h3core.studio.jobs import NotPossible, Store
from h3core.studio.schema import RequestError
from h3core.studio.studio import Studio, next_time
from tests.studio.test_executor import QUICK, STAND_IN, until


@pytest.fixture
def page(tmp_path):
    """A studio that runs the whole queue, and does not start before it is told to."""
    Store(tmp_path).pause("The test has not begun.")
    with Studio(tmp_path, worker=STAND_IN, whole_queue=True) as studio:
        yield studio


def order(studio):
    return [job.id for job in studio.waiting()]


def test_a_paused_queue_keeps_its_jobs(page):
    job = page.add(QUICK, prompt="later")
    time.sleep(0.5)
    assert page.job(job).state == jobs.QUEUED and page.paused == "The test has not begun."
    page.go_on()
    assert page.wait(job).state == jobs.DONE and page.paused == ""
    page.pause()
    assert page.paused


def test_edit_a_waiting_job(page):
    job = page.add(QUICK, prompt="before", seed=5)
    page.edit(job, prompt="after", size="96x64", takes=3)
    found = page.job(job)
    assert (found.request["prompt"], found.request["width"], found.request["seed"]) == ("after", 96, "5")
    assert found.takes == 3 and len(page.takes(job)) == 3
    with pytest.raises(RequestError):
        page.edit(job, frames=0)
    page.edit(job, takes=1)
    page.go_on()
    done = page.wait(job)
    assert done.state == jobs.DONE and "after" in done.output
    with pytest.raises(NotPossible, match="duplicate"):
        page.edit(job, prompt="too late")
    with pytest.raises(KeyError):
        page.edit(99, prompt="x")


def test_move_and_duplicate(page):
    first, second, third = (page.add(QUICK, prompt=f"job {n}") for n in range(3))
    page.move(third, before=first)
    assert order(page) == [third, first, second]
    page.move(third)
    assert order(page) == [first, second, third]
    copy = page.duplicate(second)
    assert order(page) == [first, second, third, copy]
    assert page.job(copy).request == page.job(second).request
    page.go_on()
    done = [page.wait(job) for job in (first, second, third, copy)]
    assert [job.started for job in done] == sorted(job.started for job in done)


def test_takes_have_seeds_of_their_own(page):
    fixed = page.add(QUICK, prompt="fixed", seed=str(2**64 - 1), takes=3)
    drawn = page.add(QUICK, prompt="drawn", takes=2)
    named = page.add(QUICK, prompt="named", takes=2, seed=1, output=str(page.home / "film.mp4"))
    assert "seed: the 3 takes use" in " ".join(page.job(fixed).request["notes"])
    page.go_on()
    for job in (fixed, drawn, named):
        assert page.wait(job).state == jobs.DONE
    assert [take.seed for take in page.takes(fixed)] == [2**64 - 1, 0, 1]
    assert len({take.seed for take in page.takes(drawn)}) == len({take.output for take in page.takes(drawn)}) == 2
    assert [Path(take.output).name for take in page.takes(named)] == ["film_1.mp4", "film_2.mp4"]
    films = [take for take in page.results() if take.state == jobs.DONE]
    assert len(films) == 7 and all(Path(take.output).exists() for take in films)
    assert page.run(films[0].run).output == films[0].output


def test_cancel_takes_all_takes_with_it(page):
    job = page.add(QUICK, prompt="slow", steps=50, takes=3)
    page.go_on()
    until(lambda: page.job(job).progress.get("step"))
    page.cancel(job)
    page.wait(job)
    assert {take.state for take in page.takes(job)} == {jobs.CANCELLED}


def test_start_at_an_hour(page):
    page.go_on()
    late, soon = page.add(QUICK, prompt="late", start=time.time() + 3600), page.add(QUICK, prompt="soon")
    short = page.add(QUICK, prompt="short", start=time.time() + 0.7)
    assert page.wait(soon).state == jobs.DONE and page.wait(short).state == jobs.DONE
    assert page.job(late).state == jobs.QUEUED
    page.edit(late, start="")
    assert page.wait(late).state == jobs.DONE
    for bad in ("25:00", "7", "soon", "12:60"):
        with pytest.raises(RequestError, match="23:30"):
            next_time(bad)
    at = time.localtime(next_time("7:05"))
    assert (at.tm_hour, at.tm_min) == (7, 5) and time.time() < next_time("7:05") < time.time() + 90000


def test_retry_and_delete(page, tmp_path):
    job = page.add(QUICK, prompt="full up", seed=-1)
    page.go_on()
    failed = page.wait(job)
    assert failed.state == jobs.FAILED and executor.SAVED in failed.error
    folder = page.home / "runs" / str(failed.run)
    assert folder.exists()  # what was rendered
    assert page.retry(job, tmp_path / "elsewhere.mp4") == 1
    done = page.wait(job)
    assert done.state == jobs.DONE and done.seed == failed.seed and done.run == failed.run
    assert done.output == str(tmp_path / "elsewhere.mp4")
    until(lambda: not folder.exists())
    with pytest.raises(NotPossible, match="nothing to retry"):
        page.retry(job)
    slow = page.add(QUICK, prompt="slow", steps=50)
    until(lambda: page.job(slow).state == jobs.RUNNING)
    with pytest.raises(NotPossible, match="cancel it first"):
        page.delete(slow)
    page.cancel(slow)
    page.wait(slow)
    page.delete(slow)
    page.delete(job, films=True)
    assert not Path(done.output).exists() and page.jobs() == []
    with pytest.raises(KeyError):
        page.delete(job)


def test_a_cancelled_job_can_be_retried(page):
    job = page.add(QUICK, prompt="x")
    assert page.cancel(job) == page.cancel(job) == jobs.CANCELLED
    page.retry(job)
    page.go_on()
    assert page.wait(job).state == jobs.DONE


def test_a_worker_that_dies_once_is_not_noticed_in_the_end(page):
    job = page.add(QUICK, prompt="crash once")
    page.go_on()
    assert page.wait(job).state == jobs.DONE and page.job(job).error == ""
    said = [message["type"] for message in page.events(job)]
    assert said.count("interrupted") == 1 and said[-1] == "finished"


def test_the_same_cause_twice_pauses_the_queue(page):
    first, second, third = (page.add(QUICK, prompt=text) for text in ("crash", "crash again", "kept"))
    page.go_on()
    assert page.wait(first).state == jobs.FAILED and page.wait(second).state == jobs.FAILED
    until(lambda: page.paused)
    assert "Two jobs in a row" in page.paused and "streamed weights" in page.paused
    time.sleep(0.4)
    assert page.job(third).state == jobs.QUEUED
    page.go_on()
    assert page.wait(third).state == jobs.DONE and page.paused == ""


def test_five_jobs_of_which_the_second_dies(page):
    added = [page.add(QUICK, prompt="crash" if n == 1 else f"job {n}") for n in range(5)]
    page.go_on()
    states = [page.wait(job).state for job in added]
    assert states == [jobs.DONE, jobs.FAILED, jobs.DONE, jobs.DONE, jobs.DONE] and not page.paused


def test_what_was_interrupted_goes_on_when_a_studio_starts(tmp_path):
    with Studio(tmp_path, worker=STAND_IN) as studio:
        job = studio.add(QUICK, prompt="slow", steps=8)
        until(lambda: studio.job(job).progress.get("step"))
    with Studio(tmp_path, worker=STAND_IN) as studio:  # a command that asks for something else leaves it
        assert studio.job(job).state == jobs.INTERRUPTED
        before = studio.job(job)
    with Studio(tmp_path, worker=STAND_IN, whole_queue=True) as studio:
        done = studio.wait(job)
    assert done.state == jobs.DONE and (done.seed, done.output) == (before.seed, before.output)


def test_resume_by_hand(tmp_path):
    with Studio(tmp_path, worker=STAND_IN) as studio:
        job = studio.add(QUICK, prompt="slow", steps=8)
        until(lambda: studio.job(job).progress.get("step"))
        studio.pause("resting")
    with Studio(tmp_path, worker=STAND_IN) as studio:
        assert studio.resume() == [job] and studio.resume() == []
        assert studio.wait(job).state == jobs.DONE and studio.paused == ""


def test_a_run_that_ends_every_program_is_given_up(tmp_path):
    store = Store(tmp_path)
    job = store.add({"steps": 3})
    run = store.job(job).run
    for _ in range(jobs.DEATHS_OF_PROGRAMS):
        assert store.start(run, 1, "x")
        executor._recover(store, None)
    assert store.job(job).state == jobs.FAILED and "too often" in store.job(job).error


def test_weights_are_let_go_when_asked_and_when_idle(page, monkeypatch):
    page.go_on()
    page.wait(page.add(QUICK, prompt="x"))
    sent = []
    worker = page._executor._worker
    monkeypatch.setattr(worker, "send", lambda message: sent.append(message["type"]))
    page.unload()
    until(lambda: sent == ["unload"])
    monkeypatch.setattr(executor, "IDLE_S", 0.0)
    page._executor._idle_since = time.monotonic() - 1
    until(lambda: sent == ["unload", "unload"])
    time.sleep(0.5)
    assert sent == ["unload", "unload"]  # once is enough


def test_what_killed_programs_left_is_swept(tmp_path):
    left = [
        tmp_path / name
        for name in ("films/.h3-0.part.mp4", "films/.a.png.part", "cache/adaln/.x.safetensors.part", "runs/7/sound.wav")
    ]
    kept = [tmp_path / name for name in ("films/a.mp4", "cache/adaln/x.safetensors", "runs/8/state.safetensors")]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    executor.sweep(tmp_path, {8})
    assert not any(path.exists() for path in left) and all(path.exists() for path in kept)


def test_hidden_names_are_the_engines():
    film = Path("/films/a 猫.mp4")
    trial = film.with_name(names.leftovers(film)[1].name)
    assert names.leftovers(film)[0].name == media.temporary_name(film)
    assert names.leftovers(film)[2].name == media.temporary_name(trial)


def test_a_folder_of_an_older_version_opens(tmp_path):
    db = sqlite3.connect(tmp_path / "studio.db")
    db.executescript(jobs.TABLES)
    db.execute("PRAGMA user_version = 1")
    request = '{"prompt":"old","seed":"7"}'
    for number, state in enumerate(("done", "queued", "interrupted"), 1):
        db.execute("INSERT INTO jobs (created, request) VALUES (1.0, ?)", (request,))
        db.execute("INSERT INTO runs (job, state) VALUES (?, ?)", (number, state))
    db.commit()
    db.close()
    store = Store(tmp_path)
    assert [job.state for job in store.jobs()] == ["failed", "queued", "done"]  # an old interruption stays ended
    assert store.add({"prompt": "new"}) == 4 and [job.id for job in store.waiting()] == [2, 4]
    store.close()
    db = sqlite3.connect(tmp_path / "studio.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(sqlite3.DatabaseError, match="newer version"):
        Store(tmp_path)


def test_a_killed_server_leaves_a_run_that_goes_on(tmp_path):
    pid = os.fork()
    if pid == 0:
        studio = Studio(tmp_path, worker=STAND_IN)
        studio.add(QUICK, prompt="slow", steps=8)
        time.sleep(60)
        os._exit(0)
    store = Store(tmp_path)
    until(lambda: any(job.progress.get("step") for job in store.jobs()))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with Studio(tmp_path, worker=STAND_IN, whole_queue=True) as studio:
        done = studio.wait(1)
        assert done.state == jobs.DONE
        assert [message["type"] for message in studio.events(1)].count("interrupted") == 1
    store.close()


def test_a_worker_killed_before_it_said_hello(tmp_path):
    mark, script = tmp_path / "killed", STAND_IN[1]
    code = (
        f"import os, runpy; first = not os.path.exists({str(mark)!r}); open({str(mark)!r}, 'a').close(); "
        f"os.kill(os.getpid(), 9) if first else runpy.run_path({script!r}, run_name='__main__')"
    )
    with Studio(tmp_path, worker=(STAND_IN[0], "-c", code)) as studio:
        assert studio.wait(studio.add(QUICK, prompt="x")).state == jobs.DONE
