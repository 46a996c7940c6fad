"""scikit-learn's handwritten digits, the dataset that is always there.

Split: the first 80 % of each class's images (rounded down), in scikit-learn's order, are for training, the
rest for testing. That is deterministic and stratified. Neighbours in that order resemble one another, so that
every fifth image as the test set would flatter (1-NN classifies 98.6 % of those, 95.6 % of these).
"""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from edge_hpcr.bench.datasets.registry import Dataset
from edge_hpcr.bench.datasets.store import to_rgb
from edge_hpcr.common.errors import UserError

TRAIN_PERCENT = 80
BRIGHTEST = 16  # scikit-learn's images count ink in 4x4 cells, 0 to 16


def load_digits() -> Dataset:
    """The 1,797 digits as 8x8 RGB images, 1,433 for training and 364 for testing."""
    rows = _read()
    images = to_rgb(np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / BRIGHTEST)).astype(np.uint8))
    labels = rows[:, -1].astype(np.int64)
    training = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        training[members[: len(members) * TRAIN_PERCENT // 100]] = True
    return Dataset(
        name="digits",
        train_images=images[training],
        train_labels=labels[training],
        test_images=images[~training],
        test_labels=labels[~training],
        class_names=tuple(str(label) for label in np.unique(labels)),
    )


def _read() -> np.ndarray:
    """64 cells and the label of each. From scikit-learn's file, because importing it takes most of a second."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise UserError("the digits come with scikit-learn, which is missing: pip install scikit-learn")
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",")
