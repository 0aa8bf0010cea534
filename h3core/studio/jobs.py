"""The job store: what was asked, what became of it, and every message on the way, in one SQLite file per user folder.

A job is what a person asked; a run is one worker task for it, one for each take, and carries the state. Several
processes may read and add at once; only the one that holds the Lock runs anything. Knows no worker and no page.
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

from h3core import fault

QUEUED, RUNNING, DONE, FAILED, CANCELLED, INTERRUPTED = (
    "queued",
    "running",
    "done",
    "failed",
    "cancelled",
    "interrupted",
)
ENDED = (DONE, FAILED, CANCELLED, INTERRUPTED)

# queued: waits for its turn, from the start or from where it was when its worker died.   interrupted: its program
# ended; it goes on when a studio starts.   failed, cancelled: only `retry` brings it back.
UNFINISHED = (QUEUED, RUNNING, INTERRUPTED)
DEATHS_OF_WORKERS, DEATHS_OF_PROGRAMS = 2, 5  # so often without a step in between, and a run is given up

VERSION = 2  # PRAGMA user_version
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
# Version 2: order, takes, a time to start, deaths of workers, causes, a queue that can rest. What an older program left
# interrupted would have stayed so; it must not start by itself years later.
TO_2 = """
ALTER TABLE jobs ADD COLUMN position REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN start_at REAL;
ALTER TABLE runs ADD COLUMN take INTEGER NOT NULL DEFAULT 1;
ALTER TABLE runs ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN cause TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN needs TEXT NOT NULL DEFAULT '[]';
CREATE TABLE queue (name TEXT PRIMARY KEY, value TEXT NOT NULL);
UPDATE jobs SET position = id;
UPDATE runs SET state = 'failed' WHERE state = 'interrupted';
"""
_JOB_COLUMNS = (
    "jobs.id, jobs.created, jobs.request, runs.id, runs.state, runs.cancel_asked, runs.seed, runs.output, runs.poster, "
    "runs.started, runs.ended, runs.error, runs.progress, runs.take, jobs.start_at, runs.deaths, "
    "(SELECT count(*) FROM runs AS all_runs WHERE all_runs.job = jobs.id)"
)
_RUN_QUERY = f"SELECT {_JOB_COLUMNS} FROM jobs JOIN runs ON runs.job = jobs.id"
# a job is shown by the take that runs, else the next that waits, else the last that gave a film, else the last
_SHOWN = (
    "runs.id = (SELECT each.id FROM runs AS each WHERE each.job = jobs.id ORDER BY each.state = 'running' DESC, "
    "each.state = 'queued' DESC, each.state = 'done' DESC, "
    "CASE each.state WHEN 'queued' THEN each.take ELSE -each.take END LIMIT 1)"
)
_JOB_QUERY = f"{_RUN_QUERY} AND {_SHOWN}"
_MOST = 2**63 - 1  # SQLite's largest number; a longer one that a person typed is no job either


class NotPossible(ValueError):
    """What was asked of a job cannot be done in the state it is in; one sentence."""


@dataclass(frozen=True)
class Job:
    """A job with one of its runs. Times are seconds since 1970. request: Request.to_json().

    seed, output and poster are known once the run has started or ended; error is the sentence of one that failed or was
    interrupted.
    progress: the newest message of each type, by type ("phase", "step", "preview", "memory", ...), with "at", its time.
    take: which of the `takes` of the request this run is, from 1.   start_at: not before this time.
    deaths: how often in a row it was cut short without getting a step further.
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
    take: int = 1
    start_at: float | None = None
    deaths: int = 0
    takes: int = 1


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
        with self._write("open"):
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > VERSION:
                raise sqlite3.DatabaseError("it was written by a newer version of this program")
            for statement in "".join((TABLES, TO_2)[version:]).split(";\n"):
                if statement.strip():
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        with self._guard:
            self._db.close()

    @contextmanager
    def _write(self, what: str) -> Iterator[None]:
        """One transaction; the write lock comes first, so that what was read inside is still true when it commits.

        what: as the fault points call it.
        """
        with self._guard:
            self._db.execute("BEGIN IMMEDIATE")
            fault.point(f"{what}.open")
            try:
                yield
                fault.point(f"{what}.filled")
                self._db.execute("COMMIT")
                fault.point(f"{what}.committed")
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

    def add(self, request: dict[str, Any], takes: int = 1, start_at: float | None = None) -> int:
        """A new job at the end of the queue; its number."""
        with self._write("add"):
            job = self._db.execute(
                "INSERT INTO jobs (created, request, start_at, position) "
                "SELECT ?, ?, ?, coalesce(max(position), 0) + 1 FROM jobs",
                (time.time(), _dump(request), start_at),
            ).lastrowid
            self._add_runs(int(job or 0), takes)
        return int(job or 0)

    def _add_runs(self, job: int, takes: int) -> None:
        runs = [(job, QUEUED, take) for take in range(1, takes + 1)]
        self._db.executemany("INSERT INTO runs (job, state, take) VALUES (?, ?, ?)", runs)

    def edit(self, job: int, request: dict[str, Any], takes: int, start_at: float | None) -> None:
        """Another request in the place of one that waits. raises: NotPossible when one of its runs has started."""
        with self._write("edit"):
            self._must_wait(job, "changed")
            self._db.execute("UPDATE jobs SET request = ?, start_at = ? WHERE id = ?", (_dump(request), start_at, job))
            self._db.execute("DELETE FROM messages WHERE run IN (SELECT id FROM runs WHERE job = ?)", (job,))
            self._db.execute("DELETE FROM runs WHERE job = ?", (job,))
            self._add_runs(job, takes)

    def _must_wait(self, job: int, what: str) -> None:
        rows = self._db.execute("SELECT state, started FROM runs WHERE job = ?", (job,)).fetchall()
        if any(state != QUEUED or started is not None for state, started in rows):
            raise NotPossible(f"Job {job} has started already, so it cannot be {what}; duplicate it instead.")

    def move(self, job: int, before: int | None) -> None:
        """Its turn comes right before that of another job, or last."""
        with self._write("move"):
            order = [
                row[0] for row in self._db.execute("SELECT id FROM jobs WHERE id != ? ORDER BY position, id", (job,))
            ]
            order.insert(order.index(before) if before in order else len(order), job)
            self._db.executemany(
                "UPDATE jobs SET position = ? WHERE id = ?", [(place, each) for place, each in enumerate(order)]
            )

    def retry(self, job: int, request: dict[str, Any] | None = None) -> int:
        """Runs that failed, were cancelled or interrupted wait again, with the seeds they had; how many.

        request: in place of the old one, for films that shall be saved elsewhere.
        """
        with self._write("retry"):
            if request is not None:
                self._db.execute("UPDATE jobs SET request = ? WHERE id = ?", (_dump(request), job))
                self._db.execute("UPDATE runs SET output = NULL WHERE job = ? AND state != ?", (job, DONE))
            return self._db.execute(
                "UPDATE runs SET state = ?, ended = NULL, error = '', cause = '', deaths = 0, cancel_asked = 0 "
                "WHERE job = ? AND state IN (?, ?, ?)",
                (QUEUED, job, FAILED, CANCELLED, INTERRUPTED),
            ).rowcount

    def delete(self, job: int) -> list[int]:
        """Forgets a job and its messages; the numbers of its runs. raises: NotPossible while one of them runs."""
        with self._write("delete"):
            rows = self._db.execute("SELECT id, state FROM runs WHERE job = ?", (job,)).fetchall()
            if any(state == RUNNING for _, state in rows):
                raise NotPossible(f"Job {job} is running; cancel it first.")
            self._db.execute("DELETE FROM messages WHERE run IN (SELECT id FROM runs WHERE job = ?)", (job,))
            self._db.execute("DELETE FROM runs WHERE job = ?", (job,))
            self._db.execute("DELETE FROM jobs WHERE id = ?", (job,))
        return [run for run, _ in rows]

    @property
    def paused(self) -> str:
        """Why no waiting job starts; "" when they do."""
        with self._guard:
            row = self._db.execute("SELECT value FROM queue WHERE name = 'paused'").fetchone()
        return row[0] if row else ""

    def pause(self, why: str) -> None:
        """No waiting job starts any more; "" lets them go on, and old failures are forgiven."""
        with self._write("pause"):
            values = [("paused", why), *([] if why else [("forgiven", repr(time.time()))])]
            self._db.executemany("INSERT OR REPLACE INTO queue (name, value) VALUES (?, ?)", values)

    def last_causes(self, count: int) -> list[str]:
        """Why the last runs failed, newest first, "" for those that did not; since the queue was last told to go on."""
        with self._guard:
            row = self._db.execute("SELECT value FROM queue WHERE name = 'forgiven'").fetchone()
            query = "SELECT cause FROM runs WHERE state IN (?, ?) AND ended > ? ORDER BY ended DESC LIMIT ?"
            return [cause for (cause,) in self._db.execute(query, (DONE, FAILED, float(row[0]) if row else 0.0, count))]

    def kept_runs(self) -> set[int]:
        """Runs whose state on disk may still be wanted: all but the finished and the cancelled."""
        with self._guard:
            query = "SELECT id FROM runs WHERE state NOT IN (?, ?)"
            return {run for (run,) in self._db.execute(query, (DONE, CANCELLED))}

    def job(self, job: int) -> Job | None:
        with self._guard:
            row = self._db.execute(f"{_JOB_QUERY} WHERE jobs.id = ?", (_within(job),)).fetchone()
        return _job(row) if row else None

    def run(self, run: int) -> Job | None:
        """The job of a run, with that run."""
        with self._guard:
            row = self._db.execute(f"{_RUN_QUERY} WHERE runs.id = ?", (_within(run),)).fetchone()
        return _job(row) if row else None

    def takes(self, job: int) -> list[Job]:
        """The job with each of its runs, the first take first."""
        with self._guard:
            return [_job(row) for row in self._db.execute(f"{_RUN_QUERY} WHERE jobs.id = ? ORDER BY take", (job,))]

    def results(self, limit: int = 50) -> list[Job]:
        """Every run that has ended and was not cancelled, newest first."""
        query = f"{_RUN_QUERY} WHERE runs.state IN (?, ?, ?) ORDER BY runs.ended DESC, runs.id DESC LIMIT ?"
        with self._guard:
            return [_job(row) for row in self._db.execute(query, (DONE, FAILED, INTERRUPTED, limit))]

    def jobs(self, limit: int = 50) -> list[Job]:
        """Newest first."""
        with self._guard:
            rows = self._db.execute(f"{_JOB_QUERY} ORDER BY jobs.id DESC LIMIT ?", (_within(limit),))
            return [_job(row) for row in rows]

    def waiting(self) -> list[Job]:
        """Queued and running jobs in the order they run: what was under way goes on before anything new starts."""
        query = (
            f"{_JOB_QUERY} WHERE runs.state IN (?, ?) "
            "ORDER BY runs.state = ? DESC, runs.started IS NOT NULL DESC, jobs.position, jobs.id"
        )
        with self._guard:
            return [_job(row) for row in self._db.execute(query, (QUEUED, RUNNING, RUNNING))]

    def start(self, run: int, seed: int, output: str) -> bool:
        """Marks a queued run as running. False when it was cancelled meanwhile."""
        with self._write("start"):
            done = self._db.execute(
                "UPDATE runs SET state = ?, started = coalesce(started, ?), seed = ?, output = ?, error = '' "
                "WHERE id = ? AND state = ?",
                (RUNNING, time.time(), str(seed), output, run, QUEUED),
            )
            return done.rowcount == 1

    def note(self, run: int, message: dict[str, Any]) -> None:
        """Keeps a message of the worker, and makes it the newest of its type."""
        with self._write("note"):
            self._note(run, message)

    def _note(self, run: int, message: dict[str, Any]) -> None:
        row = self._db.execute("SELECT progress FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            return
        now = time.time()
        before = json.loads(row[0])
        if message.get("type") == "step" and message.get("step", 0) > before.get("step", {}).get("step", 0):
            self._db.execute("UPDATE runs SET deaths = 0 WHERE id = ?", (run,))
        progress = before | {str(message.get("type", "")): message | {"at": now}}
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
        cause: str = "",
    ) -> None:
        """The last word on a run, with the message that says so. A run that has ended keeps its state.

        output: None leaves what was said at the start.   cause: the kind of failure, to be compared with the next.
        """
        with self._write("end"):
            self._note(run, message)
            self._db.execute(
                "UPDATE runs SET state = ?, ended = ?, error = ?, output = coalesce(?, output), poster = ?, cause = ? "
                "WHERE id = ? AND state IN (?, ?)",
                (state, time.time(), error, output, poster, cause, run, QUEUED, RUNNING),
            )

    def again(self, run: int, words: str) -> None:
        """A run that was cut short waits for its turn again, seed and name as they were; `words` say what happened."""
        with self._write("again"):
            self._note(run, {"type": "interrupted", "run": str(run), "message": words})
            self._db.execute(
                "UPDATE runs SET state = ?, ended = NULL, error = ?, deaths = deaths + (state = ?) "
                "WHERE id = ? AND state IN (?, ?)",
                (QUEUED, words, RUNNING, run, RUNNING, INTERRUPTED),
            )

    def ask_cancel(self, job: int) -> str:
        """Cancels a waiting job at once, asks a running one to stop; the state afterwards, "" if there is no such."""
        with self._write("cancel"):
            rows = self._db.execute("SELECT id, state FROM runs WHERE job = ?", (_within(job),)).fetchall()
            for run, state in rows:
                if state in (QUEUED, INTERRUPTED):
                    self._note(run, {"type": "cancelled", "run": str(run)})
                    self._db.execute(
                        "UPDATE runs SET state = ?, ended = ?, error = '' WHERE id = ?", (CANCELLED, time.time(), run)
                    )
                elif state == RUNNING:
                    self._db.execute("UPDATE runs SET cancel_asked = 1 WHERE id = ?", (run,))
        shown = self.job(job)
        return shown.state if shown else ""

    def in_state(self, state: str) -> list[Job]:
        """Every run in a state, the oldest first."""
        with self._guard:
            query = f"{_RUN_QUERY} WHERE runs.state = ? ORDER BY runs.id"
            return [_job(row) for row in self._db.execute(query, (state,))]

    def messages(self, job: int, after: int = 0) -> list[tuple[int, float, dict[str, Any]]]:
        """(number, time, message) of a job's runs, oldest first, from the one after number `after`."""
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
    """The job to run next: the first queued whose time has come, of `own` only unless that is None."""
    now = time.time()
    ready = (job for job in waiting if job.state == QUEUED and (job.start_at or 0) <= now)
    return next((job for job in ready if own is None or job.id in own), None)


def _within(number: int) -> int:
    """The number, or one that no job has where SQLite cannot hold it."""
    return max(-1, min(number, _MOST))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _job(row: tuple) -> Job:
    id, created, request, run, state, cancel_asked, seed, output, poster, started, ended, error, progress, *more = row
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
        *more,
    )
