"""A time limit for runs of a model. ONNX Runtime checks it between two operators."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime

LOOK_SECONDS = 0.25


class RunLimit:
    """The runs under way in this process, and a thread that ends those that take too long.

    One thread for all of them: a timer for each run would cost a tenth of a small model's time.
    """

    def __init__(self) -> None:
        # Changed by single operations only, and never under a lock: a thread that a signal interrupts may hold it.
        self._running: dict[int, tuple[onnxruntime.RunOptions, float]] = {}
        self._started = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def of(self, seconds: float) -> Iterator[onnxruntime.RunOptions]:
        """What a run needs to be ended after so many seconds."""
        self._start()
        options = onnxruntime.RunOptions()
        key = id(options)
        self._running[key] = (options, time.monotonic() + seconds)
        try:
            yield options
        finally:
            del self._running[key]

    def end_all(self) -> None:
        for options, _ in list(self._running.values()):
            options.terminate = True

    def _start(self) -> None:
        if self._thread is None:
            with self._started:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="run limit", daemon=True)
                    self._thread.start()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for options, deadline in list(self._running.values()):
                if now > deadline:
                    options.terminate = True


RUNS = RunLimit()
