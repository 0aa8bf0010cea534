"""The text-to-video tab: a form on the left, the stage, the queue and the films on the right.

Handlers add, cancel or read and return at once. What changes by itself is drawn by the page's one timer (live.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from h3core.studio import jobs, presets, schema
from h3core.studio.jobs import Job, NotPossible
from h3core.studio.recipe import RecipeError
from h3core.studio.schema import FIELDS, ModelFacts, RequestError
from h3core.studio.studio import Studio

from . import cards
from .live import QUIET, Live, Seen, View, line, live_html
from .strings import Words

FILMS_SHOWN = 24


def field_widget(name: str, facts: ModelFacts, words: Words) -> Any:
    """The widget of a schema field, its range and default taken from there."""
    field, default = FIELDS[name], FIELDS[name].default(facts.name)
    common: dict[str, Any] = {"label": words(name), "elem_id": f"h3-{name}", "min_width": 120}
    if words.has(f"{name}_help"):
        common["info"] = words(f"{name}_help")
    if field.kind == "size":
        return gr.Dropdown(presets.sizes(facts.name), value=default, allow_custom_value=True, **common)
    if name == "recipe":
        return gr.Checkbox(value=default == "yes", **common)
    if field.kind == "choice":
        return gr.Radio(list(field.choices), value=default, **common)
    if name == "frames":
        longest = schema.snap_frames(int(field.maximum))
        return gr.Slider(schema.MIN_FRAMES, longest, value=default, step=schema.FRAME_PERIOD, buttons=[], **common)
    lines: dict[str, Any] = {"lines": 4, "max_lines": 12} if name == "prompt" else {"max_lines": 1}
    hint = words(f"{name}_hint") if words.has(f"{name}_hint") else None
    return gr.Textbox(value="" if default is None else str(default), placeholder=hint, **lines, **common)


class Form:
    """The fields of a request on the page: what is typed in them, and how to fill them."""

    def __init__(self, studio: Studio, words: Words):
        self.studio, self.words = studio, words
        self.models = [model for model in studio.models() if not model.problem]
        try:
            self.facts = studio.facts(self.models[0].path if self.models else None)
        except RequestError:  # no model at all: the form is still shown, and says what is missing
            self.facts = ModelFacts()
        self.fields: dict[str, Any] = {}
        self.guided: gr.Group | None = None

    def build(self) -> gr.HTML:
        """The widgets, in the order they stand in. Returns the examples."""
        facts, words, fields = self.facts, self.words, self.fields
        fields["prompt"] = field_widget("prompt", facts, words)
        examples = live_html(
            value=_examples(presets.examples(facts.name, words.language), words), elem_id="h3-examples"
        )
        with gr.Row():
            fields["size"] = field_widget("size", facts, words)
            fields["frames"] = field_widget("frames", facts, words)
        with gr.Row():
            fields["steps"] = field_widget("steps", facts, words)
            fields["seed"] = field_widget("seed", facts, words)
        with gr.Accordion(words("more"), open=False, elem_id="h3-more"):
            if len(self.models) > 1:
                choices = [(model.name, model.path) for model in self.models]
                fields["model"] = gr.Dropdown(
                    choices, value=self.models[0].path, label=words("model"), elem_id="h3-model"
                )
            for name in ("precision", "residency", "threads", "recipe"):
                fields[name] = field_widget(name, facts, words)
            if not facts.guidance_distilled or len(self.models) > 1:
                with gr.Group(visible=not facts.guidance_distilled) as self.guided:
                    fields["guidance"] = field_widget("guidance", facts, words)
                    fields["negative_prompt"] = field_widget("negative_prompt", facts, words)
        return examples

    @property
    def components(self) -> list[Any]:
        return [*self.fields.values(), *([self.guided] if self.guided else [])]

    def values(self, given: Mapping[Any, Any]) -> dict[str, Any]:
        """Raw values by field. given: values keyed by component."""
        read = {name: given[component] for name, component in self.fields.items() if component in given}
        return {name: ("no", "yes")[value] if isinstance(value, bool) else value for name, value in read.items()}

    def fill(self, values: Mapping[str, Any]) -> list[Any]:
        """Updates of `components` that show the values; a field that has none stays as it is."""
        updates: dict[str, Any] = {}
        for name in self.fields:
            if name not in values:
                updates[name] = gr.skip()
            elif name == "recipe":
                updates[name] = values[name] == "yes"
            elif name == "frames":
                updates[name] = schema.snap_frames(int(values[name]))
            elif FIELDS[name].kind in ("choice", "path"):
                updates[name] = values[name]
            else:
                updates[name] = "" if values[name] is None else str(values[name])
        if not self.guided:
            return list(updates.values())
        shown = gr.skip()
        if "model" in values:
            facts = self.studio.facts(values["model"])
            shown = gr.update(visible=not facts.guidance_distilled)
            updates["size"] = gr.update(choices=presets.sizes(facts.name), value=values.get("size"))
        return [*updates.values(), shown]

    def plan(self, values: Mapping[str, Any]) -> tuple[list[str], str]:
        """(sentences, class) about what these values would cost, or what is wrong with them."""
        try:
            request = self.studio.parse(values, prompt_required=False)
            cost = self.studio.plan(request)
        except RequestError as error:
            return list(error.faults.values()), "h3-fault"
        if not cost.fits:
            return [cost.sentence], "h3-fault"
        text = self.words(
            "plan" if cost.measured else "plan_guess",
            seconds=self.words.film_seconds(request.frames),
            time=self.words.duration(cost.expected_s),
            memory=self.words.memory(cost.peak_bytes),
        )
        return [*request.notes, text], ""


def create_text_to_video_tab(studio: Studio, words: Words, page: gr.Blocks, live: Live, form: Form) -> None:
    """Builds the tab inside `page`."""

    def draw_stage(view: View, seen: Seen) -> str:
        return cards.stage(_staged(view, seen), words, str(studio.films))

    def draw_queue(view: View, seen: Seen) -> str:
        return cards.queue(seen.waiting, _staged(view, seen), words, studio.serving, studio.paused)

    def draw_films(view: View, seen: Seen) -> str:
        return cards.films(seen.ended[:FILMS_SHOWN], _staged(view, seen), words)

    def act(view: View, data: dict[str, Any]) -> View:
        """A button inside the drawn HTML."""
        doing, job = data.get("act"), data.get("job")
        if not isinstance(job, int):
            return view
        with contextlib.suppress(KeyError, NotPossible, RequestError):
            if doing == "show":
                return replace(view, pinned=job)
            if doing == "cancel":
                studio.cancel(job)
            elif doing == "retry":
                studio.retry(job)
            elif doing == "pause":
                studio.pause(words("paused"))
            elif doing == "go_on":
                studio.go_on()
            elif doing == "sooner":
                order = [each.id for each in studio.waiting() if each.state == jobs.QUEUED]
                place = order.index(job) if job in order else 0
                if place:
                    studio.move(job, order[place - 1])
        return view

    with gr.Row(elem_id="h3-page", equal_height=False):
        with gr.Column(scale=5, min_width=320, elem_id="h3-form"):
            examples = form.build()
            generate = gr.Button(words("generate"), variant="primary", size="lg", elem_id="h3-generate")
            plan = live_html(elem_id="h3-plan")
            told = live_html(elem_id="h3-told")
            file = gr.UploadButton(
                words("recall"), file_types=[".mp4", ".json"], size="sm", variant="secondary", elem_id="h3-recall"
            )
        with gr.Column(scale=7, min_width=320, elem_id="h3-results"):
            for name, draw in (("stage", draw_stage), ("queue", draw_queue), ("films", draw_films)):
                live.html(draw, act, elem_id=f"h3-{name}")

    def show_plan(given: dict) -> str:
        return line(*form.plan(form.values(given)))

    def add(given: dict) -> list:
        values, view = form.values(given), given[live.view]
        try:
            studio.add(values)
        except RequestError as error:
            return [line(list(error.faults.values()), "h3-fault"), gr.skip(), *[gr.skip()] * len(live.outputs)]
        sentences, kind = form.plan(values)
        drawn = live.draw(replace(view, pinned=None), given[live.drawn])
        return [line([words("added"), *sentences], kind), "", *drawn]

    def recall(path: str, given: dict) -> list:
        """The settings of a film that was dropped on the page. The copy that was sent is removed."""
        try:
            recalled = studio.recall(path, form.values(given).get("model"))
        except (RecipeError, RequestError) as error:
            return [line(str(error).splitlines(), "h3-fault"), *[gr.skip()] * len(form.components)]
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return [line([words("recalled"), *recalled.notes]), *form.fill(recalled.values)]

    def example(event: gr.EventData) -> str:
        return str((event._data or {}).get("text", ""))

    def model_changed(path: str) -> list:
        """Another model has other defaults, sizes and guidance."""
        chosen = studio.facts(path)
        size, frames, steps = (FIELDS[name].default(chosen.name) for name in ("size", "frames", "steps"))
        return [
            gr.update(choices=presets.sizes(chosen.name), value=size),
            frames,
            str(steps),
            gr.update(visible=not chosen.guidance_distilled),
        ]

    fields = form.fields
    typed = set(fields.values())
    given = {*typed, live.view, live.drawn}
    asked = [generate.click, fields["prompt"].submit]
    live.later(lambda: gr.on(asked, add, given, [plan, told, *live.outputs], concurrency_limit=None, **QUIET))
    changes = [component.change for component in fields.values()]
    gr.on(changes, show_plan, typed, plan, trigger_mode="always_last", **QUIET)
    examples.click(example, None, fields["prompt"], **QUIET)

    def recall_from(given: dict) -> list:
        return recall(given[file], given)

    file.upload(recall_from, {*typed, file}, [told, *form.components], **QUIET)
    if "model" in fields:
        changed = [fields["size"], fields["frames"], fields["steps"], form.guided]
        # `select`, not `change`: a file that fills the form brings its own size
        fields["model"].select(model_changed, fields["model"], changed, **QUIET)
    page.load(show_plan, typed, plan, **QUIET)


def _staged(view: View, seen: Seen) -> Job | None:
    """The job on the stage: the one a person chose, else the first running or waiting one, else the last that ended."""
    if view.pinned is not None:
        with contextlib.suppress(KeyError):  # it may have been deleted
            job = seen.studio.job(view.pinned)
            if job.state != jobs.CANCELLED:
                return job
    return next(iter(seen.waiting), None) or max(seen.ended, key=lambda job: job.ended or 0, default=None)


def _examples(prompts: list[str], words: Words) -> str:
    chips = [
        f'<button type="button" class="h3-chip" data-act="example" data-text="{text}">{text}</button>'
        for text in map(escape, prompts)
    ]
    return f'<div class="h3-chips"><span>{escape(words("try"))}</span>{"".join(chips)}</div>'
