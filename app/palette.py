"""Colours of classes: people who are colour-blind tell them apart, and a person may choose another."""

# Okabe and Ito's eight without black, which is the text's colour; then Tol's muted ones for more classes.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800"),
    *("#332288", "#88ccee", "#117733", "#999933", "#882255", "#44aa99", "#aa4499"),
)


def colour_of(class_id: int, chosen: str | None) -> str:
    """The one that a person chose, or the next of the palette: ids are never used again, so neighbours differ.

    >>> colour_of(1, None), colour_of(1, "#123456")
    ('#0072b2', '#123456')
    """
    return chosen or COLOURS[(class_id - 1) % len(COLOURS)]
