"""Tells the trainer that models come from who this device is and how it is, in a thread of its own."""

import json
import threading
import time

from edge_hpcr import __version__
from export.device.errors import Unavailable
from export.device.health import Health
from export.device.http_client import Server

SOFTWARE = f"edge-hpcr {__version__}"
MOST_SECONDS = 10.0  # for one report


class Reporter:
    """A report every so many seconds; a plain file server takes none, and is then not asked again."""

    def __init__(self, url: str, token: str | None, health: Health, every: float) -> None:
        self._server = Server(url, token, timeout=MOST_SECONDS)
        self._health = health
        self._every = every
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def close(self) -> None:
        """Not waited for: a server that hangs must not hold up the end."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._report():
                return
            self._stop.wait(self._every)

    def _report(self) -> bool:
        """Send one; False if nobody wants any."""
        health = self._health
        facts = {
            "device": health.device,
            "version": health.version,
            "since": round(health.since, 3),
            "started": round(health.started, 3),
            "now": round(time.time(), 3),
            "frames": health.frames,
            "unknown": health.unknown,
            "unsure_waiting": health.unsure_waiting,
            "unsure_dropped": health.unsure_dropped,
            "problem": health.problem,
            "software": SOFTWARE,
        }
        place = f"devices/{health.device}/report"
        try:
            status, _ = self._server.post(
                place, json.dumps(facts).encode(), {"Content-Type": "application/json"}, MOST_SECONDS
            )
        except Unavailable:
            # That models cannot be had from there is told by who asks for them.
            return True
        if status in (404, 405, 501):
            return False
        health.trouble(
            "reports", None if status < 300 else f"the trainer refuses this device's reports ({status})"
        )
        return True
