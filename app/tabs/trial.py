"""A published version tried on the page: with a picture, or on the live camera beside the learner itself."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from app.feeder import Shown, encoded
from app.palette import colour_of
from app.published import Version, read_upload
from app.studio import Studio
from app.tabs.parts import PLAIN, QUIET, saying_errors, tick_while_shown
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.predictor import Answer
from edge_hpcr.workspace.sample_files import shrink
from export.device.model import Label, Result

FOLLOW_SECONDS = 1.0
VARIANT_NAMES = {"fp32": "FP32", "int8": "INT8", "fp16": "FP16"}


@dataclass(frozen=True)
class Said:
    """An answer, and whether its confidence was ever compared with the truth."""

    result: Result
    is_measured: bool


# What is shown --------------------------------------------------------------------------------------------------------


def answer_html(
    version: Version, variant: str, result: Result, image: np.ndarray, live: Said | None = None
) -> str:
    """What the version says of the picture, beside it; and beside that what the learner says now, where it was asked."""
    # The line below which a picture is unknown is measured together with the confidence.
    own = Said(result, version.manifest.unknown_below is not None)
    colours = {each.id: colour_of(each.id, each.colour) for each in version.manifest.classes}
    picture, media_type = encoded(shrink(image))
    address = f"data:{media_type};base64,{base64.b64encode(picture).decode()}"
    small = ' class="small"' if max(image.shape[:2]) <= 64 else ""
    said = _said_html(f"Version {version.number} ({VARIANT_NAMES[variant]}) says:", own, colours)
    if live is not None:
        said += _said_html("The learner says now:", live, colours)
        said += f"<p>{escape(_compared(result, live.result))}</p>"
    return f'<div class="models-answer"><img{small} src="{address}" alt="the picture that was tried">{said}</div>'


def _said_html(who: str, answer: Said, colours: dict[int, str]) -> str:
    result = answer.result
    said = f"<ol>{''.join(_bar_html(label, colours) for label in result.top)}</ol>"
    if not answer.is_measured and result.top:
        said = f"<p><strong>{escape(result.top[0].name)}</strong> (how sure it is, nobody has measured)</p>"
    if result.unknown:
        nearest = f"; the nearest is {escape(result.top[0].name)}" if result.top else ""
        said = f"<p><strong>Unknown</strong>: it is like none of the classes{nearest}.</p>"
    near = f"<p>Cosine to the nearest class: {result.similarity:.2f}</p>" if result.top else ""
    return f"<div><p>{escape(who)}</p>{said}{near}</div>"


def _bar_html(label: Label, colours: dict[int, str]) -> str:
    return (
        f'<li class="answer"><span class="answer-name" title="{escape(label.name)}">{escape(label.name)}</span>'
        f'<span class="answer-bar" aria-hidden="true"><span style="width:{100 * label.confidence:.1f}%;'
        f'background:{colours.get(label.id) or colour_of(label.id, None)}"></span></span>'
        f"<span>{100 * label.confidence:.0f} %</span></li>"
    )


def _compared(version: Result, live: Result) -> str:
    """One sentence: classes are the same by their ids, since a name may have changed after publishing."""
    own, other = (None if each.unknown or not each.top else each.top[0] for each in (version, live))
    if own is None and other is None:
        return "Both call it unknown."
    if own is not None and other is not None and own.id == other.id:
        return f"Both say {other.name}."
    return f"They differ: {own.name if own else 'unknown'} there, {other.name if other else 'unknown'} now."


def _as_said(answer: Answer, names: dict[int, str]) -> Said:
    labels = [
        Label(class_id, names.get(class_id, f"class {class_id}"), share) for class_id, share in answer.top
    ]
    return Said(Result(labels, answer.unknown, answer.similarity), answer.calibrated)


# What can be done -----------------------------------------------------------------------------------------------------


def build(studio: Studio, tab: gr.Tab) -> gr.Dropdown:
    """The list of versions is returned, for whoever knows which there are."""
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
        follow = gr.Checkbox(
            label="Follow the live camera",
            info="every second, beside what the learner itself says of the same picture",
            elem_id="models-try-follow",
            min_width=240,
        )
    answer = gr.HTML("", elem_id="models-answer", **PLAIN)
    timer = gr.Timer(FOLLOW_SECONDS, active=False)

    def ask(number: int | None, kind: str, image: np.ndarray, live: Said | None = None) -> str:
        if number is None:
            raise UserError("there is no version to try yet: publish one first")
        found = {each.number: each for each in studio.models.versions()}.get(int(number))
        if found is None:
            raise UserError(f"version {number} is no longer kept: choose another")
        if kind not in found.files:
            reason = found.manifest.missing_variants.get(kind, "it was not asked for when it was published")
            raise UserError(f"version {number} has no {VARIANT_NAMES.get(kind, 'such')} file: {reason}")
        return answer_html(found, kind, studio.models.answer(found.number, kind, image), image, live)

    def current() -> Shown:
        shown = studio.feeder.newest()
        if shown is None:
            raise UserError("there is no current frame: choose a source on Teach")
        return shown

    def or_why_not(asked: Callable[[], str]) -> str:
        """The answer, or in its place why there is none: an older one would be taken for this picture's."""
        try:
            return asked()
        except UserError as error:
            return f'<p class="warning" role="alert">{escape(str(error))}</p>'

    @saying_errors
    def try_upload(path: str | None, number: int | None, kind: str) -> list[Any]:
        if path is None:
            return [None, gr.skip(), gr.skip()]
        return [None, or_why_not(lambda: ask(number, kind, read_upload(Path(path)))), False]

    @saying_errors
    def try_frame(number: int | None, kind: str) -> list[Any]:
        image = current().image
        return [or_why_not(lambda: ask(number, kind, image)), False]

    @saying_errors
    def try_live(following: bool, number: int | None, kind: str) -> Any:
        def beside() -> str:
            shown = current()
            return ask(number, kind, shown.image, _as_said(shown.answer, studio.class_names()))

        return or_why_not(beside) if following else gr.skip()

    # What was asked for last stays: the camera would overwrite it within a second.
    upload.upload(try_upload, [upload, version, variant], [upload, answer, follow], **QUIET)
    frame_button.click(try_frame, [version, variant], [answer, follow], **QUIET)
    gr.on([timer.tick, follow.input], try_live, [follow, version, variant], answer, **QUIET)
    tick_while_shown(tab, timer)
    return version
