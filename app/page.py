"""The page: the strip on top, and the tabs."""

from typing import Any

import gradio as gr
from gradio.routes import templates
from jinja2 import FunctionLoader

from app.studio import Studio
from app.tabs import PLAIN, accuracy, benchmarks, memory, models, settings

HEAD = """\
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/edge/static/style.css">
<link rel="stylesheet" href="/edge/static/review.css">
<link rel="stylesheet" href="/edge/static/teach.css">
<script type="module" src="/edge/static/edge.js"></script>
"""
EARLY = '<link rel="stylesheet" href="/edge/static/style.css"></head>'
# A tab without a function is drawn by the script of its name in static/.
TABS = {
    "Teach": None,
    "Review": None,
    "Accuracy": accuracy.build,
    "Memory": memory.build,
    "Classes": None,
    "Models": models.build,
    "Benchmarks": benchmarks.build,
    "Settings": settings.build,
}


def show_shape_early() -> None:
    """Gradio adds a page's head by a script, which takes its time: until then this style sheet shows the page's shape."""
    env = templates.env
    shipped: Any = env.loader
    if not isinstance(shipped, FunctionLoader):
        env.loader = FunctionLoader(lambda name: shipped.get_source(env, name)[0].replace("</head>", EARLY))


def theme() -> gr.themes.Base:
    """Only fonts that the machine has: the page works without any other host. Its own greys and blues are too pale to read."""
    base = gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    quiet = dict.fromkeys(
        (
            "body_text_color_subdued",
            "block_info_text_color",
            "input_placeholder_color",
            "block_label_text_color",
        ),
        "*neutral_600",
    )
    return base.set(
        **quiet,
        **{f"{name}_dark": "*neutral_300" for name in quiet},
        color_accent="*primary_600",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_text_color="white",
        button_primary_text_color_dark="white",
        block_title_text_color="*neutral_700",
        block_title_text_color_dark="*neutral_200",
        checkbox_background_color_selected="*primary_600",
        checkbox_background_color_selected_dark="*primary_600",
        link_text_color="*primary_700",
        link_text_color_dark="*primary_300",
    )


def build(studio: Studio) -> gr.Blocks:
    # Files that Gradio keeps of uploads are looked at every ten minutes, and gone within the hour.
    with gr.Blocks(
        title="Edge HPCR", analytics_enabled=False, fill_width=True, delete_cache=(600, 3600)
    ) as page:
        gr.HTML('<header id="strip"></header>', **PLAIN)
        with gr.Tabs(elem_id="tabs"):
            for label, build_tab in TABS.items():
                name = label.lower()
                with gr.Tab(label, id=name, elem_id=f"tab-{name}") as tab:
                    if build_tab:
                        build_tab(studio, tab)
                    else:
                        gr.HTML(f'<div id="{name}" aria-label="{label}"></div>', **PLAIN)
    return page
