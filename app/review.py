"""Pages of samples for the Review tab: the queue, and the labelled samples, each with what the learner says of it now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.studio import Studio
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.live.predictor import Answer
from edge_hpcr.live.suspicious import Suspicion
from edge_hpcr.workspace.label_queue import UNKNOWN, rank
from edge_hpcr.workspace.queries import Queries, reading
from edge_hpcr.workspace.records import SampleRow
from export.publish.intake import sender_in

STATES = {"queue": "queued", "labelled": "labelled"}  # of the samples in a view
PAGE = 60
MOST_RANKED = 2000  # of a longer queue, those of the highest priority: ranking takes time
MOST_NAMED = 5000  # ids in one question
LONGEST_SEARCH = 200
UNSURE = 0.5  # from this priority on: the two best classes are less than half apart, or it is unknown
PATIENCE = 1.0  # seconds to ask the learner about samples; the page asks again for the rest
MOST_SOURCES = 100
SMALL = 64  # pixels a side; such images are shown with every pixel sharp


def page(studio: Studio, query: dict[str, str]) -> dict[str, Any]:
    """One page of a view, as the page's script asks for it.

    view: queue or labelled; page: from 0. Both can be chosen by `source`, by `guess` (what the learner says now: a
    class's id, `unknown`, or `other` than the label) and with `unsure=1`; labelled ones also by `class` (an id) and
    `search` (a class's name, a sample's id, an origin), and with `doubts=1` the suspicious ones come first. `stay` names
    samples that are on the screen and keep their places, so that nothing moves under somebody's hand; `selected` asks
    which of these are still in the view. `asking` is how many samples the learner has not been asked about yet.
    """
    view = query.get("view", "queue")
    one_of("view", view, STATES)
    alike: dict[int, list[int]] = {}
    # A connection of its own, so that a long list never holds up a label.
    with reading(studio.workspace.layout.journal) as journal:
        doubts = _doubts(studio, journal)
        if view == "queue":
            ids, alike, total = _queue(studio, journal)
        else:
            ids = _labelled(journal, query, [*doubts] if query.get("doubts") == "1" else [])
            total = len(ids)
        chosen, asking = _filtered(studio, journal, ids, query, STATES[view])
        if len(chosen) < len(ids) or asking:
            ids, total = chosen, len(chosen)
        pages = max(1, -(-len(ids) // PAGE))
        number = min(_number(query, "page") or 0, pages - 1)
        rows = journal.rows_of(_chosen(ids, number, _ids(query, "stay")))
        authors = journal.authors_of(row.id for row in rows)
        selected = journal.in_state(STATES[view], _ids(query, "selected"))
        sources = sorted({source_of(origin) for origin in journal.origins(STATES[view])})
    shown = [row.id for row in rows if row.has_image]
    answers = studio.answers.of(shown, PATIENCE)
    return {
        "view": view,
        "page": number,
        "pages": pages,
        "total": total,
        "selected": selected,
        "sources": sources[:MOST_SOURCES],
        "asking": max(asking, sum(i not in answers for i in shown)),
        "samples": [
            _described(row, alike.get(row.id), doubts.get(row.id), authors.get(row.id), answers.get(row.id))
            for row in rows
        ],
    }


def source_of(origin: str) -> str:
    """Where a sample came from, for choosing: files by their folder or zip, everything else by its name.

    >>> source_of("camera 0"), source_of("/parts/mug/1.png"), source_of("uploaded a.zip/mug/1.png")
    ('camera 0', '/parts/mug', 'uploaded a.zip')
    >>> source_of("device cam-1, unsure: mug")
    'device cam-1'
    """
    if device := sender_in(origin):
        return device
    if "://" in origin or "/" not in origin:
        return origin
    archive, found, _ = origin.partition(".zip/")
    return f"{archive}.zip" if found else origin.rpartition("/")[0]


def _filtered(
    studio: Studio, journal: Queries, ids: list[int], query: dict[str, str], state: str
) -> tuple[list[int], int]:
    """Those that fit what is asked for, and how many the learner could not be asked about in time."""
    if source := query.get("source", ""):
        origins = journal.origins_of(state)
        ids = [i for i in ids if source_of(origins.get(i, "")) == source]
    guess, unsure = query.get("guess", ""), query.get("unsure") == "1"
    if not guess and not unsure:
        return ids, 0
    wanted = _number(query, "guess") if guess not in ("", "unknown", "other") else None
    labels = journal.labels_of(ids) if guess == "other" else {}
    ids = ids[:MOST_RANKED]
    answers = studio.answers.of(ids, PATIENCE)

    def fits(sample_id: int, answer: Answer) -> bool:
        best = None if answer.unknown or not answer.best else answer.best[0]
        if unsure and answer.priority < UNSURE:
            return False
        if guess == "unknown":
            return best is None
        if guess == "other":
            return best is not None and best != labels.get(sample_id)
        return wanted is None or best == wanted

    return [i for i in ids if i in answers and fits(i, answers[i])], sum(i not in answers for i in ids)


def look_alikes(ids: Sequence[int], hashes: Sequence[int], distance: int) -> list[list[int]]:
    """The samples in groups of near-duplicates, in the order given; a group's first is like all of its others.

    Not whatever is connected by a chain: its two ends may show different things.

    >>> look_alikes([7, 8, 9], [0b0000, 0b0111, 0b0001], distance=1)
    [[7, 9], [8]]
    """
    codes = np.asarray(hashes, np.uint64)
    free = np.ones(len(codes), bool)
    groups = []
    for index, sample_id in enumerate(ids):
        if free[index]:
            near = free & (np.bitwise_count(codes ^ codes[index]) <= distance)
            near[index] = False
            groups.append([sample_id, *(ids[other] for other in np.flatnonzero(near).tolist())])
            free &= ~near
            free[index] = False
    return groups


# The two views --------------------------------------------------------------------------------------------------------


def _queue(studio: Studio, journal: Queries) -> tuple[list[int], dict[int, list[int]], int]:
    """The queue, most informative first; of each sample those that look alike; and how many are queued."""
    rows = journal.queued(MOST_RANKED)
    hashes = {row.id: row.hash64 for row in rows}
    ids = rank([*hashes], [row.priority for row in rows], [*hashes.values()])
    # A little further than the gate looks, which keeps the closest ones out of the queue.
    distance = studio.workspace.settings.gate_distance + 2
    groups = look_alikes(ids, [hashes[sample_id] for sample_id in ids], distance)
    alike = {sample_id: group for group in groups if len(group) > 1 for sample_id in group}
    return ids, alike, journal.counts().queued


def _labelled(journal: Queries, query: dict[str, str], first: list[int]) -> list[int]:
    """The labelled samples that are asked for, the latest label first, but before them those named."""
    ids = journal.find_labelled(_number(query, "class"), query.get("search", "").strip()[:LONGEST_SEARCH])
    wanted = set(ids)
    first = [sample_id for sample_id in first if sample_id in wanted]
    return [*first, *(sample_id for sample_id in ids if sample_id not in set(first))] if first else ids


def _doubts(studio: Studio, journal: Queries) -> dict[int, Suspicion]:
    """The learner's suspicions that still stand, strongest first: a label may have been changed since it looked."""
    found = {suspicion.sample_id: suspicion for suspicion in studio.live.self_test.suspicions}
    labels = journal.labels_of(found)
    live = {row.id for row in journal.classes()}
    return {
        i: doubt for i, doubt in found.items() if labels.get(i) == doubt.class_id and doubt.suggested in live
    }


# Their parts ----------------------------------------------------------------------------------------------------------


def _chosen(ids: list[int], number: int, stay: list[int]) -> list[int]:
    """The ids of a page: those that stay, as far as they are still in the view, then the page's others."""
    here = set(ids)
    kept = [sample_id for sample_id in dict.fromkeys(stay) if sample_id in here][:PAGE]
    shown = set(kept)
    others = (sample_id for sample_id in ids[number * PAGE : (number + 1) * PAGE] if sample_id not in shown)
    return [*kept, *others][:PAGE]


def _described(
    row: SampleRow,
    alike: list[int] | None,
    doubt: Suspicion | None,
    author: str | None,
    answer: Answer | None,
) -> dict[str, Any]:
    return {
        "id": row.id,
        "class": row.class_id,
        "held_out": row.held_out,
        "image": row.has_image,
        "small": max(row.width, row.height) <= SMALL,
        "origin": row.origin,
        "author": author,
        "unknown": answer.unknown if answer else row.priority >= UNKNOWN,
        "unsure": (answer.priority if answer else row.priority) >= UNSURE,
        "priority": round(row.priority, 3),
        "calibrated": answer is not None and answer.calibrated,
        "guess": [[class_id, round(share, 3)] for class_id, share in answer.top] if answer else None,
        "alike": alike,
        "suggested": doubt.suggested if doubt else None,
    }


def _number(query: dict[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UserError(f"{name} {text[:20]!r}: write a whole number")
    return int(text)


def _ids(query: dict[str, str], name: str) -> list[int]:
    parts = [part for part in query.get(name, "").split(",") if part]
    if len(parts) > MOST_NAMED:
        raise UserError(f"{len(parts):,} samples were named: name at most {MOST_NAMED:,} at once")
    return [_number({name: part}, name) or 0 for part in parts]
