"""Whether a runtime is at work, by the age of a file. Standard library only.

The runtime touches the file after each frame that went well: it grows old when the camera gives no picture, the model
fails or the loop hangs. `python -m export.device.heartbeat FILE` checks its age.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of
from export.device.errors import OneLineParser

EVERY_SECONDS = 1.0
_PROBLEM = "problem: "
MOST_SECONDS = 60.0  # a camera is opened again within half of that


class Heartbeat:
    """Touches a file, and that at most once a second."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        self._last = -EVERY_SECONDS
        self._failed = False
        self._problem: str | None = None
        try:
            if path.exists() and path.stat().st_size and not _is_ours(path):
                raise UserError(f"--heartbeat {path}: it is not empty: name another file")
            path.touch()
            # Nothing has been answered yet; an earlier runtime's beat must not count as this one's.
            path.unlink()
        except OSError as error:
            raise UserError(f"--heartbeat {path}: {reason_of(error)}") from None

    def beat(self, problem: str | None = None) -> None:
        """Touch the file; what is wrong beside the frames, a broker or the trainer, is written into it."""
        now = time.monotonic()
        if now - self._last < EVERY_SECONDS:
            return
        self._last = now
        try:
            if problem != self._problem:
                self._path.write_text(f"{_PROBLEM}{problem}\n" if problem else "", encoding="utf-8")
                self._problem = problem
            self._path.touch()
        except OSError as error:
            # Answering goes on.
            if not self._failed:
                self._report(f"--heartbeat {self._path}: {reason_of(error)}")
            self._failed = True
        else:
            self._failed = False


def _is_ours(path: Path) -> bool:
    """Whether it holds what a runtime wrote into it."""
    with path.open("rb") as file:
        return file.read(len(_PROBLEM)) == _PROBLEM.encode()


def age(path: Path) -> float | None:
    """Seconds since the last beat, on either side: a clock may be set back. None before the first."""
    with contextlib.suppress(FileNotFoundError):
        return abs(time.time() - path.stat().st_mtime)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when it is at work, 1 when it is not, as Docker's health check asks."""
    parser = OneLineParser(
        prog="python -m export.device.heartbeat",
        description="Whether `python -m export.runtime --heartbeat FILE` is at work: 0 if it is, 1 if not.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--most",
        type=float,
        default=MOST_SECONDS,
        metavar="SECONDS",
        help="since the last beat (default: %(default)g)",
    )
    options = parser.parse_args(arguments)
    seconds = age(options.file)
    if seconds is None:
        print("no frame has been answered yet")
        return 1
    problem = ""
    with contextlib.suppress(OSError):  # it ends at this moment
        problem = options.file.read_text(encoding="utf-8", errors="replace").strip()
    print(f"last sign of life {seconds:.0f} s ago{'; ' if problem else ''}{problem}")
    return 0 if seconds <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
