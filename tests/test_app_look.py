"""What can be read and told apart: colours of classes and of text, in light and in dark."""

import re
from itertools import combinations
from pathlib import Path

import gradio as gr
import numpy as np
import pytest

from app import page
from app.palette import COLOURS, colour_of
from edge_hpcr.workspace.folder import Workspace

STYLE = (Path(page.__file__).parent / "static" / "style.css").read_text()
# Gradio's backgrounds, of pages, blocks and fields.
BACKGROUNDS = {"light": ("#ffffff", "#f8fafc"), "dark": ("#0b0f19", "#0f172a", "#1e293b")}
READABLE, VISIBLE = 4.5, 3.0  # of text, and of signs that carry meaning (WCAG 2.2)


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_computed_as_the_standard_says():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_the_colours_of_classes_are_seen(theme):
    for colour in COLOURS:
        for background in BACKGROUNDS[theme]:
            assert contrast(colour, background) >= VISIBLE, (colour, background)


def test_a_class_keeps_its_colour_when_others_come_and_go(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        journal = workspace.journal
        ids = [journal.create_class(name) for name in ("mug", "pen", "nut", "key")]
        before = {row.id: colour_of(row.id, row.colour) for row in journal.classes()}
        journal.delete_class(ids[0])
        journal.merge_classes(ids[1], ids[2])
        new = journal.create_class("gear")
        after = {row.id: colour_of(row.id, row.colour) for row in journal.classes()}
        assert after.keys() == {*ids[2:], new}
        assert all(after[each] == before[each] for each in ids[2:]) and after[new] not in before.values()


def test_more_than_twenty_classes_have_colours_that_differ():
    colours = [colour_of(number, None) for number in range(1, 22)]
    assert len(set(colours)) == 21
    rgb = [np.array([int(each[at : at + 2], 16) for at in (1, 3, 5)]) for each in colours]
    assert min(np.abs(one - other).max() for one, other in combinations(rgb, 2)) >= 24


@pytest.mark.parametrize(("theme", "selector"), [("light", ":root"), ("dark", ".dark")])
def test_our_text_can_be_read(theme, selector):
    rules = re.search(rf"^{re.escape(selector)} {{([^}}]*)}}", STYLE, re.MULTILINE)[1]
    colours = dict(re.findall(r"(--edge-[a-z]+): (#[0-9a-f]{6})", rules))
    assert {"--edge-quiet", "--edge-accent", "--edge-danger", "--edge-good"} <= colours.keys()
    for name, colour in colours.items():
        for background in BACKGROUNDS[theme]:
            assert contrast(colour, background) >= READABLE, (name, background)


@pytest.mark.parametrize("dark", ["", "_dark"])
def test_gradio_s_pale_text_can_be_read(dark):
    theme = page.theme()
    hues = {"neutral": gr.themes.colors.slate, "primary": gr.themes.colors.blue}

    def colour(name: str) -> str:
        value = getattr(theme, name + dark)
        found = re.fullmatch(r"\*(neutral|primary)_(\d+)", value)
        return getattr(hues[found[1]], f"c{found[2]}") if found else {"white": "#ffffff"}[value]

    for background in BACKGROUNDS["dark" if dark else "light"]:
        for name in (
            "body_text_color_subdued",
            "block_info_text_color",
            "input_placeholder_color",
            "link_text_color",
        ):
            assert contrast(colour(name), background) >= READABLE, (name, background)
    assert contrast(colour("button_primary_text_color"), colour("button_primary_background_fill")) >= READABLE
