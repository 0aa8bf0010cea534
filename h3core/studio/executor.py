"""Runs the queue: owns the worker process, hands it one run at a time, and writes what it says into the store.

The worker may die at any moment (memory, a signal, a bug) and takes nothing with it: a fresh worker goes on with the
run from its last step. A run that ends two workers without getting further is given up, with what it was doing; when
two runs in a row fail for the same cause, the queue rests and says so. All of it happens in one thread; nothing raises
through.
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
from h3core import fault
from h3core.studio import jobs, schema
from h3core.studio.jobs import Job, Lock, Store
from h3core.studio.names import film_path, leftovers, take_path

TURN_S = 0.2  # how soon a job or a cancel from another process is seen
LOCK_TURN_S = 0.5  # how often a process that has to wait asks for the lock
CANCEL_GRACE_S = (
    60.0  # a block of the largest model, streamed from a slow disk, takes less; after this the worker is ended
)
QUIT_GRACE_S = 5.0
LOG_LIMIT = 1_000_000  # bytes of worker output kept
IDLE_S = 900.0  # after so long without work the weights are let go
OWN_FAULTS = ("input", "noise", "blank", "numbers")  # what is wrong with one request says nothing about the next
SAVED = "What was rendered is kept: put this right, then retry the job and it goes on from there."

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
        self.memory_kills = _memory_kills()
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
            surely = _memory_kills() > self.memory_kills
            why = "by the system, which had no memory left" if surely else "from outside, most often for want of memory"
            return f"was killed {why}; choose a smaller size, fewer frames, or streamed weights"
        if code is not None and code < 0:
            return f"crashed ({signal.strsignal(-code) or f'signal {-code}'})"
        return f"ended with code {code}"

    def cause(self) -> str:
        """How it ended, to be compared with the next that ends."""
        code = self.process.returncode
        return f"signal {-code}" if code is not None and code < 0 else "ended"

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
        self._due: float | None = None  # when the next job may start that waits for an hour
        self._warm = False
        self._unload = False
        self._idle_since: float | None = None  # None: it works, or has let go of its weights
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

    def unload(self) -> None:
        """Let go of the weights that are kept for the next run, as soon as nothing runs."""
        self._unload = True
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
                job = self._store.run(self._current.run) or self._current
                _interrupt(self._store, job, f"The program was closed while it was {jobs.doing(job)}.")
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
            _recover(self._store, self._own)
            sweep(self._home, self._store.kept_runs())
        self._look()
        self._next_message(TURN_S)
        if self._cancel_deadline and time.monotonic() > self._cancel_deadline and self._worker:
            self._worker.kill()

    def _look(self) -> None:
        """What the store asks for, when it changed since the last look."""
        if self._warm and self._worker is None:
            self._warm = False
            self._worker = _Worker(self._command, self._home, self._inbox)
        self._rest()
        stamp = self._store.stamp()
        due = self._due is not None and time.time() >= self._due
        if stamp == self._seen_stamp and not due:
            return
        self._seen_stamp = stamp
        waiting = self._store.waiting()
        now = time.time()
        self._due = min((job.start_at for job in waiting if job.start_at and job.start_at > now), default=None)
        if self._current is None:
            # the pause is the queue's: who asks for a film at the command line, with no studio open, wants it now
            paused = self._own is None and self._store.paused
            job = None if paused else jobs.next_of(waiting, self._own)
            if job:
                self._start(job)
        elif self._cancel_deadline is None and any(
            job.run == self._current.run and job.cancel_asked for job in waiting
        ):
            self._cancel_deadline = time.monotonic() + CANCEL_GRACE_S
            if self._worker:
                self._worker.send({"type": "cancel", "run": str(self._current.run)})

    def _rest(self) -> None:
        """Lets the weights go when that was asked for, or when nobody has needed them for long."""
        if self._current is not None or self._worker is None:
            return
        if self._unload or (self._idle_since is not None and time.monotonic() - self._idle_since > IDLE_S):
            self._unload, self._idle_since = False, None
            self._worker.send({"type": "unload"})

    def _start(self, job: Job) -> None:
        """Resolves what was left open (seed, name), then hands the run to the worker.

        A run that goes on, or is retried, keeps the seed and the name it had.
        """
        request = schema.Request.from_json(job.request)
        seed = job.seed if job.seed is not None else _seed(request.seed, job.take)
        if job.output:
            output = job.output
        elif request.output:
            output = str(take_path(Path(request.output), job.take, job.takes))
        else:
            output = str(film_path(self._home / "films", request.prompt, seed))
        folder = self._home / "runs" / str(job.run)
        if not self._store.start(job.run, seed, output):
            return
        self._current, self._idle_since = job, None
        try:
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            if self._worker is None:
                self._worker = _Worker(self._command, self._home, self._inbox)
        except OSError as error:
            words = f"The run could not start: {error.strerror} ({error.filename})."
            self._fail({"type": "failed", "kind": "file"}, words)
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
        fault.point("run.given")

    def _next_message(self, timeout_s: float) -> None:
        try:
            item = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        if item is None:
            self._seen_stamp = None  # whose job it is may have been said only after the job was seen
            return
        if item[0] is not self._worker:
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
                self._fail(message, "The engine said it had finished, but there is no film; make it again.")
        elif kind == "failed":
            self._fail(message, str(message.get("message") or "The engine failed and did not say why."))
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
        elif not worker.greeted and worker.process.returncode != -signal.SIGKILL:  # it could not start by itself
            words = worker.last_words or f"The engine could not start: {worker.last_line() or worker.why_ended()}"
            self._fail({"type": "failed", "run": str(job.run), "message": words, "kind": "start"}, words)
        else:
            job = self._store.run(job.run) or job
            words = f"The engine {worker.why_ended()}; it was {jobs.doing(job)}."
            if job.deaths + 1 < jobs.DEATHS_OF_WORKERS:
                self._forget_current()
                self._store.again(job.run, words)
            else:
                message = {"type": "failed", "run": str(job.run), "message": words, "kind": worker.cause()}
                self._fail(message, words)

    def _fail(self, message: dict[str, Any], words: str) -> None:
        """The current run's end, what of it is kept, and a pause when the one before failed in the same way."""
        job, cause = self._current, str(message.get("kind") or "unknown")
        assert job
        own_fault = cause in OWN_FAULTS
        if not own_fault and (self._home / "runs" / str(job.run) / "state.safetensors").exists():
            words = f"{words} {SAVED}"
        self._end(jobs.FAILED, message, words, cause="" if own_fault else cause)
        causes = self._store.last_causes(2)
        if self._own is None and not self._store.paused and len(causes) == 2 and causes[0] == causes[1] != "":
            self._store.pause(
                f"Two jobs in a row failed in the same way, so the queue is paused. The last one: {words}"
            )

    def _forget_current(self) -> None:
        self._current, self._cancel_deadline, self._seen_stamp = None, None, None
        self._idle_since = time.monotonic()

    def _end(
        self,
        state: str,
        message: dict[str, Any],
        error: str = "",
        output: str | None = None,
        poster: str | None = None,
        cause: str = "",
    ) -> None:
        """Writes the current run's end. The sampler's state stays unless nobody can want it."""
        job = self._current
        assert job
        self._store.end(job.run, state, message, error, output, poster, cause)
        self._forget_current()
        if state in (jobs.DONE, jobs.CANCELLED):
            _clean(self._home, self._store.run(job.run) or job)
            fault.point("run.cleaned")


def recover(store: Store, home: Path, own: set[int] | None) -> None:
    """Tells the truth about runs whose program ended without a word; does nothing while a process runs the queue.

    own: jobs that will go on in this process, None for all.
    """
    lock = Lock(home)
    if lock.take():
        _recover(store, own)
        lock.release()


def _recover(store: Store, own: set[int] | None) -> None:
    """Only for the holder of the lock: what is marked as running then has nobody who runs it.

    own: jobs that go on now, None for all; the others are interrupted until a studio starts.
    """
    for job in store.in_state(jobs.RUNNING):
        words = f"The program ended while it was {jobs.doing(job)}."
        if job.cancel_asked:
            store.end(job.run, jobs.CANCELLED, {"type": "cancelled", "run": str(job.run)})
            for path in leftovers(Path(job.output or "film.mp4")):
                path.unlink(missing_ok=True)
        elif job.deaths + 1 >= jobs.DEATHS_OF_PROGRAMS:
            words += " This has happened too often; retry it if that was not its fault."
            store.end(job.run, jobs.FAILED, {"type": "failed", "run": str(job.run), "message": words}, words)
        elif own is None or job.id in own:
            store.again(job.run, words)
        else:
            _interrupt(store, job, words)
    for job in store.in_state(jobs.INTERRUPTED) if own is None else ():
        store.again(job.run, job.error)


def _interrupt(store: Store, job: Job, words: str) -> None:
    store.end(job.run, jobs.INTERRUPTED, {"type": "interrupted", "run": str(job.run), "message": words}, words)


def _clean(home: Path, job: Job) -> None:
    """Removes what a run left beside its film: its state, and what an encoder that was killed had begun."""
    shutil.rmtree(home / "runs" / str(job.run), ignore_errors=True)
    if job.output:
        for path in leftovers(Path(job.output)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def sweep(home: Path, kept: set[int]) -> None:
    """Removes what killed programs left behind. kept: runs whose state may still be wanted. For the lock's holder."""
    with contextlib.suppress(OSError):
        for folder in (home / "runs").iterdir():
            if folder.name.isdigit() and int(folder.name) not in kept:
                shutil.rmtree(folder, ignore_errors=True)
    for pattern in ("films/.h3-*.mp4", "films/.*.part", "cache/*/.*.part"):
        for path in home.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()


def _memory_kills() -> int:
    """How often this system has killed a process for want of memory; 0 where it does not say."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except (OSError, ValueError):
        return 0


def _seed(asked: int | None, take: int) -> int:
    """The seed of a take: drawn anew for each, or counted up from the one that was asked for."""
    if asked is None:
        return secrets.randbelow(schema.RANDOM_SEED_LIMIT)
    return (asked + take - 1) % (schema.MAX_SEED + 1)


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
