"""The store alone: order, states, messages, two processes on one folder."""

import multiprocessing
import threading

import pytest

from h3core.studio import jobs
from h3core.studio.jobs import Lock, Store, home_folder, next_of


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


def test_home_is_the_argument_then_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("H3_HOME", str(tmp_path / "a b"))
    assert home_folder() == tmp_path / "a b" and home_folder().is_dir()
    assert home_folder(tmp_path / "other") == tmp_path / "other"


def test_order_and_states(store):
    first, second = store.add({"n": 1}), store.add({"n": "猫 \U0001f431"})
    assert [job.id for job in store.waiting()] == [first, second]
    assert store.job(second).request == {"n": "猫 \U0001f431"}
    run = store.job(first).run
    assert store.start(run, 2**64 - 1, "/films/a.mp4") and not store.start(run, 1, "/films/b.mp4")
    assert (store.job(first).state, store.job(first).seed) == (jobs.RUNNING, 2**64 - 1)
    store.note(run, {"type": "step", "step": 1, "steps": 4})
    store.note(run, {"type": "step", "step": 2, "steps": 4})
    store.end(run, jobs.DONE, {"type": "finished"}, output="/films/a.mp4")
    job = store.job(first)
    assert (job.state, job.output, job.progress["step"]["step"]) == (jobs.DONE, "/films/a.mp4", 2)
    assert [message["type"] for _, _, message in store.messages(first)] == ["step", "step", "finished"]
    assert [job.id for job in store.jobs()] == [second, first]


def test_an_end_is_final(store):
    job = store.job(store.add({}))
    store.start(job.run, 1, "x")
    store.end(job.run, jobs.CANCELLED, {"type": "cancelled"})
    store.end(job.run, jobs.DONE, {"type": "finished"}, output="x")
    assert store.job(job.id).state == jobs.CANCELLED


def test_cancel_waiting_running_ended_unknown(store):
    waiting, running = store.add({}), store.add({})
    assert store.ask_cancel(waiting) == jobs.CANCELLED and store.ask_cancel(waiting) == jobs.CANCELLED
    assert not store.start(store.job(waiting).run, 1, "x")
    store.start(store.job(running).run, 1, "x")
    assert store.ask_cancel(running) == jobs.RUNNING and store.job(running).cancel_asked
    assert store.ask_cancel(99) == "" and store.job(99) is None
    for number in (10**30, -(10**30)):  # more than SQLite holds
        assert store.ask_cancel(number) == "" and store.job(number) is None and store.run(number) is None
    assert len(store.jobs(10**30)) == 2


def test_cancel_ten_times_leaves_the_queue_as_it_was(store):
    kept = store.add({})
    for _ in range(10):
        store.ask_cancel(store.add({}))
    assert [job.id for job in store.waiting()] == [kept]


def test_next_of_own_jobs_only(store):
    theirs, ours = store.add({}), store.add({})
    assert next_of(store.waiting(), None).id == theirs and next_of(store.waiting(), {ours}).id == ours
    assert next_of(store.waiting(), set()) is None


def test_stamp_sees_both_writers(store, tmp_path):
    other, stamp = Store(tmp_path), store.stamp()
    assert store.stamp() == stamp
    other.add({})
    theirs = store.stamp()
    store.add({})
    assert len({stamp, theirs, store.stamp()}) == 3
    other.close()


def test_doing_names_phase_and_step(store):
    job = store.job(store.add({"steps": 20}))
    assert jobs.doing(job) == "starting"
    store.note(job.run, {"type": "step", "t": 5.0, "step": 3, "steps": 20})
    store.note(job.run, {"type": "phase", "t": 5.5, "phase": "denoise", "done": 25, "total": 50})
    job = store.job(job.id)
    assert jobs.doing(job) == "denoising, step 4 of 20" and jobs.step_share(job) == (3, 0.5)
    store.note(job.run, {"type": "step", "t": 6.0, "step": 4, "steps": 20})
    assert jobs.step_share(store.job(job.id)) == (4, 0.0)
    store.note(job.run, {"type": "phase", "phase": "video"})
    assert jobs.doing(store.job(job.id)) == "decoding the pictures"


def test_many_threads_and_stores(tmp_path):
    stores = [Store(tmp_path) for _ in range(3)]
    threads = [
        threading.Thread(target=lambda s=s: [s.add({"x": i}) for i in range(20)]) for s in stores for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores[0].waiting()) == 120
    for store in stores:
        store.close()


def _try_lock(home, answer):
    answer.put(Lock(home).take())


def test_one_lock_per_folder_also_between_processes(tmp_path):
    lock, context = Lock(tmp_path), multiprocessing.get_context("spawn")
    answer = context.Queue()
    assert lock.take() and lock.take() and lock.held
    for expected in (False, True):
        process = context.Process(target=_try_lock, args=(tmp_path, answer))
        process.start()
        assert answer.get(timeout=30) is expected
        process.join()
        lock.release()
