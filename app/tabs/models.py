"""The Models tab: published versions, publishing, going back, a picture to try, and how a device gets them."""

from __future__ import annotations

import shlex
import sys
import time
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from app.published import Models, Publication, Version
from app.studio import Studio
from app.tabs import fleet, trial
from app.tabs.parts import (
    COPIES,
    PLAIN,
    QUIET,
    command_html,
    follow_when_shown,
    saying_errors,
    tick_while_shown,
    whole,
)
from app.tabs.trial import VARIANT_NAMES
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from export.device.manifest import MANIFEST
from export.publish.publisher import PublisherStatus
from export.publish.serve import DEFAULT_PORT

TICK_SECONDS = 1.0
NAMES_SHOWN = 6
EMPTY = "No version is published yet. Teach a class or two, then press Publish now: devices can use the model from then on."
LATENCY_NOTE = (
    "Latency: the median of 50 runs of the model alone, one picture, one thread of this machine's CPU."
)


# What is shown --------------------------------------------------------------------------------------------------------


def versions_html(models: Models, versions: list[Version]) -> str:
    if not versions:
        return f'<p class="models-empty">{EMPTY}</p>'
    rows = [_cells(models, version) for version in versions]
    head = "".join(f"<th>{name}</th>" for name in rows[0])
    body = "".join(
        f'<tr data-version="{version.number}" class="{"current" if version.current else ""}">'
        + "".join(f'<td data-label="{label}"><div>{cell}</div></td>' for label, cell in cells.items())
        + "</tr>"
        for version, cells in zip(versions, rows, strict=True)
    )
    return (
        f'<table class="models-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'<p class="models-note">{LATENCY_NOTE}</p>'
    )


def _cells(models: Models, version: Version) -> dict[str, str]:
    manifest = version.manifest
    mark = ' <strong class="models-current">✓ current</strong>' if version.current else ""
    mark += ' <em class="models-left">rolled back from</em>' if version.rolled_back_from else ""
    names = [each.name for each in manifest.classes]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    listed = escape(", ".join(names[:NAMES_SHOWN]) + more)
    return {
        "Version": f"<b>v{version.number}</b>{mark}",
        "Held-out accuracy": escape(version.accuracy),
        "Classes": f'{len(names)}: <span class="models-names">{listed}</span>',
        "Step": f"{manifest.step:,}",
        "Published": escape(manifest.created.replace("T", " ").replace("Z", " UTC")),
        "Files": _files(models, version),
    }


def _files(models: Models, version: Version) -> str:
    lines = []
    for variant, file in version.files.items():
        latency = models.latency(file)
        if latency is None:
            took = "latency not measured"
        elif latency.milliseconds is None:
            took = escape(latency.problem)
        else:
            took = f"{latency.milliseconds:.2f} ms"
        address = f"/edge/model/{version.number}/{escape(file.file)}"
        lines.append(
            f'<li>{VARIANT_NAMES[variant]}: {format_bytes(file.bytes)}, {took}, <a href="{address}" download>download'
            f'<span class="models-hidden"> {VARIANT_NAMES[variant]} of version {version.number}</span></a></li>'
        )
    for variant, reason in version.manifest.missing_variants.items():
        lines.append(f"<li>no {VARIANT_NAMES.get(variant, escape(variant))}: {escape(reason)}</li>")
    address = f"/edge/model/{version.number}/{MANIFEST}"
    lines.append(f'<li><a href="{address}" download>manifest</a> with names, sizes and checksums</li>')
    lines.append(
        f'<li><a class="models-bundle" href="/edge/device/{version.number}.zip" download>everything for my device'
        f'<span class="models-hidden">, version {version.number}</span></a>: model, runtime and commands in a zip</li>'
    )
    return f"<ul>{''.join(lines)}</ul>"


def publication_html(publication: Publication) -> str:
    return f'<p role="status" class="models-{publication.phase}">{escape(publication.text)}</p>'


def periodic_text(steps: int, seconds: int, status: PublisherStatus | None) -> str:
    """What the periodic publisher does, and why the last attempt published nothing."""
    if not (steps or seconds) or status is None:
        return "Models are published by hand only."
    rhythm = " or ".join([f"{steps:,} steps"] * bool(steps) + [f"{seconds:,} s"] * bool(seconds))
    parts = [f"Every {rhythm}, whenever there is something new."]
    parts.append({"publishing": "It is publishing now.", "failed": "It has stopped."}.get(status.phase, ""))
    if status.at is not None:
        parts.append(f"Last look {max(0, time.time() - status.at):.0f} s ago.")
    if status.published is not None:
        parts.append(f"Its last version is v{status.published.manifest.version}.")
    if status.problem:
        parts.append(f"The last attempt published nothing: {status.problem}.")
    elif status.at is not None and status.published is None:
        parts.append("There was nothing new to publish.")
    return " ".join(filter(None, parts))


def commands_html(workspace: Path) -> str:
    python = shlex.quote(sys.executable)
    folder = shlex.quote(str(workspace.resolve()))
    exports = shlex.quote(str((workspace / "exports").resolve()))
    port = DEFAULT_PORT
    steps = {
        "Classify on this machine; the camera is number 0": f"{python} -m export.runtime --models {exports} --source 0",
        "Give models to devices in your network (write a long random text into token.txt first)": (
            f"{python} -m export serve --workspace {folder} --host 0.0.0.0 --port {port} --token token.txt"
        ),
        "Classify on a device: it needs the folder export/ with its requirements, no PyTorch; THIS-MACHINE is this "
        "machine's name or address": (
            "python3 -m venv .venv-device && .venv-device/bin/pip install -r export/requirements.txt\n"
            f".venv-device/bin/python -m export.runtime --models http://THIS-MACHINE:{port} --source 0 --token token.txt"
        ),
        "The variant in 8 bits, where a version has it": (
            f"{python} -m export.runtime --models {exports} --source 0 --variant int8"
        ),
    }
    listed = "".join(f"<li>{escape(what)}:{command_html(command)}</li>" for what, command in steps.items())
    return (
        f'<ol class="models-commands">{listed}</ol><p>A device prints a JSON line for each frame, changes to a new version '
        "while it runs, and keeps the old one if the new one is damaged. More is in docs/export.md.</p>"
    )


# What can be done -----------------------------------------------------------------------------------------------------


def build(studio: Studio, tab: gr.Tab) -> None:
    button: dict[str, Any] = {"min_width": 200, "scale": 0}
    listing = gr.HTML(versions_html(studio.models, []), elem_id="models-versions", **PLAIN)
    with gr.Row(elem_classes="models-actions"):
        publish_button = gr.Button("Publish now", variant="primary", elem_id="models-publish", **button)
        anyway_button = gr.Button(
            "Publish anyway", visible=False, elem_id="models-publish-anyway", min_width=140
        )
        measure_button = gr.Button("Measure latency", elem_id="models-measure", **button)
        int8 = gr.Checkbox(
            label="with an INT8 variant",
            info="kept only if it is faster here and as accurate; needs 20 held-out samples",
            elem_id="models-int8",
            min_width=200,
        )
    status = gr.HTML(publication_html(Publication()), elem_id="models-status", **PLAIN)
    with gr.Row(elem_id="models-roll-row", elem_classes="models-actions"):
        target = gr.Dropdown(
            [],
            label="Version for devices",
            info="an older one is a rollback",
            elem_id="models-target",
            min_width=200,
        )
        roll_button = gr.Button("Make it current …", elem_id="models-roll", min_width=200, scale=0)
    with gr.Row(visible=False, elem_classes="models-actions") as really:
        question = gr.HTML("", elem_id="models-roll-question", **PLAIN)
        yes_button = gr.Button(
            "Yes, change it", variant="stop", elem_id="models-roll-yes", min_width=160, scale=0
        )
        no_button = gr.Button("Leave it", elem_id="models-roll-no", min_width=120, scale=0)
    with gr.Accordion("Publish by itself", open=False, elem_id="models-periodic"):
        periodic = _build_periodic(studio, tab)
    with gr.Accordion("Try a picture, or the live camera", open=False, elem_id="models-try"):
        tried = trial.build(studio, tab)
    with gr.Accordion("Devices", open=False, elem_id="models-fleet"):
        fleet.build(studio, tab)
    with gr.Accordion("On a device", open=False, elem_id="models-device"):
        # Asked for when a page is loaded: another workspace may be open by then.
        gr.HTML(lambda: commands_html(studio.own.workspace.path), js_on_load=COPIES, **PLAIN)
    seen = gr.State("")  # the versions that the two lists offer
    timer = gr.Timer(TICK_SECONDS, active=False)
    outputs = [listing, status, anyway_button, periodic, target, tried, seen]

    def show(was: str) -> list[Any]:
        versions, publisher, settings = studio.models.versions(), studio.publisher, studio.workspace.settings
        sentence = periodic_text(
            settings.publish_steps, settings.publish_seconds, publisher.status() if publisher else None
        )
        now = ",".join(f"{each.number}{'*' if each.current else ''}" for each in versions)
        return [
            versions_html(studio.models, versions),
            publication_html(studio.models.publication),
            gr.update(visible=studio.models.publication.phase == "refused"),
            f"<p>{escape(sentence)}</p>",
            # Only when something has changed: a list that somebody has opened must not close under their hands.
            *([gr.skip(), gr.skip()] if now == was else _choices(versions)),
            now,
        ]

    def open_tab() -> list[Any]:
        studio.models.measure([each.number for each in studio.models.versions() if each.current])
        return show("")

    def publish(with_int8: bool, was: str) -> list[Any]:
        studio.models.publish(with_int8)
        return show(was)

    def publish_anyway(with_int8: bool, was: str) -> list[Any]:
        studio.models.publish(with_int8, force=True)
        return show(was)

    def measure(was: str) -> list[Any]:
        numbers = [each.number for each in studio.models.versions()]
        if not numbers:
            raise UserError("there is no version to measure yet: publish one first")
        studio.models.measure(numbers)
        plural = "s" if len(numbers) > 1 else ""
        gr.Info(f"Measuring {len(numbers)} version{plural}; the times appear in the list.")
        return show(was)

    def ask(version: int | None) -> list[Any]:
        return [gr.Row(visible=True), f"<p>{escape(roll_question(studio.models.versions(), version))}</p>"]

    def roll(version: int | None, was: str) -> list[Any]:
        if version is None:
            raise UserError("choose a version first")
        studio.models.roll_to(int(version))
        return [gr.Row(visible=False), *show(was)]

    tick_while_shown(tab, timer)
    timer.tick(saying_errors(show), seen, outputs, **QUIET)
    tab.select(saying_errors(open_tab), None, outputs, **QUIET)
    publish_button.click(saying_errors(publish), [int8, seen], outputs, **QUIET)
    anyway_button.click(saying_errors(publish_anyway), [int8, seen], outputs, **QUIET)
    measure_button.click(saying_errors(measure), seen, outputs, **QUIET)
    roll_button.click(saying_errors(ask), target, [really, question], **QUIET)
    yes_button.click(saying_errors(roll), [target, seen], [really, *outputs], **QUIET)
    gr.on([no_button.click, target.change], lambda: gr.Row(visible=False), None, really, **QUIET)


def roll_question(versions: list[Version], chosen: int | None) -> str:
    """What a change of the current version would do."""
    if chosen is None:
        raise UserError("choose a version first")
    found = {each.number: each for each in versions}
    current = next((each for each in versions if each.current), None)
    if chosen not in found:
        raise UserError(f"version {chosen} is no longer kept: choose another")
    if current is not None and current.number == chosen:
        raise UserError(f"version {chosen} is the current one already: choose another")
    now = f" instead of v{current.number} ({current.accuracy})" if current else ""
    return f"Devices change to v{chosen} ({found[chosen].accuracy}){now}. Change it?"


def _choices(versions: list[Version]) -> list[Any]:
    """For the two lists of versions: what is chosen at first is what devices have."""
    choices = [(f"v{each.number}{', current' if each.current else ''}", each.number) for each in versions]
    current = next((each.number for each in versions if each.current), None)
    return [gr.update(choices=choices, value=current), gr.update(choices=choices, value=current)]


PERIODIC = {
    "steps": (
        "Every so many steps of learning",
        "or seconds, whichever comes first; 0 and 0: by hand only.",
    ),
    "seconds": ("Every so many seconds", "whenever there is something new"),
    "most-drop": (
        "Most loss, in points of accuracy",
        "a model that recognises fewer held-out samples than that is not published (not by hand either, unless you insist)",
    ),
    "keep": ("Versions kept", "older ones are removed when a new one is published"),
}


def _build_periodic(studio: Studio, tab: gr.Tab) -> gr.HTML:
    def load() -> list[Any]:
        now = studio.workspace.settings
        points = round(100 * now.publish_most_drop, 4)
        return [now.publish_steps, now.publish_seconds, points, now.publish_keep, now.publish_int8]

    with gr.Row():
        *numbers, with_int8 = load()
        fields: list[Any] = [
            gr.Number(value, label=label, info=info, elem_id=f"models-{name}", min_width=160)
            for value, (name, (label, info)) in zip(numbers, PERIODIC.items(), strict=True)
        ]
        fields.append(
            gr.Checkbox(with_int8, label="INT8 beside FP32", elem_id="models-periodic-int8", min_width=160)
        )
    with gr.Row():
        save_button = gr.Button("Save", elem_id="models-save-policy", scale=0, min_width=160)
    sentence = gr.HTML("", elem_id="models-periodic-status", **PLAIN)

    @saying_errors
    def save(
        steps: float | None, seconds: float | None, points: float | None, keep: float | None, int8: bool
    ) -> Any:
        studio.change_settings(
            publish_steps=whole(steps),
            publish_seconds=whole(seconds),
            publish_most_drop=points / 100 if points is not None else None,
            publish_keep=whole(keep),
            publish_int8=int8,
        )
        gr.Info("Saved.")
        return [*load(), load()]

    _, shown = follow_when_shown(tab, fields, load, QUIET)
    save_button.click(save, fields, [*fields, shown], **QUIET)
    return sentence
