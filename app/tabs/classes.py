"""The Classes tab: make, rename, recolour, merge and delete classes."""

import gradio as gr

from app.studio import Studio


def build(studio: Studio, tab: gr.Tab) -> None:
    # Filled by static/classes.js.
    gr.HTML('<div id="classes" aria-label="Classes"></div>', padding=False, apply_default_css=False)
