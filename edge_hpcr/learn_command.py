"""`python -m edge_hpcr learn`: a workspace that learns from a source, without a screen."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from edge_hpcr.errors import UserError
from edge_hpcr.live.status import one_line
from edge_hpcr.streams import KINDS, LABELS, EndOfStream, Stream, open_stream
from edge_hpcr.units import parse_bytes, parse_setting
from edge_hpcr.workspace.folder import Workspace

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

EXAMPLES = """\
examples:
  python -m edge_hpcr learn --workspace parts --source photos --labels folders   one sub-folder a class
  python -m edge_hpcr learn --workspace parts --source 0                         the first camera
  python -m edge_hpcr learn --workspace parts --source rtsp://user:secret@cam/stream
  python -m edge_hpcr learn --workspace parts --source watch:inbox --labels folders
  python -m edge_hpcr learn --workspace demo --source digits --labels folders --seconds 60

Frames without a label wait in the queue, the most informative first: see `samples W list --queue`, and label them
with `label W SAMPLE CLASS` from another terminal, while this goes on. Ctrl-C saves and ends; the same command continues.
"""
STATUS_SECONDS = {True: 0.5, False: 10.0}  # on a terminal, and in a log


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "learn",
        help="learn from a camera, a video or a folder",
        description="Learn in a workspace from a source, until it ends or Ctrl-C.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workspace", type=Path, required=True, metavar="W", help="its folder; made if missing"
    )
    parser.add_argument("--source", required=True, metavar="SRC", help=KINDS)
    parser.add_argument(
        "--labels",
        default="none",
        help=f"{' or '.join(LABELS)}: whether sub-folders name the classes (default: none)",
    )
    parser.add_argument("--fps", type=float, metavar="N", help="pace of digits, a folder or a video")
    parser.add_argument("--seconds", type=float, metavar="N", help="stop after so long (default: never)")
    parser.add_argument("--budget", metavar="BYTES", help="replay memory, like 2MB; kept in the settings")
    parser.add_argument(
        "--size", type=int, metavar="N", help="side of the learned images; for a new workspace"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="any other setting, kept",
    )
    parser.add_argument(
        "--no-rehearsal",
        action="store_true",
        help="end with the last label, without further replay of what was learned",
    )
    parser.set_defaults(func=command)


def command(arguments: argparse.Namespace) -> int:
    from edge_hpcr.live.live_learner import LiveLearner  # torch takes seconds, and --help needs none

    if arguments.seconds is not None and not arguments.seconds > 0:
        raise UserError(f"--seconds {arguments.seconds:g}: give a positive number")
    changes = _changes(arguments)
    with Workspace.open(arguments.workspace) as workspace:
        if changes:
            workspace.change_settings(**changes)
        for sentence in workspace.report:
            print(f"edge_hpcr: {sentence}", file=sys.stderr)
        stream = open_stream(arguments.source, arguments.labels, workspace.quarantine, arguments.fps)
        with stream:
            live = LiveLearner(workspace)
            live.start()
            try:
                session = Session(workspace, live, stream, arguments.seconds)
                session.run(rehearse=not arguments.no_rehearsal)
            finally:
                live.stop()
        session.say_end()
        return 1 if live.failed else 0


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    changes = dict(parse_setting(text) for text in arguments.settings)
    if arguments.budget is not None:
        changes["memory_bytes"] = parse_bytes(arguments.budget)
    if arguments.size is not None:
        changes["image_size"] = arguments.size
    return changes


class Session:
    """One run of the command: frames in, a line of status out, until the source ends or somebody stops it."""

    def __init__(
        self, workspace: Workspace, live: LiveLearner, stream: Stream, seconds: float | None
    ) -> None:
        from edge_hpcr.live.intake import Intake

        self.workspace, self.live, self.stream = workspace, live, stream
        self.intake = Intake(workspace, live)
        self._deadline = time.monotonic() + seconds if seconds is not None else float("inf")
        self._asked_to_stop = False
        self._next_line = 0.0

    def run(self, rehearse: bool) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask_to_stop)
        ended = self._feed()
        self.intake.close()
        while ended and not self._stops and not self.live.wait_until_caught_up(STATUS_SECONDS[True]):
            self._say("source has ended")
        self.live.hurries = True
        while ended and rehearse and not self._stops and self.live.idle_steps_left:
            self._say(f"source has ended, rehearsing {self.live.idle_steps_left} more steps")
            time.sleep(STATUS_SECONDS[True])

    def _feed(self) -> bool:
        """True when the source has shown everything."""
        while not self._stops:
            self._say(self.stream.state().message)
            if self.intake.must_wait:
                self.live.wait_until_caught_up(STATUS_SECONDS[True])
                continue
            try:
                frame = self.stream.read(timeout=STATUS_SECONDS[True])
            except EndOfStream:
                return True
            if frame is not None:
                self.intake.take(frame)
        return False

    @property
    def _stops(self) -> bool:
        return self._asked_to_stop or self.live.failed or time.monotonic() > self._deadline

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop = True
        signal.signal(number, signal.default_int_handler)  # a second Ctrl-C ends at once

    def _say(self, source: str) -> None:
        now = time.monotonic()
        on_terminal = sys.stderr.isatty()
        if now < self._next_line:
            return
        self._next_line = now + STATUS_SECONDS[on_terminal]
        line = one_line(self.live.status(), self.workspace.journal.counts(), f"{self.stream.name}: {source}")
        if on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def say_end(self) -> None:
        state = self.stream.state()
        line = one_line(
            self.live.status(), self.workspace.journal.counts(), f"{self.stream.name}: {state.message}"
        )
        print(("\n" if sys.stderr.isatty() else "") + line)
        for problem in self.live.problems:
            print(f"edge_hpcr: {problem}", file=sys.stderr)
        if state.bad:
            print(
                f"edge_hpcr: {state.bad} bad files or frames; see {self.workspace.layout.quarantine}",
                file=sys.stderr,
            )
