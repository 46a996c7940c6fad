"""One byte a thread, in memory that outlives the process: what was going on when it was killed."""

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ACTING, LEARNING = 0, 1  # the two threads
NAMES = [
    "waiting",
    "opening",
    "taking images",
    "labelling",
    "changing classes",
    "learning",
    "checkpoint",
    "journal backup",
    "removing checkpoints",
    "dropping images",
]


class Phases:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(2))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 2)

    def set(self, thread: int, name: str) -> None:
        self._bytes[thread] = NAMES.index(name)

    def of(self, thread: int) -> str:
        return NAMES[self._bytes[thread]]

    def clear(self) -> None:
        self._bytes[:] = bytes(2)

    def watch(self, owner: Any, function: str, name: str) -> None:
        """From now on the learning thread is in this phase as long as it runs that function."""
        original: Callable[..., Any] = getattr(owner, function)

        def watched(*arguments: Any, **named: Any) -> Any:
            before = self.of(LEARNING)
            self.set(LEARNING, name)
            try:
                return original(*arguments, **named)
            finally:
                self.set(LEARNING, before)

        setattr(owner, function, watched)
