"""`python -m edge_hpcr learn`: a workspace that learns from a source, without a screen."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import parse_bytes, parse_setting
from edge_hpcr.live.status import one_line
from edge_hpcr.stream import KINDS, LABELS, EndOfStream, Stream, open_stream
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
    bad_files = _BadFiles()
    with (
        # The source first: a wrong one must not leave a new workspace behind.
        open_stream(arguments.source, arguments.labels, bad_files, arguments.fps) as stream,
        Workspace.open(arguments.workspace) as workspace,
    ):
        bad_files.belong_to(workspace)
        for sentence in workspace.report:
            print(f"edge_hpcr: {sentence}", file=sys.stderr)
        # Kept once the learner has accepted them: a refused one would stand in the way of every later start.
        workspace.settings = workspace.settings.replace(**changes)
        live = LiveLearner(workspace)
        workspace.change_settings(**changes)
        live.start()
        session = Session(workspace, live, stream, arguments.seconds)
        try:
            session.run(rehearse=not arguments.no_rehearsal)
        finally:
            live.stop()
        session.say_end()
        return 1 if live.failed else 0


class _BadFiles:
    """Told of bad files by a stream that may have begun before its workspace was opened."""

    def __init__(self) -> None:
        self._workspace: Workspace | None = None
        self._waiting: list[tuple[Path, str]] = []

    def belong_to(self, workspace: Workspace) -> None:
        self._workspace = workspace
        for path, reason in self._waiting:
            workspace.quarantine(path, reason)

    def __call__(self, path: Path, reason: str) -> None:
        if self._workspace is None:
            self._waiting.append((path, reason))
        else:
            self._workspace.quarantine(path, reason)


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
        self.intake = Intake(workspace, live, source_waits=not stream.live)
        live.stream = stream
        self._deadline = time.monotonic() + seconds if seconds is not None else float("inf")
        self._asked_to_stop = False
        self._next_line = 0.0

    def run(self, rehearse: bool) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask_to_stop)
        ended = self._feed()
        self._keep(self.intake.close)
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
                self._keep(self.intake.flush)
                self.live.wait_until_caught_up(STATUS_SECONDS[True])
                continue
            try:
                frame = self.stream.read(timeout=STATUS_SECONDS[True])
            except EndOfStream:
                return True
            if frame is None:
                self._keep(self.intake.flush)  # labels that no further frame would carry along
            elif not self._keep(partial(self.intake.take, frame)):
                time.sleep(STATUS_SECONDS[True])
            self.intake.count_dropped(self.stream.state().dropped)
        return False

    def _keep(self, work: Callable[[], object]) -> bool:
        """A disk that is full for an hour must not end a run of months."""
        try:
            work()
        except UserError as error:
            self.live.report(str(error))
            return False
        return True

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
        dropped = self.stream.state().dropped
        source = f"{self.stream.name}: {source}{f', {dropped:,} dropped' if dropped else ''}"
        line = one_line(self.live.status(), self.workspace.journal.counts(), source)
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
