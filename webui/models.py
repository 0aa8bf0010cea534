"""The models tab: where models are looked for, which were found, what each is made of, and what is wrong with the rest."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from h3core.studio.schema import RequestError
from h3core.studio.studio import Model, Studio

from . import cards
from .live import QUIET, line, live_html
from .strings import Words


def create_models_tab(studio: Studio, words: Words, page: gr.Blocks) -> None:
    """Builds the tab. Headers are read when a person asks, never by the timer."""

    def draw() -> str:
        return "".join(_model(model, words) for model in studio.models())

    with gr.Column(elem_id="h3-models"):
        gr.HTML(
            f"<p>{escape(words('models_where', folder=studio.home / 'models'))}</p>",
            apply_default_css=False,
            elem_id="h3-models-where",
        )
        found, report = live_html(elem_id="h3-model-list"), live_html(elem_id="h3-model-report")
        again = gr.Button(words("models_again"), size="sm", elem_id="h3-models-again", min_width=120)

    def check(event: gr.EventData) -> str:
        path = str((event._data or {}).get("text", ""))
        if path not in [model.path for model in studio.models()]:
            return ""
        try:
            text = "\n".join(studio.check(path))
        except RequestError as error:
            return line(list(error.faults.values()), "h3-fault")
        return f'<pre class="h3-report" role="status">{escape(text)}</pre>'

    quiet: dict[str, Any] = QUIET
    found.click(check, None, report, **quiet)
    again.click(draw, None, found, **quiet)
    page.load(draw, None, found, **quiet)


def _model(model: Model, words: Words) -> str:
    if model.problem:
        said = f'<p class="h3-fault">{escape(words("model_unusable", problem=model.problem))}</p>'
    else:
        said = f'<p class="h3-note">{escape(words("model_usable"))}</p>'
    more = f' data-text="{escape(model.path)}" aria-label="{escape(words("model_check"))}: {escape(model.name)}"'
    button = cards.act_button("check", 0, "h3-button", escape(words("model_check")), more)
    title = f'<h3>{escape(model.name)}</h3><p class="h3-note">{escape(model.path)}</p>{said}'
    return (
        f'<div class="h3-row h3-model" data-key="{escape(model.path)}"><div class="h3-grow">{title}</div>{button}</div>'
    )
