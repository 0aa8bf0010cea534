"""The gallery: every film that was made, one of them open with its settings and where its time went, or two in step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from h3core.studio import gallery, jobs
from h3core.studio.gallery import Timeline
from h3core.studio.jobs import Job, NotPossible
from h3core.studio.schema import RequestError
from h3core.studio.studio import Studio

from . import cards
from .live import QUIET, Live, Seen, View, line
from .strings import Words

MOST_FILMS = 2000
PAGE_OF_FILMS = 60


class Films:
    """The films of the store, read again only when one was made or deleted."""

    def __init__(self, studio: Studio):
        self._studio = studio
        self._key: tuple | None = None
        self._found: list[Job] = []
        self._timelines: dict[int, Timeline] = {}

    def all(self, seen: Seen) -> list[Job]:
        """Newest first."""
        key = tuple((job.run, job.state) for job in seen.ended)
        if key != self._key:
            made = (job for job in self._studio.results(MOST_FILMS) if job.state == jobs.DONE)
            self._key, self._found = key, [job for job in made if job.output]
        return self._found

    def find(self, run: int | None, seen: Seen) -> Job | None:
        return next((job for job in self.all(seen) if job.run == run), None)

    def timeline(self, job: Job) -> Timeline:
        if job.run not in self._timelines:
            self._timelines[job.run] = gallery.timeline(self._studio.history(job))
        return self._timelines[job.run]

    def forget(self) -> None:
        self._key = None


def create_gallery_tab(
    studio: Studio, words: Words, live: Live, use: Callable[[dict[str, Any]], list], used: list
) -> None:
    """Builds the tab. use: the updates of `used` that put values into the form and show it."""
    films = Films(studio)
    names = {model.path: model.name for model in studio.models()}

    def draw_open(view: View, seen: Seen) -> str:
        job = films.find(view.film, seen)
        if job is None:
            return ""
        other = films.find(view.beside, seen)
        note = line([view.note]) if view.note else ""
        if other and other.run != job.run:
            pair = "".join(_side(each, words, muted) for each, muted in ((job, False), (other, True)))
            back = cards.act_button("alone", job.run, "h3-button", escape(words("compare_end")))
            key = f"pair{job.run}-{other.run}"
            return f'<div class="h3-pair" data-key="{key}">{pair}</div><div class="h3-row" data-key="back">{back}</div>'
        about = f'<div class="h3-about">{_facts(job, words, names)}{_timeline(films.timeline(job), words)}</div>'
        body = cards.film(job, words) + note + _buttons(job, view, words) + about
        return f'<section class="h3-stage h3-open" data-key="open{job.run}">{body}</section>'

    def draw_grid(view: View, seen: Seen) -> str:
        found = films.all(seen)
        if not found:
            text = escape(words("gallery_empty"))
            return f'<section class="h3-stage h3-empty" data-key="empty"><h2>{text}</h2></section>'
        hint = f'<p class="h3-note" role="status">{escape(words("compare_pick"))}</p>' if view.picking else ""
        tiles = "".join(
            cards.tile(job, "film", job.run in (view.film, view.beside), words) for job in found[: view.shown]
        )
        more = ""
        if len(found) > view.shown:
            more = cards.act_button("more", 0, "h3-button", escape(words("more_films", count=len(found) - view.shown)))
        return f'<div data-key="hint">{hint}</div><div class="h3-films h3-large" data-key="list">{tiles}</div>{more}'

    def act(view: View, data: dict[str, Any]) -> View:
        """A button of the gallery; the run it is about is data["job"]."""
        doing, run = data.get("act"), data.get("job")
        if not isinstance(run, int):
            return view
        if doing == "film" and view.picking and run != view.film:
            return replace(view, beside=run, picking=False)
        if doing == "film":
            return replace(view, film=run, beside=None, picking=False)
        if doing == "close":
            return replace(view, film=None, beside=None, picking=False)
        if doing == "compare":
            return replace(view, picking=not view.picking)
        if doing == "alone":
            return replace(view, beside=None)
        if doing == "more":
            return replace(view, shown=view.shown + PAGE_OF_FILMS)
        return _changed(view, str(doing), run, str(data.get("sure", "")))

    def _changed(view: View, doing: str, run: int, sure: str) -> View:
        """Buttons that add a job or delete a film."""
        try:
            job = studio.run(run)
            if doing in ("again", "reseed"):
                number = studio.add(gallery.again(job, new_seed=doing == "reseed"))
                return replace(view, pinned=None, note=words("added_as", job=number))
            if doing == "delete" and sure != f"film{run}":
                return replace(view, sure=f"film{run}")
            if doing == "delete":
                studio.delete(job.id, films=True)
                films.forget()
                return replace(view, film=None, beside=None)
        except (KeyError, NotPossible, RequestError) as error:
            return replace(view, note=str(error.args[0] if isinstance(error, KeyError) else error))
        return view

    with gr.Column(elem_id="h3-gallery"):
        opened = live.html(draw_open, act, elem_id="h3-open")
        live.html(draw_grid, act, elem_id="h3-grid")

    def into_form(event: gr.EventData) -> list:
        data = event._data if isinstance(event._data, dict) else {}
        with contextlib.suppress(KeyError):
            if data.get("act") == "use" and isinstance(data.get("job"), int):
                return use(gallery.again(studio.run(data["job"]), new_seed=False))
        return [gr.skip()] * len(used)

    opened.click(into_form, None, used, **QUIET)


def _side(job: Job, words: Words, muted: bool) -> str:
    """One of two films that run in step; the second is silent."""
    return f'<div class="h3-side">{cards.film(job, words, sync=True, muted=muted)}</div>'


def _buttons(job: Job, view: View, words: Words) -> str:
    def button(act: str, text: str, more: str = "") -> str:
        return cards.act_button(act, job.run, f"h3-button{more}", escape(words(text)))

    sure = view.sure == f"film{job.run}"
    buttons = [
        button("again", "again"),
        button("reseed", "new_seed"),
        button("use", "use"),
        button("compare", "compare_stop" if view.picking else "compare"),
        button("delete", "delete_sure" if sure else "delete", " h3-danger" if sure else ""),
        button("close", "close"),
    ]
    return f'<div class="h3-buttons">{"".join(buttons)}</div>'


def _facts(job: Job, words: Words, names: dict[str, str]) -> str:
    """The settings as a table. names: of models, by path."""
    request = job.request
    rows = {
        "size": f"{request['width']} × {request['height']}",
        "frames": f"{request['frames']} ({words.film_seconds(request['frames'])})",
        "steps": request["steps"],
        "seed": job.seed,
        "precision": request["precision"],
        "guidance": request.get("guidance") or "",
        "negative_prompt": request.get("negative_prompt") or "",
        "model": names.get(str(request.get("model")), os.path.basename(str(request.get("model") or ""))),
        "file": job.output,
    }
    cells = "".join(
        f"<dt>{escape(words(name))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in rows.items()
        if value not in ("", None)
    )
    return f'<dl class="h3-list">{cells}</dl>'


def _timeline(times: Timeline, words: Words) -> str:
    """Phases as a bar, steps as ticks in it, and the same as text."""
    if not times.phases or times.total_s <= 0:
        return ""

    def place(start_s: float, end_s: float) -> str:
        return (
            f"left: {100 * start_s / times.total_s:.2f}%; width: {100 * max(0.0, end_s - start_s) / times.total_s:.2f}%"
        )

    def named(name: str) -> str:
        return words(f"phase_{name}") if words.has(f"phase_{name}") else name

    bars = "".join(
        f'<i class="h3-{escape(each.name)}" style="{place(each.start_s, each.end_s)}" '
        f'title="{escape(named(each.name))}: {escape(words.short(each.end_s - each.start_s))}"></i>'
        for each in times.phases
    )
    ticks = "".join(
        f'<b style="{place(each.start_s, each.end_s)}" title="{escape(words("step_only", step=each.name))}: '
        f'{escape(words.short(each.end_s - each.start_s))}"></b>'
        for each in times.steps
    )
    spent: dict[str, float] = {}
    for each in times.phases:
        spent[each.name] = spent.get(each.name, 0.0) + each.end_s - each.start_s
    legend = "".join(
        f'<li><i class="h3-{escape(name)}"></i>{escape(named(name))} <span>{escape(words.short(seconds))}</span></li>'
        for name, seconds in spent.items()
        if seconds >= 0.005 * times.total_s
    )
    peak = f" · {escape(words('peak', memory=words.memory(times.peak_bytes)))}" if times.peak_bytes else ""
    title = f"<h3>{escape(words('time_spent', time=words.short(times.total_s)))}{peak}</h3>"
    return f'{title}<div class="h3-timeline" aria-hidden="true">{bars}{ticks}</div><ul class="h3-legend">{legend}</ul>'
