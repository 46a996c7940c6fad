"""One run of `learn`: a source feeds a workspace's learner until it ends or somebody stops it."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.health import TROUBLE
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.status import one_line
from edge_hpcr.stream import Rules, Stream, open_stream
from edge_hpcr.workspace.folder import Workspace

STATUS_SECONDS = {True: 0.5, False: 10.0}  # on a terminal, and in a log


def learn(
    path: Path,
    source: str,
    *,
    labels: str = "none",
    fps: float | None = None,
    seconds: float | None = None,
    changes: Mapping[str, Any] | None = None,
    rehearse: bool = True,
    rules: Rules | None = None,
    beside: Callable[[LiveLearner], AbstractContextManager[None]] | None = None,
    stays: bool = False,
) -> int:
    """Learn in a workspace from a source, with these changes of its settings; returns the exit code.

    `beside` is entered while the learner runs. With `stays` the end of the source is not the end.
    """
    opened: list[Workspace] = []
    early: list[tuple[Path, str]] = []  # bad files that the stream found before the workspace was open

    def note_bad_file(bad: Path, reason: str) -> None:
        if opened:
            opened[0].quarantine(bad, reason)
        else:
            early.append((bad, reason))

    with (
        # The source first: a wrong one must not leave a new workspace behind.
        open_stream(source, labels, note_bad_file, fps, rules) as stream,
        Workspace.open(path) as workspace,
    ):
        opened.append(workspace)
        for bad, reason in early:
            workspace.quarantine(bad, reason)
        for sentence in workspace.report:
            print(f"edge_hpcr: {sentence}", file=sys.stderr)
        # Saved once the learner has accepted them: a refused one would fail every later start.
        workspace.settings = workspace.settings.replace(**(changes or {}))
        live = LiveLearner(workspace)
        if live.unable:
            raise UserError(live.unable)
        workspace.change_settings(**(changes or {}))
        live.start()
        session = Session(workspace, live, stream, seconds, labels != "none", stays)
        try:
            with beside(live) if beside else nullcontext():
                session.run(rehearse)
        finally:
            live.stop()
        session.say_end()
        return 1 if live.failed or session.unstored else 0


class Session:
    """One run of the command: frames in, a line of status out, until the source ends or somebody stops it."""

    def __init__(
        self,
        workspace: Workspace,
        live: LiveLearner,
        stream: Stream,
        seconds: float | None,
        labels: bool,
        stays: bool = False,
    ) -> None:
        self.workspace, self.live, self.stream = workspace, live, stream
        self.unstored = 0  # labels that could not be stored by the end
        self._stays = stays  # when the source has ended
        self._feeder = Feeder(workspace, live)
        self._feeder.use(stream, labels)
        self._deadline = time.monotonic() + seconds if seconds is not None else float("inf")
        self._asked_to_stop = False
        self._next_line = 0.0
        self._trouble = ""  # of the source, as it was said last

    def run(self, rehearse: bool) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask_to_stop)
        while not self._stops and not self._feeder.ended:
            self._say(self.stream.state().message)
            self._feeder.turn(STATUS_SECONDS[True])
        while self._feeder.ended and not self._stops:
            self._feeder.finish()
            if not self.live.wait_until_caught_up(STATUS_SECONDS[True]):
                self._say("source has ended")
                continue
            self.live.hurries = not self._stays
            if not rehearse or not (self.live.idle_steps_left or self.live.calibrates):
                if not self._stays:
                    break
                self._say("source has ended")
                self._feeder.turn(STATUS_SECONDS[True])
                continue
            self._say(f"source has ended, rehearsing {self.live.idle_steps_left} more steps")
            time.sleep(STATUS_SECONDS[True])
        self.unstored = self._feeder.finish()

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
        if on_terminal:
            self._say_trouble()
        if on_terminal:
            # Of stderr, as stdout may be a file; some terminals say 0.
            width = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
            print(f"\r{self._line(source, width):<{width}}", end="", file=sys.stderr, flush=True)
        else:
            print(self._line(source), file=sys.stderr, flush=True)

    def _say_trouble(self) -> None:
        """Why the source shows nothing, in full on a line of its own: a line of status ends where the terminal does."""
        state = self.stream.state()
        trouble = (
            re.sub(r",? (next try|trying|for \d).*", "", state.message) if state.phase in TROUBLE else ""
        )
        if trouble and trouble != self._trouble:
            print(f"\r\033[K{self.stream.name}: {trouble}{_hint(self.stream.name)}", file=sys.stderr)
        self._trouble = trouble or self._trouble  # the same again is not said again

    def _line(self, source: str, width: int | None = None) -> str:
        return one_line(self.live.status(), self.workspace.journal.counts(), self.stream, source, width)

    def say_end(self) -> None:
        state = self.stream.state()
        print(("\n" if sys.stderr.isatty() else "") + self._line(state.message))
        said = list(self.live.problems)
        if self.unstored:
            said.append(
                f"{many(self.unstored, 'label')} could not be stored: make room, and start the same command again"
            )
        if state.bad:
            said.append(f"{state.bad} bad files or frames; see {self.workspace.layout.quarantine}")
        for sentence in said:
            print(f"edge_hpcr: {sentence}", file=sys.stderr)


def _hint(source: str) -> str:
    """What is missing, if that can be seen: drivers only say that a camera cannot be opened."""
    number = source.removeprefix("camera ")
    if sys.platform != "linux" or not number.isdecimal() or Path(f"/dev/video{number}").exists():
        return ""
    return f": there is no /dev/video{number}; connect a camera, or name a folder, a video or an address"
