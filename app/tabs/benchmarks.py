"""The Benchmarks tab: the paper's split benchmarks, run beside the learner, with the paper's values next to ours."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from app.bench_runs import MOST_SEEDS, BenchRuns, Request, RunView
from app.studio import Studio
from app.tabs import PLAIN, QUIET, Texts, empty, saying_errors
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import report
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_duration
from edge_hpcr.learner import methods

TICK_SECONDS = 1.0
INTRODUCTION = (
    "A dataset is learned task by task in a single pass, and tested after each task on all classes so far. It runs beside "
    "your learner, at low priority, and does not touch it. The number after ± is a 95 % interval over the seeds."
)
EMPTY = "No benchmark has been run here yet. Press Start: the digits need no download and take about a minute per seed."
STATES = {
    "waiting": "◌ waiting for its turn",
    "running": "▶ running",
    "stopped": "‖ stopped; Start with the same choices continues it",
    "failed": "⚠ ended with an error",
}


# What is shown --------------------------------------------------------------------------------------------------------


def runs_html(views: list[RunView], results: dict[str, Any]) -> str:
    """What is under way or was stopped, and the names of the finished runs."""
    if not views and not results:
        return empty(EMPTY)
    rows = [_run(view) for view in views]
    if results:
        rows.append(
            f"<li>✓ finished, as JSON in the workspace's folder benchmarks: {escape(', '.join(results))}</li>"
        )
    return f'<ul class="edge-list">{"".join(rows)}</ul>'


def _run(view: RunView) -> str:
    name, known = escape(view.name), view.progress
    parts = [f"<b>{name}</b> {STATES[view.state]}"]
    if known.get("steps"):
        share, left = known["step"] / known["steps"], known.get("seconds_left")
        parts.append(
            f'<progress max="1" value="{share:.4f}" aria-label="progress of {name}"></progress> {share:.0%}, '
            f"task {min(known['task'] + 1, known['tasks'])} of {known['tasks']}, {format_duration(known['seconds'])} so far"
            f"{f', about {format_duration(left)} left' if left and view.state == 'running' else ''}"
        )
    if view.problem:
        parts.append(f'<span class="warning">{escape(view.problem)}</span>')
    return f"<li>{' '.join(parts)}</li>"


def dataset_note(runs: BenchRuns, dataset: str) -> str:
    info = data.DATASETS[dataset]
    try:
        runs.check_data(dataset)
    except UserError as error:
        # The text between backticks is a command to copy.
        before, command, after = (escape(part) for part in [*str(error).split("`"), "", ""][:3])
        code = f"<code>{command}</code>" if command else ""
        return f'<p class="warning">{before}{code}{after}</p>'
    return f"<p>{escape(info.description)}; {info.tasks} tasks of {info.classes // info.tasks} classes.</p>"


def shown(studio: Studio) -> Texts:
    """The runs, and the table that the command prints."""

    def facts() -> tuple[Any, ...]:
        runs = studio.runs
        return runs.runs(), [(path.name, path.stat().st_mtime_ns) for path in runs.folder.glob("*.json")]

    def make(facts: tuple[Any, ...]) -> tuple[str, str]:
        views, results = facts[0], studio.runs.results()
        return runs_html(views, results), report.table([*results.values()])

    return Texts(facts, make)


# What can be done -----------------------------------------------------------------------------------------------------


def build(studio: Studio, tab: gr.Tab) -> None:
    gr.HTML(f'<p class="introduction">{INTRODUCTION}</p>', **PLAIN)
    with gr.Row():
        form = _form()
    dataset, *_ = form
    note = gr.HTML(dataset_note(studio.runs, Request().dataset), elem_id="benchmarks-note", **PLAIN)
    with gr.Row():
        start_button = gr.Button(
            "Start", variant="primary", elem_id="benchmarks-start", scale=0, min_width=160
        )
        cancel_button = gr.Button("Cancel", elem_id="benchmarks-cancel", scale=0, min_width=100)
    listing = gr.HTML(runs_html([], {}), elem_id="benchmarks-runs", **PLAIN)
    results = gr.Markdown("", elem_id="benchmarks-results")

    def start(dataset: str, method: str, size: str, seeds: float | None, limit: str) -> None:
        request = Request(dataset, method, size.strip(), int(seeds or 0), limit.strip() or None)
        names = studio.runs.start(request)
        gr.Info(f"{len(names)} runs started." if len(names) > 1 else f"{names[0]} started.")

    shown(studio).keep_fresh(tab, [listing, results], TICK_SECONDS)
    for event in (tab.select, dataset.change):
        event(saying_errors(lambda name: dataset_note(studio.runs, name)), dataset, note, **QUIET)
    start_button.click(saying_errors(start), form, None, **QUIET)
    cancel_button.click(saying_errors(lambda: studio.runs.cancel()), None, None, **QUIET)


def _form() -> list[Any]:
    """A request's fields in their order."""
    request = Request()

    def field(name: str, width: int) -> dict[str, Any]:
        return {"elem_id": f"benchmarks-{name}", "min_width": width}

    return [
        gr.Dropdown(list(data.DATASETS), value=request.dataset, label="Dataset", info="what is learned", **field("dataset", 150)),
        gr.Dropdown(list(methods.names()), value=request.method, label="Method", info="how it learns", **field("method", 150)),
        gr.Textbox(
            request.size, label="Memory", info="like 200KB; or 200, in samples", max_lines=1, **field("size", 150)
        ),
        gr.Number(
            request.seeds, label="Seeds", info=f"one run per seed, up to {MOST_SEEDS}", precision=0, **field("seeds", 100)
        ),
        gr.Textbox(
            "", label="Limit", info="images per task; empty: all", max_lines=1, placeholder="all",
            **field("limit", 100),
        ),
    ]  # fmt: skip
