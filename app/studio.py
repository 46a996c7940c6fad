"""The state of the app: the workspace that is open with everything that runs in it, for as long as somebody tries the
demonstration a second one, which of them the pages show, and what they show of it.

Every method may be called from any thread, and raises a `UserError` for bad input.
"""

from __future__ import annotations

import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from app.bench_runs import BenchRuns
from app.imports import Imports
from app.page_feeder import PageFeeder, answer_state
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import natural_order
from edge_hpcr.learner.learner import resolve_device
from edge_hpcr.live.accuracy import ClassHealth, Verdict, health, verdict
from edge_hpcr.live.live_learner import Learned, LiveLearner
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.stream import DEMONSTRATION
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import LAST_USED
from edge_hpcr.workspace.records import ClassRow
from edge_hpcr.workspace.settings import Settings
from edge_hpcr.workspace.transfer import folder_of
from edge_hpcr.workspace.workspace import Workspace
from export.publish.publish import Publisher
from export.publish.versions import latest_version

T = TypeVar("T")
STATE_SECONDS = 0.1  # pages ask several times a second, each of them; the answer is made once
LEARNED_SHOWN = 12
PATIENCE = 30.0  # seconds for the learner to end its step, or for an action to end
LONGEST_NAME = 80
DEMONSTRATION_BYTES = 200_000_000  # of images, on a disk that may be small
# What a demonstration learns like the person's own workspace.
TAKEN_OVER = ("backbone", "image_size", "method", "device", "threads", "idle_share", "idle_steps")


# The classes as pages show them ---------------------------------------------------------------------------------------

# People who are colour-blind tell the first ones apart. Each has a contrast of 3:1 or more
# to the page, light and dark, as signs that carry meaning should (a name or a key is always beside it); a test computes it.
COLOURS = (
    *("#1e78c8", "#b86e00", "#008a64", "#b8568c", "#8f80dd", "#c34b1e", "#84843c", "#3f8dbd"),
    *("#e11e5a", "#9659d0", "#96693c", "#5a9078", "#ac7d8e", "#d000b4", "#db720a", "#cc5fbd"),
    *("#5678a0", "#f53d7c", "#6d7b00", "#b060ff", "#00858f", "#8f7a6a", "#ff003c", "#5f73ee"),
)


def colour_of(class_id: int, chosen: str | None) -> str:
    """The one that was given to it, or the next of the palette: ids are never used again, so neighbours differ.

    >>> colour_of(1, None), colour_of(1, "#123456")
    ('#1e78c8', '#123456')
    """
    return chosen or COLOURS[(class_id - 1) % len(COLOURS)]


class ChangingClasses:
    """Follows the classes of a journal, which any process may change. Any thread may ask, but not within a transaction.

    A version is the last event that was looked at, behind a name of this look: a page that knows another name gets
    everything, since the same event may mean something else, or classes have ended since.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._journal = workspace.journal
        self._lock = threading.Lock()
        self._name = secrets.token_hex(4)
        self._seq = -1
        self._rows: dict[int, tuple[ClassRow, int]] = {}  # each with the event at which its change was seen

    def names(self) -> dict[int, str]:
        return {row.id: row.name for row in self.rows()}

    def rows(self) -> list[ClassRow]:
        with self._lock:
            return [row for row, _ in self._look().values()]

    def since(self, version: str) -> dict[str, Any]:
        """What a page that has this version needs: changed and new classes, and whether those are all."""
        with self._lock:
            rows = self._look()
            name, _, text = version.partition("-")
            known = int(text) if name == self._name and re.fullmatch("[0-9]{1,18}", text) else -1
            changed = [row for row, seen in rows.values() if seen > known]
            return {
                "version": f"{self._name}-{self._seq}",
                "whole": known < 0,
                "classes": [{**row._asdict(), "colour": colour_of(row.id, row.colour)} for row in changed],
            }

    def _look(self) -> dict[int, tuple[ClassRow, int]]:
        """Everything else of a class is said by events: without a new one, nothing has changed."""
        seq = self._journal.last_seq
        if seq != self._seq:
            rows = {row.id: row for row in self._journal.classes()}
            if self._rows.keys() - rows.keys():
                self._name = secrets.token_hex(4)
            before = self._rows
            self._rows = {
                class_id: before[class_id]
                if class_id in before and before[class_id][0] == row
                else (row, seq)
                for class_id, row in rows.items()
            }
            self._seq = seq
        return self._rows


# Workspaces -----------------------------------------------------------------------------------------------------------


class Room:
    """A workspace with everything that runs in it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.journal = workspace, workspace.journal
        self.name = f"{workspace.path.name}-{secrets.token_hex(4)}"  # by which a page that shows another is told apart
        self.live = LiveLearner(workspace)
        self.feeder = PageFeeder(workspace, self.live)
        self.imports = Imports(workspace, self.live)
        self.classes = ChangingClasses(workspace)
        self.runs = BenchRuns(workspace.layout.benchmarks)
        self.publisher = Publisher(self.live)

    def start(self) -> None:
        """Begin to learn and to publish, with the source of the last time. Until somebody has chosen one, none runs."""
        self.live.start()
        self.feeder.start()
        settings = self.workspace.settings
        if settings.source:
            self.feeder.resume(settings.source, settings.source_labels)
        self.publisher.start()

    def stop(self) -> int:
        """Save, end and let go of the workspace; returns how many labels of the source could not be stored."""
        with ExitStack() as ending:
            for end in (self.workspace.close, self.live.stop, self.imports.stop):
                ending.callback(end)
            self.publisher.stop()
            self.runs.stop()
            return self.feeder.stop()


class Demonstration(Room):
    """Parts on a workbench, in a workspace that is gone afterwards."""

    def __init__(self, own: Settings) -> None:
        with ExitStack() as undone:
            prefix = "edge-hpcr-demonstration-"
            folder = undone.enter_context(
                tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            )
            workspace = undone.enter_context(Workspace.open(Path(folder) / "workspace"))
            taken_over = {name: getattr(own, name) for name in TAKEN_OVER}
            workspace.change_settings(disk_bytes=DEMONSTRATION_BYTES, **taken_over)
            super().__init__(workspace)
            self._folder = undone.pop_all()

    def start(self) -> None:
        super().start()
        self.feeder.resume(DEMONSTRATION, "none")

    def stop(self) -> int:
        with self._folder:
            super().stop()
        return 0  # nothing of it is meant to stay


class Studio:
    """What all pages share."""

    def __init__(self, workspace: Workspace) -> None:
        self.own = self.room = Room(workspace)  # the person's, and the one that pages show
        self.own.name = "own"  # also after a restart: pages go on as they are
        self.opened: Callable[[Path], None] = lambda path: None  # told of another workspace
        self._acting = threading.RLock()
        self._stating = threading.Lock()
        self._stated_at = 0.0
        self._state: dict[str, Any] = {}
        self._stated_of: dict[str, Any] = {}  # the learner's report that it was made of

    def start(self) -> None:
        self.own.start()

    def stop(self) -> int:
        """End; returns how many labels of the source could not be stored."""
        self.leave_demonstration()
        return self.own.stop()

    @property
    def workspace(self) -> Workspace:
        return self.room.workspace

    @property
    def journal(self) -> Journal:
        return self.room.journal

    @property
    def live(self) -> LiveLearner:
        return self.room.live

    @property
    def feeder(self) -> PageFeeder:
        return self.room.feeder

    @property
    def imports(self) -> Imports:
        return self.room.imports

    @property
    def runs(self) -> BenchRuns:
        return self.own.runs

    # Which workspace the pages show -----------------------------------------------------------------------------------

    @contextmanager
    def acting(self, room: str = "") -> Iterator[None]:
        """
        Actions come one after the other: an undo must not overtake the label whose images are still on their way to
        disk, and no other workspace is opened meanwhile. Refused is what a page asks that still shows another room.
        """
        if not self._acting.acquire(timeout=PATIENCE):
            raise UserError("something is still under way here: try again in a moment")
        try:
            self.check_room(room)
            yield
        finally:
            self._acting.release()

    def check_room(self, name: str) -> None:
        """Refuse what a page asks that still shows another room: its numbers mean something else there."""
        if name and name != self.room.name:
            raise UserError("this page has just changed to another workspace: look again")

    @property
    def demonstrates(self) -> bool:
        return self.room is not self.own

    def demonstrate(self) -> None:
        """Show everybody the demonstration, in a workspace of its own; the own one goes on unseen."""
        with self.acting():
            if not self.demonstrates:
                room = Demonstration(self.own.workspace.settings)
                room.start()
                self._show(room)

    def leave_demonstration(self) -> None:
        """Back to the own workspace; the demonstration's is gone."""
        with self.acting():
            if (room := self.room) is not self.own:
                self._show(self.own)
                room.stop()

    def _show(self, room: Room) -> None:
        with self._stating:
            self.room, self._stated_at = room, 0.0

    def workspaces(self) -> dict[str, Any]:
        """The workspaces in the folder of the open one."""
        path, layout = self.own.workspace.path.resolve(), self.own.workspace.layout
        found = {each.parent.name for each in path.parent.glob(f"*/{layout.journal.name}")}
        return {"folder": str(path.parent), "open": path.name, "names": sorted(found, key=natural_order)}

    def open_workspace(self, name: str) -> int:
        """Go on in another workspace of the same folder, or in a new one of this name; if that cannot be opened, nothing
        has changed.

        Returns how many labels of the source before could not be stored.
        """
        path = self.own.workspace.path.resolve().parent / name
        if name not in self.workspaces()["names"]:
            if not name or len(name) > LONGEST_NAME or folder_of(name) != name:
                raise UserError(f"{name[:LONGEST_NAME]!r}: give a name that a folder can have, like parts-2")
            if path.exists():
                raise UserError(f"{path} is no workspace: choose another name")
        with self.acting(), ExitStack() as failed:
            if path == self.own.workspace.path.resolve():
                raise UserError(f"{name} is open already")
            self.own.imports.refuse_while_busy()
            workspace = failed.enter_context(Workspace.open(path))
            room = Room(workspace)
            failed.callback(room.stop)
            room.start()
            self.leave_demonstration()
            before, self.own = self.own, room
            self._show(room)
            failed.pop_all()
            self.opened(path)
            with suppress(OSError):  # a folder that cannot be written: the next start asks for nothing else
                (path.parent / LAST_USED).write_text(f"{path.name}\n", encoding="utf-8")
            return before.stop()

    # Settings, and what happens between two steps ---------------------------------------------------------------------

    def between_steps(self, look: Callable[[], T]) -> T:
        """Run something short in the learning thread, which alone may look into the learner, and wait for it."""
        asked = self.live.call(look)
        try:
            return asked.result(timeout=PATIENCE)
        except TimeoutError as error:
            asked.cancel()  # it must not happen after the refusal
            raise UserError("the learner is busy with a long step: try again in a moment") from error

    def change_settings(self, **changes: object) -> Settings:
        """Change settings and keep them; some take effect at the next start only."""
        if "device" in changes:
            resolve_device(str(changes["device"]))  # refused now, and not at the next start
        if {"backbone", "image_size", "method"} & changes.keys():
            # In the learning thread: no label can come in between.
            settings = self.between_steps(lambda: self.live.change_settings(**changes))
        else:
            settings = self.workspace.change_settings(**changes)
        if "unknown_share" in changes:
            self.between_steps(self.live.self_test.recalibrate)
        return settings

    # What the pages show ----------------------------------------------------------------------------------------------

    def state(self, fresh: bool = False, since: str = "") -> dict[str, Any]:
        """As of a tenth of a second ago at most, and never older than the learner's last report, which follows whatever
        a person has changed; cheap however many pages ask, and however many classes there are.

        `since` is the version of the classes that a page has: it gets those that have changed.
        """
        with self._stating:
            status = self.live.status()
            old = status is not self._stated_of or time.monotonic() - self._stated_at > STATE_SECONDS
            if fresh or old:
                self._state, self._stated_of = self._make_state(status), status
                self._stated_at = time.monotonic()
            return {**self._state, **self.room.classes.since(since)}

    def _make_state(self, status: dict[str, Any]) -> dict[str, Any]:
        counts, progress = self.journal.counts(), self.live.progress
        share, measured = (status["held_out"][name] for name in ("accuracy", "samples"))
        return {
            "room": self.room.name,
            "demonstration": self.demonstrates,
            "workspace": self.own.workspace.path.resolve().name,
            "phase": self.live.phase,
            "progress": None if progress is None else round(progress, 2),
            "verdict": asdict(self.verdict(status)),
            "step": status["step"],
            "labels": counts.labels,
            "waiting": status["labels_waiting"],
            "queue": counts.queued,
            "memory": {"used": status["memory"]["bytes"]["total"], "budget": status["memory"]["budget"]},
            "held_out": {"accuracy": share, "samples": measured, "text": accuracy_text(share, measured)},
            "model": latest_version(self.own.workspace.layout.exports),
            "source": self.feeder.source_state(),
            "frame": self.feeder.frame_state(),
            "learned": [_learned_state(reply) for reply in list(self.live.recent)[-LEARNED_SHOWN:]],
            "alarms": [alarm.text for alarm in self.live.alarms()],
            "problems": list(self.live.problems),
            "import": self.imports.state(),
            "seq": self.journal.last_seq,
        }

    def reasons_not_ready(self) -> list[str]:
        """Why nobody should rely on this page now; asked rarely, since it writes to the disk."""
        reasons = [alarm.text for alarm in self.own.live.alarms() if alarm.stops]
        try:
            self.own.journal.check_writable()
        except UserError as error:
            reasons.append(str(error))
        self.state()  # which all pages wait for
        return reasons

    def verdict(self, status: dict[str, Any] | None = None) -> Verdict:
        """Is it any good? Of the learner's present report, or of this one."""
        measured = (status or self.live.status())["held_out"]
        return verdict(
            self.room.classes.rows(),
            measured["confusion"],
            self.live.calibrates,
            measured["one_place"],
            self.live.self_test.seconds_left,
        )

    def health(self) -> list[ClassHealth]:
        """How each class is doing."""
        return health(self.room.classes.rows(), self.live.status()["held_out"]["confusion"])


def _learned_state(reply: Learned) -> dict[str, Any]:
    return {
        "seq": reply.seq,
        "sample": reply.sample_id,
        "class": reply.class_id,
        "before": answer_state(reply.before),
        "after": answer_state(reply.after),
        "held_out": reply.held_out,
        "seconds": round(reply.seconds, 3),
    }
