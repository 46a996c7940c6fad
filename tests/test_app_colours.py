"""The colours of classes are seen, in light and in dark."""

import numpy as np
import pytest

from app.studio import COLOURS

# Gradio's backgrounds, of pages, blocks and fields.
BACKGROUNDS = {"light": ("#ffffff", "#f8fafc"), "dark": ("#0b0f19", "#0f172a", "#1e293b")}
VISIBLE = 3.0  # of signs that carry meaning (WCAG 2.2)


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_the_colours_of_classes_are_seen(theme):
    for colour in COLOURS:
        for background in BACKGROUNDS[theme]:
            assert contrast(colour, background) >= VISIBLE, (colour, background)
