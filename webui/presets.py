"""The presets tab: cards of what is shipped and what was saved, and an editor whose plan follows every number."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from h3core.studio import hardware, presets
from h3core.studio.presets import Preset, PresetError
from h3core.studio.schema import FIELDS, RequestError
from h3core.studio.studio import Studio

from . import cards
from .live import QUIET, line, live_html
from .strings import Words
from .text_to_video import Form

EDITED = ("size", "frames", "steps", "precision", "residency")
KINDS = ("quality", "own", "hardware")


def create_presets_tab(
    studio: Studio, words: Words, page: gr.Blocks, form: Form, use: Callable[[dict[str, Any]], list], used: list
) -> None:
    """Builds the tab. use: the updates of `used` that put values into the form and show it."""
    saved, facts = studio.presets, form.facts
    chosen = gr.State("")

    def everything() -> list[Preset]:
        return saved.all(facts.name, words.language)

    def draw(current: str) -> str:
        """All cards, by kind."""
        found = everything()
        mine = presets.for_memory(found, hardware.memory_bytes())
        html = ""
        for kind in KINDS:
            those = [each for each in found if each.kind == kind]
            if those:
                tiles = "".join(_card(each, each.id == current, each is mine, words) for each in those)
                title = f'<h3 data-key="title{kind}">{escape(words(f"presets_{kind}"))}</h3>'
                html += f'{title}<div class="h3-cards" data-key="{kind}">{tiles}</div>'
        return html

    with gr.Row(elem_id="h3-presets", equal_height=False):
        with gr.Column(scale=7, min_width=320):
            listing = live_html(elem_id="h3-preset-list")
            with gr.Row(elem_id="h3-preset-files"):
                file = gr.UploadButton(
                    words("import"), file_types=[".json"], size="sm", elem_id="h3-import", min_width=80
                )
                gr.HTML(
                    f'<a class="h3-button" href="/presets.json" download="presets.json">{escape(words("export"))}</a>',
                    apply_default_css=False, min_width=80,
                )  # fmt: skip
        with gr.Column(scale=5, min_width=320, elem_id="h3-editor"):
            name = gr.Textbox(label=words("preset_name"), max_lines=1, elem_id="h3-preset-name")
            editors: dict[str, Any] = {}
            with gr.Row():
                for field in ("size", "frames", "steps"):
                    editors[field] = gr.Textbox(
                        label=words(field), max_lines=1, min_width=90, elem_id=f"h3-preset-{field}"
                    )
            for field in ("precision", "residency"):
                editors[field] = gr.Radio(list(FIELDS[field].choices), label=words(field), elem_id=f"h3-preset-{field}")
            plan = live_html(elem_id="h3-preset-plan")
            apply = gr.Button(words("preset_use"), variant="primary", elem_id="h3-preset-use")
            with gr.Row():
                save = gr.Button(
                    words("preset_save"), size="sm", elem_id="h3-preset-save", interactive=False, min_width=90
                )
                new = gr.Button(words("preset_new"), size="sm", elem_id="h3-preset-new", min_width=90)
                remove = gr.Button(words("delete"), size="sm", elem_id="h3-preset-remove", visible=False, min_width=90)

    widgets = [name, *editors.values()]
    shown = [chosen, listing, plan, save, remove]

    def values_of(texts: tuple) -> dict[str, Any]:
        return {field: value for field, value in zip(EDITED, texts, strict=True) if value not in (None, "")}

    def tell(texts: tuple) -> str:
        return line(*form.plan(values_of(texts)))

    def state(id: str, said: str) -> list:
        """What is shown when that preset is the chosen one."""
        preset = next((each for each in everything() if each.id == id), None)
        gone = gr.update(visible=bool(preset and (preset.kind == "own" or preset.changed)),
                         value=words("delete" if preset and preset.kind == "own" else "preset_reset"))  # fmt: skip
        return [id if preset else "", draw(id), said, gr.update(interactive=preset is not None), gone]

    def open_one(event: gr.EventData) -> list:
        """A card fills the editor."""
        return opened(str((event._data or {}).get("text", "")))

    def opened(id: str) -> list:
        preset = next((each for each in everything() if each.id == id), None)
        if preset is None:
            return [gr.skip()] * (len(shown) + len(widgets))
        texts = [preset.values.get(field) for field in EDITED]
        kept = [None if value is None else str(value) for value in texts]
        return [*state(id, tell(tuple(texts))), preset.name, *kept]

    def open_first() -> list:
        """A page that was just loaded: the editor is never empty."""
        quality = [each for each in everything() if each.kind == "quality"]
        return opened(quality[min(1, len(quality) - 1)].id)

    def keep(id: str | None, called: str, texts: tuple) -> list:
        try:
            kept = saved.save(id, called, values_of(texts), facts)
        except RequestError as error:
            return [gr.skip(), gr.skip(), line(list(error.faults.values()), "h3-fault"), gr.skip(), gr.skip()]
        except (PresetError, OSError) as error:
            return [gr.skip(), gr.skip(), line([str(error)], "h3-fault"), gr.skip(), gr.skip()]
        sentences, kind = form.plan(values_of(texts))
        return state(kept, line([words("preset_kept"), *sentences], kind))

    def forget(id: str) -> list:
        with contextlib.suppress(OSError):
            saved.remove(id)
        if any(each.id == id for each in everything()):
            return opened(id)
        return [*state("", ""), *[gr.skip()] * len(widgets)]

    def take(path: str) -> list:
        try:
            notes = saved.take(Path(path).read_bytes(), facts)
        except (PresetError, RequestError, OSError) as error:
            return [gr.skip(), line([str(error)], "h3-fault")]
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return [draw(""), line([words("imported"), *notes])]

    def apply_all(*texts: Any) -> list:
        try:
            studio.parse(values_of(texts), prompt_required=False)
        except RequestError as error:
            return [*[gr.skip()] * len(used), line(list(error.faults.values()), "h3-fault")]
        return [*use(values_of(texts)), gr.skip()]

    listing.click(open_one, None, [*shown, *widgets], **QUIET)
    changes = [each.change for each in editors.values()]
    gr.on(changes, lambda *texts: tell(texts), [*editors.values()], plan, trigger_mode="always_last", **QUIET)
    save.click(lambda id, called, *texts: keep(id or None, called, texts), [chosen, *widgets], shown, **QUIET)
    new.click(lambda called, *texts: keep(None, called, texts), widgets, shown, **QUIET)
    remove.click(forget, chosen, [*shown, *widgets], **QUIET)
    apply.click(apply_all, [*editors.values()], [*used, plan], **QUIET)
    file.upload(take, file, [listing, plan], **QUIET)
    page.load(open_first, None, [*shown, *widgets], **QUIET)


def _card(preset: Preset, current: bool, recommended: bool, words: Words) -> str:
    numbers = [str(preset.values[field]) for field in ("size", "frames", "steps") if field in preset.values]
    facts = (
        " · ".join(numbers)
        if len(numbers) < 3
        else words("preset_facts", size=numbers[0], frames=numbers[1], steps=numbers[2])
    )
    if not numbers:
        facts = f"{words('residency')}: {preset.values.get('residency', 'auto')}"
    notes = [preset.note, words("weights_hint", weights=preset.weights) if preset.weights else ""]
    tags = [words("preset_changed") if preset.changed else "", words("this_computer") if recommended else ""]
    inside = f"<b>{escape(preset.name)}</b><span>{escape(facts)}</span>"
    inside += "".join(f"<small>{escape(note)}</small>" for note in notes if note)
    inside += "".join(f"<em>{escape(tag)}</em>" for tag in tags if tag)
    more = f' data-text="{escape(preset.id)}" data-key="{escape(preset.id)}" aria-pressed="{str(current).lower()}"'
    return cards.act_button("preset", 0, "h3-card", inside, more)
