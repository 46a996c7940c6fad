"""The Models tab: published versions, publishing by hand, going back, and the devices."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from app.studio import Studio
from app.tabs import PLAIN, QUIET, Texts, empty, saying_errors
from edge_hpcr.commands.workspace import device_cells
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.devices import Device, devices
from edge_hpcr.workspace.settings import Settings
from export.device import BadModel
from export.device.manifest import Manifest
from export.publish.publish import Published, PublisherStatus, publish, unchanged
from export.publish.snapshot import snapshot_of
from export.publish.versions import (
    Pinned,
    Refused,
    held_out,
    latest_version,
    pinned,
    rollback,
    rolled_back,
    versions,
)

TICK_SECONDS, RUNNING_SECONDS = 1.0, 5.0
NAMES_SHOWN, DEVICES_SHOWN = 6, 200
EMPTY = "No version is published yet. Teach a class or two, then press Publish now: devices can use the model from then on."
NO_DEVICE = "No device has reported yet. Devices report to the server that gives them models: <code>python -m export serve</code>."


# Publishing -----------------------------------------------------------------------------------------------------------


def publish_now(live: LiveLearner, force: bool = False) -> Published:
    """Publish what the learner knows now. Learning goes on meanwhile.

    Raises `Refused` for a worse model, or the same again: with `force` it is published too.
    """
    exports, snapshot = live.workspace.layout.exports, snapshot_of(live)
    if not force and (same := unchanged(exports, snapshot)) is not None:
        raise Refused(f"nothing is new: version {same} already holds step {snapshot.step:,}")
    try:
        return publish(exports, snapshot, live.workspace.settings, force=force)
    except BadModel as error:
        raise UserError(f"not published: {error}") from None


# What is shown --------------------------------------------------------------------------------------------------------


def table_html(rows: list[tuple[str, dict[str, str]]]) -> str:
    """Rows of cells by the names of their columns, each row with its attributes."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0][1])
    body = "".join(
        f"<tr {attributes}>"
        + "".join(f'<td data-label="{label}"><div>{cell}</div></td>' for label, cell in row.items())
        + "</tr>"
        for attributes, row in rows
    )
    return f'<table class="edge-table stacked"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def versions_html(exports: Path) -> str:
    """The newest first."""
    found, current, left = versions(exports), latest_version(exports), rolled_back(exports)
    if not found:
        return empty(EMPTY)
    rows = []
    for manifest in reversed(found):
        number = manifest.version
        mark = " <strong>✓ current</strong>" if number == current else ""
        mark += " <em>rolled back from</em>" if number == left else ""
        names = [escape(each.name) for each in manifest.classes]
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        cells = {
            "Version": f'<b class="narrow">v{number}</b>{mark}',
            "Accuracy": f'<span class="narrow">{escape(held_out(manifest.facts))}</span>',
            "Classes": f"{len(names)}: {', '.join(names[:NAMES_SHOWN])}{more}",
            "Step": f"{manifest.step:,}",
            "Published": f'<span class="narrow">{escape(manifest.created[:16].replace("T", " "))} UTC</span>',
            "For a device": _files(manifest),
        }
        rows.append((f'class="{"current" if number == current else ""}"', cells))
    return table_html(rows)


def _files(manifest: Manifest) -> str:
    """Everything for a device in one zip; and what the version lacks."""
    files = {"fp32": manifest.model, **manifest.variants}
    sizes = ", ".join(f"{variant.upper()} {format_bytes(file.bytes)}" for variant, file in files.items())
    number = manifest.version
    link = f'<a href="/edge/device/{number}.zip" title="the model, the runtime and its commands" download>v{number} as a zip</a>'
    lacks = "".join(
        f"<br>no {variant.upper()}: {escape(reason)}" for variant, reason in manifest.missing_variants.items()
    )
    return f"{link}: {sizes}{lacks}"


def periodic_text(settings: Settings, status: PublisherStatus) -> str:
    """What publishes by itself, and why the last attempt published nothing."""
    if not (settings.publish_steps or settings.publish_seconds):
        return "Models are published by hand. To publish automatically, see Publishing on Settings."
    text = {"publishing": "Publishing now.", "failed": "Publishing has stopped."}.get(status.phase, "")
    if status.at is not None:
        text += f" Last checked {max(0, time.time() - status.at):.0f} s ago."
    if status.problem:
        text += f" The last attempt published nothing: {status.problem}."
    return f"Models are published automatically. {text}"


def devices_html(found: list[Device], kept: Pinned | None, now: float) -> str:
    """The table; those that have been silent for longest, or have a problem, first."""
    if not found:
        return f'<p class="empty">{NO_DEVICE}</p>'
    order = sorted(found, key=lambda each: (not each.is_silent(now), each.problem is None, each.id))
    rows = []
    for device in order[:DEVICES_SHOWN]:
        row = {name: escape(cell) for name, cell in device_cells(device, now).items()}
        if kept is not None and device.id in kept.devices:
            row["Version"] += f" (stays on v{kept.version})"
        rows.append((f'data-device="{escape(device.id)}"', row))
    more = len(found) - DEVICES_SHOWN
    return table_html(rows) + (f"<p>And {more:,} more.</p>" if more > 0 else "")


# What can be done -----------------------------------------------------------------------------------------------------


def button(text: str, name: str, **options: Any) -> gr.Button:
    return gr.Button(text, elem_id=f"models-{name}", **{"min_width": 160, "scale": 0, **options})


def build(studio: Studio, tab: gr.Tab) -> None:
    listing = gr.HTML(empty(EMPTY), elem_id="models-versions", **PLAIN)
    with gr.Row(elem_classes="tab-actions"):
        publish_button = button("Publish now", "publish", variant="primary", min_width=200)
        anyway_button = button("Publish anyway", "publish-anyway", visible=False)
    status = gr.HTML("", elem_id="models-status", min_height=30, **PLAIN)
    with gr.Row(elem_id="models-roll-row", elem_classes="tab-actions"):
        named: Any = {"label": "Version", "info": "an older one is a rollback", "elem_id": "models-target"}
        target = gr.Dropdown([], min_width=320, scale=0, **named)
        roll_button = button("Use on devices …", "roll", min_width=200)
    with gr.Row(visible=False, elem_classes="tab-actions") as really:
        question = gr.HTML("", elem_id="models-roll-question", **PLAIN)
        yes_button = button("Yes, use it", "roll-yes", variant="stop")
        no_button = button("Cancel", "roll-no", min_width=120)
    asked = gr.State()  # the version of the question: another one may be chosen meanwhile
    periodic = gr.HTML("", elem_id="models-periodic-status", **PLAIN)
    with gr.Accordion("Devices", open=False, elem_id="models-fleet"):
        devices_listing = gr.HTML("", elem_id="models-devices", **PLAIN)

    def facts() -> tuple[Any, ...]:
        exports = studio.own.workspace.layout.exports
        found = [each.version for each in versions(exports)]
        return found, latest_version(exports), rolled_back(exports), str(exports)

    def offered(facts: tuple[Any, ...]) -> tuple[Any, ...]:
        found, current, *_ = facts
        choices = [(f"v{number}{', current' if number == current else ''}", number) for number in found[::-1]]
        return versions_html(studio.own.workspace.layout.exports), gr.update(choices=choices, value=current)

    def running() -> tuple[Any, ...]:
        # The time too: how long ago something was grows by itself.
        own, now = studio.own, int(time.time() / RUNNING_SECONDS)
        layout = own.workspace.layout
        return (
            own.workspace.settings,
            own.publisher.status(),
            devices(layout.devices),
            pinned(layout.exports),
            now,
        )

    def reported(facts: tuple[Any, ...]) -> tuple[str, str]:
        settings, status, found, kept, _ = facts
        return f"<p>{escape(periodic_text(settings, status))}</p>", devices_html(found, kept, time.time())

    Texts(facts, offered).keep_fresh(tab, [listing, target], TICK_SECONDS)
    Texts(running, reported).keep_fresh(tab, [periodic, devices_listing], TICK_SECONDS)

    def try_to_publish(force: bool = False) -> list[Any]:
        try:
            done = publish_now(studio.own.live, force)
            return [f'<p role="status">Done: {escape(done.text)}.</p>', gr.Button(visible=False)]
        except Refused as error:
            said = f'<p role="status" class="warning">Not published: {escape(str(error))}.</p>'
            return [said, gr.Button(visible=True)]

    def ask(number: int | None) -> list[Any]:
        if number is None:
            raise UserError("choose a version first")
        return [gr.Row(visible=True), f"<p>Use v{number} on all devices?</p>", number]

    def roll(number: int) -> gr.Row:
        try:
            rollback(studio.own.workspace.layout.exports, number)
        except BadModel as error:  # latest.json is damaged
            raise UserError(f"cannot change the current version: {error}; publish a new one") from None
        return gr.Row(visible=False)

    # How long it takes is shown: the network of the first version is traced, which takes 10 to 20 seconds.
    in_view: Any = {"show_progress": "full", "api_visibility": "private"}
    publish_button.click(saying_errors(lambda: try_to_publish()), None, [status, anyway_button], **in_view)
    anyway_button.click(saying_errors(lambda: try_to_publish(True)), None, [status, anyway_button], **in_view)
    roll_button.click(saying_errors(ask), target, [really, question, asked], **QUIET)
    yes_button.click(saying_errors(roll), asked, really, **QUIET)
    no_button.click(lambda: gr.Row(visible=False), None, really, **QUIET)
