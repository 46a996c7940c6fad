"""The demonstration camera: scikit-learn's handwritten digits, without end and without a download.

Split: the first 80 % of each class's images (rounded down), in scikit-learn's order, are for training, the rest for
testing. That is deterministic and stratified. Neighbours in that order resemble one another, so that every fifth image
as the test set would flatter (1-NN classifies 98.6 % of those, 95.6 % of these).
"""

import gzip
import importlib.util
import threading
import time
from pathlib import Path

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.stream.contract import EndOfStream, Frame, Stream

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


class Digits(Stream):
    """The training digits in a new order each round, at a steady pace. Like a camera's, they pass by unseen."""

    live = True
    name = "digits"

    def __init__(self, labels: str = "none", fps: float | None = None, seed: int = 0) -> None:
        images, classes, training = read_digits()
        self._images, self._classes = images[training], classes[training]
        self._labelled = labels == "folders"
        self._fps = fps or FPS
        self._seed = seed
        self._round = -1
        self._order = np.arange(0)
        self._closed = threading.Event()
        self._next = 0  # the number of the first digit that was not shown yet
        self._started = time.monotonic()

    def read(self, timeout: float) -> Frame | None:
        passing = int((time.monotonic() - self._started) * self._fps)
        if passing < self._next:
            left = self._started + self._next / self._fps - time.monotonic()
            self._closed.wait(max(0.0, min(left, timeout)))
            passing = self._next if left <= timeout else passing
        if self._closed.is_set():
            raise EndOfStream("closed")
        if passing < self._next:
            return None
        self._dropped += passing - self._next
        self._frames += passing - self._next
        self._next = passing + 1
        return self._counted(self._frame(passing))

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

    def _doing(self) -> tuple[str, str]:
        return ("closed", "closed") if self._closed.is_set() else ("live", f"live, {self._fps:.1f} frames/s")

    def close(self) -> None:
        self._closed.set()
