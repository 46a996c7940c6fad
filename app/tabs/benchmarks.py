"""The Benchmarks tab: the paper's split benchmarks, run beside the learner, with the paper's values next to ours."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from app.bench_runs import KINDS, MOST_SEEDS, BenchRuns, Request, RunView
from app.charts import Series, empty, line_chart
from app.palette import COLOURS
from app.studio import Studio
from app.tabs import data_fetch
from app.tabs.parts import QUIET, saying_errors, tick_while_shown
from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.bench.report import NOTHING, Group, group
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import methods

TICK_SECONDS = 1.0
CURVES_SHOWN = 4  # runs, unless a person chooses others
INTRODUCTION = (
    "A dataset is learned task by task in a single pass, and tested after each task on all classes so far. It runs in a "
    "separate process at low priority and does not touch your learner. The digits need no download and take about a "
    "minute."
)
EMPTY = "No benchmark has been run here yet. Press Start: the embedded digits are done in about a minute."
STATES = {
    "waiting": "◌ waiting for its turn",
    "running": "▶ running",
    "stopping": "◼ saving itself",
    "stopped": "‖ stopped; it can be continued",
    "failed": "⚠ ended with an error",
    "finished": "✓ finished",
}

COLUMNS: dict[str, Callable[[Group], str]] = {
    "Dataset": lambda one: one.dataset,
    "Method": lambda one: one.title,
    "Memory": lambda one: one.memory,
    "n": lambda one: str(len(one.results)),
    "A_T": lambda one: one.estimate("A_T").text,
    "A_T averaged": lambda one: one.averaged("A_T").text,
    "AAA": lambda one: one.estimate("AAA").text,
    "F_T": lambda one: one.estimate("F_T").text,
    "Paper's A_T": lambda one: one.paper("A_T").text,
    "Difference": lambda one: one.estimate("A_T").above(one.paper("A_T")),
}


# What is shown --------------------------------------------------------------------------------------------------------


def minutes(seconds: float) -> str:
    """
    >>> minutes(42), minutes(125), minutes(7260)
    ('42 s', '2.1 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def runs_html(views: list[RunView]) -> str:
    if not views:
        return f'<p class="benchmarks-empty">{EMPTY}</p>'
    return f'<ul class="benchmarks-runs">{"".join(_run(view) for view in views)}</ul>'


def _run(view: RunView) -> str:
    parts = [
        f'<b>{escape(view.title)}</b> <span class="benchmarks-state {view.state}">{STATES[view.state]}</span>'
    ]
    if view.state in ("running", "stopping", "stopped", "failed") and view.steps:
        share = view.step / view.steps
        left = view.seconds_left if view.state == "running" else None
        parts.append(
            f'<progress max="1" value="{share:.4f}" aria-label="progress of {escape(view.title)}"></progress> '
            f"{share:.0%}, task {min(view.task + 1, view.tasks)} of {view.tasks}, {minutes(view.seconds)} so far"
            f"{f', about {minutes(left)} left' if left else ''}"
        )
    elif view.state == "running":
        parts.append("it is starting …")
    parts.append(_accuracy(view))
    if view.problem:
        parts.append(f'<span class="warning">{escape(view.problem)}</span>')
    if view.result is not None:
        parts.append(f'<a href="/edge/bench/{escape(view.name)}.json" download>JSON</a>')
    return (
        f'<li data-run="{escape(view.name)}" data-state="{view.state}">{" ".join(filter(None, parts))}</li>'
    )


def _accuracy(view: RunView) -> str:
    """The accuracy so far, and the paper's final one where it has this very setting."""
    parts = []
    if view.live:
        averaged = f", averaged {view.averaged[-1]:.1%}" if view.averaged else ""
        parts.append(f"A<sub>{len(view.live)}</sub> {view.live[-1]:.1%}{averaged}")
    elif view.incoming is not None and view.state == "running":
        parts.append(f"{view.incoming:.0%} of what comes is recognised before it is learned")
    if view.paper.mean is not None:
        parts.append(f"the paper ends at {view.paper.text} %")
    if view.state == "finished":
        parts.append(f"took {minutes(view.seconds)}")
    return f"· {' · '.join(parts)}" if parts else ""


def curves_html(views: list[RunView]) -> str:
    """A_t after each task; two lines per run."""
    series = []
    several = len({view.group.dataset for view in views}) > 1
    for index, view in enumerate(views):
        name = view.title if several else view.label
        for kind, values in (("live", view.live), ("EMA", view.averaged)):
            if values:
                # Live and averaged of a run share its colour, and differ in dash and mark.
                points = tuple(enumerate(values, 1))
                series.append(Series(f"{name}, {kind}", COLOURS[index % len(COLOURS)], points))
    if not series:
        return empty("The curves appear as soon as the first task is done.")
    return line_chart(tuple(series), "tasks learned", "A_t")


def results_html(views: list[RunView]) -> str:
    """Finished runs, the seeds of one setting together, beside the paper's value."""
    groups = group([view.result for view in views if view.result is not None])
    if not groups:
        return ""
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell(one))}</td>' for cell in COLUMNS.values())}</tr>" for one in groups
    )
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    return (
        f'<div class="benchmarks-scroll"><table class="benchmarks-table"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        '<p class="benchmarks-note">In percent: the mean over n seeds, with the half-width of its 95 % confidence interval '
        f"from two seeds on. The paper's value is given where a run has the paper's setting; {NOTHING} where it has none "
        "(the digits, a byte budget, a limit).</p>"
    )


def dataset_note(runs: BenchRuns, dataset: str) -> str:
    info = DATASETS[dataset]
    try:
        runs.check_data(dataset)
    except UserError as error:
        # The text between backticks is a command to copy.
        before, command, after = (escape(part) for part in [*str(error).split("`"), "", ""][:3])
        code = f"<code>{command}</code>" if command else ""
        return f'<p class="warning">{before}{code}{after}</p>'
    return f"<p>{escape(info.description)}; {info.tasks} tasks of {info.classes // info.tasks} classes.</p>"


# What can be done -----------------------------------------------------------------------------------------------------


class Actions:
    """What the tab's controls do; most return what the lists and the curves then show."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    @property
    def _runs(self) -> BenchRuns:
        return self._studio.runs  # of the workspace that is open now

    @saying_errors
    def show(self, names: list[str] | None, was: str, choose: str | None = None) -> list[Any]:
        views = self._runs.runs()
        wanted = [view for view in views if view.name in (names or [])] or views[:CURVES_SHOWN]
        now = "|".join(view.name for view in views)
        lists: list[Any] = [gr.skip(), gr.skip()]
        if now != was or choose is not None:
            choices = [(view.title, view.name) for view in views]
            first = choose or next((v.name for v in sorted(views, key=lambda v: not v.can_stop)), None)
            kept = [name for name in names or [] if any(view.name == name for view in views)]
            lists = [gr.update(choices=choices, value=first), gr.update(choices=choices, value=kept)]
        return [runs_html(views), curves_html(wanted), results_html(views), *lists, now]

    @saying_errors
    def start(
        self,
        dataset: str,
        method: str,
        kind: str,
        size: str,
        seeds: float,
        limit: str,
        names: list[str] | None,
    ) -> list[Any]:
        images = _whole("limit", limit) if limit.strip() else None
        request = Request(dataset, method, kind, size.strip(), _whole("seeds", seeds), images)
        started = self._runs.start(request)
        many = f"{len(started)} runs are on their way."
        gr.Info(f"{started[0]} is on its way." if len(started) == 1 else many)
        return self.show(names, "", started[0])

    @saying_errors
    def cancel(self, name: str | None, names: list[str] | None) -> list[Any]:
        self._runs.cancel(_chosen(name))
        return self.show(names, "", name)

    @saying_errors
    def resume(self, name: str | None, names: list[str] | None) -> list[Any]:
        self._runs.resume(_chosen(name))
        return self.show(names, "", name)

    @saying_errors
    def ask(self, name: str | None) -> list[Any]:
        view = self._runs.view(_chosen(name))
        lost = "its result" if view.result is not None else "what it has learned so far"
        sentence = f"Remove {view.title}? Its files are deleted, {lost} with them; nothing else is touched."
        return [gr.update(visible=True), f"<p>{escape(sentence)}</p>"]

    @saying_errors
    def remove(self, name: str | None, names: list[str] | None) -> list[Any]:
        self._runs.remove(_chosen(name))
        return [gr.update(visible=False), *self.show(names, "")]


def build(studio: Studio, tab: gr.Tab) -> None:
    actions = Actions(studio)
    plain: dict[str, Any] = {"padding": False, "apply_default_css": False}
    gr.HTML(f'<p class="benchmarks-introduction">{INTRODUCTION}</p>', **plain)
    with gr.Row():
        form = _form()
    dataset, *_ = form
    timer = gr.Timer(TICK_SECONDS, active=False)
    note = gr.HTML(dataset_note(studio.runs, Request().dataset), elem_id="benchmarks-note", **plain)
    data_fetch.build(studio.data, tab, dataset, timer, note, lambda name: dataset_note(studio.runs, name))
    with gr.Row():
        start_button = gr.Button(
            "Start", variant="primary", elem_id="benchmarks-start", scale=0, min_width=160
        )
    listing = gr.HTML(runs_html([]), elem_id="benchmarks-runs", **plain)
    with gr.Row(elem_id="benchmarks-run-row", elem_classes="benchmarks-actions"):
        chosen = gr.Dropdown([], label="Run", elem_id="benchmarks-run", min_width=240, scale=1)
        cancel_button = gr.Button("Cancel", elem_id="benchmarks-cancel", min_width=100, scale=0)
        continue_button = gr.Button("Continue", elem_id="benchmarks-continue", min_width=100, scale=0)
        remove_button = gr.Button(
            "Remove …", variant="stop", elem_id="benchmarks-remove", min_width=140, scale=0
        )
    with gr.Row(visible=False, elem_classes="benchmarks-actions") as really:
        question = gr.HTML("", **plain)
        yes_button = gr.Button(
            "Remove it", variant="stop", elem_id="benchmarks-remove-yes", min_width=140, scale=0
        )
        no_button = gr.Button("Keep it", elem_id="benchmarks-remove-no", min_width=100, scale=0)
    plotted = gr.Dropdown(
        [], multiselect=True, label="Curves of", info="empty: the newest few", elem_id="benchmarks-plotted"
    )
    curves = gr.HTML("", elem_id="benchmarks-curves", **plain)
    results = gr.HTML("", elem_id="benchmarks-results", **plain)
    seen = gr.State("")
    outputs = [listing, curves, results, chosen, plotted, seen]

    tick_while_shown(tab, timer)
    for event in (timer.tick, tab.select, plotted.change):
        event(actions.show, [plotted, seen], outputs, **QUIET)
    start_button.click(actions.start, [*form, plotted], outputs, **QUIET)
    cancel_button.click(actions.cancel, [chosen, plotted], outputs, **QUIET)
    continue_button.click(actions.resume, [chosen, plotted], outputs, **QUIET)
    remove_button.click(actions.ask, chosen, [really, question], **QUIET)
    yes_button.click(actions.remove, [chosen, plotted], [really, *outputs], **QUIET)
    no_button.click(lambda: gr.update(visible=False), None, really, **QUIET)


def _form() -> list[Any]:
    """Dataset, method, kind and size of the memory, seeds, limit: a request's fields in their order."""
    request = Request()

    def field(name: str, width: int) -> dict[str, Any]:
        return {"elem_id": f"benchmarks-{name}", "min_width": width}

    return [
        gr.Dropdown(list(DATASETS), value=request.dataset, label="Dataset", info="what is learned", **field("dataset", 150)),
        gr.Dropdown(list(methods.names()), value=request.method, label="Method", info="how", **field("method", 150)),
        gr.Radio(list(KINDS), value=request.kind, label="Memory in", info="what is counted", **field("kind", 230)),
        gr.Textbox(
            request.size, label="Memory", info="like 200KB, or 200 samples", max_lines=1, **field("size", 120)
        ),
        gr.Number(request.seeds, label="Seeds", info=f"a run each, up to {MOST_SEEDS}", **field("seeds", 100)),
        gr.Textbox(
            "", label="Limit", info="images per task; empty: all", max_lines=1, placeholder="all",
            **field("limit", 100),
        ),
    ]  # fmt: skip


def _chosen(name: str | None) -> str:
    if not name:
        raise UserError("choose a run first")
    return name


def _whole(what: str, value: float | str | None) -> int:
    text = str(value).strip().removesuffix(".0")
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise UserError(f"{what} {text[:20]}: give a whole number")
    return int(text)
