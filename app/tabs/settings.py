"""The Settings tab: what a workspace can be told beyond teaching it, each with its help, its default and its limits."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import gradio as gr

from app.studio import Studio
from app.tabs.parts import PLAIN, QUIET, saying_errors, whole
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import parse_bytes
from edge_hpcr.learner import backbones, methods
from edge_hpcr.workspace.settings import AUTO, Description, Settings

# Each of these has its own place: the source on Teach, the order on Classes, the memory on Memory, publishing on Models.
ELSEWHERE = frozenset(
    {
        *("source", "source_labels", "memory_bytes", "codec"),
        *("publish_steps", "publish_seconds", "publish_most_drop", "publish_keep", "publish_int8"),
        *("class_order", "class_keys"),
        "publish_key",  # a file of secrets: on the command line only
    }
)
FIRST = "What matters"  # the rest is folded
GROUPS = {
    FIRST: ("idle_share", "unknown_share", "held_out_share", "disk_bytes"),
    "Pictures that wait for a label": (
        *("gate_per_second", "gate_distance", "gate_sure", "gate_stable", "queue_samples", "queue_bytes"),
    ),
    "Learning, for researchers": (
        *("backbone", "weights", "image_size", "method", "micro_batch", "idle_steps", "averaged"),
    ),
    "Machine and disk": (
        *("device", "threads", "archive", "held_out_bytes", "checkpoint_steps", "checkpoints_kept"),
    ),
}
# What each is for, and what more of it costs; `Settings` has the name that the command line uses, and its help.
PURPOSES = {
    "idle_share": (
        "How hard it works in idle time",
        "More: it gets good sooner, and the machine gets warmer.",
    ),
    "unknown_share": (
        "How easily it says unknown",
        "More: strangers are noticed more often, and so many of the right answers are withheld.",
    ),
    "held_out_share": (
        "Labels kept for measuring",
        "More: accuracy is known better, and fewer labels are learned from.",
    ),
    "disk_bytes": (
        "Disk space for pictures",
        "Less: old pictures are dropped sooner; what was learned stays.",
    ),
    "gate_per_second": ("New pictures in a second", "More: the queue fills faster with similar ones."),
    "gate_distance": (
        "How alike pictures count as the same",
        "More: fewer pictures, and small changes are missed.",
    ),
    "gate_sure": (
        "Confidence that needs no label",
        "Less: fewer questions, and some mistakes are never asked about.",
    ),
    "gate_stable": (
        "Sure pictures in a row before it stops asking",
        "More: more questions about what it knows.",
    ),
    "queue_samples": ("Most pictures that wait", "More: takes disk, and a longer look."),
    "queue_bytes": ("Disk space for pictures that wait", "More: takes so much of the disk."),
    "backbone": ("Network that it builds on", ""),
    "weights": ("File with the network's weights", ""),
    "image_size": (
        "Size of the pictures that it sees",
        "More: small things are seen, and everything takes longer.",
    ),
    "method": ("How it learns", ""),
    "micro_batch": ("Labels learned in one step", "More: a burst is learned sooner, one label later."),
    "idle_steps": ("Steps of rehearsal after a label", "More: better with few labels, and works longer."),
    "averaged": ("Averaged weights", "Answers are steadier; takes the memory of one more network."),
    "device": ("Where it computes", ""),
    "threads": ("Processor cores for learning", "More: learns faster, and other programs wait."),
    "archive": ("Keep every labelled picture", "The disk fills without a limit."),
    "held_out_bytes": ("Disk space for pictures to measure on", "More: a test takes longer."),
    "checkpoint_steps": (
        "Steps between two savings",
        "Less: less is learned again after a power cut, more is written.",
    ),
    "checkpoints_kept": ("Savings kept", "More: takes disk, and helps if one is damaged."),
}
FIXED = frozenset({"backbone", "weights", "image_size", "method"})  # once something has been learned
AT_START = frozenset({"device", "threads", "averaged"})
AT_SOURCE = frozenset({"gate_distance", "gate_sure", "gate_stable", "gate_per_second"})
INTRODUCTION = "The defaults work. The source is chosen on Teach, the memory on Memory, and how models are published on Models."
STAYS = (
    "It stays as it is, because something has been learned with it: for another one, export the labelled images on "
    "Review and import them into a new workspace."
)


def shown() -> list[Description]:
    """The settings of this tab, in its order; a test checks that every setting has its place."""
    known = {each.name: each for each in Settings.describe()}
    return [known[name] for names in GROUPS.values() for name in names]


def takes_effect(name: str) -> str:
    """When a change of this setting takes effect."""
    if name in AT_START:
        return "at the next start"
    return "with the next source or start" if name in AT_SOURCE else "at once"


def title(name: str) -> str:
    """
    >>> title("disk_bytes")
    'Disk space for pictures'
    """
    return PURPOSES[name][0]


def size_text(size: int) -> str:
    """
    >>> size_text(2_000_000), size_text(1_234_567), size_text(0)
    ('2 MB', '1234567 B', '0 B')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        text = f"{size / factor:g} {unit}"
        if size >= factor and parse_bytes(text) == size:
            return text
    return f"{size} B"


def is_size(each: Description) -> bool:
    return each.name.endswith("_bytes")


def is_number(each: Description) -> bool:
    return type(each.default) in (int, float) and not is_size(each)


def to_form(each: Description, value: Any) -> Any:
    """A setting's value as its field shows it."""
    return size_text(value) if is_size(each) else value


def from_form(each: Description, value: Any) -> Any:
    """A field's content as the setting's value; `Settings` checks whether it is allowed."""
    if is_size(each):
        text = str(value or "").strip()
        if text.upper().removesuffix("B").strip() == "0":
            return 0
        try:
            return parse_bytes(text)
        except UserError as error:
            raise UserError(f"setting {each.name}: {error}") from error
    return whole(value) if type(each.default) is int else value


def changes(settings: Settings, values: list[Any]) -> dict[str, Any]:
    """What the form asks to change."""
    wanted = {each.name: from_form(each, value) for each, value in zip(shown(), values, strict=True)}
    return {name: value for name, value in wanted.items() if value != getattr(settings, name)}


def explanation(each: Description) -> str:
    """
    >>> text = explanation(next(each for each in Settings.describe() if each.name == "idle_share"))
    >>> text.partition(". ")[0], text.rpartition("Default ")[2]
    ('More: it gets good sooner, and the machine gets warmer', '0.5; from 0 to 1. Counts at once.')
    """
    default = _said(to_form(each, each.default))
    limits = ""
    if is_number(each):
        limits = (
            f"; at least {each.low:g}" if each.high == math.inf else f"; from {each.low:g} to {each.high:g}"
        )
    counts = "Counts at once, as long as nothing has been learned." if each.name in FIXED else ""
    counts = counts or f"Counts {takes_effect(each.name)}."
    return f"{_purpose(each)} Default {default}{limits}. {counts}"


def _purpose(each: Description) -> str:
    """What it costs, and what the command line says of it under its own name."""
    cost = PURPOSES[each.name][1]
    return f"{cost} " * bool(cost) + f"({each.name}: {each.help}.)"


def save(studio: Studio, values: list[Any]) -> str:
    """Keep the form's values, all or none; returns what to say."""
    wanted = changes(studio.workspace.settings, values)
    if not wanted:
        return "Nothing has changed."
    studio.change_settings(**wanted)
    described = {each.name: each for each in shown()}
    told = [
        f"{title(name)} {_said(to_form(described[name], value))}, {takes_effect(name)}"
        for name, value in wanted.items()
    ]
    return f"Saved: {'; '.join(told)}."


def _said(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value) or "none"


def form_values(studio: Studio) -> list[Any]:
    return [to_form(each, getattr(studio.workspace.settings, each.name)) for each in shown()]


def default_values(studio: Studio) -> list[Any]:
    """The defaults, but for what can no longer be changed."""
    settings, fixed = studio.workspace.settings, not studio.live.untaught
    return [
        to_form(each, getattr(settings, each.name) if fixed and each.name in FIXED else each.default)
        for each in shown()
    ]


def build(studio: Studio, tab: gr.Tab) -> None:
    gr.HTML(f'<p class="settings-introduction">{INTRODUCTION}</p>', **PLAIN)
    fields: list[gr.components.Component] = []
    described = {each.name: each for each in shown()}
    for group, names in GROUPS.items():
        name = f"settings-{group.split()[0].lower().rstrip(',')}"
        place = gr.Group(elem_id=name) if group == FIRST else gr.Accordion(group, open=False, elem_id=name)
        with place, gr.Row(elem_classes="settings-row"):
            fields += [_field(studio, described[name]) for name in names]
    with gr.Row():
        save_button = gr.Button("Save", variant="primary", elem_id="settings-save", scale=0, min_width=160)
        defaults_button = gr.Button(
            "Back to the defaults", elem_id="settings-defaults", scale=0, min_width=260
        )
    message = gr.HTML('<p role="status"></p>', elem_id="settings-message", **PLAIN)
    loaded = gr.State(form_values(studio))  # what this page was shown: only what was changed since is saved

    def load(was: list[Any]) -> list[Any]:
        """The fields as they are now. One that shows it already is left alone: somebody may be typing in it."""
        fixed = not studio.live.untaught
        values = form_values(studio)
        return [
            *(
                gr.update(
                    **({} if value == before else {"value": value}),
                    interactive=not (fixed and each.name in FIXED),
                    info=_info(each, fixed),
                )
                for each, value, before in zip(shown(), values, was, strict=True)
            ),
            values,
        ]

    @saying_errors
    def on_save(was: list[Any], *typed: Any) -> list[Any]:
        # Another page may have saved something meanwhile: what was not touched here stays as it is now.
        merged = [
            now if mine == before else mine
            for now, before, mine in zip(form_values(studio), was, typed, strict=True)
        ]
        try:
            sentence = save(studio, merged)
        except UserError as error:  # what was typed stays, to be mended
            return [*([gr.skip()] * (len(fields) + 1)), _message(str(error), wrong=True)]
        return [*load(list(typed)), _message(sentence)]

    @saying_errors
    def on_defaults() -> list[Any]:
        sentence = "These are the defaults; nothing is changed before you save them."
        return [*default_values(studio), _message(sentence)]

    tab.select(saying_errors(load), [loaded], [*fields, loaded], **QUIET)
    save_button.click(on_save, [loaded, *fields], [*fields, loaded, message], **QUIET)
    defaults_button.click(on_defaults, None, [*fields, message], **QUIET)


def _message(sentence: str, wrong: bool = False) -> str:
    return f'<p role="status" class="{"warning" if wrong else ""}">{escape(sentence)}</p>'


def _info(each: Description, fixed: bool) -> str:
    return f"{_purpose(each)} {STAYS}" if fixed and each.name in FIXED else explanation(each)


def _field(studio: Studio, each: Description) -> gr.components.Component:
    fixed = each.name in FIXED and not studio.live.untaught
    common: dict[str, Any] = {
        "value": to_form(each, getattr(studio.workspace.settings, each.name)),
        "label": title(each.name),
        "info": _info(each, fixed),
        "interactive": not fixed,
        "elem_id": f"settings-{each.name.replace('_', '-')}",
    }
    names = {"method": lambda: [AUTO, *methods.live_names()], "backbone": backbones.names}
    choices = names[each.name]() if each.name in names else each.choices
    if isinstance(each.default, bool):
        return gr.Checkbox(min_width=240, **common)
    if choices:
        own = each.name == "backbone"  # timm:NAME may be typed
        return gr.Dropdown(list(choices), min_width=240, allow_custom_value=own, **common)
    if is_number(each):
        return gr.Number(min_width=240, step=1 if isinstance(each.default, int) else 0.01, **common)
    return gr.Textbox(max_lines=1, min_width=240, **common)
