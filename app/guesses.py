"""Wrong passwords are answered late: later each time, for the same user and for everybody who guesses."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import time
from collections import Counter, OrderedDict, deque

LOG = logging.getLogger(__name__)

FREE, FREE_IN_ALL = 3, 20  # wrong guesses before the first wait
FIRST_SECONDS, LONGEST_SECONDS = 0.1, 2.0  # each wait is twice the one before
FORGOTTEN_SECONDS = 600.0
MOST_WAITING, MOST_WAITING_IN_ALL = 100, 200  # of one address; beyond the second, one of each
REMEMBERED = 1000  # users that were guessed for, and guesses


class TooManyGuesses(Exception):
    """More wrong guesses wait for their answer than a person makes: no other is looked at."""


class Guesses:
    """A right password is let in at once. Wrong ones are answered one at a time, and keep their places until then.

    So a thousand guesses at once are no faster than one after the other, from however many addresses they come, and a
    user does not wait for those who guess. Nothing but time makes a wrong guess forgotten.
    """

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._waiting: Counter[str] = Counter()  # by address
        self._wrong: deque[float] = deque(maxlen=REMEMBERED)  # when
        self._wrong_by_user: OrderedDict[str, deque[float]] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def look_at(self, guess: str, right: bool, user: str, address: str) -> bool:
        """Say whether a guess is right."""
        digest = hashlib.sha256(guess.encode()).digest()
        if not right and digest in self._known:
            return False  # a page that was left open asks several times a second, and that is one guess
        place = _network(address)
        crowded = self._waiting.total() >= MOST_WAITING_IN_ALL
        if self._waiting[place] >= (1 if crowded else MOST_WAITING):
            raise TooManyGuesses
        if right:
            return True
        LOG.warning("a wrong password for user %r from %s", user[:40], address)
        self._note(digest, user)
        self._waiting[place] += 1
        try:
            async with self._line:
                await asyncio.sleep(self._wait(user))
        finally:
            self._waiting[place] -= 1
            self._waiting += Counter()  # drops those at nought
        return False

    def _wait(self, user: str) -> float:
        of_user = _recent(self._wrong_by_user.get(user, deque()))
        excess = max(of_user - FREE, _recent(self._wrong) - FREE_IN_ALL)
        return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(excess - 1, 20)) if excess > 0 else 0.0

    def _note(self, digest: bytes, user: str) -> None:
        self._known[digest] = None
        of_user = self._wrong_by_user.setdefault(user, deque(maxlen=REMEMBERED))
        self._wrong_by_user.move_to_end(user)
        for times in (of_user, self._wrong):
            times.append(time.monotonic())
        for remembered in (self._known, self._wrong_by_user):
            if len(remembered) > REMEMBERED:
                remembered.popitem(last=False)


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
