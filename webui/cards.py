"""HTML of what the page shows of jobs: the stage, the queue, the films. Values in, strings out; every value is escaped.

Elements with data-act are buttons (page.js sends the act and the job back); data-key keeps an element itself while
others come and go.
"""

from __future__ import annotations

import os
import time
from html import escape
from typing import Any

from h3core.studio import jobs
from h3core.studio.jobs import Job

from .strings import Words

_ALIVE = (jobs.QUEUED, jobs.RUNNING)


def stage(job: Job | None, words: Words, folder: str) -> str:
    """The large card: a film, a run under way, why one failed, or what to do first."""
    if job is None:
        title, text = escape(words("empty_title")), escape(words("empty_text", folder=folder))
        return f'<section class="h3-stage h3-empty" data-key="empty"><h2>{title}</h2><p>{text}</p></section>'
    if job.state in _ALIVE:
        key, body = f"live{job.id}", _under_way(job, words)
    else:
        key, body = f"ended{job.id}", (film if job.state == jobs.DONE else _problem)(job, words)
    return f'<section class="h3-stage" data-key="{key}" data-job="{job.id}" data-state="{job.state}">{body}</section>'


def _prompt(job: Job) -> str:
    """The prompt on one line, escaped for text and attributes."""
    return escape(" ".join(str(job.request["prompt"]).split()))


def act_button(act: str, number: int, kind: str, inside: str, more: str = "") -> str:
    """A button that sends (act, number) back. inside: HTML."""
    return f'<button type="button" class="{kind}" data-act="{act}" data-job="{number}"{more}>{inside}</button>'


def _button(job: Job, act: str, kind: str, label: str, inside: str, more: str = "") -> str:
    """A button about a job. label: what a screen reader says, escaped; inside: HTML."""
    return act_button(act, job.id, kind, inside, f' aria-label="{label}"{more}')


def _frame(job: Job, inside: str) -> str:
    ratio = job.request["width"] / job.request["height"]
    return f'<div class="h3-screen" style="--ratio: {ratio:.4f}">{inside}</div>'


def _caption(job: Job, words: Words, more: str = "") -> str:
    """The prompt, and the settings that made it."""
    request = job.request
    seed = job.seed if job.seed is not None else request["seed"]
    facts = words(
        "facts",
        size=f"{request['width']} × {request['height']}",
        seconds=words.film_seconds(request["frames"]),
        steps=request["steps"],
        precision=request["precision"],
        seed="–" if seed is None else seed,
    )
    return f'<p class="h3-prompt">{_prompt(job)}</p><p class="h3-facts">{escape(facts + more)}</p>'


def _row(wide: str, narrow: str) -> str:
    return f'<div class="h3-row"><div class="h3-grow">{wide}</div>{narrow}</div>'


def film(job: Job, words: Words, *, sync: bool = False, muted: bool = False) -> str:
    """A film with what made it. sync: it plays in step with the other one that has this."""
    if not (job.output and os.path.exists(job.output)):
        note = f'<p class="h3-note">{escape(words("gone", path=job.output))}</p>'
        return _frame(job, note) + _caption(job, words)
    address, name = f"/media/{job.run}/film", escape(os.path.basename(job.output))
    poster = f' poster="/media/{job.run}/poster"' if job.poster else ""
    more = (" data-sync" if sync else "") + (" muted" if muted else "")
    source = f'src="{address}"{poster}{more} aria-label="{_prompt(job)}"'
    video = f'<video controls loop playsinline preload="metadata" {source}></video>'
    took = f" · {words('made_in', time=words.duration(job.ended - job.started))}" if job.ended and job.started else ""
    save = f'<a class="h3-button" href="{address}" download="{name}">{escape(words("save"))}</a>'
    return _frame(job, video) + _row(_caption(job, words, took), save)


def _under_way(job: Job, words: Words) -> str:
    preview = job.progress.get("preview")
    address = f"/media/{job.run}/preview?{preview.get('step', preview.get('t'))}" if preview else ""
    inside = f'<img src="{escape(address)}" alt="">' if preview else '<div class="h3-pulse"></div>'
    return _frame(job, inside) + progress(job, words) + _row(_caption(job, words), _cancel(job, words))


def _problem(job: Job, words: Words) -> str:
    title = escape(words("interrupted" if job.state == jobs.INTERRUPTED else "failed"))
    problem = f'<div class="h3-problem" role="alert"><h2>{title}</h2><p>{escape(job.error)}</p></div>'
    retry = _button(job, "retry", "h3-button", escape(words("retry")), escape(words("retry")))
    return problem + _row(_caption(job, words), retry)


def _cancel(job: Job, words: Words) -> str:
    if job.cancel_asked:
        return f'<span class="h3-note">{escape(words("stopping"))}</span>'
    text = escape(words("cancel"))
    return _button(job, "cancel", "h3-button", f"{text}: {_prompt(job)}", text)


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
    """How much of the work is done, 0..1; None while nobody knows. Steps are most of it, decoding is the rest."""
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
    if share is not None:
        now, inside = f' aria-valuenow="{share * 100:.0f}"', f'<i style="width: {share * 100:.1f}%"></i>'
    else:
        now, inside = "", '<i class="h3-unknown"></i>' if job.state == jobs.RUNNING else "<i></i>"
    text = f'<span class="h3-grow" aria-live="polite">{escape(phase_text(job, words))}</span>'
    bar = f'<div class="h3-bar" role="progressbar" aria-valuemin="0" aria-valuemax="100"{now}>{inside}</div>'
    return f'<div class="h3-row h3-progress">{text}{_left(job, words)}</div>{bar}'


def _left(job: Job, words: Words) -> str:
    """The time left, counted down by page.js between two messages."""
    step: dict[str, Any] = job.progress.get("step", {})
    if job.state != jobs.RUNNING or step.get("left_s") is None:
        return '<span class="h3-left"></span>'
    left = max(0.0, step["left_s"] - (time.time() - step["at"]))
    pattern, units = escape(words("left", time="{}")), escape(words("units"))
    text = escape(words("left", time=words.duration(left)))
    return f'<span class="h3-left" data-left="{left:.0f}" data-text="{pattern}" data-units="{units}">{text}</span>'


def queue(waiting: list[Job], staged: Job | None, words: Words, serving: bool, paused: str) -> str:
    """Jobs that run or wait and are not on the stage. paused: why none starts, "" when they do."""
    others = [job for job in waiting if staged is None or job.id != staged.id]
    note = ""
    if waiting and not serving:
        note = f'<p class="h3-note" data-key="note">{escape(words("waiting_elsewhere"))}</p>'
    if paused:
        note += f'<p class="h3-note" data-key="paused">{escape(paused)}</p>'
    if not waiting and not paused:
        return note
    act = "go_on" if paused else "pause"
    pause = act_button(act, 0, "h3-small", escape(words(act)))
    title = f'<div class="h3-row" data-key="title"><h3 class="h3-grow">{escape(words("queue"))}</h3>{pause}</div>'
    if not others:
        return title + note
    order = [job.id for job in waiting if job.state == jobs.QUEUED]
    rows = "".join(_queued(job, order, words) for job in others)
    return f'{title}{note}<ul class="h3-queue" data-key="list">{rows}</ul>'


def _queued(job: Job, order: list[int], words: Words) -> str:
    inside = f"<b>{_prompt(job)}</b><small>{escape(phase_text(job, words))}</small>"
    show = _button(job, "show", "h3-link h3-grow", _label(job, words), inside)
    up = ""
    if job.id in order[1:]:
        label = escape(words("sooner"))
        up = _button(job, "sooner", "h3-button h3-icon", f"{label}: {_prompt(job)}", "↑", f' title="{label}"')
    return f'<li data-key="job{job.id}">{show}{up}{_cancel(job, words)}</li>'


def _label(job: Job, words: Words) -> str:
    return escape(words("open")) + " " + _prompt(job)


def films(ended: list[Job], staged: Job | None, words: Words) -> str:
    """Finished films and failed runs, newest first."""
    if not ended:
        return ""
    tiles = "".join(tile(job, "show", staged is not None and staged.run == job.run, words) for job in ended)
    return f'<h3 data-key="title">{escape(words("films"))}</h3><div class="h3-films" data-key="list">{tiles}</div>'


def tile(job: Job, act: str, current: bool, words: Words) -> str:
    """A small picture that opens a film: "show" sends the job's number, "film" that of its run."""
    if job.state != jobs.DONE:
        inside = f"<em>{escape(words('failed' if job.state == jobs.FAILED else 'interrupted'))}</em>"
    else:
        inside = f'<img src="/media/{job.run}/poster" alt="" loading="lazy">' if job.poster else "<em>▶</em>"
    more = f' data-key="run{job.run}" aria-label="{_label(job, words)}"' + (' aria-current="true"' if current else "")
    inside = f"<span>{inside}</span><small>{_prompt(job)}</small>"
    return act_button(act, job.run if act == "film" else job.id, "h3-tile", inside, more)


def machine(facts: dict[str, Any], words: Words) -> str:
    """The status line: processor, instruction set, threads, version."""
    return escape(words("machine", **(facts | {"isa": facts["isa"] or words("engine_starting")})))
