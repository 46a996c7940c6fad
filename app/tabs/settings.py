"""The Settings tab: made from the settings that a person sees (`edge_hpcr/workspace/settings.py`)."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from app.studio import Studio
from app.tabs import PLAIN, QUIET, saying_errors
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes
from edge_hpcr.learner import backbones, methods
from edge_hpcr.workspace.settings import AUTO, FIRST, GROUPS, Description, Settings

INTRODUCTION = "The defaults work. The source is chosen on Teach, and the memory on Memory."


def shown() -> list[Description]:
    """The settings of this tab, in its order."""
    known = {each.name: each for each in Settings.describe()}
    return [known[name] for names in GROUPS.values() for name in names]


def form_values(settings: Settings) -> list[Any]:
    """The settings as their fields show them."""
    values = [(each, getattr(settings, each.name)) for each in shown()]
    return [format_bytes(value) if each.kind == "size" else value for each, value in values]


def save(studio: Studio, changed: dict[str, Any]) -> str:
    """Keep what was changed, all or nothing; returns what to say."""
    if not changed:
        return "Nothing has changed."
    studio.change_settings(**changed)
    told = [f"{each.title} takes effect {_effect(each)}" for each in shown() if each.name in changed]
    return f"Saved: {'; '.join(told)}."


def _effect(each: Description) -> str:
    return each.takes_effect.replace("at once", "immediately")


def explanation(each: Description) -> str:
    """Below its field: what it is, when a change counts, and its name on the command line."""
    limits = f" {each.limits[0].upper()}{each.limits[1:]}." if each.kind == "number" else ""
    when = "" if each.takes_effect == "at once" else f" Takes effect {_effect(each)}."
    return f"{each.help[0].upper()}{each.help[1:]}.{limits}{when} ({each.name})"


def build(studio: Studio, tab: gr.Tab) -> None:
    def now() -> list[Any]:
        return form_values(studio.workspace.settings)

    gr.HTML(f'<p class="introduction">{INTRODUCTION}</p>', **PLAIN)
    described = {each.name: (each, value) for each, value in zip(shown(), now(), strict=True)}
    fields: list[gr.components.Component] = []
    for group, names in GROUPS.items():
        name = f"settings-{group.split()[0].lower().rstrip(',')}"
        place = gr.Group(elem_id=name) if group == FIRST else gr.Accordion(group, open=False, elem_id=name)
        with place, gr.Row(elem_classes="settings-row"):
            fields += [_field(*described[each]) for each in names]
    save_button = gr.Button("Save", variant="primary", elem_id="settings-save", scale=0, min_width=160)
    message = gr.HTML(_message(""), elem_id="settings-message", **PLAIN)

    @saying_errors
    def on_save(*typed: Any) -> list[Any]:
        changed = {each.name: new for each, old, new in zip(shown(), now(), typed, strict=True) if new != old}
        try:
            sentence = save(studio, changed)
        except UserError as error:  # what was typed stays, to be mended
            return [*([gr.skip()] * len(fields)), _message(str(error), wrong=True)]
        return [*now(), _message(sentence)]

    @saying_errors
    def refresh(*shown: Any) -> list[Any]:
        # Another page may have changed some. The others are left alone: somebody may be typing by now.
        return [gr.skip() if old == new else new for old, new in zip(shown, now(), strict=True)]

    tab.select(refresh, fields, fields, **QUIET)
    save_button.click(on_save, fields, [*fields, message], **QUIET)


def _message(sentence: str, wrong: bool = False) -> str:
    return f'<p role="status" class="{"warning" if wrong else ""}">{escape(sentence)}</p>'


def _field(each: Description, value: Any) -> gr.components.Component:
    common: dict[str, Any] = {
        "value": value,
        "label": each.title,
        "info": explanation(each),
        "elem_id": f"settings-{each.name.replace('_', '-')}",
        "min_width": 240,
    }
    names = {"method": lambda: [AUTO, *methods.live_names()], "backbone": backbones.names}
    choices = names[each.name]() if each.name in names else each.choices
    if each.kind == "switch":
        return gr.Checkbox(**common)
    if choices:
        return gr.Dropdown(list(choices), **common)
    if each.kind == "number":
        whole = isinstance(each.default, int)
        return gr.Number(precision=0 if whole else None, step=1 if whole else 0.01, **common)
    return gr.Textbox(max_lines=1, **common)
