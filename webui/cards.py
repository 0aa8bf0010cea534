"""HTML of what the page shows of jobs: the stage, the queue, the films. Strings in, strings out; every value is escaped.

Elements with data-act are buttons (page.js sends the act and the job back); data-key keeps an element itself while others come and go.
"""

from __future__ import annotations

import os
import time
from html import escape
from typing import Any

from h3core.studio import jobs
from h3core.studio.jobs import Job

from .strings import Words


def stage(job: Job | None, words: Words, folder: str) -> str:
    """The large card: a film, a run under way, why one failed, or what to do first."""
    if job is None:
        text = escape(words("empty_text", folder=folder))
        return f'<section class="h3-stage h3-empty" data-key="empty"><h2>{escape(words("empty_title"))}</h2><p>{text}</p></section>'
    body = _film(job, words) if job.state == jobs.DONE else _under_way(job, words) if job.state in _ALIVE else _problem(job, words)
    return f'<section class="h3-stage" data-key="job{job.id}{_kind(job)}" data-job="{job.id}" data-state="{job.state}">{body}</section>'


_ALIVE = (jobs.QUEUED, jobs.RUNNING)


def _kind(job: Job) -> str:
    return "live" if job.state in _ALIVE else "ended"


def _prompt(job: Job) -> str:
    return " ".join(str(job.request["prompt"]).split())


def _frame(job: Job, inside: str) -> str:
    width, height = job.request["width"], job.request["height"]
    return f'<div class="h3-screen" style="--ratio: {width / height:.4f}">{inside}</div>'


def _facts(job: Job, words: Words) -> str:
    request = job.request
    seed = job.seed if job.seed is not None else request["seed"]
    return words(
        "facts",
        size=f"{request['width']} × {request['height']}",
        seconds=words.film_seconds(request["frames"]),
        steps=request["steps"],
        precision=request["precision"],
        seed="–" if seed is None else seed,
    )


def _caption(job: Job, words: Words, more: str = "") -> str:
    return f'<p class="h3-prompt">{escape(_prompt(job))}</p><p class="h3-facts">{escape(_facts(job, words))}{more}</p>'


def _film(job: Job, words: Words) -> str:
    if not (job.output and os.path.exists(job.output)):
        return _frame(job, f'<p class="h3-note">{escape(words("gone", path=job.output))}</p>') + _caption(job, words)
    poster = f' poster="/media/{job.id}/poster"' if job.poster else ""
    label = escape(_prompt(job), quote=True)
    video = (
        f'<video controls loop playsinline preload="metadata"{poster} src="/media/{job.id}/film" aria-label="{label}"></video>'
    )
    took = f" · {words('made_in', time=words.duration(job.ended - job.started))}" if job.ended and job.started else ""
    save = f'<a class="h3-button" href="/media/{job.id}/film" download="{escape(os.path.basename(job.output), quote=True)}">{escape(words("save"))}</a>'
    return _frame(job, video) + f'<div class="h3-row"><div class="h3-grow">{_caption(job, words, escape(took))}</div>{save}</div>'


def _under_way(job: Job, words: Words) -> str:
    preview = job.progress.get("preview")
    step = job.progress.get("step", {}).get("step", 0)
    inside = f'<img src="/media/{job.id}/preview?{step}" alt="">' if preview else '<div class="h3-pulse"></div>'
    return _frame(job, inside) + progress(job, words) + f'<div class="h3-row"><div class="h3-grow">{_caption(job, words)}</div>{_cancel(job, words)}</div>'


def _problem(job: Job, words: Words) -> str:
    title = words("interrupted" if job.state == jobs.INTERRUPTED else "failed")
    return f'<div class="h3-problem" role="alert"><h2>{escape(title)}</h2><p>{escape(job.error)}</p></div>{_caption(job, words)}'


def _cancel(job: Job, words: Words) -> str:
    if job.cancel_asked:
        return f'<span class="h3-note">{escape(words("stopping"))}</span>'
    label = escape(f"{words('cancel')}: {_prompt(job)}", quote=True)
    return f'<button type="button" class="h3-button" data-act="cancel" data-job="{job.id}" aria-label="{label}">{escape(words("cancel"))}</button>'


def phase_text(job: Job, words: Words) -> str:
    """What a job is at: "Denoising, step 3 of 20"."""
    if job.state == jobs.QUEUED:
        return words("waiting")
    phase = str(job.progress.get("phase", {}).get("phase", ""))
    name = words(f"phase_{phase}") if words.has(f"phase_{phase}") else words("starting")
    if phase != "denoise":
        return name
    steps = job.request["steps"]
    return f"{name}, {words('step', step=min(jobs.step_share(job)[0] + 1, steps), steps=steps)}"


def _share(job: Job) -> float | None:
    """How much of the work is done, 0..1; None while nobody knows. Steps count for most of it, decoding for the rest."""
    phase = job.progress.get("phase", {})
    name = phase.get("phase")
    if name == "denoise":
        return 0.85 * min(1.0, sum(jobs.step_share(job)) / job.request["steps"])
    if name in ("audio", "video", "mux"):
        within = (phase.get("done") or 0) / max(phase.get("total") or 1, 1)
        return {"audio": 0.85, "video": 0.88 + 0.1 * within, "mux": 0.98}[name]
    return None


def progress(job: Job, words: Words) -> str:
    """Phase, step and time left over a bar."""
    share = _share(job) if job.state == jobs.RUNNING else None
    bar = f'<i style="width: {share * 100:.1f}%"></i>' if share is not None else '<i class="h3-unknown"></i>' if job.state == jobs.RUNNING else "<i></i>"
    now = f' aria-valuenow="{share * 100:.0f}"' if share is not None else ""
    return (
        f'<div class="h3-row h3-progress"><span class="h3-grow" aria-live="polite">{escape(phase_text(job, words))}</span>{_left(job, words)}</div>'
        f'<div class="h3-bar" role="progressbar" aria-valuemin="0" aria-valuemax="100"{now}>{bar}</div>'
    )


def _left(job: Job, words: Words) -> str:
    """The time left, counted down by page.js between two messages."""
    step: dict[str, Any] = job.progress.get("step", {})
    if job.state != jobs.RUNNING or step.get("left_s") is None:
        return '<span class="h3-left"></span>'
    left = max(0.0, step["left_s"] - (time.time() - step.get("at", time.time())))
    text = words("left", time=words.duration(left))
    pattern = escape(words("left", time="{}"), quote=True)
    return f'<span class="h3-left" data-left="{left:.0f}" data-text="{pattern}" data-units="{escape(words("units"), quote=True)}">{escape(text)}</span>'


def queue(waiting: list[Job], staged: Job | None, words: Words, serving: bool) -> str:
    """Jobs that run or wait and are not on the stage."""
    others = [job for job in waiting if staged is None or job.id != staged.id]
    note = "" if serving or not waiting else f'<p class="h3-note" data-key="note">{escape(words("waiting_elsewhere"))}</p>'
    if not others:
        return note
    rows = "".join(
        f'<li data-key="job{job.id}"><button type="button" class="h3-link h3-grow" data-act="show" data-job="{job.id}">'
        f'<b>{escape(_prompt(job))}</b><small>{escape(phase_text(job, words))}</small></button>{_cancel(job, words)}</li>'
        for job in others
    )
    return f'{note}<h3 data-key="title">{escape(words("queue"))}</h3><ul class="h3-queue" data-key="list">{rows}</ul>'


def films(ended: list[Job], staged: Job | None, words: Words) -> str:
    """Finished films and failed runs, newest first."""
    tiles = "".join(_tile(job, staged, words) for job in ended)
    return f'<h3 data-key="title">{escape(words("films"))}</h3><div class="h3-films" data-key="list">{tiles}</div>' if tiles else ""


def _tile(job: Job, staged: Job | None, words: Words) -> str:
    chosen = ' aria-current="true"' if staged and staged.id == job.id else ""
    label = escape(words("open", prompt=_prompt(job)), quote=True)
    if job.state == jobs.DONE and job.poster:
        inside = f'<img src="/media/{job.id}/poster" alt="" loading="lazy">'
    else:
        inside = f'<em>{escape(words("failed" if job.state == jobs.FAILED else "interrupted") if job.state != jobs.DONE else "▶")}</em>'
    return (
        f'<button type="button" class="h3-tile" data-key="job{job.id}" data-act="show" data-job="{job.id}" aria-label="{label}"{chosen}>'
        f"<span>{inside}</span><small>{escape(_prompt(job))}</small></button>"
    )


def machine(facts: dict[str, Any], words: Words) -> str:
    """The status line: processor, instruction set, threads, version."""
    return escape(words("machine", **(facts | {"isa": facts["isa"] or words("engine_starting")})))
