"""The Accuracy tab: the verdict, how each class is doing, what it mixes up, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr

from app.studio import Studio
from app.tabs import PLAIN, Texts, empty
from edge_hpcr.live.accuracy import Answers, ClassHealth, Verdict
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.workspace.records import ClassRow

MOST_ROWS = 500  # of classes
INTRODUCTION = (
    "Every label first tests the learner, and then trains it. <b>Before learning</b> is how often the answer was right "
    "in the last hundred of these tests; the first label of a new class is no test. <b>Held out</b> are pictures that it "
    "never learned: a share of the labels, and while those are few, pictures that copies of it left out. A burst counts as one."
)
HOLDS_NOTHING_OUT = (
    "No labels are kept for measuring, because the settings say so: raise their share on the Settings tab."
)
MIXED_UP = "<h2>What it mixes up</h2>"


# How good it is, and each class ----------------------------------------------------------------------------------------


def verdict_html(said: Verdict, evidence: str | None = None) -> str:
    """The verdict, and what the learner looks at."""
    number = f"<b>{escape(said.number)}</b> " if said.number else ""
    looks = f"<p>{escape(evidence)}</p>" if evidence else ""
    return f'<p class="verdict {said.level}">{number}<span>{escape(said.sentence)}</span></p>{looks}'


def health_table(rows: Sequence[ClassHealth]) -> str:
    """One row per class; nothing for a single one, which cannot be mixed up."""
    if len(rows) < 2:
        return ""
    names = {row.id: row.name for row in rows}
    body = "".join(_health_row(row, names) for row in rows[:MOST_ROWS])
    head = "".join(
        f'<th scope="col">{text}</th>' for text in ("class", "labels", "right", "taken for", "what to do")
    )
    return (
        '<h2>How each class is doing</h2><div class="accuracy-scroll" tabindex="0" role="region" aria-label="How each class is doing">'
        f'<table class="edge-table health-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _health_row(row: ClassHealth, names: dict[int, str]) -> str:
    # Of more than its labels: some were taken back since.
    right = f"{row.right:,} of {row.samples:,}" if 0 < row.samples <= row.labels else "not yet"
    other = escape(names.get(row.taken_for or 0, ""))
    return (
        f'<tr><th scope="row"><bdi>{escape(row.name)}</bdi></th><td>{row.labels:,}</td><td>{right}</td>'
        f"<td><bdi>{other}</bdi></td><td>{escape(row.advice)}</td></tr>"
    )


# What the tab shows, from the learner's status ----------------------------------------------------------------------


def summary(status: dict[str, Any], held_out_share: float) -> str:
    tried, held_out = status["test_then_train"], status["held_out"]
    numbers = (
        ("Held out", accuracy_text(held_out["accuracy"], held_out["samples"])),
        ("Before learning", accuracy_text(tried["accuracy"], tried["labels"])),
    )
    shown = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in numbers)
    missing = "" if held_out_share else empty(HOLDS_NOTHING_OUT)
    return f'<p>{INTRODUCTION}</p><dl class="accuracy-numbers">{shown}</dl>{missing}'


def confusion_table(answers: Answers, classes: Sequence[ClassRow]) -> str:
    """Rows are true, columns are said."""
    counts = {(true, said): count for true, said, count in answers}
    known = {row.id: row for row in classes}
    ids = sorted({each for pair in counts for each in pair} & known.keys())
    if not ids:
        return ""
    head = "".join(
        f'<th scope="col" title="{escape(known[said].name)}"><span>{escape(known[said].name)}</span></th>'
        for said in ids
    )
    rows = "".join(_confusion_row(true, ids, counts, known) for true in ids)
    return (
        f"{MIXED_UP}<p>Rows: the true class. Columns: what it said.</p>"
        '<div class="accuracy-scroll accuracy-matrix" tabindex="0" role="region" aria-label="Confusion matrix"><table>'
        f'<thead><tr><th scope="col">true \\ said</th>{head}<th scope="col">n</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _confusion_row(
    true: int, ids: Sequence[int], counts: dict[tuple[int, int], int], known: dict[int, ClassRow]
) -> str:
    total = sum(counts.get((true, said), 0) for said in ids)
    cells = []
    for said in ids:
        count = counts.get((true, said), 0)
        if not count:
            cells.append("<td></td>")
            continue
        right = said == true
        text = f"{count} of {total} pictures of {known[true].name} called {known[said].name}"
        cells.append(
            f'<td class="{"right" if right else "wrong"}" style="--share:{count / total:.2f}" title="{escape(text)}">'
            f"{count:,}</td>"
        )
    name = escape(known[true].name)
    return (
        f'<tr><th scope="row" title="{name}"><span>{name}</span></th>{"".join(cells)}<td>{total:,}</td></tr>'
    )


# The tab --------------------------------------------------------------------------------------------------------------


def shown(studio: Studio) -> Texts:
    """The verdict, the classes, what is mixed up, and the numbers."""

    def facts() -> tuple[Any, ...]:
        status, share = studio.live.status(), studio.workspace.settings.held_out_share
        read = {key: status[key] for key in ("held_out", "test_then_train")}
        evidence = studio.live.learner.method.evidence()
        return studio.verdict(), evidence, studio.health(), read, share, studio.journal.last_seq

    def make(facts: tuple[Any, ...]) -> tuple[str, ...]:
        said, evidence, health, status, share, _ = facts
        matrix = confusion_table(status["held_out"]["confusion"], studio.journal.classes())
        return verdict_html(said, evidence), health_table(health), matrix, summary(status, share)

    return Texts(facts, make)


def build(studio: Studio, tab: gr.Tab) -> None:
    sentence = gr.HTML(elem_id="accuracy-verdict", **PLAIN)
    with gr.Row(elem_classes="accuracy-sides"):
        with gr.Column(min_width=340):
            health = gr.HTML(elem_id="accuracy-health", **PLAIN)
        with gr.Column(min_width=340):
            matrix = gr.HTML(elem_id="accuracy-confusion", **PLAIN)
    with gr.Accordion("The numbers: held out, and before learning", open=False, elem_id="accuracy-more"):
        numbers = gr.HTML(elem_id="accuracy-summary", **PLAIN)
    shown(studio).keep_fresh(tab, [sentence, health, matrix, numbers])
