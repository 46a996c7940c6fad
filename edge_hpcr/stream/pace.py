"""At most so many frames a second, without sleeping past a close."""

import threading
import time


class Pace:
    """`wait` says when the next frame is due; without `fps` it always is."""

    def __init__(self, fps: float | None) -> None:
        self._gap = 1 / fps if fps else 0.0
        self._due = time.monotonic()

    def wait(self, timeout: float, stopped: threading.Event) -> bool:
        """Wait for the moment of the next frame; False if it is later than `timeout` seconds from now."""
        left = self._due - time.monotonic()
        if left > timeout:
            stopped.wait(timeout)
            return False
        if left > 0:
            stopped.wait(left)
        return True

    def delivered(self) -> None:
        """A frame was shown: the next one is due a gap later. Time lost before is not caught up with a burst."""
        self._due = max(self._due + self._gap, time.monotonic())
