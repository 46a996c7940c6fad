"""The Memory tab: what the budget is spent on, and another budget."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from app.studio import Studio
from app.tabs import PLAIN, QUIET, Texts, saying_errors
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many
from edge_hpcr.common.units import format_bytes, parse_bytes

PARTS = {  # of the bytes, by their names in the status
    "image": "pictures",
    "features": "features of the method",
    "logits": "logits",
    "label": "labels",
    "bookkeeping": "bookkeeping",
    "method": "statistics",
}
INTRODUCTION = (
    "The memory for replay keeps a sample of everything that was taught, inside a fixed budget. When it is full, a new sample "
    "takes the place of another one."
)


# What it is now -------------------------------------------------------------------------------------------------------


def budget_bars(facts: dict[str, Any]) -> str:
    """The status's facts about the memory in bytes: what is spent on what, and what is free, as bars with their numbers."""
    sizes, budget = facts["bytes"], facts["budget"]
    rows = [(name, sizes[part], "fill") for part, name in PARTS.items() if sizes.get(part)]
    rows.append(("free", max(0, budget - sizes["total"]), "free"))
    drawn = "".join(
        f'<li><span>{name}</span><span class="memory-room"><i class="{kind}" style="width:{min(1, size / budget):.1%}">'
        f"</i></span><span>{format_bytes(size)}</span></li>"
        for name, size, kind in rows
    )
    title = (
        f"{format_bytes(sizes['total'])} of {format_bytes(budget)} used by {many(facts['samples'], 'sample')}"
    )
    return f'<figure class="memory-bars"><figcaption>{title}</figcaption><ul class="edge-list">{drawn}</ul></figure>'


def learner_itself(studio: Studio) -> str:
    """What no budget pays for, since it does not grow with the samples."""
    size = studio.between_steps(studio.live.learner.learner_bytes)["total"]
    return f"<p>The learner itself (weights, their average, the optimiser) takes another {format_bytes(size)}.</p>"


# Another budget ------------------------------------------------------------------------------------------


def holds(studio: Studio, budget: int) -> tuple[int, int]:
    """About how many samples a budget would hold, and how many are held now."""

    def look() -> tuple[int, int]:
        memory = studio.live.learner.memory
        config = replace(memory.config, bytes=budget, samples=None)
        return config.capacity(memory.row_bytes(), memory.reserved), len(memory)

    return studio.between_steps(look)


def warning(wanted: int, held: int) -> str:
    """What a smaller budget costs."""
    said = f"about {wanted:,} would stay, and about {held - wanted:,} would be dropped at random."
    return f'<p class="warning" role="status">The memory holds {held:,} samples; {said}</p>'


def apply(studio: Studio, budget: int) -> str:
    """Change the memory and its settings; returns a sentence about it. A large memory takes a while."""

    def resize() -> tuple[int, int]:
        held = len(studio.live.learner.memory)
        studio.live.change_settings(memory_bytes=budget)
        return held, len(studio.live.learner.memory)

    held, stay = studio.live.call(resize).result()
    dropped = f"{held - stay:,} were dropped" if held > stay else "none was dropped"
    return f"The memory is now {format_bytes(budget)}: it holds {stay:,} samples, {dropped}."


# The tab --------------------------------------------------------------------------------------------------------------


def shown(studio: Studio) -> Texts:
    """What the memory is spent on."""

    def make(memory: dict[str, Any]) -> tuple[str]:
        itself = ""
        with suppress(UserError):  # a stopped learner: its memory's bytes are still known
            itself = learner_itself(studio)
        return (f"<p>{INTRODUCTION}</p>{budget_bars(memory)}{itself}",)

    return Texts(lambda: studio.live.status()["memory"], make)


def build(studio: Studio, tab: gr.Tab) -> None:
    def current() -> str:
        return format_bytes(studio.live.status()["memory"]["budget"])

    facts = gr.HTML(elem_id="memory-facts", **PLAIN)
    with gr.Row(elem_classes="tab-actions"):
        named: Any = {"label": "Budget", "info": "like 500 KB or 2 MB", "elem_id": "memory-budget"}
        budget = gr.Textbox(current(), scale=0, min_width=240, **named)
        use = gr.Button("Apply", variant="primary", elem_id="memory-apply", scale=0, min_width=140)
    with gr.Row(visible=False) as question:
        dropped = gr.HTML(elem_id="memory-preview", **PLAIN)
        sure = gr.Button("Yes, drop them", variant="stop", elem_id="memory-confirm", scale=0, min_width=200)
        leave = gr.Button("Cancel", elem_id="memory-cancel", scale=0, min_width=140)
    done = gr.HTML(elem_id="memory-done", **PLAIN)

    asked = gr.State(0)  # the bytes of the question: others may be typed meanwhile

    def change(wanted: int) -> list[Any]:
        told = f'<p role="status">{escape(apply(studio, wanted))}</p>'
        return [told, "", gr.Row(visible=False), 0]

    def change_or_ask(size: str) -> list[Any]:
        wanted = parse_bytes(size)
        stay, held = holds(studio, wanted)
        return ["", warning(stay, held), gr.Row(visible=True), wanted] if stay < held else change(wanted)

    shown(studio).keep_fresh(tab, [facts])
    # Left alone if it shows the budget already: somebody may be typing by now.
    tab.select(
        saying_errors(lambda shown: gr.skip() if shown == current() else current()), budget, budget, **QUIET
    )
    use.click(saying_errors(change_or_ask), budget, [done, dropped, question, asked], **QUIET)
    sure.click(saying_errors(change), asked, [done, dropped, question, asked], **QUIET)
    leave.click(saying_errors(lambda: [current(), gr.Row(visible=False)]), None, [budget, question], **QUIET)
