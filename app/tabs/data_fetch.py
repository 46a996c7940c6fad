"""On the Benchmarks tab: a button that gets the data of the chosen benchmark, with its progress."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from app.data_fetch import DataFetch, Fetch
from app.tabs.parts import PLAIN, QUIET, saying_errors
from edge_hpcr.bench import datasets as data

TITLES = {"done": "✓", "failed": "⚠", "cancelled": "‖"}


def fetch_html(fetch: Fetch) -> str:
    if fetch.phase == "idle":
        return ""
    bar = ""
    if fetch.phase in ("running", "stopping"):
        value = "" if fetch.percent is None else f' value="{fetch.percent}"'
        bar = f'<progress max="100"{value} aria-label="getting {escape(fetch.dataset)}"></progress> '
        bar += "" if fetch.percent is None else f"{fetch.percent} % of a file · "
    wrong = ' class="warning"' if fetch.phase == "failed" else ""
    mark = TITLES.get(fetch.phase, "")
    return f'<p role="status" data-phase="{fetch.phase}"{wrong}>{mark} {escape(fetch.dataset)}: {bar}{escape(fetch.said)}</p>'


def build(
    fetching: DataFetch,
    tab: gr.Tab,
    dataset: gr.Dropdown,
    timer: gr.Timer,
    note: gr.HTML,
    about: Callable[[str], str],
) -> None:
    """`about` says of a dataset whether it is here."""
    with gr.Row(visible=False, elem_classes="benchmarks-actions") as row:
        get_button = gr.Button("Get the data", elem_id="benchmarks-get", min_width=160, scale=0)
        folder = gr.Textbox(
            label="From a folder",
            info="on the program's machine; empty: from the network",
            max_lines=1,
            elem_id="benchmarks-get-folder",
            min_width=240,
        )
    progress = gr.HTML("", elem_id="benchmarks-get-progress", **PLAIN)
    cancel_button = gr.Button(
        "Cancel getting data", visible=False, elem_id="benchmarks-get-cancel", min_width=160, scale=0
    )
    seen = gr.State("")
    outputs: list[Any] = [row, progress, cancel_button, note, seen]

    def show(name: str, was: str) -> list[Any]:
        now = fetching.now
        busy = now.phase in ("running", "stopping")
        key = repr((name, now, data.is_here(name, fetching.root)))
        if key == was:
            return [gr.skip() for _ in outputs]
        missing = not data.is_here(name, fetching.root)
        return [
            gr.update(visible=missing and not busy),
            fetch_html(now),
            gr.update(visible=busy),
            about(name),
            key,
        ]

    def get(name: str, place: str | None, was: str) -> list[Any]:
        fetching.start(name, place or "")
        return show(name, was)

    def cancel(name: str, was: str) -> list[Any]:
        fetching.cancel()
        return show(name, was)

    for event in (timer.tick, tab.select, dataset.change):
        event(saying_errors(show), [dataset, seen], outputs, **QUIET)
    get_button.click(saying_errors(get), [dataset, folder, seen], outputs, **QUIET)
    cancel_button.click(saying_errors(cancel), [dataset, seen], outputs, **QUIET)
