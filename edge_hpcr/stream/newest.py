"""The slot between a camera's thread and whoever looks: it holds the newest frame only."""

import threading

from edge_hpcr.stream.contract import EndOfStream, Frame


class NewestFrame:
    """`put` never waits: a frame that nobody took is overwritten, and counted as dropped."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._frame: Frame | None = None
        self._closed = False
        self.dropped = 0

    def put(self, frame: Frame) -> None:
        with self._changed:
            if self._frame is not None:
                self.dropped += 1
            self._frame = frame
            self._changed.notify_all()

    def take(self, timeout: float) -> Frame | None:
        """The newest frame, or None after `timeout` seconds; `EndOfStream` once the slot is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._frame is not None or self._closed, timeout)
            if self._closed:
                raise EndOfStream("closed")
            frame, self._frame = self._frame, None
            return frame

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
