"""The Teach tab: what the camera shows, what the learner thinks, and a key for every class."""

import gradio as gr

from app.studio import Studio


def build(studio: Studio, tab: gr.Tab) -> None:
    # Filled by static/teach.js, which asks for the state several times a second.
    gr.HTML('<div id="teach" aria-label="Teach"></div>', padding=False, apply_default_css=False)
