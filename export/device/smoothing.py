"""One answer out of those of the last frames, so that a single odd frame does not make it jump."""

import re
from collections import Counter, deque
from dataclasses import dataclass

from edge_hpcr.common.errors import UserError
from export.device.model import Label, Result

CHANGE_SHARE = 0.6  # of the last frames; more than half, so that two answers that take turns do not change it
MOST_FRAMES, MOST_SECONDS = 10_000, 3600.0


@dataclass(frozen=True)
class Window:
    """Over how many frames, or how many seconds, to smooth."""

    frames: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Window":
        """
        >>> Window.parse("5"), Window.parse("0.5s")
        (Window(frames=5, seconds=None), Window(frames=None, seconds=0.5))
        """
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(s?)", text, re.ASCII)
        if match and match[2] and 0 < float(match[1]) <= MOST_SECONDS:
            return cls(seconds=float(match[1]))
        if match and not match[2] and match[1].isdecimal() and 1 <= int(match[1]) <= MOST_FRAMES:
            return cls(frames=int(match[1]))
        raise UserError(f"--smooth {text!r}: write a number of frames like 5, or of seconds like 0.5s")


class Smoother:
    """The answer changes when another class, or unknown, is that of most of the last frames; until then it stays.

    >>> smoother = Smoother(Window(frames=1))
    >>> smoother.answer(Result([Label(3, "mug", 0.9)], False, 0.8), now=0.0)
    Label(id=3, name='mug', confidence=0.9)
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._votes: deque[tuple[float, int | None]] = deque(maxlen=window.frames)
        self._current: int | None = None
        self._labels: dict[int, Label] = {}  # the last of each class that has a vote or is the answer

    def answer(self, result: Result, now: float) -> Label | None:
        """The smoothed answer after one more frame, `now` by a clock that is never set; None: unknown."""
        vote = None if result.unknown else result.top[0].id
        first = not self._votes
        self._votes.append((now, vote))
        if vote is not None:
            self._labels[vote] = result.top[0]
        while self._window.seconds is not None and now - self._votes[0][0] > self._window.seconds:
            self._votes.popleft()
        votes = Counter(each for _, each in self._votes)
        most, count = votes.most_common(1)[0]
        if first or count >= CHANGE_SHARE * len(self._votes):
            self._current = most
        self._labels = {
            key: label for key, label in self._labels.items() if key in votes or key == self._current
        }
        return None if self._current is None else self._labels[self._current]
