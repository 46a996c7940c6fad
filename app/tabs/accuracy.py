"""The Accuracy tab: how good it is, on how many samples that rests, what it mixes up, and how it sees the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import Any

import gradio as gr
import numpy as np

from app.charts import Bar, Series, bars, empty, line_chart
from app.feature_map import BATCH, PCA, TSNE, FeatureMap, held_out
from app.palette import colour_of
from app.studio import Studio
from app.tabs import verdict
from app.tabs.parts import PLAIN, QUIET, Shown, saying_errors
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.status import FEW, accuracy_text
from edge_hpcr.live.verdict import Answers

MOST_IMAGES = 24  # of a cell of the confusion matrix
ENOUGH_COLOUR, FEW_COLOUR = "#0072b2", "#d55e00"
INTRODUCTION = (
    "Every label tests first and trains then: <b>before learning</b> counts how often the answer was right before "
    "the label was learned; first labels of a new class are no test. <b>Held out</b> is a share of the labels that is "
    "never trained on."
)
NOTHING_LABELLED = (
    "Nothing has been labelled yet. Show two things on the Teach tab and name them: from then on, every label is first "
    "used to test the learner, and this page shows how often it was right."
)
NOT_LEARNED = "The labels are being learned; the first numbers appear in a moment."
NOTHING_HELD_OUT = (
    "Nothing has been measured on held-out samples yet. About {share:.0%} of the labels are kept for it, and the "
    "learner tests itself when it has a moment: go on teaching."
)
HOLDS_NOTHING_OUT = "No labels are kept for measuring, because the settings say so: raise the held-out share on the Settings tab."
MIXED_UP = "<h3>What it mixes up</h3>"
MAP_EXPLAINED = (
    "Each point is a sample, the star is its class: a sample is recognised when its own star is the nearest in direction. "
    "The plane shows only a part of that."
)
CLICKS = """
element.addEventListener("click", (event) => {
  const cell = event.target.closest("button[data-true]");
  if (cell) trigger("click", { true: Number(cell.dataset.true), said: Number(cell.dataset.said) });
});
"""


@dataclass(frozen=True)
class ClassLook:
    """A class as charts show it."""

    id: int
    name: str
    colour: str


def looks(studio: Studio) -> list[ClassLook]:
    return [ClassLook(row.id, row.name, colour_of(row.id, row.colour)) for row in studio.journal.classes()]


def short_accuracy(accuracy: float | None, samples: int) -> str:
    """As `accuracy_text`, for a narrow place.

    >>> short_accuracy(0.912, 48), short_accuracy(1.0, 3), short_accuracy(None, 0)
    ('91 % (n=48)', '100 % (n=3, few)', 'nothing yet')
    """
    text = accuracy_text(accuracy, samples).replace("few samples", "few")
    return "nothing yet" if accuracy is None else text


# What the tab shows, from the learner's status ----------------------------------------------------------------------


def summary(status: dict[str, Any], classes: Sequence[ClassLook], held_out_share: float) -> str:
    """The numbers, both curves, and the bars of the classes."""
    tried, held_out = status["test_then_train"], status["held_out"]
    if not tried["labels"] and not held_out["samples"]:
        return empty(NOT_LEARNED if status["labels_waiting"] else NOTHING_LABELLED)
    recent = tried["recent"]
    numbers = (
        ("Held out", accuracy_text(held_out["accuracy"], held_out["samples"])),
        ("Before learning, lately", accuracy_text(recent["accuracy"], recent["labels"])),
        ("Before learning, all labels", accuracy_text(tried["accuracy"], tried["labels"])),
    )
    shown = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in numbers)
    return (
        f'<p>{INTRODUCTION}</p><div class="accuracy-charts"><dl class="accuracy-numbers">{shown}</dl>'
        f"{held_out_curve(held_out, held_out_share)}{tried_curve(tried)}</div>"
        f'<h3>By class</h3><div class="accuracy-charts">{class_charts(status, classes)}</div>'
    )


def held_out_curve(held_out: dict[str, Any], share: float) -> str:
    if not held_out["curve"]:
        return empty(HOLDS_NOTHING_OUT if share == 0 else NOTHING_HELD_OUT.format(share=share))
    points = [(step, accuracy, samples) for step, accuracy, samples in held_out["curve"]]
    title = f"Held-out accuracy over time, now on n={held_out['samples']:,} samples"
    return line_chart(
        _split_by_trust(points), "steps learned", "right answers", title=title, last_values=False
    )


def tried_curve(tried: dict[str, Any]) -> str:
    if not tried["curve"]:
        return empty(NOT_LEARNED)
    most = 100
    points = [(labels, accuracy, min(labels, most)) for labels, accuracy in tried["curve"]]
    title = f"Accuracy before learning, over the last {most} labels, of {tried['labels']:,} in all"
    return line_chart(_split_by_trust(points), "labels", "right answers", title=title, last_values=False)


def _split_by_trust(points: Sequence[tuple[int, float, int]]) -> tuple[Series, ...]:
    """One line where a value rests on enough samples, another one where these are few."""
    enough = tuple((x, y) for x, y, n in points if n >= FEW)
    few = tuple((x, y) for x, y, n in points if n < FEW)
    lines = (
        Series(f"n of {FEW} or more", ENOUGH_COLOUR, enough),
        Series(f"few samples (n below {FEW})", FEW_COLOUR, few),
    )
    return tuple(line for line in lines if line.points)


def class_charts(status: dict[str, Any], classes: Sequence[ClassLook]) -> str:
    tested, tried = status["held_out"]["classes"], status["test_then_train"]["classes"]
    recall, forgetting, before = [], [], []
    for look in classes:
        one = tested.get(look.id)
        if one is None:
            recall.append(Bar(look.name, look.colour, 0.0, "nothing yet"))
        else:
            best = short_accuracy(one["best"], one["best_samples"])
            text = short_accuracy(one["recall"], one["samples"])
            recall.append(
                Bar(look.name, look.colour, one["recall"], text, one["best"], f"best so far {best}")
            )
            points = round(100 * one["forgetting"])
            lost = f"{points} of {best}"
            forgetting.append(Bar(look.name, look.colour, one["forgetting"], lost))
        own = tried.get(look.id, {"accuracy": None, "labels": 0})
        text = short_accuracy(own["accuracy"], own["labels"])
        before.append(Bar(look.name, look.colour, own["accuracy"] or 0.0, text))
    charts = [
        bars(recall, title="Held-out samples recognised", mark_name="its best so far"),
        bars(forgetting, title="Forgotten since its best, in points of that best") if forgetting else "",
        bars(before, title="Right before learning"),
    ]
    return "".join(
        f'<div class="accuracy-classes" tabindex="0" role="region" aria-label="by class">{chart}</div>'
        for chart in charts
        if chart
    )


def confusion_table(answers: Answers, classes: Sequence[ClassLook]) -> str:
    """Rows are true, columns are said; a cell that is not empty is a button for its images."""
    counts = {(true, said): count for true, said, count in answers}
    known = {look.id: look for look in classes}
    ids = sorted({each for pair in counts for each in pair} & known.keys())
    if not ids:
        return MIXED_UP + empty("It appears with the first test on pictures that it never learned.")
    head = "".join(
        f'<th scope="col" title="{escape(known[said].name)}"><span>{escape(known[said].name)}</span></th>'
        for said in ids
    )
    rows = "".join(_confusion_row(true, ids, counts, known) for true in ids)
    return (
        f"{MIXED_UP}<p>Rows: the true class. Columns: what it said. A click on a number shows the pictures.</p>"
        '<div class="accuracy-matrix" tabindex="0" role="region" aria-label="Confusion matrix"><table>'
        f'<thead><tr><th scope="col">true \\ said</th>{head}<th scope="col">n</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _confusion_row(
    true: int, ids: Sequence[int], counts: dict[tuple[int, int], int], known: dict[int, ClassLook]
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
            f'<td class="{"right" if right else "wrong"}" style="--share:{count / total:.2f}">'
            f'<button data-true="{true}" data-said="{said}" title="{escape(text)}" aria-label="{escape(text)}">'
            f"{count:,}</button></td>"
        )
    few = " few" if 0 < total < FEW else ""
    name = escape(known[true].name)
    return f'<tr><th scope="row" title="{name}"><span>{name}</span></th>{"".join(cells)}<td>{total:,}{few}</td></tr>'


def cell_samples(studio: Studio, true: int, said: int, most: int = MOST_IMAGES) -> list[int]:
    """At most so many samples of one class that are called the other: held-out ones now, and those left out of copies."""
    found: list[int] = []
    samples = held_out(studio.live, true)
    while len(found) < most and (batch := list(islice(samples, BATCH))):
        prediction = studio.live.predictor.predict(np.stack([inputs for _, _, inputs in batch]))
        answers = prediction.class_ids[prediction.scores.argmax(1)]
        found += [sample_id for (sample_id, *_), answer in zip(batch, answers, strict=True) if answer == said]
    return [*found, *studio.live.self_test.left_out_samples(true, said)][:most]


def cell_images(studio: Studio, true: int, said: int) -> str:
    names = {look.id: look.name for look in looks(studio)}
    if true not in names or said not in names:
        raise UserError("one of these classes is gone: choose a cell again")
    what = f"Pictures of {names[true]}, never learned, that were called {names[said]}"
    found = cell_samples(studio, true, said)
    if not found:
        return empty(f"{what}: none any more, the learner has moved on since the test.")
    number = f"{len(found):,}" if len(found) < MOST_IMAGES else f"the first {MOST_IMAGES}"
    pictures = "".join(
        f'<img src="/edge/sample/{each}" loading="lazy" title="sample {each}" '
        f'alt="sample {each}, {escape(names[true])} called {escape(names[said])}">'
        for each in found
    )
    return f'<p>{escape(f"{what}: {number}")}</p><div class="accuracy-pictures">{pictures}</div>'


def shown(studio: Studio) -> Shown:
    """The summary and the confusion matrix."""

    def facts() -> tuple[Any, ...]:
        status, share = studio.live.status(), studio.workspace.settings.held_out_share
        read = {key: status[key] for key in ("held_out", "test_then_train", "answers")}
        return read | {"labels_waiting": status["labels_waiting"] > 0}, share, studio.journal.last_seq

    def make(facts: tuple[Any, ...]) -> tuple[str, str]:
        status, share, _ = facts
        classes = looks(studio)
        return summary(status, classes, share), confusion_table(status["answers"], classes)

    return Shown(facts, make)


def build(studio: Studio, tab: gr.Tab) -> None:
    feature_map = FeatureMap(studio)
    sentence = gr.HTML(elem_id="accuracy-verdict", **PLAIN)
    with gr.Row(elem_classes="accuracy-sides"):
        with gr.Column(min_width=420):
            health = gr.HTML(elem_id="accuracy-health", **PLAIN)
        with gr.Column(min_width=420):
            matrix = gr.HTML(elem_id="accuracy-confusion", js_on_load=CLICKS, **PLAIN)
            images = gr.HTML(elem_id="accuracy-images", **PLAIN)
    with gr.Accordion("Over time, before learning and held out", open=False, elem_id="accuracy-more"):
        numbers = gr.HTML(elem_id="accuracy-summary", **PLAIN)
    with gr.Accordion("How it sees the samples", open=False, elem_id="accuracy-seen") as seen:
        gr.HTML(f"<p>{MAP_EXPLAINED}</p>", **PLAIN)
        with gr.Row(equal_height=True):
            kind = gr.Radio(
                [PCA, TSNE],
                value=PCA,
                show_label=False,
                elem_id="accuracy-map-kind",
                scale=0,
                min_width=200,
            )
            again = gr.Button("Draw it as of now", elem_id="accuracy-map-draw", scale=0, min_width=200)
        chart = gr.HTML(elem_id="accuracy-map", **PLAIN)

    @saying_errors
    def cell(event: gr.EventData) -> str:
        data = event._data if isinstance(event._data, dict) else {}
        true, said = data.get("true"), data.get("said")
        if type(true) is not int or type(said) is not int:
            raise UserError("choose a cell of the confusion matrix")
        return cell_images(studio, true, said)

    @saying_errors
    def drawn(wanted: str) -> str:
        if wanted not in (PCA, TSNE):
            raise UserError(f"there is no such map: choose {PCA} or {TSNE}")
        classes = looks(studio)
        return feature_map.draw(
            wanted, {look.id: look.name for look in classes}, {look.id: look.colour for look in classes}
        )

    def draw(wanted: str) -> Iterator[str]:
        if wanted == TSNE:
            yield empty("Working: t-SNE takes some seconds…")
        yield drawn(wanted)

    verdict.shown(studio).keep_fresh(tab, [sentence, health])
    shown(studio).keep_fresh(tab, [numbers, matrix])
    matrix.click(cell, None, images, **QUIET)
    gr.on([seen.expand, kind.change, again.click], draw, kind, chart, trigger_mode="always_last", **QUIET)
