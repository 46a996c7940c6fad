"""Pages of samples for the Review tab: the queue, and the labelled samples, each with what the learner says of it now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from app.studio import Studio
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.records import SampleRow
from edge_hpcr.workspace.selection import UNKNOWN, rank

STATES = {"queue": "queued", "labelled": "labelled"}  # of the samples in a view
PAGE = 60
MOST_RANKED = 2000  # of a longer queue, those of the highest priority: ranking takes time
MOST_NAMED = 5000  # ids in one question
UNSURE = 0.5  # from this priority on: the two best classes are less than half apart, or it is unknown
PATIENCE = 0.3  # seconds to ask the learner about samples; the page asks again for the rest
BATCH = 64
SMALL = 64  # pixels a side; such images are shown with every pixel sharp


def answers_about(live: LiveLearner, ids: Sequence[int], seconds: float) -> dict[int, Answer]:
    """What the learner says of these samples, as far as their images can be read within so many seconds.

    What its trunk has seen it keeps, so that the rest follows when the page asks again.
    """
    deadline = time.monotonic() + seconds
    predictor = live.predictor
    inputs = {}
    for sample_id in ids:
        if time.monotonic() > deadline:
            break
        with suppress(UserError):  # its image is gone: there is nothing to ask about
            inputs[sample_id] = predictor.encoder.of_sample(sample_id)
    known, answers = [*inputs], list[Answer]()
    for start in range(0, len(known), BATCH):
        answers += predictor.answer(np.stack([inputs[i] for i in known[start : start + BATCH]]))
    return dict(zip(known, answers, strict=True))


def page(studio: Studio, query: dict[str, str]) -> dict[str, Any]:
    """One page of a view, as the page's script asks for it.

    view: queue or labelled; page: from 0. Both can be chosen by `guess` (what the learner says now: a class's id,
    `unknown`, or `other` than the label); labelled ones also by `class` (an id). `stay` names samples that are on the
    screen and keep their places, so that nothing moves under somebody's hand. `asking` is how many samples the learner
    has not been asked about yet. With `all=1` the ids alone, of all pages.
    """
    view = query.get("view", "queue")
    one_of("view", view, STATES)
    # A connection of its own, so that a long list never holds up a label.
    with reading(studio.workspace.layout.journal) as journal:
        if view == "queue":
            ids, total = _queue(journal), journal.counts().queued
        else:
            ids = journal.labelled(_number(query, "class"))  # the latest label first
            total = len(ids)
        chosen, asking = _filtered(studio, journal, ids, query)
        if query.get("all") == "1":
            return {"ids": chosen[:MOST_NAMED]}
        if len(chosen) < len(ids) or asking:
            ids, total = chosen, len(chosen)
        pages = max(1, -(-len(ids) // PAGE))
        number = min(_number(query, "page") or 0, pages - 1)
        rows = journal.rows_of(_chosen(ids, number, ids_in(query, "stay")))
    shown = [row.id for row in rows if row.has_image]
    answers = answers_about(studio.live, shown, PATIENCE)
    return {
        "view": view,
        "page": number,
        "pages": pages,
        "total": total,
        "asking": max(asking, sum(i not in answers for i in shown)),
        "samples": [_described(row, answers.get(row.id)) for row in rows],
    }


def _filtered(
    studio: Studio, journal: Queries, ids: list[int], query: dict[str, str]
) -> tuple[list[int], int]:
    """Those of the guess that is asked for, and how many the learner could not be asked about in time."""
    guess = query.get("guess", "")
    if not guess:
        return ids, 0
    wanted = _number(query, "guess") if guess not in ("unknown", "other") else None
    labels = journal.labels_of(ids) if guess == "other" else {}
    ids = ids[:MOST_RANKED]
    answers = answers_about(studio.live, ids, PATIENCE)

    def fits(sample_id: int, answer: Answer) -> bool:
        best = None if answer.unknown or not answer.best else answer.best[0]
        if guess == "unknown":
            return best is None
        if guess == "other":
            return best is not None and best != labels.get(sample_id)
        return best == wanted

    return [i for i in ids if i in answers and fits(i, answers[i])], sum(i not in answers for i in ids)


def _queue(journal: Queries) -> list[int]:
    """The queue, most informative first."""
    rows = journal.queued(MOST_RANKED)
    return rank([row.id for row in rows], [row.priority for row in rows], [row.hash64 for row in rows])


def _chosen(ids: list[int], number: int, stay: list[int]) -> list[int]:
    """The ids of a page: those that stay, as far as they are still in the view, then the page's others."""
    here = set(ids)
    kept = [sample_id for sample_id in dict.fromkeys(stay) if sample_id in here][:PAGE]
    shown = set(kept)
    others = (sample_id for sample_id in ids[number * PAGE : (number + 1) * PAGE] if sample_id not in shown)
    return [*kept, *others][:PAGE]


def _described(row: SampleRow, answer: Answer | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "class": row.class_id,
        "held_out": row.held_out,
        "image": row.has_image,
        "small": max(row.width, row.height) <= SMALL,
        "origin": row.origin,
        "unknown": answer.unknown if answer else row.priority >= UNKNOWN,
        "unsure": (answer.priority if answer else row.priority) >= UNSURE,
        "calibrated": answer is not None and answer.calibrated,
        "guess": [[class_id, round(share, 3)] for class_id, share in answer.top] if answer else None,
    }


def _number(query: dict[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UserError(f"{name} {text[:20]!r}: write a whole number")
    return int(text)


def ids_in(query: dict[str, str], name: str) -> list[int]:
    parts = [part for part in query.get(name, "").split(",") if part]
    if len(parts) > MOST_NAMED:
        raise UserError(f"{len(parts):,} samples were named: name at most {MOST_NAMED:,} at once")
    return [_number({name: part}, name) or 0 for part in parts]
