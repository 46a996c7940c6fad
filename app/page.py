"""The page: the strip on top, and the tabs."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr

from app.studio import Studio
from app.tabs import accuracy, benchmarks, classes, memory, models, review, settings, teach

TITLE = "Edge HPCR"
HEAD = """\
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/edge/static/style.css">
<script type="module" src="/edge/static/edge.js"></script>
"""
TABS: tuple[tuple[str, str, Callable[[Studio, gr.Tab], None]], ...] = (
    ("teach", "Teach", teach.build),
    ("review", "Review", review.build),
    ("accuracy", "Accuracy", accuracy.build),
    ("memory", "Memory", memory.build),
    ("classes", "Classes", classes.build),
    ("models", "Models", models.build),
    ("benchmarks", "Benchmarks", benchmarks.build),
    ("settings", "Settings", settings.build),
)


def theme() -> gr.themes.Base:
    """Only fonts that the machine has: the page works without any other host."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )


def build(studio: Studio) -> gr.Blocks:
    # Files that Gradio keeps of uploads are looked at every ten minutes, and gone within the hour.
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(600, 3600)) as page:
        gr.HTML('<div id="strip"></div>', padding=False, apply_default_css=False)
        with gr.Tabs(elem_id="tabs"):
            for name, label, build_tab in TABS:
                with gr.Tab(label, id=name, elem_id=f"tab-{name}") as tab:
                    build_tab(studio, tab)
    return page
