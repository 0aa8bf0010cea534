"""Everything a page, the command line or a script can ask for.

    with Studio() as studio:
        job = studio.wait(studio.add(prompt="a red ball bounces in front of a night sky", seed=7))
        print(job.output or job.error)

Holds no weights: the worker process does.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h3core.engine.plan import Plan, Settings, SettingsError, make_plan
from h3core.studio import executor, hardware, jobs, recipe, schema
from h3core.studio.executor import Executor
from h3core.studio.jobs import Job, NotPossible, Store
from h3core.studio.presets import Saved
from h3core.studio.recipe import Recalled
from h3core.studio.schema import ModelFacts, Request, RequestError
from h3core.version import VERSION
from h3core.weights.identify import open_model
from h3core.weights.model_files import ModelError, ModelFiles

EMBEDDED = Path(__file__).parent.parent / "micro" / "model"
POLL_S = 0.25  # how soon something that another process wrote is seen
MODEL_CACHE_S = 5.0  # a page asks for a plan at every keystroke


@dataclass(frozen=True)
class Model:
    """A model that was found. problem: why it cannot be used, "" if it can."""

    name: str
    path: str
    problem: str = ""


class Studio:
    """The facade over schema, plan, store and executor.

    home: user folder, by default H3_HOME or ~/.h3.   models: more models to offer.   worker: the worker's command.
    whole_queue: True runs every waiting job of the user folder (a page), False only those added here.
    """

    def __init__(
        self,
        home: str | os.PathLike | None = None,
        *,
        models: Sequence[str | os.PathLike] = (),
        whole_queue: bool = False,
        worker: Sequence[str] = executor.WORKER,
    ):
        self.home = jobs.home_folder(home)
        self.films = self.home / "films"
        self.presets = Saved(self.home)
        self._folders = [Path(os.path.abspath(os.path.expanduser(path))) for path in models]
        self._own: set[int] | None = None if whole_queue else set()
        self._opened: dict[str, tuple[float, ModelFiles]] = {}
        self._store = Store(self.home)
        self._worker = worker
        self._executor: Executor | None = None  # started when there is something to run
        executor.recover(self._store, self.home, self._own)
        if whole_queue:
            self._start()

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker. A run of this process that is under way is marked interrupted."""
        if self._executor:
            self._executor.close()
        self._store.close()

    def _start(self) -> Executor:
        if self._executor is None:
            self._executor = Executor(self._store, self.home, self._own, self._worker)
        return self._executor

    # Models

    def models(self) -> list[Model]:
        """The embedded model, those named at the start, and what lies in the user folder's models/."""
        try:
            local = sorted(path for path in (self.home / "models").iterdir() if not path.name.startswith("."))
        except OSError:
            local = []
        found = []
        for path in dict.fromkeys([*self._folders, *([EMBEDDED] if EMBEDDED.is_dir() else []), *local]):
            try:
                found.append(Model(self._facts(self._open(str(path))).name, str(path)))
            except ModelError as error:
                found.append(Model(path.name, str(path), str(error)))
        return found

    def facts(self, model: str | os.PathLike | None = None) -> ModelFacts:
        """What the schema needs to know of a model; None: the first that was named at the start, else the embedded one.

        raises: RequestError when it cannot be used.
        """
        try:
            return self._facts(self._open(self._model_path(model)))
        except ModelError as error:
            raise RequestError({"model": f"model: {error}"}) from error

    def check(self, path: str | os.PathLike) -> list[str]:
        """What a model on disk is, a line for each part: all tensors are there in the right shape, the files are whole.

        raises: RequestError when it cannot be used.
        """
        try:
            files = self._open(self._model_path(path))
        except ModelError as error:
            raise RequestError({"model": str(error)}) from error
        lines = [f"{files.path} can be used."]
        for part in files.parts:
            formats = ", ".join(sorted({weight.format for weight in part.weights.values()}))
            lines.append(f"  {part.kind:13} {len(part.weights):5} tensors  {part.size_bytes / 1e9:8.3f} GB  {formats}")
        return lines

    def _model_path(self, model: Any) -> str:
        if not isinstance(model, (str, os.PathLike)) or not str(model).strip():
            return str(self._folders[0] if self._folders else EMBEDDED)
        if "\0" in str(model):
            raise ModelError("a path cannot contain a NUL character.")
        return os.path.abspath(os.path.expanduser(model))

    def _open(self, path: str) -> ModelFiles:
        """Headers and configs, read again after a few seconds since the person may be repairing them."""
        now = time.monotonic()
        if path not in self._opened or now - self._opened[path][0] > MODEL_CACHE_S:
            self._opened[path] = (now, open_model(path))
        return self._opened[path][1]

    def _facts(self, files: ModelFiles) -> ModelFacts:
        name = schema.MICRO if files.path.resolve() == EMBEDDED.resolve() else files.path.name or schema.H3
        return ModelFacts(name, str(files.path), files.manifest.guidance_distilled)

    # Requests

    def parse(self, values: Mapping[str, Any], *, prompt_required: bool = True) -> Request:
        """A request from raw values (see schema.FIELDS), checked against the model and the output's folder.

        raises: RequestError with one sentence for each fault.
        """
        faults: dict[str, str] = {}
        try:
            facts = self.facts(values.get("model"))
        except RequestError as error:
            faults, facts = error.faults, ModelFacts()
        try:
            request = schema.parse(values, facts, prompt_required=prompt_required)
        except RequestError as error:
            raise RequestError(error.faults | faults) from error
        if request.output and (problem := _cannot_write(Path(request.output))):
            faults["output"] = f"output: {problem}"
        if faults:
            raise RequestError(faults)
        return request

    def recall(self, path: str | os.PathLike, model: str | None = None) -> Recalled:
        """What a film or the file beside it says of how it was made, as far as it can be used here.

        model: the one that is chosen now; it stays unless another one that was found has the film's very weights.
        raises: RecipeError, RequestError when no model can be used.
        """
        found = recipe.read(path)
        facts = self.facts(model)
        recalled = recipe.recall(found, facts, VERSION)
        usable = [facts.path, *(each.path for each in self.models() if not each.problem)]
        identities = [(each, {part.kind: part.identity for part in self._open(each).parts}) for each in usable]
        same = recipe.same_weights(recalled.weights, identities)
        if same:
            return replace(recalled, values=recalled.values | {"model": same})
        if recalled.weights:
            recalled.notes.append(f"The weights it was made with ({recalled.model}) are not here; {facts.name} stays.")
        return recalled

    def plan(self, request: Request, memory_bytes: int | None = None) -> Plan:
        """What the request will cost, without loading anything; memory_bytes None: with what is free now.

        raises: RequestError when it cannot run whatever the memory.
        """
        settings = executor.settings(request, request.seed or 0)
        settings["prompt"] = request.prompt if request.prompt.strip() else "?"  # a page plans before anything is typed
        try:
            files = self._open(request.model)
            return make_plan(
                Settings.read(settings), files, memory_bytes or hardware.free_memory_bytes() + self._held_bytes()
            )
        except (SettingsError, ModelError) as error:
            raise RequestError({"plan": str(error)}) from error

    def _held_bytes(self) -> int:
        """Memory of our own worker: the next run takes it over."""
        return self._executor.held_bytes if self._executor else 0

    def add(
        self,
        request: Request | Mapping[str, Any] | None = None,
        *,
        start: str | float | None = None,
        **values: Any,
    ) -> int:
        """Queues a request (or its raw values); the job's number. Returns at once.

        start: not before this time, "23:30" or seconds since 1970.
        raises: RequestError with one sentence for each fault.
        """
        start_at = self._start_at(start)
        request = self._checked(request, values)
        return self._queued(self._store.add(request.to_json(), request.takes, start_at))

    def _checked(self, request: Request | Mapping[str, Any] | None, values: Mapping[str, Any]) -> Request:
        """A request that this computer can run. raises: RequestError."""
        if not isinstance(request, Request):
            request = self.parse({**(request or {}), **values})
        plan = self.plan(
            request, hardware.memory_bytes()
        )  # what is free may change until its turn; what is there may not
        if not plan.fits:
            raise RequestError({"plan": plan.sentence})
        return request

    def _start_at(self, start: str | float | None) -> float | None:
        if start is None or isinstance(start, (int, float)):
            return start
        if not start.strip():
            return None
        return next_time(start)

    def _queued(self, job: int) -> int:
        """The job, as one that this process may run."""
        if self._own is not None:
            self._own.add(job)
        self._start().wake()
        return job

    # The queue

    def edit(
        self,
        job: int,
        request: Request | Mapping[str, Any] | None = None,
        *,
        start: str | float | None = None,
        **values: Any,
    ) -> None:
        """Changes a job that waits: given values replace its own, the rest stays. start "": at its turn.

        raises: KeyError, NotPossible when it has started, RequestError with one sentence for each fault.
        """
        before = self.job(job)
        old = Request.from_json(before.request)
        if not isinstance(request, Request):
            request = {**old.values(), **(request or {})}
        start_at = before.start_at if start is None else self._start_at(start)
        new = self._checked(request, values)
        self._store.edit(job, new.to_json(), new.takes, start_at)
        self._wake()

    def move(self, job: int, before: int | None = None) -> None:
        """A waiting job gets its turn right before another one; None: last. raises: KeyError."""
        self.job(job)
        self._store.move(job, before)
        self._wake()

    def duplicate(self, job: int) -> int:
        """The same request once more, at the end of the queue; its number. raises: KeyError, RequestError."""
        old = self.job(job)
        request = self._checked(Request.from_json(old.request), {})
        return self._queued(self._store.add(old.request, request.takes))

    def retry(self, job: int, output: str | os.PathLike | None = None) -> int:
        """Takes that failed, were cancelled or interrupted run again with the seeds they had; how many there are.

        What was rendered before a failure is not rendered again.   output: another place for the film, when the first
        could not be written.
        raises: KeyError, RequestError, NotPossible when there is nothing to retry.
        """
        old, request = self.job(job), None
        if output is not None:
            values = Request.from_json(old.request).values() | {"output": output}
            request = self.parse(values).to_json()
        count = self._store.retry(job, request)
        if not count:
            raise NotPossible(f"Job {job} has nothing to retry: it is {old.state}.")
        self._queued(job)
        return count

    def delete(self, job: int, *, films: bool = False) -> None:
        """Forgets a job that does not run, and what was kept to go on with it.   films: its films, too.

        raises: KeyError, NotPossible while it runs.
        """
        takes = self._store.takes(job)
        if not takes:
            raise KeyError(f"There is no job {job}.")
        for run in self._store.delete(job):
            shutil.rmtree(self.home / "runs" / str(run), ignore_errors=True)
        for take in takes if films else ():
            if take.output and take.state == jobs.DONE:
                for suffix in (".mp4", ".png", ".json"):
                    Path(take.output).with_suffix(suffix).unlink(missing_ok=True)

    def pause(self, why: str = "The queue is paused.") -> None:
        """No waiting job starts until `go_on`; the one that runs runs on."""
        self._store.pause(why or "The queue is paused.")

    def go_on(self) -> None:
        """Waiting jobs start again."""
        self._store.pause("")
        self._wake()

    @property
    def paused(self) -> str:
        """Why no waiting job starts, a sentence; "" when they do."""
        return self._store.paused

    def resume(self) -> list[int]:
        """Jobs that were interrupted go on from where they were; their numbers. The queue is told to go on, too."""
        executor.recover(self._store, self.home, self._own)
        found = list(dict.fromkeys(job.id for job in self._store.in_state(jobs.INTERRUPTED)))
        for job in found:
            self._store.retry(job)
        self.go_on()
        for job in found:
            self._queued(job)
        return found

    def unload(self) -> None:
        """The worker lets go of the weights that it keeps for the next run, as soon as nothing runs."""
        if self._executor:
            self._executor.unload()

    def _wake(self) -> None:
        if self._executor:
            self._executor.wake()

    # Jobs

    def job(self, job: int) -> Job:
        """raises: KeyError when there is no such job."""
        found = self._store.job(job)
        if found is None:
            raise KeyError(f"There is no job {job}.")
        return found

    def run(self, run: int) -> Job:
        """One take. raises: KeyError when there is no such run."""
        found = self._store.run(run)
        if found is None:
            raise KeyError(f"There is no run {run}.")
        return found

    def takes(self, job: int) -> list[Job]:
        """The job once for each of its takes, the first take first."""
        return self._store.takes(job)

    def results(self, limit: int = 50) -> list[Job]:
        """Every take that has ended and was not cancelled, newest first."""
        return self._store.results(limit)

    def jobs(self, limit: int = 50) -> list[Job]:
        """Newest first, each with the take that runs, else the next that waits, else the last that gave a film."""
        return self._store.jobs(limit)

    def waiting(self) -> list[Job]:
        """The running job, then the queued ones in the order they run."""
        return self._store.waiting()

    def stamp(self) -> tuple[int, int]:
        """Differs from an earlier stamp when any job changed since."""
        return self._store.stamp()

    def cancel(self, job: int) -> str:
        """Cancels a waiting job, asks a running one to stop, all takes of it; safe to repeat. The state afterwards.

        raises: KeyError when there is no such job.
        """
        state = self._store.ask_cancel(job)
        if not state:
            raise KeyError(f"There is no job {job}.")
        self._wake()
        return state

    def events(self, job: int) -> Iterator[dict[str, Any]]:
        """Every message of a job as it comes, from the first, "at" in seconds since 1970; ends when the job has."""
        after = 0
        while True:
            ended = self.job(job).state in jobs.ENDED  # asked first, so that no message between is lost
            for number, at, message in self._store.messages(job, after):
                after = number
                yield message | {"at": round(at, 3)}
            if ended:
                return
            self._store.wait(POLL_S)

    def history(self, job: Job) -> list[dict[str, Any]]:
        """Every message of one take until now, from the first, "at" in seconds since 1970."""
        messages = self._store.messages(job.id)
        return [each | {"at": at} for _, at, each in messages if str(each.get("run")) == str(job.run)]

    def wait(self, job: int, timeout_s: float = math.inf) -> Job:
        """Returns when the job has ended, however it ended, or as it is when the time is over."""
        until = time.monotonic() + timeout_s
        while self.job(job).state not in jobs.ENDED and time.monotonic() < until:
            self._store.wait(POLL_S)
        return self.job(job)

    # This computer

    @property
    def serving(self) -> bool:
        """True while this process runs the queue, False while another one does."""
        return self._executor is not None and self._executor.serving

    def warm(self) -> None:
        """Start the worker before the first job needs it."""
        self._start().warm()

    def machine(self) -> dict[str, Any]:
        """cpu, isa, threads and version; isa is "" until the worker has said what it uses."""
        hello = self._executor.hello if self._executor else {}
        cpu = hardware.short_cpu_name(str(hello["cpu"])) if hello.get("cpu") else hardware.cpu_name()
        return {
            "cpu": cpu,
            "isa": hello.get("isa_name") or hello.get("isa") or "",
            "threads": hello.get("threads") or hardware.physical_cores(),
            "version": VERSION,
        }


def next_time(clock: str) -> float:
    """Seconds since 1970 at which this computer's clock shows "23:30" (or "7:05") next.

    raises: RequestError when it is no time of day.
    """
    found = re.fullmatch(r"\s*([0-9]{1,2}):([0-9]{2})\s*", clock)
    if not found or int(found[1]) > 23 or int(found[2]) > 59:
        raise RequestError({"start": f"start: {schema.shown(clock)!r} is not a time of day; write it like 23:30."})
    now = time.time()
    day = time.localtime(now)
    for later in (0, 1):
        wanted = (day.tm_year, day.tm_mon, day.tm_mday + later, int(found[1]), int(found[2]), 0, 0, 0, -1)
        at = time.mktime(wanted)
        if at > now:
            return at
    return now


def _cannot_write(path: Path) -> str:
    """Why a film cannot be written there; "" if the folder takes a new file and the name is no folder."""
    if len(os.fsencode(path.name)) > 240:  # 255 on every common file system, less what temporary names add
        return f"the file name has {len(os.fsencode(path.name))} bytes; at most 240 are possible."
    try:
        if path.is_dir():
            return f"{path} is a folder; add a file name that ends in .mp4."
        if not path.parent.is_dir():
            return f"the folder {path.parent} does not exist; make it or choose another."
        with tempfile.TemporaryFile(dir=path.parent):
            return ""
    except OSError as error:
        return f"the folder {path.parent} cannot be written to ({error.strerror}); choose another."
