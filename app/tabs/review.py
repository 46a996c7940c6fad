"""The Review tab: what waits for a label, what has one, and import and export."""

import gradio as gr

from app.studio import Studio


def build(studio: Studio, tab: gr.Tab) -> None:
    # Filled by static/review.js, which keeps it in step with all other pages.
    gr.HTML('<div id="review" aria-label="Review"></div>', padding=False, apply_default_css=False)
