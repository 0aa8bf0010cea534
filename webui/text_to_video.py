"""The text-to-video tab: a form on the left, the stage, the queue and the films on the right.

Handlers add, cancel or read and return at once. What changes by itself is drawn by `draw`, called by the page's timer.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr

from h3core.studio import jobs, presets, schema
from h3core.studio.jobs import Job
from h3core.studio.schema import FIELDS, ModelFacts, RequestError
from h3core.studio.studio import Studio

from . import cards
from .strings import Words

FILMS_SHOWN = 24
MOUNT = "h3.mount(element, props, watch, trigger)"
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


@dataclass
class View:
    """What one page looks at. pinned: the job a person chose to see.   drawn: what was drawn last, by output."""

    pinned: int | None = None
    stamp: tuple | None = None
    drawn: tuple[str, ...] = ()


def live_html(**options: Any) -> gr.HTML:
    """HTML that is merged by page.js instead of replaced."""
    return gr.HTML(html_template="<div></div>", js_on_load=MOUNT, apply_default_css=False, **options)


def field_widget(name: str, facts: ModelFacts, words: Words) -> Any:
    """The widget of a schema field, its range and default taken from there."""
    field, default = FIELDS[name], FIELDS[name].default(facts.name)
    common: dict[str, Any] = {"label": words(name), "elem_id": f"h3-{name}", "min_width": 120}
    if words.has(f"{name}_help"):
        common["info"] = words(f"{name}_help")
    if field.kind == "size":
        return gr.Dropdown(presets.sizes(facts.name), value=default, allow_custom_value=True, **common)
    if field.kind == "choice":
        return gr.Radio(list(field.choices), value=default, **common)
    if name == "frames":
        longest = schema.snap_frames(int(field.maximum))
        return gr.Slider(schema.MIN_FRAMES, longest, value=default, step=schema.FRAME_PERIOD, buttons=[], **common)
    lines: dict[str, Any] = {"lines": 4, "max_lines": 12} if name == "prompt" else {"max_lines": 1}
    hint = words(f"{name}_hint") if words.has(f"{name}_hint") else None
    return gr.Textbox(value="" if default is None else str(default), placeholder=hint, **lines, **common)


def create_text_to_video_tab(studio: Studio, words: Words, page: gr.Blocks, timer: gr.Timer) -> None:
    """Builds the tab inside `page`; `timer` is the page's one timer."""
    models = [model for model in studio.models() if not model.problem]
    try:
        facts = studio.facts(models[0].path if models else None)
    except RequestError:  # no model at all: the form is still shown, and says what is missing
        facts = ModelFacts()
    view = gr.State(View())

    with gr.Row(elem_id="h3-page", equal_height=False):
        with gr.Column(scale=5, min_width=320, elem_id="h3-form"):
            fields = {"prompt": field_widget("prompt", facts, words)}
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
                if len(models) > 1:
                    choices = [(model.name, model.path) for model in models]
                    fields["model"] = gr.Dropdown(
                        choices, value=models[0].path, label=words("model"), elem_id="h3-model"
                    )
                fields["precision"] = field_widget("precision", facts, words)
                fields["residency"] = field_widget("residency", facts, words)
                fields["threads"] = field_widget("threads", facts, words)
                if not facts.guidance_distilled or len(models) > 1:
                    with gr.Group(visible=not facts.guidance_distilled) as guided:
                        fields["guidance"] = field_widget("guidance", facts, words)
                        fields["negative_prompt"] = field_widget("negative_prompt", facts, words)
            generate = gr.Button(words("generate"), variant="primary", size="lg", elem_id="h3-generate")
            plan = live_html(elem_id="h3-plan")
        with gr.Column(scale=7, min_width=320, elem_id="h3-results"):
            stage, queue, films = (live_html(elem_id=f"h3-{name}") for name in ("stage", "queue", "films"))

    names = {component: name for name, component in fields.items()}
    outputs = [view, stage, queue, films]

    def values_of(given: dict) -> dict[str, Any]:
        return {names[component]: value for component, value in given.items() if component in names}

    def draw(current: View) -> list:
        """New values of the outputs; unchanged ones are skipped, so that an idle page costs nothing."""
        stamp = (studio.stamp(), studio.serving, current.pinned)
        if stamp == current.stamp:
            return [gr.skip()] * len(outputs)
        waiting, recent = studio.waiting(), studio.jobs(100)
        ended = [job for job in recent if job.state in (jobs.DONE, jobs.FAILED, jobs.INTERRUPTED)][:FILMS_SHOWN]
        staged = _staged(studio, current.pinned, waiting, ended)
        drawn = (
            cards.stage(staged, words, str(studio.films)),
            cards.queue(waiting, staged, words, studio.serving),
            cards.films(ended, staged, words),
        )
        before = current.drawn or ("",) * len(drawn)
        changed = [gr.skip() if new == old else new for new, old in zip(drawn, before, strict=True)]
        return [replace(current, stamp=stamp, drawn=drawn), *changed]

    def plan_of(values: dict[str, Any]) -> tuple[list[str], str]:
        """(sentences, class) about what the form would cost, or what is wrong with it."""
        try:
            request = studio.parse(values, prompt_required=False)
            cost = studio.plan(request)
        except RequestError as error:
            return list(error.faults.values()), "h3-fault"
        if not cost.fits:
            return [cost.sentence], "h3-fault"
        text = words(
            "plan" if cost.measured else "plan_guess",
            seconds=words.film_seconds(request.frames),
            time=words.duration(cost.expected_s),
            memory=words.memory(cost.peak_bytes),
        )
        return [*request.notes, text], ""

    def show_plan(given: dict) -> str:
        return _line(*plan_of(values_of(given)))

    def add(given: dict) -> list:
        values = values_of(given)
        try:
            studio.add(values)
        except RequestError as error:
            return [_line(list(error.faults.values()), "h3-fault"), *[gr.skip()] * len(outputs)]
        sentences, kind = plan_of(values)
        return [_line([words("added"), *sentences], kind), *draw(replace(given[view], pinned=None))]

    def act(current: View, event: gr.EventData) -> list:
        """A button inside the drawn HTML: cancel a job or look at it."""
        data = event._data or {}
        job = data.get("job")
        if data.get("act") == "cancel" and isinstance(job, int):
            with contextlib.suppress(KeyError):
                studio.cancel(job)
        elif data.get("act") == "show" and isinstance(job, int):
            current = replace(current, pinned=job)
        return draw(current)

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

    given = {*fields.values(), view}
    gr.on([generate.click, fields["prompt"].submit], add, given, [plan, *outputs], concurrency_limit=None, **QUIET)
    changes = [component.change for component in fields.values()]
    gr.on(changes, show_plan, given, plan, trigger_mode="always_last", **QUIET)
    for component in (stage, queue, films):
        component.click(act, view, outputs, **QUIET)
    examples.click(example, None, fields["prompt"], **QUIET)
    if "model" in fields:
        changed = [fields["size"], fields["frames"], fields["steps"], guided]
        fields["model"].change(model_changed, fields["model"], changed, **QUIET)

    def load(given: dict) -> list:
        """A page that was just opened or reloaded: everything is drawn anew."""
        return [show_plan(given), *draw(View())]

    timer.tick(draw, view, outputs, **QUIET)
    page.load(load, given, [plan, *outputs], **QUIET)


def _staged(studio: Studio, pinned: int | None, waiting: list[Job], ended: list[Job]) -> Job | None:
    """The job on the stage: the one a person chose, else the first running or waiting one, else the last that ended."""
    if pinned is not None:
        job = studio.job(pinned)
        if job.state != jobs.CANCELLED:
            return job
    return next(iter(waiting), None) or max(ended, key=lambda job: job.ended or 0, default=None)


def _line(sentences: list[str], kind: str = "") -> str:
    return f'<p class="{kind}" role="status">{"<br>".join(escape(sentence) for sentence in sentences)}</p>'


def _examples(prompts: list[str], words: Words) -> str:
    chips = [
        f'<button type="button" class="h3-chip" data-act="example" data-text="{text}">{text}</button>'
        for text in map(escape, prompts)
    ]
    return f'<div class="h3-chips"><span>{escape(words("try"))}</span>{"".join(chips)}</div>'
