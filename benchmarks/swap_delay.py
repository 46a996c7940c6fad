"""How late a swap makes the frames of a camera."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from export.device.hot_swap import HotSwap
from export.device.model_source import Loading, LocalModels
from export.publish.versions import rollback, rollforward

FRAMES_PER_SECOND = 30.0
QUIET_SECONDS = 1.0  # before each swap


def swap_delay(exports: Path, swaps: int, quiet_seconds: float = QUIET_SECONDS) -> dict[str, Any]:
    """How late the frames of a camera are answered, in frame times: at rest, and while models change.

    Each is due at its time on the clock whatever became of the one before, and none is left out. The time from when a
    version is pointed at until shortly after it is in use counts as the swap's.
    """
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), lambda line: None, poll=0.05)
    swap.first()
    changing, done = threading.Event(), threading.Event()

    def change() -> None:
        for number in range(swaps):
            if done.wait(quiet_seconds):
                return
            changing.set()
            (rollback, rollforward)[number % 2](exports)
            while swap.swaps <= number and not done.wait(0.005):
                continue
            done.wait(0.1)
            changing.clear()
        done.set()

    late: dict[bool, list[float]] = {False: [], True: []}
    frame = np.zeros((480, 640, 3), np.uint8)
    swap.start()
    mover = threading.Thread(target=change, name="mover")
    mover.start()
    due = time.monotonic()
    try:
        while not done.is_set():
            due += 1 / FRAMES_PER_SECOND
            time.sleep(max(0.0, due - time.monotonic()))
            around = changing.is_set()
            classifier = swap.classifier
            images = classifier.prepare([frame])
            classifier.predict_prepared(images)
            swap.remember(images[0])
            late[around or changing.is_set()].append((time.monotonic() - due) * FRAMES_PER_SECOND)
    finally:
        done.set()
        mover.join()
        swap.close()
    return {
        "frames_per_second": FRAMES_PER_SECOND,
        "swaps": swap.swaps,
        **{name: _lateness(late[around]) for name, around in (("quiet", False), ("around_swaps", True))},
    }


def _lateness(frame_times: list[float]) -> dict[str, float]:
    return {
        "frames": len(frame_times),
        "median": float(np.median(frame_times)),
        "p95": float(np.quantile(frame_times, 0.95)),
        "most": max(frame_times),
    }
