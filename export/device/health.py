"""How a device is: what it has done, and what is wrong at this moment. Any thread may ask or tell."""

import threading
import time
from collections.abc import Callable


class Health:
    """Counts, and problems by the part that has one. A problem is told once, and so is its end."""

    def __init__(self, device: str, tell: Callable[[str], None]) -> None:
        self.device = device
        self.started = time.time()
        self.frames = self.unknown = self.requests = 0
        self.version: int | None = None
        self.since = self.started  # of the version
        self.latency_ms = 0.0  # of the last frame
        self.last_answer: float | None = None  # time.monotonic()
        self.unsure_waiting = self.unsure_dropped = self.unsure_sent = 0
        self.mqtt_dropped = 0
        self._tell = tell
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {}

    def runs(self, version: int) -> None:
        """This version is in use, whether or not frames come."""
        if version != self.version:
            self.version, self.since = version, time.time()

    def answered(self, version: int, unknown: bool, milliseconds: float) -> None:
        """A frame was answered."""
        self.runs(version)
        self.frames += 1
        self.unknown += unknown
        self.latency_ms = milliseconds
        self.last_answer = time.monotonic()

    def trouble(self, part: str, problem: str | None, mended: str = "") -> None:
        """What is wrong with a part, or None when nothing is (any more)."""
        with self._lock:
            before = self._problems.get(part)
            if problem == before:
                return
            if problem is None:
                del self._problems[part]
            else:
                self._problems[part] = problem
        if problem is not None:
            self._tell(problem)
        elif mended:
            self._tell(mended)

    def note(self, part: str, problem: str | None) -> None:
        """As `trouble`, for what has been told already."""
        with self._lock:
            self._problems.pop(part, None)
            if problem is not None:
                self._problems[part] = problem

    def has(self, part: str) -> bool:
        with self._lock:
            return part in self._problems

    @property
    def problem(self) -> str | None:
        """All that is wrong, in a line."""
        with self._lock:
            return "; ".join(self._problems.values())[:500] or None

    def seconds_since_answer(self) -> float | None:
        return None if self.last_answer is None else time.monotonic() - self.last_answer
