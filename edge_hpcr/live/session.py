"""One run of `learn`: a source feeds a workspace's learner until it ends or somebody stops it."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

from edge_hpcr.common.text import many
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.status import one_line
from edge_hpcr.stream import Stream, open_stream
from edge_hpcr.workspace.workspace import Workspace, warn_of_bad_file

TURN_SECONDS = 0.5
STATUS_SECONDS = 5.0  # between two lines


def learn(
    path: Path,
    source: str,
    beside: Callable[[LiveLearner], AbstractContextManager[None]],
    *,
    labels: str = "none",
    fps: float | None = None,
    seconds: float | None = None,
    changes: Mapping[str, Any] | None = None,
    rehearse: bool = True,
) -> int:
    """Learn in a workspace from a source, with these changes of its settings; returns the exit code.

    `beside` is entered while the learner runs.
    """
    with (
        # The source first: a wrong one must not leave a new workspace behind. It reads nothing before its first frame.
        open_stream(source, labels, warn_of_bad_file, fps) as stream,
        Workspace.open(path) as workspace,
    ):
        for sentence in workspace.report:
            _complain(sentence)
        # Saved once the learner has accepted them: a refused one would fail every later start.
        workspace.settings = workspace.settings.replace(**(changes or {}))
        live = LiveLearner(workspace)
        workspace.change_settings(**(changes or {}))
        live.start()
        feeder = Feeder(workspace, live)
        feeder.use(stream, labels != "none")
        try:
            with beside(live):
                _run(feeder, stream, seconds, rehearse)
                unstored = feeder.finish()
        finally:
            live.stop()
        print(_line(live, stream, stream.state().message))
        for problem in live.problems:
            _complain(problem)
        if unstored:
            lost = f"{many(unstored, 'label')} could not be stored"
            _complain(f"{lost}: make room, and start the same command again")
        if bad := stream.state().bad:
            _complain(f"{bad} bad files or frames")
        return 1 if live.failed or unstored else 0


def _run(feeder: Feeder, stream: Stream, seconds: float | None, rehearse: bool) -> None:
    """Frames in, a line of status out now and then, until the source ends or somebody stops it."""
    live, next_line = feeder.live, 0.0
    ends_at = math.inf if seconds is None else time.monotonic() + seconds

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal ends_at
        ends_at = 0.0
        signal.signal(number, signal.default_int_handler)  # a second Ctrl-C ends at once

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    while not live.failed and time.monotonic() < ends_at:
        doing = "source has ended" if feeder.ended else stream.state().message
        live.hurries = feeder.ended
        feeder.turn(0.0 if feeder.ended else TURN_SECONDS)
        if feeder.ended and live.wait_until_caught_up(TURN_SECONDS):
            if rehearse and (live.idle_steps_left or live.calibrates):
                doing = f"{doing}, rehearsing {live.idle_steps_left} more steps"
            else:
                return
            time.sleep(TURN_SECONDS)
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + STATUS_SECONDS
            print(_line(live, stream, doing), file=sys.stderr, flush=True)


def _line(live: LiveLearner, stream: Stream, doing: str) -> str:
    return one_line(live.status(), live.workspace.journal.counts(), stream, doing)


def _complain(sentence: str) -> None:
    print(f"edge_hpcr: {sentence}", file=sys.stderr)
