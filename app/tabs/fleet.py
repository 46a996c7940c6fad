"""The devices' table on the Models tab: what each runs, since when, and when it was last heard of."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from app.studio import Studio
from app.tabs.parts import PLAIN, QUIET, Shown, saying_errors
from edge_hpcr.commands.devices import cells
from edge_hpcr.workspace.devices import Device, devices
from export.publish.staging import Staged, staged
from export.publish.versions import release, rollback

SHOWN = 200  # devices; `python -m edge_hpcr devices` lists all
REFRESH_SECONDS = 5.0
EMPTY = (
    "No device has reported yet. Devices report to the server that gives them models: "
    "<code>python -m edge_hpcr learn --serve</code> or <code>python -m export serve</code>."
)


def devices_html(found: list[Device], trial: Staged | None, now: float) -> str:
    """The table; those that have been silent for longest, or have a problem, first."""
    if not found:
        return f'<p class="models-empty">{EMPTY}</p>'
    order = sorted(found, key=lambda each: (not each.is_silent(now), each.problem is None, each.id))
    rows = [_with_trial(cells(each, now), each, trial) for each in order[:SHOWN]]
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        f'<tr data-device="{escape(each.id)}">'
        + "".join(f'<td data-label="{label}"><div>{escape(cell)}</div></td>' for label, cell in row.items())
        + "</tr>"
        for each, row in zip(order, rows, strict=False)
    )
    more = f"<p>And {len(found) - SHOWN:,} more.</p>" if len(found) > SHOWN else ""
    return f'<table class="models-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def _with_trial(row: dict[str, str], device: Device, trial: Staged | None) -> dict[str, str]:
    if trial is None or device.id not in trial.devices:
        return row
    return {**row, "Version": f"{row['Version']} (trial of v{trial.version})"}


def trial_html(trial: Staged | None) -> str:
    if trial is None:
        return ""
    names = ", ".join(trial.devices[:20]) + (" …" if len(trial.devices) > 20 else "")
    return (
        f"<p>Version {trial.version} is on trial on {escape(names)}; all others have the current one. Nothing is published by "
        "itself until it is released or rolled back.</p>"
    )


def build(studio: Studio, tab: gr.Tab) -> None:
    """The table, and for a staged roll-out its two ends."""

    def exports() -> Path:
        return studio.own.workspace.layout.exports

    def facts() -> tuple[list[Device], Staged | None, int]:
        # The time too: how long ago something was grows by itself.
        known = devices(studio.own.workspace.layout.devices)
        return known, staged(exports()), int(time.time() / REFRESH_SECONDS)

    shown = Shown(facts, lambda now: (trial_html(now[1]), devices_html(now[0], now[1], time.time())))
    sentence = gr.HTML("", elem_id="models-trial", **PLAIN)
    with gr.Row(elem_classes="models-actions"):
        release_button = gr.Button("Release to all", elem_id="models-release", min_width=160, scale=0)
        rollback_button = gr.Button("Roll back all", elem_id="models-rollback", min_width=160, scale=0)
    listing = gr.HTML("", elem_id="models-devices", **PLAIN)

    @saying_errors
    def release_all() -> Any:
        gr.Info(f"Version {release(exports()).version} is current for all devices.")
        return list(shown.now()[1])

    @saying_errors
    def roll_back_all() -> Any:
        gr.Info(f"Version {rollback(exports()).version} is current for all devices.")
        return list(shown.now()[1])

    shown.keep_fresh(tab, [sentence, listing], REFRESH_SECONDS)
    release_button.click(release_all, None, [sentence, listing], **QUIET)
    rollback_button.click(roll_back_all, None, [sentence, listing], **QUIET)
