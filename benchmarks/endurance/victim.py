"""The process that faults happen to: it labels, learns and saves as fast as it can, and reports what was acknowledged.

`python -m benchmarks.endurance.victim DESCRIPTOR PHASES` imports everything once, computes nothing, and forks one such
process for each order that it reads: so a fault costs no import, and no thread is lost in a fork.
"""

import json
import logging
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.endurance import intake
from benchmarks.endurance.trouble import full_disk, lose_overrides, read_only
from edge_hpcr.common.errors import UserError
from edge_hpcr.live import checkpoints, saving
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.teaching import Teaching
from edge_hpcr.workspace.folder import Taken, Workspace

Message = dict[str, Any]
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
SIDE = 8
RECENT = 5000  # ids, of which every restart skips a block: people mostly look at what came lately
FAR_BEHIND = 25  # events; then the labels wait for the learner, or it would never catch up
ACTIONS_BETWEEN_LOOKS = 5  # into the learner's memory
CATCH_UP_SECONDS = 240.0
LIFE_SECONDS = 600  # of one that ends by itself: longer, and it hangs
TROUBLES = {"full disk": full_disk, "read-only": read_only}


class Phases:
    """What two threads are doing, a byte each, in memory that outlives the process."""

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
        """Put the learning thread into this phase whenever it runs that function, from now on."""
        original: Callable[..., Any] = getattr(owner, function)

        def watched(*arguments: Any, **named: Any) -> Any:
            before = self.of(LEARNING)
            self.set(LEARNING, name)
            try:
                return original(*arguments, **named)
            finally:
                self.set(LEARNING, before)

        setattr(owner, function, watched)


class Actor:
    """Does what people do, at random, and reports every action after it was acknowledged."""

    def __init__(
        self, workspace: Workspace, rng: np.random.Generator, send: Callable[[Message], None], phases: Phases
    ) -> None:
        self.workspace, self.journal = workspace, workspace.journal
        self.rng, self.send, self.phases = rng, send, phases
        self.refused = 0  # by the disk, say: nothing was acknowledged
        self._newest = self.journal.reserve_ids(1)[0]
        self._ways: list[tuple[float, str, Callable[[], Message | None]]] = [
            (8, "taking images", self.take),
            (6, "labelling", lambda: self.label("queued", 1, 1)),
            (4, "labelling", lambda: self.label("queued", 2, 6)),
            (2, "labelling", lambda: self.label("labelled", 1, 2)),
            (1, "labelling", lambda: self.remove("dismiss")),
            (1, "labelling", lambda: self.remove("delete")),
            (2, "labelling", lambda: self.turn_back("undo")),
            (1, "labelling", lambda: self.turn_back("redo")),
            (2, "changing classes", self.create_one_of_few),
            (1, "changing classes", self.rename_class),
            (0.5, "changing classes", self.merge_classes),
            (0.5, "changing classes", self.delete_class),
        ]

    def act(self) -> None:
        weights = np.array([weight for weight, _, _ in self._ways])
        _, phase, way = self._ways[self.rng.choice(len(self._ways), p=weights / weights.sum())]
        self.phases.set(ACTING, phase)
        try:
            message = way()
        except UserError:
            message = None  # nothing to undo, say: refused, so nothing was acknowledged
            self.refused += 1
        self.phases.set(ACTING, "waiting")
        if message is not None:
            self.send(message)

    def take(self) -> Message | None:
        settings, counts = self.workspace.settings, self.journal.counts()
        count = int(self.rng.integers(1, 7))
        # As a feeder would: what finds no room is not taken.
        if counts.queued + count > settings.queue_samples or counts.image_bytes >= settings.disk_bytes:
            return None
        images = self.rng.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
        marks = [f"frame {self.rng.integers(2**62)}" for _ in range(count)]
        ids = self.workspace.take_many([Taken(*pair) for pair in zip(images, marks, strict=True)])
        self._newest = ids[-1]
        return {"kind": "take", "ids": ids}

    def label(self, state: str, least: int, most: int) -> Message | None:
        ids, class_id = self._some(state, int(self.rng.integers(least, most + 1))), self._class()
        if not ids or class_id is None:
            return None
        event = self.journal.label(ids, class_id)
        return {"kind": "label", "ids": ids, "class": class_id} if event.moves else None

    def remove(self, kind: str) -> Message | None:
        ids = self._some("queued" if kind == "dismiss" else "labelled", 1)
        if not ids:
            return None
        (self.journal.dismiss if kind == "dismiss" else self.journal.delete_samples)(ids)
        return {"kind": kind, "ids": ids}

    def turn_back(self, kind: str) -> Message:
        event = self.journal.undo() if kind == "undo" else self.journal.redo()
        return {"kind": kind, "lost": event.lost}

    def create_one_of_few(self) -> Message | None:
        return self.create_class() if len(self.journal.classes()) < 5 else None

    def create_class(self) -> Message:
        name = self._name()
        return {"kind": "create_class", "class": self.journal.create_class(name), "name": name}

    def rename_class(self) -> Message | None:
        class_id, name = self._class(), self._name()
        if class_id is None:
            return None
        self.journal.rename_class(class_id, name)
        return {"kind": "rename_class", "class": class_id, "name": name}

    def merge_classes(self) -> Message | None:
        classes = [row.id for row in self.journal.classes()]
        if len(classes) < 3:
            return None
        source, into = (int(c) for c in self.rng.choice(classes, 2, replace=False))
        self.journal.merge_classes(source, into)
        return {"kind": "merge_classes", "class": source, "into": into}

    def delete_class(self) -> Message | None:
        class_id = self._class()
        if class_id is None or len(self.journal.classes()) < 3:
            return None
        self.journal.delete_class(class_id)
        return {"kind": "delete_class", "class": class_id}

    def _name(self) -> str:
        return f"class {self.rng.integers(2**62)}"

    def _class(self) -> int | None:
        classes = [row.id for row in self.journal.classes()]
        return int(self.rng.choice(classes)) if classes else None

    def _some(self, state: str, count: int) -> list[int]:
        rows = self.journal.samples(state=state, after_id=self._newest - RECENT)
        return [rows[place].id for place in self.rng.permutation(len(rows))[:count]]


def live_until_killed(order: Message, phases: Phases, send: Callable[[Message], None]) -> None:
    """Open, learn and act until the kill comes."""
    if order["clock_back"]:
        clock = time.time
        time.time = lambda: clock() - order["clock_back"]  # as the whole program asks for it
    with _alive(order, phases, send) as (live, actor):
        while not live.failed:
            live.call(lambda: send(_held(live)))
            for _ in range(ACTIONS_BETWEEN_LOOKS):
                actor.act()
                live.notify()
                while actor.journal.last_seq - live.follower.applied > FAR_BEHIND and not live.failed:
                    live.wait_until_caught_up(0.01)
        raise UserError(f"the learner failed: {list(live.problems)}")


def live_and_save(order: Message, phases: Phases, send: Callable[[Message], None]) -> None:
    """Open, act a little, during some trouble perhaps, learn what is left, save and end; or say why it cannot open."""
    if "read-only" in order.get("troubles", []):
        lose_overrides()  # before there are threads: each has its own rights
    try:
        with _alive(order, phases, send) as (live, actor):
            send(actor.create_class())  # so that there is something to save, and room is made
            rng, folder = actor.rng, Path(order["folder"])
            for trouble in order.get("troubles", []):
                before = actor.refused
                with TROUBLES[trouble](folder, rng):
                    for _ in range(order["actions"]):
                        actor.act()
                        live.notify()
                send({"kind": "refusals", "of": trouble, "times": actor.refused - before})
            for _ in range(order["actions"]):
                actor.act()
            if not live.wait_until_caught_up(CATCH_UP_SECONDS):
                raise RuntimeError(f"not caught up within {CATCH_UP_SECONDS:.0f} s: {list(live.problems)}")
            send(live.call(lambda: _held(live)).result())
    except UserError as error:
        send({"kind": "refused", "why": str(error)})


@contextmanager
def _alive(
    order: Message, phases: Phases, send: Callable[[Message], None]
) -> Iterator[tuple[LiveLearner, Actor]]:
    phases.set(ACTING, "opening")
    with Workspace.open(order["folder"]) as workspace:
        live = LiveLearner(workspace)
        send({"kind": "opened", "problems": list(live.problems), "applied": live.follower.applied})
        live.start()
        actor = Actor(workspace, np.random.default_rng(order["seed"]), send, phases)
        phases.set(ACTING, "waiting")
        try:
            yield live, actor
        finally:
            live.stop()


LIVES: dict[str, Callable[[Message, Phases, Callable[[Message], None]], None]] = {
    "killed": live_until_killed,
    "saved": live_and_save,
    "sources": lambda order, _, send: intake.change_sources(order, send),
    "clients": lambda order, _, send: intake.serve_slow_clients(order, send),
}


def _held(live: LiveLearner) -> Message:
    """What the learner knows, asked between two of its steps."""
    memory, class_ids = live.learner.memory, live.learner.class_ids
    held = memory.at(np.arange(len(memory)))
    return {
        "kind": "memory",
        "applied": live.follower.applied,
        "whole": live.follower.whole,  # otherwise it has learned a part of the event behind it, too
        "ids": held.ids.tolist(),
        "classes": [class_ids[column] for column in held.labels],
    }


# The process that forks -----------------------------------------------------------------------------------------------


def main() -> None:
    descriptor, phases = int(sys.argv[1]), Phases(Path(sys.argv[2]))
    for owner, function, name in (
        (checkpoints, "save", "checkpoint"),
        (saving, "backup_journal", "journal backup"),
        (checkpoints, "prune", "removing checkpoints"),
        (Workspace, "forget_images", "dropping images"),
        (Teaching, "_teach", "learning"),
        (LiveLearner, "_rehearse", "learning"),
    ):
        phases.watch(owner, function, name)
    logging.disable(logging.ERROR)  # corrected samples often have no image any more here, and clients hang up
    torch.set_num_threads(1)
    print("ready", flush=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        dies = order["life"] == "killed"
        phases.clear()
        child = os.fork()
        if child == 0:
            _live(order, phases, descriptor)
        try:
            if dies and sys.stdin.readline() != '"kill"\n':
                break
        finally:
            if dies:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _live(order: Message, phases: Phases, descriptor: int) -> None:
    """Never returns: what was inherited from the process that forked must not be used, nor cleaned up."""

    def send(message: Message) -> None:
        # One write of less than a page: the other side gets all of it or nothing.
        os.write(descriptor, json.dumps(message).encode() + b"\n")

    code = 1
    try:
        signal.alarm(LIFE_SECONDS)
        LIVES[order["life"]](order, phases, send)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
