"""The job store: what was asked, what became of it, and every message on the way, in one SQLite file per user folder.

A job is what a person asked; a run is one worker task for it and carries the state. Several processes may read and add
at once; only the one that holds the Lock runs anything. Knows no worker and no page.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

QUEUED, RUNNING, DONE, FAILED, CANCELLED, INTERRUPTED = (
    "queued",
    "running",
    "done",
    "failed",
    "cancelled",
    "interrupted",
)
ENDED = (DONE, FAILED, CANCELLED, INTERRUPTED)

VERSION = 1  # PRAGMA user_version; a later layout migrates from here
TABLES = """
CREATE TABLE jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, created REAL NOT NULL, request TEXT NOT NULL);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL REFERENCES jobs, state TEXT NOT NULL,
    cancel_asked INTEGER NOT NULL DEFAULT 0, seed TEXT, output TEXT, poster TEXT, started REAL, ended REAL,
    error TEXT NOT NULL DEFAULT '', progress TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX runs_state ON runs (state);
CREATE INDEX runs_job ON runs (job);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL REFERENCES runs, at REAL NOT NULL, message TEXT NOT NULL
);
CREATE INDEX messages_run ON messages (run);
"""
_JOB_COLUMNS = (
    "jobs.id, jobs.created, jobs.request, runs.id, runs.state, runs.cancel_asked, runs.seed, runs.output, runs.poster, "
    "runs.started, runs.ended, runs.error, runs.progress"
)
_JOB_QUERY = f"SELECT {_JOB_COLUMNS} FROM jobs JOIN runs ON runs.job = jobs.id"


@dataclass(frozen=True)
class Job:
    """A job with its run. Times are seconds since 1970. request: Request.to_json().

    seed, output and poster are known once the run has started or ended; error is the sentence of one that failed or was
    interrupted.
    progress: the newest message of each type, by type ("phase", "step", "preview", "memory", ...), with "at", its time.
    """

    id: int
    created: float
    request: dict[str, Any]
    run: int
    state: str
    cancel_asked: bool
    seed: int | None
    output: str | None
    poster: str | None
    started: float | None
    ended: float | None
    error: str
    progress: dict[str, dict[str, Any]]


def home_folder(home: str | os.PathLike | None = None) -> Path:
    """The user folder: the argument, else H3_HOME, else ~/.h3. Made if missing."""
    path = Path(home or os.environ.get("H3_HOME") or Path.home() / ".h3").expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


class Lock:
    """Held by the one process that runs jobs of a user folder. The system frees it when that process ends."""

    def __init__(self, home: Path):
        self._path = home / "lock"
        self._file: IO[str] | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def take(self) -> bool:
        """True when the lock is ours, now or already."""
        if self._file is None:
            file = open(self._path, "a")  # noqa: SIM115 - stays open while the lock is held
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                return False
            self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Store:
    """The tables, safe to use from several threads and several processes."""

    def __init__(self, home: Path):
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._db = sqlite3.connect(home / "studio.db", timeout=30, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(
            "PRAGMA synchronous = NORMAL"
        )  # after a power cut the newest messages may be missing, never half there
        self._db.execute("PRAGMA foreign_keys = ON")
        with self._write():
            if self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in TABLES.strip().split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        with self._guard:
            self._db.close()

    @contextmanager
    def _write(self) -> Iterator[None]:
        """One transaction; the write lock comes first, so that what was read inside is still true when it commits."""
        with self._guard:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._changed.notify_all()

    def stamp(self) -> tuple[int, int]:
        """Differs from an earlier stamp when anything was written since, by this process or another."""
        with self._guard:
            return self._db.execute("PRAGMA data_version").fetchone()[0], self._db.total_changes

    def wait(self, timeout_s: float) -> None:
        """Returns after the next change by this process, at the latest after the timeout."""
        with self._changed:
            self._changed.wait(timeout_s)

    def add(self, request: dict[str, Any]) -> int:
        """A new job at the end of the queue; its number."""
        with self._write():
            job = self._db.execute(
                "INSERT INTO jobs (created, request) VALUES (?, ?)", (time.time(), _dump(request))
            ).lastrowid
            self._db.execute("INSERT INTO runs (job, state) VALUES (?, ?)", (job, QUEUED))
        return int(job or 0)

    def job(self, job: int) -> Job | None:
        with self._guard:
            row = self._db.execute(f"{_JOB_QUERY} WHERE jobs.id = ? ORDER BY runs.id DESC LIMIT 1", (job,)).fetchone()
        return _job(row) if row else None

    def jobs(self, limit: int = 50) -> list[Job]:
        """Newest first."""
        with self._guard:
            return [_job(row) for row in self._db.execute(f"{_JOB_QUERY} ORDER BY jobs.id DESC LIMIT ?", (limit,))]

    def waiting(self) -> list[Job]:
        """Queued and running jobs in the order they run."""
        query = f"{_JOB_QUERY} WHERE runs.state IN (?, ?) ORDER BY runs.state = ? DESC, runs.id"
        with self._guard:
            return [_job(row) for row in self._db.execute(query, (QUEUED, RUNNING, RUNNING))]

    def start(self, run: int, seed: int, output: str) -> bool:
        """Marks a queued run as running. False when it was cancelled meanwhile."""
        with self._write():
            done = self._db.execute(
                "UPDATE runs SET state = ?, started = ?, seed = ?, output = ? WHERE id = ? AND state = ?",
                (RUNNING, time.time(), str(seed), output, run, QUEUED),
            )
            return done.rowcount == 1

    def note(self, run: int, message: dict[str, Any]) -> None:
        """Keeps a message of the worker, and makes it the newest of its type."""
        with self._write():
            self._note(run, message)

    def _note(self, run: int, message: dict[str, Any]) -> None:
        row = self._db.execute("SELECT progress FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            return
        now = time.time()
        progress = json.loads(row[0]) | {str(message.get("type", "")): message | {"at": now}}
        self._db.execute("INSERT INTO messages (run, at, message) VALUES (?, ?, ?)", (run, now, _dump(message)))
        self._db.execute("UPDATE runs SET progress = ? WHERE id = ?", (_dump(progress), run))

    def end(
        self,
        run: int,
        state: str,
        message: dict[str, Any],
        error: str = "",
        output: str | None = None,
        poster: str | None = None,
    ) -> None:
        """The last word on a run, with the message that says so. A run that has ended keeps its state."""
        with self._write():
            self._note(run, message)
            self._db.execute(
                "UPDATE runs SET state = ?, ended = ?, error = ?, output = ?, poster = ? "
                "WHERE id = ? AND state IN (?, ?)",
                (state, time.time(), error, output, poster, run, QUEUED, RUNNING),
            )

    def ask_cancel(self, job: int) -> str:
        """Cancels a waiting job at once, asks a running one to stop; the state afterwards, "" if there is no such."""
        with self._write():
            row = self._db.execute(
                "SELECT id, state FROM runs WHERE job = ? ORDER BY id DESC LIMIT 1", (job,)
            ).fetchone()
            if row is None:
                return ""
            run, state = row
            if state == QUEUED:
                self._note(run, {"type": "cancelled", "run": run})
                self._db.execute("UPDATE runs SET state = ?, ended = ? WHERE id = ?", (CANCELLED, time.time(), run))
                return CANCELLED
            if state == RUNNING:
                self._db.execute("UPDATE runs SET cancel_asked = 1 WHERE id = ?", (run,))
            return state

    def running(self) -> list[Job]:
        with self._guard:
            return [_job(row) for row in self._db.execute(f"{_JOB_QUERY} WHERE runs.state = ?", (RUNNING,))]

    def messages(self, job: int, after: int = 0) -> list[tuple[int, float, dict[str, Any]]]:
        """(number, time, message) of a job's run, oldest first, from the one after number `after`."""
        query = (
            "SELECT messages.id, messages.at, messages.message FROM messages JOIN runs ON runs.id = messages.run "
            "WHERE runs.job = ? AND messages.id > ? ORDER BY messages.id"
        )
        with self._guard:
            return [(number, at, json.loads(text)) for number, at, text in self._db.execute(query, (job, after))]


PHASES = {
    "load": "loading the weights",
    "text": "reading the prompt",
    "adaln": "preparing the time table",
    "denoise": "denoising",
    "audio": "decoding the sound",
    "video": "decoding the pictures",
    "mux": "writing the film",
}


def step_share(job: Job) -> tuple[int, float]:
    """(steps that are done, share 0..1 of the step under way); phase messages count the blocks within a step."""
    phase, step = job.progress.get("phase", {}), job.progress.get("step", {})
    done = int(step.get("step") or 0)
    newer = phase.get("phase") == "denoise" and phase.get("t", 0) > step.get("t", 0)
    return done, (phase.get("done") or 0) / max(phase.get("total") or 1, 1) if newer else 0.0


def doing(job: Job) -> str:
    """What a run is at, in words that follow "it was"."""
    phase = str(job.progress.get("phase", {}).get("phase", ""))
    if phase == "denoise":
        steps = job.request.get("steps", 0)
        return f"denoising, step {min(step_share(job)[0] + 1, steps)} of {steps}"
    return PHASES.get(phase, "starting")


def next_of(waiting: Iterable[Job], own: set[int] | None) -> Job | None:
    """The job to run next: the oldest queued, of `own` only unless that is None."""
    return next((job for job in waiting if job.state == QUEUED and (own is None or job.id in own)), None)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _job(row: tuple) -> Job:
    id, created, request, run, state, cancel_asked, seed, output, poster, started, ended, error, progress = row
    return Job(
        id,
        created,
        json.loads(request),
        run,
        state,
        bool(cancel_asked),
        None if seed is None else int(seed),
        output,
        poster,
        started,
        ended,
        error,
        json.loads(progress),
    )
