"""On the Accuracy tab: the verdict in a sentence, and how each class is doing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from app.studio import Studio
from app.tabs.parts import Shown
from edge_hpcr.live.verdict import ClassHealth, Verdict

MOST_ROWS = 500


def sentence(said: Verdict) -> str:
    number = f"<b>{escape(said.number)}</b> " if said.number else ""
    return f'<p class="verdict {said.level}">{number}<span>{escape(said.sentence)}</span></p>'


def table(rows: Sequence[ClassHealth]) -> str:
    """One row a class; nothing for a single one, which cannot be mixed up."""
    if len(rows) < 2:
        return ""
    names = {row.id: row.name for row in rows}
    body = "".join(_row(row, names) for row in rows[:MOST_ROWS])
    head = "".join(
        f'<th scope="col">{text}</th>' for text in ("class", "labels", "right", "taken for", "what to do")
    )
    return (
        '<h3>How each class is doing</h3><div class="health-scroll" tabindex="0" role="region" aria-label="How each class is doing">'
        f'<table class="health-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(row: ClassHealth, names: dict[int, str]) -> str:
    right = f"{row.right:,} of {row.samples:,}" if row.samples else "not yet"
    other = escape(names.get(row.taken_for or 0, ""))
    return (
        f'<tr><th scope="row"><bdi>{escape(row.name)}</bdi></th><td>{row.labels:,}</td><td>{right}</td>'
        f"<td><bdi>{other}</bdi></td><td>{escape(row.advice) or 'nothing'}</td></tr>"
    )


def shown(studio: Studio) -> Shown:
    def facts() -> tuple[Any, ...]:
        return studio.verdict(), studio.health()

    return Shown(facts, lambda facts: (sentence(facts[0]), table(facts[1])))
