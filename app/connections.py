"""Connections on which nothing comes to its end: uvicorn alone would keep them, and their file descriptors, for ever."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

LONGEST_WAIT = 15.0  # seconds until a request's head has come whole
MOST_CONNECTIONS = 500


class PunctualProtocol(H11Protocol):
    """Closes what has waited for a request for too long, however many bytes of it trickled in.

    Where there are too many, the one that has waited longest makes place.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_after(None)
        if len(self.connections) > MOST_CONNECTIONS:
            ours = [each for each in self.connections if isinstance(each, PunctualProtocol)]
            waiting = [each for each in ours if each.is_waiting() and each is not self]
            min(waiting, key=lambda each: each.since, default=self).transport.close()

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()  # which may begin with the next request
        self._wait_after(answered)

    def is_waiting(self) -> bool:
        return self.cycle is self.answered

    def _wait_after(self, answered: object) -> None:
        self.answered, self.since = answered, self.loop.time()
        self.loop.call_later(LONGEST_WAIT, self._close_if_since, self.since)

    def _close_if_since(self, since: float) -> None:
        if self.is_waiting() and self.since == since:
            self.transport.close()
