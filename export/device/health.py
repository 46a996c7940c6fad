"""How a device is: what it has done, what is wrong at this moment, and the reports of it to a trainer."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from export.device import Unavailable
from export.device.http_client import Server

MOST_SILENT_SECONDS = 60.0  # a camera is opened again within half of that
END_SECONDS = 1.0  # for the last report


class Health:
    """Counts, and problems by the part that has one. A problem is told once, and so is its end. For all threads."""

    def __init__(self, device: str, tell: Callable[[str], None]) -> None:
        self.device = device
        self.frames = self.unknown = 0
        self.version: int | None = None
        # time.monotonic() of the last answer, or of a look at a source that had nothing new to show.
        self.last_sign: float | None = None
        self.unsure_waiting = self.unsure_dropped = 0
        self.tell = tell
        self._problems: dict[str, str] = {}

    def answered(self, version: int, unknown: bool) -> None:
        """A frame was answered."""
        self.version = version
        self.frames += 1
        self.unknown += unknown
        self.last_sign = time.monotonic()

    @property
    def is_at_work(self) -> bool:
        return self.last_sign is not None and time.monotonic() - self.last_sign <= MOST_SILENT_SECONDS

    def trouble(self, part: str, problem: str | None, mended: str = "") -> None:
        """What is wrong with a part, or None when nothing is (any more)."""
        before = self._problems.pop(part, None)
        if problem is not None:
            self._problems[part] = problem
        if problem != before and (text := problem or mended):
            self.tell(text)

    def has(self, part: str) -> bool:
        return part in self._problems

    @property
    def problem(self) -> str | None:
        """All that is wrong, in a line."""
        return "; ".join(list(self._problems.values()))[:500] or None

    def facts(self) -> dict[str, Any]:
        """What others are told of this device."""
        names = ("device", "version", "frames", "unknown", "unsure_waiting", "unsure_dropped", "problem")
        return {name: getattr(self, name) for name in names}


class Reporter:
    """A report every so many seconds; a plain file server takes none, and is then not asked again."""

    def __init__(self, url: str, token: str | None, health: Health, every: float) -> None:
        self._server = Server(url, token)
        self._health = health
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The last report says that this is the end; a server that hangs holds it up for a moment only."""
        self._stop.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while self._report() and not self._stop.wait(self._every):
            pass
        if self._stop.is_set():
            self._report()

    def _report(self) -> bool:
        """Send one; False if the server takes none."""
        health, facts = self._health, self._health.facts()
        if self._stop.is_set():
            facts["problem"] = "; ".join(filter(None, (facts["problem"], "has ended")))
        place, kind = f"devices/{health.device}/report", {"Content-Type": "application/json"}
        try:
            status = self._server.post(place, json.dumps(facts).encode(), kind)
        except Unavailable:
            return True  # that models cannot be had from there is told by who asks for them
        if status in (404, 405, 501):
            return False
        refusal = f"the trainer refuses this device's reports ({status})"
        health.trouble("reports", None if status < 300 else refusal)
        return True
