"""The process that is killed: it labels, learns and saves as fast as it can, and tells what was acknowledged.

`python -m benchmarks.endurance.victim WORKSPACE DESCRIPTOR PHASES` imports everything once, computes nothing, and forks
one such process for each order that it reads: so a round costs no import, and no thread is lost in a fork.
"""

import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.endurance.phases import ACTING, Phases
from edge_hpcr.common.errors import UserError
from edge_hpcr.live import checkpoints, saving
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.teaching import Teaching
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.records import SampleRow

Told = dict[str, Any]
SIDE = 8
RECENT = 5000  # ids, of which every restart skips a block: people mostly look at what came lately
FAR_BEHIND = 25  # events; then the labels wait for the learner, or it would never catch up
ACTIONS_BETWEEN_LOOKS = 5  # into the learner's memory
CATCH_UP_SECONDS = 60.0


class Teller:
    """Tells the process that watches, through a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, told: Told) -> None:
        # One write of less than a page: the other side gets all of it or nothing.
        os.write(self._descriptor, json.dumps(told).encode() + b"\n")


class Actor:
    """Does what people do, at random, and tells of every action after it was acknowledged."""

    def __init__(
        self, workspace: Workspace, rng: np.random.Generator, tell: Callable[[Told], None], phases: Phases
    ) -> None:
        self.workspace, self.journal = workspace, workspace.journal
        self.rng, self.tell, self.phases = rng, tell, phases
        self._newest = self.journal.reserve_ids(1)[0]
        self._ways: list[tuple[float, str, Callable[[], Told | None]]] = [
            (8, "taking images", self.take),
            (6, "labelling", self.label),
            (4, "labelling", self.label_burst),
            (2, "labelling", self.correct),
            (1, "labelling", self.dismiss),
            (1, "labelling", self.delete),
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
            told = way()
        except UserError:
            told = None  # nothing to undo, say: refused, so nothing was acknowledged
        self.phases.set(ACTING, "waiting")
        if told is not None:
            self.tell(told)

    def take(self) -> Told | None:
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

    def label(self) -> Told | None:
        return self._label(self._some("queued", 1))

    def label_burst(self) -> Told | None:
        return self._label(self._some("queued", int(self.rng.integers(2, 7))))

    def correct(self) -> Told | None:
        return self._label(self._some("labelled", int(self.rng.integers(1, 3))))

    def _label(self, samples: list[SampleRow]) -> Told | None:
        class_id = self._class()
        if not samples or class_id is None:
            return None
        ids = [row.id for row in samples]
        event = self.journal.label(ids, class_id)
        return {"kind": "label", "ids": ids, "class": class_id} if event.moves else None

    def dismiss(self) -> Told | None:
        ids = [row.id for row in self._some("queued", 1)]
        if not ids:
            return None
        self.journal.dismiss(ids)
        return {"kind": "dismiss", "ids": ids}

    def delete(self) -> Told | None:
        ids = [row.id for row in self._some("labelled", 1)]
        if not ids:
            return None
        self.journal.delete_samples(ids)
        return {"kind": "delete", "ids": ids}

    def turn_back(self, kind: str) -> Told:
        event = self.journal.undo() if kind == "undo" else self.journal.redo()
        return {"kind": kind, "lost": event.lost}

    def create_one_of_few(self) -> Told | None:
        return self.create_class() if len(self.journal.classes()) < 5 else None

    def create_class(self) -> Told:
        name = self._name()
        return {"kind": "create_class", "class": self.journal.create_class(name), "name": name}

    def rename_class(self) -> Told | None:
        class_id, name = self._class(), self._name()
        if class_id is None:
            return None
        self.journal.rename_class(class_id, name)
        return {"kind": "rename_class", "class": class_id, "name": name}

    def merge_classes(self) -> Told | None:
        classes = [row.id for row in self.journal.classes()]
        if len(classes) < 3:
            return None
        source, into = (int(c) for c in self.rng.choice(classes, 2, replace=False))
        self.journal.merge_classes(source, into)
        return {"kind": "merge_classes", "class": source, "into": into}

    def delete_class(self) -> Told | None:
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

    def _some(self, state: str, count: int) -> list[SampleRow]:
        rows = self.journal.samples(state=state, after_id=self._newest - RECENT)
        return [rows[place] for place in self.rng.permutation(len(rows))[:count]]


def live_until_killed(folder: Path, seed: list[int], settle: bool, tell: Callable[[Told], None]) -> None:
    """Open, learn and act until the end comes; or, to settle, learn what is left, save and end in peace."""
    phases = PHASES[0]
    phases.set(ACTING, "opening")
    workspace = Workspace.open(folder)
    live = LiveLearner(workspace)
    tell({"kind": "opened", "problems": list(live.problems), "applied": live.follower.applied})
    live.start()
    actor = Actor(workspace, np.random.default_rng(seed), tell, phases)
    phases.set(ACTING, "waiting")
    if settle:
        tell(actor.create_class())  # so that there is something to save, and room is made
        if not live.wait_until_caught_up(CATCH_UP_SECONDS):
            raise UserError(f"not caught up within {CATCH_UP_SECONDS:.0f} s: {list(live.problems)}")
        tell(live.call(lambda: _held(live)).result())
        live.stop()
        workspace.close()
        return
    while not live.failed:
        live.call(lambda: tell(_held(live)))
        for _ in range(ACTIONS_BETWEEN_LOOKS):
            actor.act()
            live.notify()
            while workspace.journal.last_seq - live.follower.applied > FAR_BEHIND and not live.failed:
                live.wait_until_caught_up(0.01)
    raise UserError(f"the learner failed: {list(live.problems)}")


def _held(live: LiveLearner) -> Told:
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

PHASES: list[Phases] = []  # the one of this process; set once by `main`


def main() -> None:
    folder, descriptor, phases = Path(sys.argv[1]), int(sys.argv[2]), Phases(Path(sys.argv[3]))
    PHASES.append(phases)
    _watch(phases)
    logging.disable(logging.WARNING)  # that a corrected sample has no image any more is no news here
    torch.set_num_threads(1)
    print("ready", flush=True)
    while order := sys.stdin.readline():
        given = json.loads(order)
        phases.clear()
        child = os.fork()
        if child == 0:
            _be_killed(folder, given, descriptor)
        try:
            if not given["settle"] and sys.stdin.readline() != "kill\n":
                break
        finally:
            if not given["settle"]:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _watch(phases: Phases) -> None:
    for owner, function, name in (
        (checkpoints, "save", "checkpoint"),
        (saving, "backup_journal", "journal backup"),
        (checkpoints, "prune", "removing checkpoints"),
        (Workspace, "forget_images", "dropping images"),
        (Teaching, "_teach", "learning"),
        (LiveLearner, "_rehearse", "learning"),
    ):
        phases.watch(owner, function, name)


def _be_killed(folder: Path, order: Told, descriptor: int) -> None:
    """Never returns: what was inherited from the process that forked must not be used, nor cleaned up."""
    code = 1
    try:
        live_until_killed(
            folder,
            order["seed"],
            order["settle"],
            Teller(descriptor),
        )
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
