"""Wrong passwords make the next guess wait: longer each time, for the same user and for everybody who guesses."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import time
from collections import OrderedDict, defaultdict, deque

LOG = logging.getLogger(__name__)

FREE, FREE_IN_ALL = 3, 20  # wrong guesses before the first wait
FIRST_SECONDS, LONGEST_SECONDS = 0.1, 2.0  # each wait is twice the one before
FORGOTTEN_SECONDS = 600.0
MOST_WAITING = 50  # of one address
REMEMBERED = 1000  # users that were guessed for, and guesses


class TooManyGuesses(Exception):
    """More guesses from one address wait for their turn than a person makes."""


class Guesses:
    """Guesses are looked at one at a time, so that a thousand at once are no faster than one after the other.

    Each address stands in the common line once: whoever guesses from elsewhere does not keep a user with the right
    password out, but lets him wait for a single turn. Nothing but time makes a wrong guess forgotten.
    """

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._own_lines: dict[str, _OwnLine] = defaultdict(_OwnLine)
        self._wrong: deque[float] = deque(maxlen=REMEMBERED)  # when
        self._wrong_by_user: OrderedDict[str, deque[float]] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def look_at(self, guess: str, right: bool, user: str, address: str) -> bool:
        """Say whether a guess is right, when its turn has come."""
        digest = hashlib.sha256(guess.encode()).digest()
        if not right and digest in self._known:
            return False  # a page that was left open asks several times a second, and that is one guess
        place = _network(address)
        line = self._own_lines[place]
        if line.waiting >= MOST_WAITING:
            raise TooManyGuesses
        line.waiting += 1
        try:
            async with line.lock, self._line:
                await asyncio.sleep(self._wait(user))
                if not right:
                    self._note(digest, user)
                    LOG.warning("a wrong password for user %r from %s", user[:40], address)
                return right
        finally:
            line.waiting -= 1
            if not line.waiting:
                self._own_lines.pop(place, None)

    def _wait(self, user: str) -> float:
        excess = max(
            _recent(self._wrong_by_user.get(user, deque())) - FREE, _recent(self._wrong) - FREE_IN_ALL
        )
        return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(excess, 20)) if excess >= 0 else 0.0

    def _note(self, digest: bytes, user: str) -> None:
        self._known[digest] = None
        of_user = self._wrong_by_user.setdefault(user, deque(maxlen=REMEMBERED))
        self._wrong_by_user.move_to_end(user)
        for times in (of_user, self._wrong):
            times.append(time.monotonic())
        for remembered in (self._known, self._wrong_by_user):
            if len(remembered) > REMEMBERED:
                remembered.popitem(last=False)


class _OwnLine:
    """Of an address."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


def _recent(times: deque[float]) -> int:
    while times and time.monotonic() - times[0] > FORGOTTEN_SECONDS:
        times.popleft()
    return len(times)


def _network(address: str) -> str:
    """An IPv6 user has all addresses of a network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
