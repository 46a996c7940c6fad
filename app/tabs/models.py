"""The Models tab: published versions, publishing, going back, a picture to try, and how a device gets them."""

from __future__ import annotations

import base64
import shlex
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from app.feeder import encoded
from app.palette import colour_of
from app.published import Models, Publication, Version, read_upload
from app.studio import Studio
from app.tabs.parts import follow_when_shown, saying_errors, tick_while_shown
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.workspace.sample_files import shrink
from export.device.manifest import MANIFEST
from export.device.model import Result
from export.publish.publisher import PublisherStatus
from export.publish.serve import DEFAULT_PORT

TICK_SECONDS = 1.0
NAMES_SHOWN = 6
EMPTY = "No version is published yet. Teach a class or two, then press Publish now: devices can use the model from then on."
LATENCY_NOTE = (
    "Latency: one picture, the model alone, on one thread of this machine's CPU while the learner goes on; the median "
    "of 50 runs."
)
VARIANT_NAMES = {"fp32": "FP32", "int8": "INT8", "fp16": "FP16"}


# What is shown --------------------------------------------------------------------------------------------------------


def versions_html(models: Models, versions: list[Version]) -> str:
    if not versions:
        return f'<p class="models-empty">{EMPTY}</p>'
    head = "".join(
        f"<th>{name}</th>"
        for name in ("Version", "Held-out accuracy", "Classes", "Step", "Published", "Files")
    )
    rows = "".join(_row(models, version) for version in versions)
    return (
        f'<table class="models-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f'<p class="models-note">{LATENCY_NOTE}</p>'
    )


def _row(models: Models, version: Version) -> str:
    manifest = version.manifest
    mark = ' <strong class="models-current">✓ current</strong>' if version.current else ""
    mark += ' <em class="models-left">rolled back from</em>' if version.rolled_back_from else ""
    names = [each.name for each in manifest.classes]
    listed = ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    )
    cells = {
        "Version": f"<b>v{version.number}</b>{mark}",
        "Held-out accuracy": escape(version.accuracy),
        "Classes": f'{len(names)}: <span class="models-names">{escape(listed)}</span>',
        "Step": f"{manifest.step:,}",
        "Published": escape(manifest.created.replace("T", " ").replace("Z", " UTC")),
        "Files": _files(models, version),
    }
    row = "".join(f'<td data-label="{label}"><div>{cell}</div></td>' for label, cell in cells.items())
    return f'<tr data-version="{version.number}" class="{"counting" if version.current else ""}">{row}</tr>'


def _files(models: Models, version: Version) -> str:
    lines = []
    for variant, file in version.files.items():
        latency = models.latency(version.number, variant)
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
    folder = shlex.quote(str(workspace.resolve()))
    exports = shlex.quote(str((workspace / "exports").resolve()))
    port = DEFAULT_PORT
    steps = [
        (
            "Classify on this machine; the camera is number 0",
            f"python -m export.runtime --models {exports} --source 0",
        ),
        (
            "Give models to devices in your network (write a long random text into token.txt first)",
            f"python -m export serve --workspace {folder} --host 0.0.0.0 --port {port} --token token.txt",
        ),
        (
            "Classify on a device: it needs the folder export/ with its requirements, no PyTorch; THIS-MACHINE is this "
            "machine's name or address",
            "pip install -r export/requirements.txt\n"
            f"python -m export.runtime --models http://THIS-MACHINE:{port} --source 0 --token token.txt",
        ),
        (
            "The variant in 8 bits, where a version has it",
            f"python -m export.runtime --models {exports} --source 0 --variant int8",
        ),
    ]
    listed = "".join(
        f"<li>{escape(what)}:<pre><code>{escape(command)}</code></pre></li>" for what, command in steps
    )
    return (
        f'<ol class="models-commands">{listed}</ol><p>A device prints a JSON line for each frame, changes to a new version '
        "while it runs, and keeps the old one if the new one is damaged. More is in docs/export.md.</p>"
    )


def answer_html(version: Version, variant: str, result: Result, image: np.ndarray) -> str:
    """What the version says of the picture, beside it."""
    colours = {each.id: colour_of(each.id, each.colour) for each in version.manifest.classes}
    picture, media_type = encoded(shrink(image))
    address = f"data:{media_type};base64,{base64.b64encode(picture).decode()}"
    bars = "".join(
        f'<li><span class="models-name" title="{escape(label.name)}">{escape(label.name)}</span><span class="models-bar" aria-hidden="true"><span '
        f'style="width:{100 * label.confidence:.1f}%;background:{colours[label.id]}"></span></span>'
        f"<span>{100 * label.confidence:.0f} %</span></li>"
        for label in result.top
    )
    unknown = ""
    if result.unknown:
        unknown = "<p><strong>Unknown</strong>: it is like none of the classes; the bars only say which would be nearest.</p>"
    small = ' class="small"' if max(image.shape[:2]) <= 64 else ""
    return (
        f'<div class="models-answer"><img{small} src="{address}" alt="the picture that was tried"><div>'
        f"<p>Version {version.number} ({VARIANT_NAMES[variant]}) says:</p>{unknown}<ol>{bars}</ol>"
        f"<p>Cosine to the nearest class: {result.similarity:.2f}</p></div></div>"
    )


# What can be done -----------------------------------------------------------------------------------------------------


class Actions:
    """What the tab's buttons do; each returns what the tab then shows."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._models = studio.models

    @saying_errors
    def show(self, was: str) -> list[Any]:
        return self._shown(was)

    def _shown(self, was: str) -> list[Any]:
        versions = self._models.versions()
        publication = self._models.publication
        publisher = self._studio.publisher
        settings = self._studio.workspace.settings
        sentence = periodic_text(
            settings.publish_steps,
            settings.publish_seconds,
            None if publisher is None else publisher.status(),
        )
        now = ",".join(f"{each.number}{'*' if each.current else ''}" for each in versions)
        return [
            versions_html(self._models, versions),
            publication_html(publication),
            gr.update(visible=publication.phase == "refused"),
            f"<p>{escape(sentence)}</p>",
            # Only when something has changed: a list that somebody has opened must not close under their hands.
            *([gr.skip(), gr.skip()] if now == was else _choices(versions)),
            now,
        ]

    @saying_errors
    def open(self) -> list[Any]:
        self._models.measure([each.number for each in self._models.versions() if each.current])
        return self._shown("")

    @saying_errors
    def publish(self, with_int8: bool, was: str) -> list[Any]:
        self._models.publish(with_int8)
        return self._shown(was)

    @saying_errors
    def publish_anyway(self, with_int8: bool, was: str) -> list[Any]:
        self._models.publish(with_int8, force=True)
        return self._shown(was)

    @saying_errors
    def measure(self, was: str) -> list[Any]:
        numbers = [each.number for each in self._models.versions()]
        if not numbers:
            raise UserError("there is no version to measure yet: publish one first")
        self._models.measure(numbers)
        gr.Info(
            f"Measuring {len(numbers)} version{'s' if len(numbers) > 1 else ''}; the times appear in the list."
        )
        return self._shown(was)

    @saying_errors
    def roll(self, version: int | None, was: str) -> list[Any]:
        if version is None:
            raise UserError("choose a version first")
        manifest = self._models.roll_to(int(version))
        gr.Info(f"Version {manifest.version} is current; devices change to it.")
        return self._shown(was)


def build(studio: Studio, tab: gr.Tab) -> None:
    actions = Actions(studio)
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    listing = gr.HTML(
        versions_html(studio.models, []), elem_id="models-versions", padding=False, apply_default_css=False
    )
    with gr.Row(elem_classes="models-actions"):
        publish_button = gr.Button(
            "Publish now", variant="primary", elem_id="models-publish", min_width=160, scale=0
        )
        anyway_button = gr.Button(
            "Publish anyway", visible=False, elem_id="models-publish-anyway", min_width=140
        )
        measure_button = gr.Button("Measure latency", elem_id="models-measure", min_width=200, scale=0)
        int8 = gr.Checkbox(
            label="with an INT8 variant",
            info="kept only if it is faster here and as accurate; needs 20 held-out samples",
            elem_id="models-int8",
            min_width=200,
        )
    status = gr.HTML(
        publication_html(Publication()), elem_id="models-status", padding=False, apply_default_css=False
    )
    with gr.Row(elem_classes="models-actions"):
        target = gr.Dropdown(
            [],
            label="Version for devices",
            info="an older one is a rollback",
            elem_id="models-target",
            min_width=200,
        )
        roll_button = gr.Button("Let this version count", elem_id="models-roll", min_width=260, scale=0)
    with gr.Accordion("Publish by itself", open=False, elem_id="models-periodic"):
        periodic = _build_periodic(studio, tab, quiet)
    with gr.Accordion("Try a picture", open=False, elem_id="models-try"):
        tried = _build_trial(studio, quiet)
    with gr.Accordion("On a device", open=False, elem_id="models-device"):
        gr.HTML(commands_html(studio.workspace.path), padding=False, apply_default_css=False)

    seen = gr.State("")
    timer = gr.Timer(TICK_SECONDS, active=False)
    outputs = [listing, status, anyway_button, periodic, target, tried, seen]

    tick_while_shown(tab, timer)
    timer.tick(actions.show, seen, outputs, **quiet)
    tab.select(actions.open, None, outputs, **quiet)
    publish_button.click(actions.publish, [int8, seen], outputs, **quiet)
    anyway_button.click(actions.publish_anyway, [int8, seen], outputs, **quiet)
    measure_button.click(actions.measure, seen, outputs, **quiet)
    roll_button.click(actions.roll, [target, seen], outputs, **quiet)


def _choices(versions: list[Version]) -> list[Any]:
    """For the two lists of versions."""
    choices = [(f"v{each.number}{', current' if each.current else ''}", each.number) for each in versions]
    others = [each.number for each in versions if not each.current]
    counting = next((each.number for each in versions if each.current), None)
    return [
        gr.update(choices=choices, value=others[0] if others else counting),
        gr.update(choices=choices, value=counting),
    ]


PERIODIC = (
    (
        "steps",
        "Every so many steps of learning",
        "or seconds, whichever comes first; 0 and 0: by hand only. FP32 files only.",
    ),
    ("seconds", "Every so many seconds", "whenever there is something new"),
    (
        "most-drop",
        "Most loss, in points of accuracy",
        "a model that recognises fewer held-out samples than that is not published (not by hand either, unless you insist)",
    ),
    ("keep", "Versions kept", "older ones are removed when a new one is published"),
)


def _build_periodic(studio: Studio, tab: gr.Tab, quiet: dict[str, Any]) -> gr.HTML:
    def load() -> list[Any]:
        now = studio.workspace.settings
        return [
            now.publish_steps,
            now.publish_seconds,
            round(100 * now.publish_most_drop, 4),
            now.publish_keep,
        ]

    with gr.Row():
        fields = [
            gr.Number(value, label=label, info=info, elem_id=f"models-{name}", min_width=160)
            for value, (name, label, info) in zip(load(), PERIODIC, strict=True)
        ]
    with gr.Row():
        save_button = gr.Button("Save", elem_id="models-save-policy", scale=0, min_width=160)
    sentence = gr.HTML("", elem_id="models-periodic-status", padding=False, apply_default_css=False)

    @saying_errors
    def save(
        learned: float | None, every: float | None, points: float | None, kept: float | None
    ) -> list[Any]:
        studio.change_settings(
            publish_steps=_whole(learned),
            publish_seconds=_whole(every),
            publish_most_drop=points / 100 if points is not None else None,
            publish_keep=_whole(kept),
        )
        gr.Info("Saved.")
        return [*load(), load()]

    _, shown = follow_when_shown(tab, fields, load, quiet)
    save_button.click(save, fields, [*fields, shown], **quiet)
    return sentence


def _whole(value: float | None) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _build_trial(studio: Studio, quiet: dict[str, Any]) -> gr.Dropdown:
    with gr.Row():
        version = gr.Dropdown([], label="Version", elem_id="models-try-version", min_width=160)
        variant = gr.Radio(
            [("FP32", "fp32"), ("INT8", "int8")],
            value="fp32",
            label="Variant",
            elem_id="models-try-variant",
            min_width=160,
        )
    with gr.Row(elem_classes="models-actions"):
        upload = gr.File(
            label="A picture from this device",
            file_count="single",
            type="filepath",
            height=140,
            elem_id="models-try-file",
            min_width=240,
        )
        frame_button = gr.Button("Use the current frame", elem_id="models-try-frame", min_width=260, scale=0)
    answer = gr.HTML("", elem_id="models-answer", padding=False, apply_default_css=False)

    def ask(number: int | None, kind: str, image: np.ndarray) -> str:
        if number is None:
            raise UserError("there is no version to try yet: publish one first")
        found = {each.number: each for each in studio.models.versions()}.get(int(number))
        if found is None:
            raise UserError(f"version {number} is no longer kept: choose another")
        if kind not in found.files:
            reason = found.manifest.missing_variants.get(kind, "it was not asked for when it was published")
            raise UserError(f"version {number} has no {VARIANT_NAMES.get(kind, 'such')} file: {reason}")
        result = studio.models.answer(found.number, kind, image)
        return answer_html(found, kind, result, image)

    def answered(number: int | None, kind: str, image: Callable[[], np.ndarray]) -> str:
        """The answer, or in its place why there is none: an older one would be taken for this picture's."""
        try:
            return ask(number, kind, image())
        except UserError as error:
            return f'<p class="warning" role="alert">{escape(str(error))}</p>'

    @saying_errors
    def try_upload(path: str | None, number: int | None, kind: str) -> list[Any]:
        if path is None:
            return [None, gr.skip()]
        return [None, answered(number, kind, lambda: read_upload(Path(path)))]

    @saying_errors
    def try_frame(number: int | None, kind: str) -> str:
        shown = studio.feeder.newest()
        if shown is None:
            raise UserError("there is no current frame: choose a source on Teach")
        return answered(number, kind, lambda: shown.image)

    upload.upload(try_upload, [upload, version, variant], [upload, answer], **quiet)
    frame_button.click(try_frame, [version, variant], answer, **quiet)
    return version
