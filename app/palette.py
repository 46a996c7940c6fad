"""Colours of classes: people who are colour-blind tell the first ones apart, and a person may choose another.

Each has a contrast of 3:1 or more to the page, light and dark, as signs that carry meaning should (a name or a key is always
beside it); a test computes it.
"""

COLOURS = (
    *("#1e78c8", "#b86e00", "#008a64", "#b8568c", "#8f80dd", "#c34b1e", "#84843c", "#3f8dbd"),
    *("#e11e5a", "#9659d0", "#96693c", "#5a9078", "#ac7d8e", "#d000b4", "#db720a", "#cc5fbd"),
    *("#5678a0", "#f53d7c", "#6d7b00", "#b060ff", "#00858f", "#8f7a6a", "#ff003c", "#5f73ee"),
)


def colour_of(class_id: int, chosen: str | None) -> str:
    """The one that a person chose, or the next of the palette: ids are never used again, so neighbours differ.

    >>> colour_of(1, None), colour_of(1, "#123456")
    ('#1e78c8', '#123456')
    """
    return chosen or COLOURS[(class_id - 1) % len(COLOURS)]
