"""The engine as a process of its own: one JSON object per line in, one per line out. It keeps kernels and weights warm
between runs.

in:  run{run, settings, model, folder, output} · cancel{run} · unload · quit
out: hello · phase · step · preview · memory · finished · failed · cancelled, each with "t" (monotonic seconds) and,
     but for hello, "run"
Nothing else may be printed on stdout, so the real one is taken away first and every stray print goes to stderr. The
process ends when stdin does, at once: whoever reads the messages is gone, the state of the run is on disk, and the next
worker may already be at it. A lock in the run's folder makes sure that it waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import platform
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from h3core import fault
from h3core.version import VERSION

if TYPE_CHECKING:
    from h3core.engine import pipeline

MEMORY_EVERY_S = 2.0
OUT_OF_MEMORY = "Memory ran out: choose a smaller size, fewer frames, or streamed weights."
FREE_SHARE = 0.015  # of the machine's memory: with less left over, systems begin to kill


class Messages:
    """The way out. ASCII only, one object per line, each complete: readers need no locale and no patience."""

    def __init__(self, out: BinaryIO):
        self.out, self.lock = out, threading.Lock()

    def send(self, message_type: str, run: str | None = None, **values: Any) -> None:
        """Writes one message; if nobody reads any more, the process has no purpose and ends."""
        message = {"type": message_type, "t": round(time.monotonic(), 4), **({"run": run} if run else {}), **values}
        line = json.dumps(message, ensure_ascii=True, allow_nan=False, default=str) + "\n"
        with self.lock:
            try:
                self.out.write(line.encode("ascii"))
                self.out.flush()
            except OSError:
                os._exit(0)


class Inbox:
    """The way in: a thread reads lines, so that a cancel is seen while a run is computing."""

    def __init__(self, source: BinaryIO, messages: Messages):
        self.source, self.messages = source, messages
        self.tasks: queue.SimpleQueue[dict | None] = queue.SimpleQueue()
        self.cancelled: set[str] = set()
        self.closed = threading.Event()
        self.exit_code = 0  # with which the process ends when stdin does
        self.thread = threading.Thread(target=self._read, name="inbox", daemon=True)
        self.thread.start()

    def stopped(self, run: str) -> bool:
        """Whether the run is to stop: it was cancelled, or nobody is there to see its end."""
        return self.closed.is_set() or run in self.cancelled

    def _read(self) -> None:
        for line in iter(self.source.readline, b""):
            try:
                message = json.loads(line.decode("utf-8", "surrogatepass"))
                kind = message["type"]
                if kind == "cancel":
                    self.cancelled.add(str(message["run"]))
                elif kind == "quit":
                    break
                elif kind in ("run", "unload"):
                    self.tasks.put(message)
                else:
                    raise ValueError(f"unknown message type {kind!r}")
            except (ValueError, KeyError, TypeError) as error:
                self.messages.send("failed", None, kind="protocol", message=f"A message was not understood: {error}")
        else:
            os._exit(self.exit_code)
        self.closed.set()
        self.tasks.put(None)


class Worker:
    """What is kept between runs: the kernels, and whatever weights the engine chose to hold."""

    def __init__(self, messages: Messages, inbox: Inbox):
        from h3core.kernels.table import (
            Kernels,
        )  # late: an extension that does not load is a message, not a dead process

        self.messages, self.inbox, self.Kernels = messages, inbox, Kernels
        self.kernels = Kernels()
        replaced = self.kernels.verify() if hasattr(self.kernels, "verify") else []
        self.engine: pipeline.Engine | None = None
        messages.send(
            "hello",
            version=VERSION,
            pid=os.getpid(),
            cpu=processor(),
            isa=self.kernels.isa,
            isa_name=self.kernels.name,
            features=list(self.kernels.features),
            threads=self.kernels.threads,
            replaced=replaced,
        )

    def serve(self) -> None:
        """Runs one task after the other until stdin closes or `quit` comes."""
        while (task := self.inbox.tasks.get()) is not None:
            if task["type"] == "unload":
                self.engine = None
                self.messages.send("memory", None, **memory())
            else:
                self._run(task)
            if self.inbox.closed.is_set():
                break

    def _run(self, task: dict) -> None:
        name = str(task.get("run") or "")
        watch = Watch(self.messages, name)
        try:
            if self.inbox.stopped(name):
                self.messages.send("cancelled", name)
                return
            result = self._generate(name, task, watch)
            fault.point("run.made")
            self.messages.send("finished", name, **result, peak_bytes=memory()["peak_bytes"])
            fault.point("run.said")
        except BaseException as error:  # whatever it is becomes one message, and the worker lives on
            self._failed(name, error, watch)
        finally:
            watch.stop()
            self.inbox.cancelled.discard(name)

    def _generate(self, name: str, task: dict, watch: Watch) -> dict:
        from h3core.engine import pipeline, plan
        from h3core.weights.identify import open_model

        settings = plan.Settings.read(task.get("settings") or {})
        model = open_model(Path(task["model"]))
        if settings.threads and settings.threads != self.kernels.threads:
            self.engine = None  # held weights belong to the old kernels
            self.kernels = self.Kernels(threads=settings.threads)
        if self.engine is None:
            self.engine = pipeline.Engine(self.kernels)
        run = pipeline.Run(name, settings, Path(task["folder"]), Path(task["output"]))
        engine = self.engine

        def cancelled() -> bool:
            if watch.pressed:
                self._relieve(engine, watch)
            return self.inbox.stopped(name)

        with only_worker(run.folder):
            return engine.generate(run, model, watch.event, cancelled)

    def _relieve(self, engine: pipeline.Engine, watch: Watch) -> None:
        """Memory is short: what is kept for later goes first; when that was not enough the run ends with a sentence.

        raises: MemoryError.
        """
        watch.pressed = False
        if not watch.relieved:
            watch.relieved = True
            engine.residency.drop()
        elif pressure():
            raise MemoryError("the memory watermark was passed")

    def _failed(self, name: str, error: BaseException, watch: Watch) -> None:
        kind, message = describe(error)
        if kind == "cancelled":
            self.messages.send("cancelled", name, phase=watch.phase)
            return
        traceback.print_exception(error, file=sys.stderr)
        if kind in ("memory", "internal"):
            self.engine = None  # give everything back; the next run starts from a clean table
        del error
        self.messages.send("failed", name, kind=kind, message=message, phase=watch.phase)


@contextlib.contextmanager
def only_worker(folder: Path) -> Iterator[None]:
    """Waits until no other worker is at this run: one whose studio was killed may still be on its way out."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Watch:
    """One run's progress on its way out, and its memory every two seconds whatever the run is doing."""

    def __init__(self, messages: Messages, run: str):
        self.messages, self.run, self.phase = messages, run, "load"
        self.pressed = False  # memory is short; the run's thread answers
        self.relieved = False  # what could be let go was let go
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._memory, name="memory", daemon=True)
        self.thread.start()

    def event(self, message_type: str, **values: Any) -> None:
        """What the pipeline tells."""
        if message_type == "phase":
            self.phase = str(values["phase"])
        self.messages.send(message_type, self.run, **values)

    def stop(self) -> None:
        self.done.set()
        self.thread.join()

    def _memory(self) -> None:
        while not self.done.wait(MEMORY_EVERY_S):
            self.messages.send("memory", self.run, **memory())
            self.pressed = pressure()


def describe(error: BaseException) -> tuple[str, str]:
    """(kind, one sentence) of whatever ended a run; kind "cancelled" is not a failure."""
    from h3core.engine import media, pipeline, residency

    if isinstance(error, (residency.Cancelled, media.Interrupted)):
        return "cancelled", ""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "memory", OUT_OF_MEMORY
    if isinstance(error, pipeline.RunError):
        return error.kind, text
    if isinstance(error, media.MediaError):
        return "media", text
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = f" ({error.filename})" if error.filename else ""
        reason = "The disk is full" if full else f"A file could not be used: {error.strerror or text}"
        return ("disk" if full else "file"), f"{reason}{where}."
    if isinstance(error, ValueError) and type(error).__module__.startswith("h3core."):
        return "input", text  # ModelError and its like: sentences already
    place = traceback.extract_tb(error.__traceback__)
    at = f" at {Path(place[-1].filename).name}:{place[-1].lineno}" if place else ""
    return "internal", f"The engine stopped on an error of its own: {type(error).__name__}: {text}{at}"


def pressure() -> bool:
    """Whether the memory watermark is passed.

    H3_MEMORY_LIMIT: bytes that this process may hold; without it, the machine must keep FREE_SHARE of its memory free.
    """
    import psutil

    limit = os.environ.get("H3_MEMORY_LIMIT", "")
    if limit.isdigit():
        return memory()["rss_bytes"] > int(limit)
    machine = psutil.virtual_memory()
    return machine.available < FREE_SHARE * machine.total


def memory() -> dict[str, int]:
    """This process now and at its highest, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    try:
        with open("/proc/self/statm", "rb") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resident = peak  # macOS has no cheap way to ask from here
    return {"rss_bytes": resident, "peak_bytes": max(peak, resident)}


def processor() -> str:
    """The CPU's own name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            named = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", file.read(), re.MULTILINE)
            if named:
                return named[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def take_stdout() -> BinaryIO:
    """The real stdout for messages; whoever prints from now on prints to stderr, C code included."""
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def main() -> int:
    """The process. Returns its exit code."""
    messages = Messages(take_stdout())
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")  # a log line never hides the error it tells about
    inbox = Inbox(sys.stdin.buffer, messages)
    try:
        worker = Worker(messages, inbox)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        inbox.exit_code = 1
        messages.send("failed", None, kind="start", message=f"The engine could not start: {error}")
        return 1
    worker.serve()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the pool's threads and the reader on stdin have nothing to finish
