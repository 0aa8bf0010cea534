"""What every tab of the page shares: HTML that is merged instead of replaced, and the one timer that redraws it.

A tab adds pieces, each a component and a function of (View, Seen) that returns its HTML; on a tick all of them are
drawn when anything changed, and only those that differ are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

import gradio as gr

from h3core.studio import jobs
from h3core.studio.jobs import Job
from h3core.studio.studio import Studio

REDRAW_S = 1.0
LOOKED_BACK = 100  # jobs
MOUNT = "h3.mount(element, props, watch, trigger)"
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


@dataclass(frozen=True)
class View:
    """What one page looks at. pinned: the job a person chose to see on the stage.

    film, beside: the film open in the gallery and the one it is compared with.   picking: the next film that is clicked
    is compared.   sure: the thing that a second click deletes.   shown: films in the gallery.
    note: what the last button did.
    """

    pinned: int | None = None
    film: int | None = None
    beside: int | None = None
    picking: bool = False
    sure: str = ""
    shown: int = 60
    note: str = ""


@dataclass
class Drawn:
    """What a page shows: the stamp it was drawn at, and each piece."""

    stamp: tuple | None = None
    pieces: list[str] = field(default_factory=list)


class Seen:
    """The store at one moment, read once for all pieces."""

    def __init__(self, studio: Studio):
        self.studio = studio

    @cached_property
    def waiting(self) -> list[Job]:
        return self.studio.waiting()

    @cached_property
    def recent(self) -> list[Job]:
        return self.studio.jobs(LOOKED_BACK)

    @cached_property
    def ended(self) -> list[Job]:
        return [job for job in self.recent if job.state in (jobs.DONE, jobs.FAILED, jobs.INTERRUPTED)]


Draw = Callable[[View, Seen], str]
Act = Callable[[View, dict[str, Any]], View]


class Live:
    """The pieces of one page that change by themselves."""

    def __init__(self, studio: Studio):
        self.studio = studio
        self.view, self.drawn = gr.State(View(), render=False), gr.State(Drawn(), render=False)
        self._components: list[gr.HTML] = []
        self._draws: list[Draw] = []
        self._acts: list[tuple[gr.HTML, Act]] = []
        self._later: list[Callable[[], object]] = []

    def html(self, draw: Draw, act: Act | None = None, **options: Any) -> gr.HTML:
        """A piece. act: what its buttons do; it returns the view afterwards."""
        component = live_html(**options)
        self._components.append(component)
        self._draws.append(draw)
        if act:
            self._acts.append((component, act))
        return component

    def later(self, wire: Callable[[], object]) -> None:
        """`wire` is called when every tab has been built and `outputs` is complete."""
        self._later.append(wire)

    @property
    def inputs(self) -> list[Any]:
        return [self.view, self.drawn]

    @property
    def outputs(self) -> list[Any]:
        return [self.view, self.drawn, *self._components]

    def draw(self, view: View, drawn: Drawn) -> list:
        """New values of the outputs; unchanged ones are skipped, so that an idle page costs nothing."""
        studio = self.studio
        stamp = (studio.stamp(), studio.serving, studio.machine()["isa"], view)
        if stamp == drawn.stamp:
            return [gr.skip()] * len(self.outputs)
        seen = Seen(studio)
        pieces = [draw(view, seen) for draw in self._draws]
        before: list[Any] = drawn.pieces or [None] * len(pieces)
        changed = [gr.skip() if new == old else new for new, old in zip(pieces, before, strict=True)]
        return [view, Drawn(stamp, pieces), *changed]

    def connect(self, page: gr.Blocks) -> None:
        """Wires the timer and the buttons, when all pieces are there."""
        timer = gr.Timer(REDRAW_S)
        timer.tick(self.draw, self.inputs, self.outputs, **QUIET)
        page.load(lambda: self.draw(View(), Drawn()), None, self.outputs, **QUIET)
        for wire in self._later:
            wire()
        for component, act in self._acts:
            component.click(self._clicked(act), self.inputs, self.outputs, **QUIET)

    def _clicked(self, act: Act) -> Callable:
        def clicked(view: View, drawn: Drawn, event: gr.EventData) -> list:
            data = event._data if isinstance(event._data, dict) else {}
            # a question or a note lasts until the next click
            return self.draw(act(replace(view, sure="", note=""), data | {"sure": view.sure}), drawn)

        return clicked


def live_html(**options: Any) -> gr.HTML:
    """HTML that is merged by page.js instead of replaced."""
    return gr.HTML(html_template="<div></div>", js_on_load=MOUNT, apply_default_css=False, **options)


def line(sentences: list[str], kind: str = "") -> str:
    """Sentences that a screen reader says when they change. kind: a class."""
    return f'<p class="{kind}" role="status">{"<br>".join(escape(sentence) for sentence in sentences)}</p>'
