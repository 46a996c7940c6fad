"""Scikit-learn's handwritten digits, as a data set and as an endless source.

Split: the first 80 % of each class's images (rounded down), in scikit-learn's order, are for training, the rest for
testing. That is deterministic and stratified. Neighbours in that order resemble one another, so that every fifth image
as the test set would flatter (1-NN classifies 98.6 % of those, 95.6 % of these).
"""

import gzip
import importlib.util
import time
from pathlib import Path

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.stream.contract import Frame, PacedStream

FPS = 2.0
TRAIN_PERCENT = 80
BRIGHTEST = 16  # scikit-learn's images count ink in 4x4 cells, 0 to 16


def read_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The 1,797 digits: uint8 RGB images [N, 8, 8, 3], labels int64 [N], and which are for training, bool [N]."""
    # From scikit-learn's file, because importing it takes most of a second.
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise UserError("the digits come with scikit-learn, which is missing: pip install scikit-learn")
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")  # 64 cells and the label of each
    grey = np.rint(rows[:, :-1].reshape(-1, 8, 8, 1) * (255 / BRIGHTEST)).astype(np.uint8)
    labels = rows[:, -1].astype(np.int64)
    training = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        training[members[: len(members) * TRAIN_PERCENT // 100]] = True
    return np.repeat(grey, 3, axis=3), labels, training


class Digits(PacedStream):
    """The training digits in a new order each round, at a steady pace."""

    def __init__(self, labels: str = "none", fps: float | None = None, seed: int = 0) -> None:
        images, classes, training = read_digits()
        self._images, self._classes = images[training], classes[training]
        self._labelled = labels == "folders"
        self._seed = seed
        self._round = -1
        self._order = np.arange(0)
        super().__init__("digits", fps or FPS)  # which starts the clock

    def _frame(self, number: int) -> Frame:
        turn, place = divmod(number, len(self._images))
        if turn != self._round:
            self._round = turn
            self._order = np.random.default_rng([self._seed, turn]).permutation(len(self._images))
        chosen = self._order[place]
        image = self._images[chosen].copy()
        # With a digest it is recognised in the next round: what was held out must not come back as something new.
        digest = sha256(image.tobytes())
        label = str(self._classes[chosen]) if self._labelled else None
        return Frame(image, self.name, label, digest, time.time())
