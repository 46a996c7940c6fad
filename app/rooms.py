"""Which workspace the pages show: the person's own, or the demonstration's; and another one opened as the own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from app.arguments import Done, Text
from app.feeder import Feeder
from app.room import Demonstration, Room
from app.sample_answers import SampleAnswers
from app.transfers import Transfers
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many, natural_order
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import Rules
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.transfer import folder_names

LONGEST_NAME = 80
PATIENCE = 30.0  # seconds for actions under way to end
ANOTHER = "another workspace is being opened: try again in a moment"


class Rooms:
    """The part of the studio that changes rooms."""

    def __init__(self, workspace: Workspace, rules: Rules | None = None) -> None:
        self._rules = rules
        self.own = self._room = Room(workspace, rules)
        self.room_name = self._own_name = "own"  # also after a restart: pages go on as they are
        self.opened: Callable[[Path], None] = lambda path: None  # told of another workspace
        # Actions one after the other: an undo must not overtake the label whose images are still on their way to disk.
        self._labelling = threading.RLock()
        self._opening = threading.Lock()
        self._gate = threading.Condition()
        self._acting, self._closed = 0, False
        self._stating = threading.Lock()
        self._stated_at = 0.0

    @property
    def workspace(self) -> Workspace:
        return self._room.workspace

    @property
    def journal(self) -> Journal:
        return self._room.journal

    @property
    def answers(self) -> SampleAnswers:
        return self._room.answers

    @property
    def live(self) -> LiveLearner:
        return self._room.live

    @property
    def feeder(self) -> Feeder:
        return self._room.feeder

    @property
    def transfers(self) -> Transfers:
        return self._room.transfers

    @property
    def demonstrates(self) -> bool:
        return self._room is not self.own

    def _replace_own_parts(self) -> Callable[[], None]:
        """Begin what belongs to the own workspace alone; returns what ends that of the one before."""
        raise NotImplementedError

    def check_room(self, name: str) -> None:
        """Refuse what a page asks that still shows the other room: its numbers mean something else there."""
        if name and name != self.room_name:
            raise UserError("this page has just changed to another workspace: look again")

    def _show_room(self, room: Room, name: str) -> None:
        with self._stating:
            self._room, self.room_name, self._stated_at = room, name, 0.0

    # The demonstration ------------------------------------------------------------------------------------------------

    def demonstrate(self) -> Done:
        """Show everybody the demonstration, in a workspace of its own; the own one goes on unseen."""
        with self._labelling:
            if not self.demonstrates:
                room = Demonstration(self.own.workspace.settings, self._rules)
                room.start()
                self._show_room(room, _new_name("demonstration"))
        return Done("the demonstration: nothing of it stays")

    def leave_demonstration(self) -> Done:
        """Back to the own workspace; the demonstration's is gone."""
        with self._labelling:
            room = self._room
            if room is not self.own:
                self._show_room(self.own, self._own_name)
                room.stop()
        return Done("back in your own workspace")

    # Other workspaces -------------------------------------------------------------------------------------------------

    def workspaces(self) -> dict[str, Any]:
        """The workspaces in the folder of the open one."""
        path = self.own.workspace.path.resolve()
        try:
            found = [each.name for each in path.parent.iterdir() if _holds_journal(each)]
        except OSError as error:
            raise UserError(f"{path.parent} cannot be read: {error.strerror}") from error
        return {"folder": str(path.parent), "open": path.name, "names": sorted(found, key=natural_order)}

    def open_workspace(self, name: Text) -> Done:
        """Go on in another workspace of the same folder; if that cannot be opened, nothing has changed."""
        if name not in self.workspaces()["names"]:
            raise UserError(f"there is no workspace {name[:LONGEST_NAME]!r} beside this one: look again")
        return self._change_to(self._beside(name))

    def new_workspace(self, name: Text) -> Done:
        """Make a workspace beside the open one, and go on there."""
        name = name.strip()
        if not name or len(name) > LONGEST_NAME or folder_names({0: name})[0] != name:
            raise UserError(f"{name[:LONGEST_NAME]!r}: give a name that a folder can have, like parts-2")
        path = self._beside(name)
        if path.exists():
            raise UserError(f"{path} exists already: choose another name, or open it")
        return self._change_to(path)

    def _beside(self, name: str) -> Path:
        return self.own.workspace.path.resolve().parent / name

    def _change_to(self, path: Path) -> Done:
        if path == self.own.workspace.path.resolve():
            raise UserError(f"{path.name} is open already")
        self.own.transfers.refuse_while_busy()
        if not self._opening.acquire(blocking=False):
            raise UserError(ANOTHER)
        try:
            with ExitStack() as failed:
                room = _open(path, self._rules)
                failed.callback(_close, room)
                with self._alone():
                    self.own.transfers.refuse_while_busy()
                    self.leave_demonstration()
                    with self._stating:
                        before, self.own, self._room = self.own, room, room
                        self.room_name = self._own_name = _new_name("own")
                        self._stated_at = 0.0
                    failed.pop_all()
                    self.opened(path)
                    end = self._replace_own_parts()
            end()
            unstored = _close(before)
        finally:
            self._opening.release()
        lost = f"; {many(unstored, 'label')} of the source before could not be stored" if unstored else ""
        return Done(f"this is {path.name} now{lost}")

    @contextmanager
    def staying(self, name: str) -> Iterator[None]:
        """While a page acts in the room of this name, no other workspace is opened: its numbers mean something else there."""
        with self._gate:
            if self._closed:
                raise UserError(ANOTHER)
            self.check_room(name)
            self._acting += 1
        try:
            yield
        finally:
            with self._gate:
                self._acting -= 1
                self._gate.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While nobody acts; who wants to meanwhile is refused."""
        with self._gate:
            self._closed = True
        try:
            with self._gate:
                if not self._gate.wait_for(lambda: not self._acting, PATIENCE):
                    raise UserError("something is still under way here: try again in a moment")
            yield
        finally:
            with self._gate:
                self._closed = False


def _holds_journal(path: Path) -> bool:
    with suppress(OSError):  # somebody else's folder
        return Layout(path).journal.exists()
    return False


def _open(path: Path, rules: Rules | None) -> Room:
    with ExitStack() as failed:
        room = Room(failed.enter_context(Workspace.open(path)), rules)
        room.start()
        failed.pop_all()
        return room


def _close(room: Room) -> int:
    """Save and let go of its workspace; how many labels of its source could not be stored."""
    try:
        return room.stop()
    finally:
        room.workspace.close()


def _new_name(kind: str) -> str:
    """Of a room, by which a page that still shows another is told apart."""
    return f"{kind}-{secrets.token_hex(4)}"
