"""The demonstration camera: scikit-learn's handwritten digits, for ever, without a download."""

import threading
import time

import numpy as np

from edge_hpcr.bench.datasets import load
from edge_hpcr.common.files import sha256
from edge_hpcr.stream.contract import EndOfStream, Frame, Stream, StreamState, size_of

FPS = 2.0


class Digits(Stream):
    """The training digits in a new order each round, at a steady pace. Like a camera's, they pass by unseen."""

    live = True
    name = "digits"

    def __init__(self, labels: str = "none", fps: float | None = None, seed: int = 0) -> None:
        self._digits = load("digits")
        self._labelled = labels == "folders"
        self._fps = fps or FPS
        self._seed = seed
        self._round = -1
        self._order = np.arange(0)
        self._closed = threading.Event()
        self._next = 0  # the number of the first digit that was not shown yet
        self._dropped = 0
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
        self._next = passing + 1
        return self._frame(passing)

    def _frame(self, number: int) -> Frame:
        turn, place = divmod(number, len(self._digits.train_images))
        if turn != self._round:
            self._round = turn
            self._order = np.random.default_rng([self._seed, turn]).permutation(
                len(self._digits.train_images)
            )
        chosen = self._order[place]
        label = self._digits.class_names[self._digits.train_labels[chosen]] if self._labelled else None
        image = self._digits.train_images[chosen].copy()
        # With a digest it is recognised in the next round: what was held out must not come back as something new.
        digest = sha256(image.tobytes())
        return Frame(image, self.name, label, digest, time.time())

    def state(self) -> StreamState:
        phase, message = "live", f"live, {self._fps:.1f} frames/s"
        if self._closed.is_set():
            phase, message = "closed", "closed"
        size = size_of(self._digits.train_images[0])
        return StreamState(phase, message, self._next, self._dropped, 0, size)

    def close(self) -> None:
        self._closed.set()
