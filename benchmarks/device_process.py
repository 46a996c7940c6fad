"""What a device pays: the time to the first answer, memory, and how late a swap makes the frames of a camera."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.runner import ROOT
from export.device.hot_swap import HotSwap
from export.device.model_source import Loading, LocalModels
from export.publish.versions import rollback, rollforward

FRAMES_PER_SECOND = 30.0
QUIET_SECONDS = 1.0  # before each swap


def first_answer(exports: Path) -> float:
    """From the start of the runtime's command to its first line, of a picture in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        cv2.imwrite(str(Path(folder, "one.png")), np.zeros((480, 640, 3), np.uint8))
        arguments = ["--models", str(exports.resolve()), "--source", folder]
        command = [sys.executable, "-m", "export.runtime", *arguments]
        begun = time.monotonic()
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as runtime:
            line = runtime.stdout.readline() if runtime.stdout else b""
            took = time.monotonic() - begun
    if not line.startswith(b'{"frame"'):
        raise RuntimeError("the runtime gave no answer")
    return took


_MEMORY = """
import json, sys
import psutil
own = psutil.Process()
import cv2, numpy, onnxruntime
from export.device.model import Classifier
held = {"imports": own.memory_info().rss}
classifier = Classifier.load(sys.argv[1], "cpu", 1)
held["loaded"] = own.memory_info().rss
frame = numpy.zeros((480, 640, 3), numpy.uint8)
for _ in range(20):
    classifier.predict([frame])
held["predicting"] = own.memory_info().rss
print(json.dumps(held))
"""


def memory(exports: Path) -> dict[str, int]:
    """Resident bytes of a process that imports what a device has, loads the model, and predicts."""
    ended = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(exports.resolve())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    held: dict[str, int] = json.loads(ended.stdout)
    return held


def swap_delay(
    exports: Path, swaps: int, quiet_seconds: float = QUIET_SECONDS, threads: int = 1
) -> dict[str, Any]:
    """How late the frames of a camera are answered, in frame times: at rest, and while models change.

    Frames are due by the clock, and none is left out; `threads` 0 is what a device uses unless it is told otherwise. A swap lasts from when a version becomes current until shortly
    after it is in use.
    """
    swap = HotSwap(LocalModels(exports), Loading("cpu", threads), lambda line: None, poll=0.05)
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
