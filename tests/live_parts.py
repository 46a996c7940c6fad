"""What tests of a running learner share: workspaces that learn digits or photographs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from workspace_parts import SMALL

from edge_hpcr.bench.datasets import load
from edge_hpcr.learner.learner import Learner
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.workspace import Workspace

PATIENCE = 60.0


def photo(number: int, side: int = 160) -> np.ndarray:
    """Two kinds of pictures, no two alike."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (3 + 5 * (number % 2), 4, 3), np.uint8)
    return cv2.resize(coarse, (side, side * 3 // 4), interpolation=cv2.INTER_CUBIC)


@contextmanager
def learning(workspace: Workspace) -> Iterator[LiveLearner]:
    """A learner that has learned every label so far, and goes on."""
    live = LiveLearner(workspace)
    live.start()
    try:
        assert live.wait_until_caught_up(PATIENCE), live.problems
        yield live
    finally:
        live.stop()


class Lessons:
    """A workspace of 8x8 digits with its running learner."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path, self.digits = path, load("digits")
        self.settings = {**SMALL, "idle_steps": 0, "threads": 1, "memory_bytes": 40_000, **settings}
        self.next = 0
        self.open()

    def open(self) -> None:
        self.workspace = Workspace.open(self.path)
        self.workspace.change_settings(**self.settings)
        self.journal = self.workspace.journal
        self.live = LiveLearner(self.workspace)
        self.live.start()

    def close(self) -> None:
        self.live.stop()
        self.workspace.close()

    def class_of(self, digit: int) -> int:
        found = self.journal.class_id(f"digit {digit}")
        return found if found is not None else self.journal.create_class(f"digit {digit}")

    def show(self, digit: int) -> int:
        """Take the next image of this digit into the queue."""
        images = self.digits.train_images[self.digits.train_labels == digit]
        self.next += 1
        return self.workspace.take(images[self.next % len(images)], "test")

    def label(self, digit: int, count: int = 1) -> list[int]:
        """Show so many, each labelled by itself."""
        ids = [self.show(digit) for _ in range(count)]
        for sample_id in ids:
            self.journal.label([sample_id], self.class_of(digit))
        return ids

    def learned(self) -> Learner:
        assert self.live.wait_until_caught_up(PATIENCE), self.live.problems
        return self.live.learner

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline and not self.live.failed, self.live.problems
            time.sleep(0.01)
