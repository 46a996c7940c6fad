"""What a device's process costs, measured from outside: the time to its first answer, and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).parent.parent


def first_answer(exports: Path) -> float:
    """From the start of the runtime's command to its first line, of a picture in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        cv2.imwrite(str(Path(folder, "one.png")), np.zeros((480, 640, 3), np.uint8))
        command = [
            sys.executable,
            "-m",
            "export.runtime",
            "--models",
            str(exports.resolve()),
            "--source",
            folder,
        ]
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
