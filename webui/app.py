"""The page: Gradio Blocks over the studio, served to this computer only unless told otherwise.

Nothing on the page asks another machine for anything: no analytics, system fonts, and a policy header that forbids it.
Films, posters and previews are served by number, so a request cannot name a file. Loads no weights.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_OFFLINE="1")  # read on import

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse, Response

from h3core.studio.studio import Studio

from . import cards
from .gallery import create_gallery_tab
from .live import Live
from .models import create_models_tab
from .presets import create_presets_tab
from .strings import Words
from .text_to_video import Form, create_text_to_video_tab

HERE = Path(__file__).parent
FIRST_PORT, PORTS_TRIED = 7860, 20
MOST_UPLOADED = "1gb"
SYSTEM_FONTS = [
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "Roboto",
    "Noto Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "sans-serif",
]
MONO_FONTS = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
# 'unsafe-eval' and 'unsafe-inline': Gradio compiles its HTML templates in the browser
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'"
NO_CACHE = {"Cache-Control": "no-cache"}
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E"
    "%3Crect width='32' height='32' rx='7' fill='%230f766e'/%3E"
    "%3Cpath d='M12 9.5v13l11-6.5z' fill='white'/%3E%3C/svg%3E"
)


def create_page(studio: Studio, words: Words) -> gr.Blocks:
    """The whole page, without a server."""
    live, form = Live(studio), Form(studio, words)
    with gr.Blocks(title=words("title"), analytics_enabled=False) as page:
        for state in live.inputs:
            state.render()
        with gr.Row(elem_id="h3-head"):
            gr.HTML(f"<h1>{words('title')}</h1>", apply_default_css=False, elem_id="h3-title", min_width=0)
            live.html(lambda view, seen: cards.machine(studio.machine(), words), elem_id="h3-machine")
        with gr.Tabs(selected="text", elem_id="h3-tabs") as tabs:
            with gr.Tab(words("tab_text"), id="text"):
                create_text_to_video_tab(studio, words, page, live, form)

            def use(values: dict[str, Any]) -> list:
                return [gr.update(selected="text"), *form.fill(values)]

            used = [tabs, *form.components]
            with gr.Tab(words("tab_gallery"), id="gallery", render_children=True):
                create_gallery_tab(studio, words, live, use, used)
            with gr.Tab(words("tab_presets"), id="presets", render_children=True):
                create_presets_tab(studio, words, page, form, use, used)
            with gr.Tab(words("tab_models"), id="models", render_children=True):
                create_models_tab(studio, words, page)
        live.connect(page)
    return page


def create_app(studio: Studio, words: Words) -> FastAPI:
    """The page and the files it shows, as an application for a server."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/media/{run}/{what}")
    def media(run: int, what: str) -> Response:
        """A file that a run made. A film can be asked for in ranges, which seeking needs."""
        path = _media_path(studio, run, what)
        try:
            if path and what == "film":
                return FileResponse(path, headers=NO_CACHE)
            if path:  # read at once, since the worker replaces a preview while it is being sent
                kind = "image/jpeg" if path.endswith((".jpg", ".jpeg")) else "image/png"
                return Response(Path(path).read_bytes(), media_type=kind, headers=NO_CACHE)
        except OSError:
            pass
        return Response(status_code=404)

    @app.get("/presets.json")
    def exported() -> Response:
        """What was saved or changed, to take along."""
        return Response(studio.presets.export(), media_type="application/json", headers=NO_CACHE)

    app.add_middleware(_Headers)
    head = f'<link rel="icon" href="{ICON}"><script>{(HERE / "page.js").read_text(encoding="utf-8")}</script>'
    return gr.mount_gradio_app(
        app,
        create_page(studio, words),
        path="/",
        theme=_theme(),
        css=(HERE / "style.css").read_text(encoding="utf-8"),
        head=head,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        show_error=True,
        max_file_size=MOST_UPLOADED,
    )


def _theme() -> gr.themes.Base:
    """Plain fields on a plain page; colours with enough contrast for small text in light and dark."""
    theme = gr.themes.Base(
        primary_hue="teal", neutral_hue="slate", font=SYSTEM_FONTS, font_mono=MONO_FONTS, radius_size="lg"
    )
    return theme.set(
        body_background_fill="#ffffff",
        body_background_fill_dark="#0f141b",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#151b24",
        body_text_color_subdued="#566273",
        body_text_color_subdued_dark="#a3b0c2",
        border_color_primary="#d8dee7",
        border_color_primary_dark="#2c3644",
        color_accent="#0f766e",
        checkbox_label_background_fill_dark="#151b24",
        checkbox_label_background_fill_hover_dark="#1d2531",
        checkbox_label_border_color_dark="*border_color_primary",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_padding="0px",
        block_shadow="none",
        block_label_text_size="14px",
        block_title_text_weight="500",
        block_title_text_color="*body_text_color",
        block_info_text_color="*body_text_color_subdued",
        input_background_fill="#ffffff",
        input_background_fill_dark="#151b24",
        input_border_width="1px",
        input_border_color="*border_color_primary",
        input_border_color_dark="*border_color_primary",
        input_border_color_focus="#0f766e",
        input_border_color_focus_dark="#2dd4bf",
        input_placeholder_color="#7b8798",
        input_placeholder_color_dark="#7f8ea3",
        slider_color="#0f766e",
        slider_color_dark="#2dd4bf",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_hover="#0b5f59",
        button_primary_background_fill_dark="#0f766e",
        button_primary_background_fill_hover_dark="#128a80",
        button_primary_text_color="#ffffff",
        button_primary_border_color="transparent",
        button_primary_border_color_dark="transparent",
    )


def _media_path(studio: Studio, run: int, what: str) -> str | None:
    try:
        found = studio.run(run)
    except (KeyError, OverflowError):
        return None
    preview = found.progress.get("preview", {}).get("path")
    path = {"film": found.output, "poster": found.poster, "preview": preview}.get(what)
    return path if path and os.path.isfile(path) else None


class _Headers:
    """Adds the policy header to every answer."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await self.app(scope, receive, send_with_policy if scope["type"] == "http" else send)


def serve(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    models: Sequence[str] = (),
    language: str | None = None,
) -> int:
    """Serves the page until Ctrl-C. port None: the first free one. Returns an exit code."""
    listener = _listen(host, port)
    if listener is None:
        print(f"Port {port or FIRST_PORT} at {host} cannot be used; choose another with --port.", file=sys.stderr)
        return 1
    with listener, Studio(models=models, whole_queue=True) as studio:
        app = create_app(studio, Words(language))
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
        threading.Thread(target=_when_up, args=(server, studio, url, open_browser), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):  # how a studio normally ends
            server.run(sockets=[listener])
    return 0


def _listen(host: str, port: int | None) -> socket.socket | None:
    for candidate in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)
            return listener
        except (OSError, OverflowError):
            listener.close()
    return None


def _when_up(server: uvicorn.Server, studio: Studio, url: str, open_browser: bool) -> None:
    """Says where the page is, opens it, then starts the worker: the page comes first."""
    while not server.started and not server.should_exit:
        threading.Event().wait(0.02)
    print(f"H3 Studio is at {url}  (Ctrl-C ends it)", flush=True)
    if open_browser:
        webbrowser.open(url)
    studio.warm()
