"""What the journal's events mean for a learner: small operations, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from edge_hpcr.workspace.records import Event


@dataclass(frozen=True)
class Teach:
    """A sample to test on, and to learn unless it is held out."""

    sample_id: int
    class_id: int
    held_out: bool
    fresh: bool  # nobody has said anything of it before; otherwise the learner may know it, and it is no test
    corrected: bool  # it had another class before: the memory has been offered it already
    seq: int
    at: float


@dataclass(frozen=True)
class Relabel:
    """Only the memory's label changes (a merge, or its undoing): nobody has looked at the image again."""

    sample_id: int
    class_id: int


@dataclass(frozen=True)
class Forget:
    sample_id: int


@dataclass(frozen=True)
class Close:
    """A class is gone."""

    class_id: int


@dataclass(frozen=True)
class Done:
    """Everything of this event has been given."""

    seq: int


Operation = Teach | Relabel | Forget | Close | Done


def operations(event: Event) -> Iterable[Operation]:
    for move in event.moves:
        if move.now is None:
            yield Forget(move.sample_id)
            continue
        if move.was is not None:
            yield Relabel(move.sample_id, move.now)
        # A label says something about an image; a merge, or undoing one, only about names.
        if move.was is None or event.kind in ("label", "correct"):
            yield Teach(
                move.sample_id,
                move.now,
                move.held_out,
                fresh=event.kind == "label" and move.was is None,
                corrected=move.was is not None,
                seq=event.seq,
                at=event.at,
            )
    for class_id in event.closed:
        yield Close(class_id)
    yield Done(event.seq)


class Follower:
    """The operations that wait, and the last event of which everything was done.

    Labels of several events may share a step. `next` hands out work, `done` says that it was done: then a checkpoint
    may name `applied`, provided that no event is half done (`whole`).
    """

    def __init__(self, applied: int) -> None:
        self.applied = applied
        self.read = applied  # the last event whose operations have been put here
        self.whole = True
        self.labels_waiting = 0
        self._waiting: deque[Operation] = deque()
        self._reached = applied

    def put(self, events: Iterable[Event]) -> None:
        for event in events:
            for operation in operations(event):
                self._waiting.append(operation)
                self.labels_waiting += isinstance(operation, Teach)
            self.read = event.seq

    def next(self, most: int) -> list[Teach] | Relabel | Forget | Close | None:
        """The labels at the front, up to so many, or else the one operation there; None when nothing waits."""
        batch: list[Teach] = []
        while self._waiting and len(batch) < most:
            operation = self._waiting[0]
            if isinstance(operation, Done):
                self._pass_end()
            elif isinstance(operation, Teach):
                if any(operation.sample_id == teach.sample_id for teach in batch):
                    break  # labelled anew before the learner came to it: one after the other
                batch.append(operation)
                self._take()
                self.labels_waiting -= 1
            elif batch:
                break
            else:
                self._take()
                return operation
        if not batch:
            self.done()
        return batch or None

    def done(self) -> None:
        """What `next` gave has been done."""
        while self._waiting and isinstance(self._waiting[0], Done):
            self._pass_end()
        self.applied = self._reached

    def _take(self) -> None:
        self._waiting.popleft()
        self.whole = False

    def _pass_end(self) -> None:
        end = self._waiting.popleft()
        if isinstance(end, Done):
            self._reached = end.seq
        self.whole = True
