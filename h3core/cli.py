"""The command line: `h3 generate "a sentence" -o film.mp4`, `h3 studio`, and what asks about jobs, models and costs.

Every flag of a request comes from the schema. Exit codes: 0 done, 1 failed, 2 cannot run as asked (a sentence for each
fault), 130 cancelled.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from h3core.studio import jobs, schema
from h3core.studio.schema import FIELDS, RequestError
from h3core.version import VERSION

OK, FAILED, BAD_INPUT, CANCELLED = 0, 1, 2, 130
STOP_S = 30.0  # far more than a block, a tile or a chunk takes
SHORT_FLAGS = {"output": "-o"}
METAVARS = {"size": "WxH", "seed": "N", "count": "N", "number": "X", "path": "PATH", "text": "TEXT"}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> Any:
        self.exit(BAD_INPUT, f"{self.prog}: {message}. See {self.prog} --help.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code."""
    if arguments is None and sys.getfilesystemencoding() != "utf-8":
        # under LC_ALL=C prompts and names arrive as escapes that nothing can write; UTF-8 mode is set at start or never
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    # where whoever started us closed them; opened at once, so that no other file gets their numbers
    sys.stdout, sys.stderr = (each or open(os.devnull, "w") for each in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a console that cannot show a prompt must not end the run
    signal.signal(signal.SIGTERM, _interrupt)
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and hasattr(options, "prompt") and not any(word.startswith("-") for word in rest):
        parser.exit(BAD_INPUT, f'The prompt is one argument: put it in quotes, "{options.prompt} {" ".join(rest)}".\n')
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return options.command(options)
    except RequestError as error:
        for sentence in error.faults.values():
            print(sentence, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return CANCELLED
    except BrokenPipeError:  # the reader of our output has gone, as in `h3 jobs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (OSError, sqlite3.Error) as error:
        print(f"The user folder {os.environ.get('H3_HOME', '~/.h3')} could not be used: {error}.", file=sys.stderr)
        return FAILED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> _Parser:
    parser = _Parser(prog="h3", description="Films with sound from text, with MiniMax-H3, on this computer.")
    parser.add_argument("--version", action="version", version=f"h3 {VERSION}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)

    generate = commands.add_parser("generate", help="make a film from a sentence")
    _add_fields(generate)
    generate.add_argument(
        "--events", action="store_true", help="one JSON object per line instead of progress for people"
    )
    generate.add_argument("--start", metavar="HH:MM", help="not before this time of day")
    generate.set_defaults(command=_generate)

    plan = commands.add_parser("plan", help="what a film would cost, without making it")
    _add_fields(plan)
    plan.add_argument("--json", action="store_true", help="figures as JSON")
    plan.set_defaults(command=_plan)

    studio = commands.add_parser("studio", help="open the page in the browser")
    studio.add_argument("--host", default="127.0.0.1", help="address to listen at; 127.0.0.1 is this computer only")
    studio.add_argument("--port", type=int, help="port; by default the first free one from 7860")
    studio.add_argument("--no-browser", action="store_true", help="do not open a browser")
    studio.add_argument(
        "--model", action="append", default=[], metavar="PATH", help="offer this model first; may be repeated"
    )
    studio.add_argument("--language", choices=("en", "zh"), help="language of the page; by default the system's")
    studio.set_defaults(command=_studio)

    listing = commands.add_parser("jobs", help="what was asked and what became of it")
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="how many, newest first (20)")
    listing.set_defaults(command=_jobs)

    cancel = commands.add_parser("cancel", help="stop a waiting or running job")
    cancel.add_argument("job", type=int, metavar="ID", help="number of the job, as `h3 jobs` shows it")
    cancel.set_defaults(command=_cancel)

    resume = commands.add_parser("resume", help="go on with what was interrupted, or retry jobs that failed")
    resume.add_argument("job", type=int, nargs="*", metavar="ID", help="jobs to retry; none: all that were interrupted")
    resume.add_argument("-o", "--output", metavar="PATH", help="save the film of a retried job here instead")
    resume.set_defaults(command=_resume)

    pause = commands.add_parser("pause", help="let no waiting job start until `h3 resume`")
    pause.set_defaults(command=_pause)

    delete = commands.add_parser("delete", help="forget a job that does not run")
    delete.add_argument("job", type=int, metavar="ID", help="number of the job, as `h3 jobs` shows it")
    delete.add_argument("--films", action="store_true", help="delete its films, too")
    delete.set_defaults(command=_delete)

    models = commands.add_parser("models", help="which models there are")
    models.set_defaults(command=_models)

    check = commands.add_parser("check", help="whether a model can be used, and what is wrong if not")
    check.add_argument("path", metavar="PATH", help="model folder or weight file")
    check.set_defaults(command=_check)
    return parser


def _add_fields(parser: argparse.ArgumentParser) -> None:
    """The flags of a request. Values stay text: the schema reads them, as it does for the page."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=FIELDS["prompt"].help)
    for field in FIELDS.values():
        if field.name != "prompt":
            flags = [SHORT_FLAGS[field.name]] if field.name in SHORT_FLAGS else []
            metavar = "|".join(field.choices) or METAVARS[field.kind]
            parser.add_argument(*flags, field.flag, dest=field.name, metavar=metavar, help=_help(field))


def _help(field: schema.Field) -> str:
    default = field.default(schema.MICRO)
    return field.help.replace("%", "%%") + (f" Default for the built-in model: {default}." if default else "")


def _values(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name in FIELDS if (value := getattr(options, name)) is not None}


def _generate(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        request = studio.parse(_values(options))
        teller = _Events() if options.events else _Progress(request.frames)
        for note in request.notes:
            teller.note(note)
        job = studio.add(request, start=options.start)
        teller.begin(job, studio.plan(request).sentence, len([each for each in studio.waiting() if each.id != job]))
        try:
            for message in studio.events(job):
                teller.tell(message)
        except KeyboardInterrupt:
            teller.note("Stopping ...")
            studio.cancel(job)
            studio.wait(job, STOP_S)  # a second Ctrl-C leaves from here, and closing ends the worker
            if studio.job(job).state not in jobs.ENDED:  # a full disk can keep the store from being told
                return CANCELLED
        return teller.end(studio.wait(job))


class _Events:
    """Progress for programs: one JSON object per line on stdout, ASCII."""

    def begin(self, job: int, plan: str, before: int) -> None:
        self.tell({"type": "queued", "job": job, "before": before, "plan": plan, "at": round(time.time(), 3)})

    def note(self, text: str) -> None:
        self.tell({"type": "note", "message": text, "at": round(time.time(), 3)})

    def tell(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), flush=True)

    def end(self, job: jobs.Job) -> int:
        if job.error:
            print(job.error, file=sys.stderr)
        return _exit_code(job)


class _Progress:
    """Progress for people, on stderr: one line that is rewritten on a terminal, a line for each step otherwise."""

    def __init__(self, frames: int):
        self._frames, self._live, self._open = frames, sys.stderr.isatty(), False
        self._phase = self._step = ""

    def begin(self, job: int, plan: str, before: int) -> None:
        self.note(plan)
        if before:
            self.note(f"Job {job} waits for {before} other{'s' if before > 1 else ''}.")

    def note(self, text: str) -> None:
        self._end_line()
        print(text, file=sys.stderr, flush=True)

    def tell(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "step":
            left = f", {_about(message['left_s'])} left" if message.get("left_s") is not None else ""
            self._step = f"Step {message.get('step')} of {message.get('steps')}{left}"
            self._line(self._step)
        elif kind == "phase":
            name = str(message.get("phase"))
            done, total = message.get("done") or 0, message.get("total") or 1
            if self._live:  # blocks, tiles and chunks move the line; elsewhere they would fill a log
                said = self._step if name == "denoise" and self._step else jobs.PHASES.get(name, "working").capitalize()
                self._line(f"{said} ({100 * done // total} %)" if 0 < done < total else said)
            elif name != self._phase:
                self._line(jobs.PHASES.get(name, "working").capitalize())
            self._phase = name

    def end(self, job: jobs.Job) -> int:
        self._end_line()
        if job.state == jobs.DONE:
            took = f" in {_duration(job.ended - job.started)}" if job.ended and job.started else ""
            self.note(f"Done{took}: {self._frames} frames, seed {job.seed}.")
            print(job.output)
        elif job.state == jobs.CANCELLED:
            self.note("Cancelled.")
        else:
            self.note(job.error)
        return _exit_code(job)

    def _line(self, text: str) -> None:
        if self._live:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            print(text, file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self._open:
            print(file=sys.stderr)
            self._open = False


def _exit_code(job: jobs.Job) -> int:
    if job.state == jobs.FAILED and job.progress.get("failed", {}).get("kind") == "input":
        return BAD_INPUT
    return {jobs.DONE: OK, jobs.CANCELLED: CANCELLED}.get(job.state, FAILED)


def _duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 1:
        return "under 1 s"
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _about(seconds: float) -> str:
    return f"about {_duration(seconds)}" if round(seconds) >= 1 else _duration(seconds)


def _plan(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        request = studio.parse(_values(options), prompt_required=False)
        plan = studio.plan(request)
    if options.json:
        print(json.dumps(plan.to_json()))
        return OK
    for note in request.notes:
        print(note)
    length = f"{request.frames} frames ({schema.seconds(request.frames)})"
    print(f"{request.size}, {length}, {request.steps} steps, {request.precision}")
    print(f"{plan.rows} rows, {plan.flop / 1e12:.3g} TFLOP, {plan.disk_bytes / 1e6:.0f} MB of disk")
    for phase in plan.phases:
        print(f"  {phase.name:8} {phase.peak_bytes / 1e9:7.2f} GB  {_duration(phase.expected_s)}")
    print(plan.sentence)
    return OK


def _studio(options: argparse.Namespace) -> int:
    return _page().serve(
        host=options.host,
        port=options.port,
        open_browser=not options.no_browser,
        models=options.model,
        language=options.language,
    )


def _page() -> ModuleType:
    """The page's application: `webui` in the checkout this package lies in, else the copy inside the package."""
    package = Path(__file__).resolve().parent
    if (package.parent / "webui" / "app.py").exists():
        sys.path.insert(0, str(package.parent))
        return importlib.import_module("webui.app")
    return importlib.import_module("h3core._webui.app")


def _jobs(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        found = studio.jobs(max(1, options.limit))
        if studio.paused:
            print(studio.paused)
    for job in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created))
        what = " ".join(str(job.request["prompt"]).split())
        step = job.progress.get("step", {})
        state = f"step {step.get('step')}/{step.get('steps')}" if job.state == jobs.RUNNING and step else job.state
        print(f"{job.id:5}  {when}  {state:12} {what[:60]}  {job.error or job.output or ''}".rstrip())
    if not found:
        print("There are no jobs yet.")
    return OK


def _cancel(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        try:
            state = studio.cancel(options.job)
        except KeyError as error:
            print(error.args[0], file=sys.stderr)
            return BAD_INPUT
    said = {jobs.CANCELLED: "is cancelled", jobs.RUNNING: "is stopping"}
    print(f"Job {options.job} {said.get(state, f'had ended already ({state})')}.")
    return OK


def _resume(options: argparse.Namespace) -> int:
    """Goes on and stays until all of it has ended; Ctrl-C leaves it interrupted."""
    from h3core.studio.studio import Studio

    with Studio() as studio:
        try:
            for job in options.job:
                studio.retry(job, options.output)
        except (KeyError, jobs.NotPossible) as error:
            print(error.args[0], file=sys.stderr)
            return BAD_INPUT
        found = options.job or studio.resume()
        if not found:
            print("Nothing was interrupted.")
            return OK
        code = OK
        for job in found:
            done = studio.wait(job)
            print(f"{job:5}  {done.state:12} {done.error or done.output}")
            code = code or _exit_code(done)
    return code


def _pause(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        studio.pause()
    print("No waiting job starts until `h3 resume`.")
    return OK


def _delete(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        try:
            studio.delete(options.job, films=options.films)
        except (KeyError, jobs.NotPossible) as error:
            print(error.args[0], file=sys.stderr)
            return BAD_INPUT
    print(f"Job {options.job} is deleted.")
    return OK


def _models(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        for model in studio.models():
            print(f"{model.name:16} {model.path}{f'  cannot be used: {model.problem}' if model.problem else ''}")
    return OK


def _check(options: argparse.Namespace) -> int:
    from h3core.studio.studio import Studio

    with Studio() as studio:
        for line in studio.check(options.path):
            print(line)
    return OK


if __name__ == "__main__":
    sys.exit(main())
