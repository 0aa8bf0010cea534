"""Runs the queue: owns the worker process, hands it one run at a time, and writes what it says into the store.

The worker may die at any moment (memory, a signal, a bug) and takes nothing with it: the run is marked interrupted with
what it was doing, and the next run gets a fresh worker. All of it happens in one thread; nothing raises through.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

import h3core
from h3core.studio import jobs, schema
from h3core.studio.jobs import Job, Lock, Store
from h3core.studio.names import film_path

TURN_S = 0.2  # how soon a job or a cancel from another process is seen
LOCK_TURN_S = 0.5  # how often a process that has to wait asks for the lock
CANCEL_GRACE_S = (
    60.0  # a block of the largest model, streamed from a slow disk, takes less; after this the worker is ended
)
QUIT_GRACE_S = 5.0
LOG_LIMIT = 1_000_000  # bytes of worker output kept

WORKER = (sys.executable, "-m", "h3core.engine.worker")


class _Worker:
    """One worker process. Its messages arrive in `inbox` as (worker, message); (worker, None) says that it ended."""

    def __init__(self, command: Sequence[str], home: Path, inbox: queue.SimpleQueue):
        # the package need not be installed, and the worker must not care where we were started
        paths = [str(Path(h3core.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONUTF8": "1", "H3_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.log = home / "worker.log"
        with open(self.log, "ab") as log:
            if log.tell() > LOG_LIMIT:
                log.truncate(0)
            # a session of its own: Ctrl-C in the terminal is ours to turn into a cancel
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=home,
                start_new_session=True,
            )
        self.greeted = False
        self.last_words = ""
        self._inbox = inbox
        threading.Thread(target=self._read, name="worker messages", daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                message = json.loads(line.decode("utf-8", "replace"))
            except ValueError:
                continue  # a stray print of some library is not a message
            if isinstance(message, dict):
                self._inbox.put((self, message))
        self.process.wait()
        self._inbox.put((self, None))

    def send(self, message: dict[str, Any]) -> None:
        """Writes one message; a worker that is gone is noticed by its reader, not here."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(message).encode("ascii") + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def quit(self) -> None:
        """Ends the process: asked first, then forced."""
        self.send({"type": "quit"})
        try:
            assert self.process.stdin
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(QUIT_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it and whatever it started, at once."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def why_ended(self) -> str:
        """How the process ended, as the second half of a sentence."""
        code = self.process.returncode
        if code == -signal.SIGKILL:
            return "was killed, most often for want of memory; choose a smaller size, fewer frames, or streamed weights"
        if code is not None and code < 0:
            return f"crashed ({signal.strsignal(-code) or f'signal {-code}'})"
        return f"ended with code {code}"

    def last_line(self) -> str:
        """The last line it logged, "" if there is none."""
        try:
            with open(self.log, "rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
                lines = log.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Executor:
    """The queue's engine room.

    own: numbers of the jobs this process may run, None for all: a page runs the whole queue, a command what it added.
    """

    def __init__(self, store: Store, home: Path, own: set[int] | None, command: Sequence[str] = WORKER):
        self.hello: dict[str, Any] = {}  # what the worker said of this machine, once it has
        self._store, self._home, self._own, self._command = store, home, own, command
        self._lock = Lock(home)
        self._inbox: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None] | None] = queue.SimpleQueue()
        self._worker: _Worker | None = None
        self._current: Job | None = None
        self._cancel_deadline: float | None = None
        self._seen_stamp: tuple[int, int] | None = None
        self._warm = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="executor", daemon=True)
        self._thread.start()

    @property
    def serving(self) -> bool:
        """True while this process is the one that runs jobs."""
        return self._lock.held

    @property
    def held_bytes(self) -> int:
        """Memory the worker holds now."""
        worker = self._worker
        try:
            return psutil.Process(worker.process.pid).memory_info().rss if worker else 0
        except psutil.Error:
            return 0

    def wake(self) -> None:
        """Something was added or cancelled: look now."""
        self._inbox.put(None)

    def warm(self) -> None:
        """Start the worker now, so that the first run need not wait for it."""
        self._warm = True
        self.wake()

    def close(self) -> None:
        """Ends the worker and the thread. A run in progress is marked interrupted."""
        self._closing.set()
        self.wake()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception:  # a full disk or a locked store must not end the queue
                traceback.print_exc()
                self._closing.wait(1.0)
        try:
            if self._current:
                _abandon(self._store, self._store.job(self._current.id) or self._current, "The program was closed")
            if self._worker:
                self._worker.quit()
        except Exception:
            traceback.print_exc()
        self._lock.release()

    def _turn(self) -> None:
        """One look at the store and one message of the worker."""
        if not self._lock.held:
            if not self._lock.take():
                self._next_message(LOCK_TURN_S)
                return
            _mark_abandoned(self._store)
        self._look()
        self._next_message(TURN_S)
        if self._cancel_deadline and time.monotonic() > self._cancel_deadline and self._worker:
            self._worker.kill()

    def _look(self) -> None:
        """What the store asks for, when it changed since the last look."""
        if self._warm and self._worker is None:
            self._warm = False
            self._worker = _Worker(self._command, self._home, self._inbox)
        stamp = self._store.stamp()
        if stamp == self._seen_stamp:
            return
        self._seen_stamp = stamp
        waiting = self._store.waiting()
        if self._current is None:
            job = jobs.next_of(waiting, self._own)
            if job:
                self._start(job)
        elif self._cancel_deadline is None and any(
            job.run == self._current.run and job.cancel_asked for job in waiting
        ):
            self._cancel_deadline = time.monotonic() + CANCEL_GRACE_S
            if self._worker:
                self._worker.send({"type": "cancel", "run": str(self._current.run)})

    def _start(self, job: Job) -> None:
        """Resolves what was left open (seed, name), then hands the run to the worker."""
        request = schema.Request.from_json(job.request)
        seed = secrets.randbelow(schema.RANDOM_SEED_LIMIT) if request.seed is None else request.seed
        output = request.output or str(film_path(self._home / "films", request.prompt, seed))
        folder = self._home / "runs" / str(job.run)
        if not self._store.start(job.run, seed, output):
            return
        self._current = job
        try:
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            if self._worker is None:
                self._worker = _Worker(self._command, self._home, self._inbox)
        except OSError as error:
            self._end(jobs.FAILED, {"type": "failed"}, f"The run could not start: {error.strerror} ({error.filename}).")
            return
        self._worker.send(
            {
                "type": "run",
                "run": str(job.run),
                "settings": settings(request, seed),
                "model": request.model,
                "folder": str(folder),
                "output": output,
            }
        )

    def _next_message(self, timeout_s: float) -> None:
        try:
            item = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        if item is None or item[0] is not self._worker:
            return
        worker, message = item
        if message is None:
            self._worker_ended(worker)
        elif message.get("run") is None:
            if message.get("type") == "hello":
                worker.greeted, self.hello = True, message
            elif message.get("type") == "failed":
                worker.last_words = str(message.get("message", ""))
        elif self._current and message["run"] == str(self._current.run):
            self._heard(self._current, message)

    def _heard(self, job: Job, message: dict[str, Any]) -> None:
        """A message about the current run."""
        kind = message.get("type")
        if kind == "finished":
            output = message.get("output")
            if output and os.path.isfile(output) and os.path.getsize(output) > 0:
                self._end(jobs.DONE, message, output=output, poster=message.get("poster"))
            else:
                self._end(jobs.FAILED, message, "The engine said it had finished, but there is no film; make it again.")
        elif kind == "failed":
            self._end(jobs.FAILED, message, str(message.get("message") or "The engine failed and did not say why."))
        elif kind == "cancelled":
            self._end(jobs.CANCELLED, message)
        else:
            self._store.note(job.run, message)

    def _worker_ended(self, worker: _Worker) -> None:
        self._worker = None
        job = self._current
        if job is None:
            return
        if self._cancel_deadline:
            self._end(jobs.CANCELLED, {"type": "cancelled", "run": str(job.run)})
        elif not worker.greeted:
            words = worker.last_words or f"The engine could not start: {worker.last_line() or worker.why_ended()}"
            self._end(jobs.FAILED, {"type": "failed", "run": str(job.run), "message": words}, words)
        else:
            words = f"The engine {worker.why_ended()}; it was {jobs.doing(self._store.job(job.id) or job)}."
            self._end(jobs.INTERRUPTED, {"type": "interrupted", "run": str(job.run), "message": words}, words)

    def _end(
        self, state: str, message: dict[str, Any], error: str = "", output: str | None = None, poster: str | None = None
    ) -> None:
        """Writes the current run's end. The sampler's state stays unless nobody can want it."""
        job = self._current
        assert job
        self._current, self._cancel_deadline, self._seen_stamp = None, None, None
        if state in (jobs.DONE, jobs.CANCELLED):
            shutil.rmtree(self._home / "runs" / str(job.run), ignore_errors=True)
        self._store.end(job.run, state, message, error, output, poster)


def recover(store: Store, home: Path) -> None:
    """Tells the truth about runs whose program ended without a word; does nothing while a process runs the queue."""
    lock = Lock(home)
    if lock.take():
        _mark_abandoned(store)
        lock.release()


def _mark_abandoned(store: Store) -> None:
    """Only for the holder of the lock: what is marked as running then has nobody who runs it."""
    for job in store.running():
        _abandon(store, job, "The program ended")


def _abandon(store: Store, job: Job, what: str) -> None:
    words = f"{what} while it was {jobs.doing(job)}."
    store.end(job.run, jobs.INTERRUPTED, {"type": "interrupted", "run": str(job.run), "message": words}, words)


def settings(request: schema.Request, seed: int) -> dict[str, Any]:
    """What the engine is told of a request: numbers and words, no paths."""
    return {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "width": request.width,
        "height": request.height,
        "frames": request.frames,
        "steps": request.steps,
        "seed": seed,
        "precision": request.precision,
        "guidance": request.guidance,
        "residency": request.residency,
        "threads": request.threads,
        "recipe": request.recipe == "yes",
    }
