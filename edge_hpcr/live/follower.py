"""What the journal asks of a learner: its events as small operations, and how far they have been done."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edge_hpcr.workspace.records import Event

TOGETHER = 100  # operations that are no labels: answers follow after so many, since that takes longer than to do them


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
class Unlearn:
    """A sample no longer has the label that it was learned with."""

    sample_id: int
    was: int | None  # the class that it was learned as; None: it was held out
    now: int | None  # its class from now on; None: it has none
    taught_anew: bool  # a `Teach` follows; otherwise nobody looked at the image: a merge, or its undoing
    seq: int


@dataclass(frozen=True)
class Close:
    """A class is gone."""

    class_id: int
    seq: int


Operation = Teach | Unlearn | Close


def operations(event: Event) -> Iterator[Operation]:
    """First all that no longer holds, then what holds instead: so each comes in batches."""
    # A label says something about an image; a merge, or undoing one, only about names.
    looked_at = event.kind in ("label", "correct")
    for move in event.moves:
        if move.was is not None:
            learned, taught = None if move.was_held_out else move.was, looked_at and move.now is not None
            yield Unlearn(move.sample_id, learned, move.now, taught, event.seq)
    for move in event.moves:
        corrected = move.was is not None
        if move.now is not None and (looked_at or not corrected):
            fresh = event.kind == "label" and not corrected
            yield Teach(move.sample_id, move.now, move.held_out, fresh, corrected, event.seq, event.at)
    for class_id in event.closed:
        yield Close(class_id, event.seq)


class Follower:
    """The operations that wait, and the last event of which everything was done.

    Labels of several events may share a step. `next` hands out work, `done` says that it was done: then a checkpoint
    may name `applied`, provided that no event is half done (`whole`).
    """

    def __init__(self, applied: int) -> None:
        self.applied = applied
        self.read = applied  # the last event whose operations have been put here
        self._begun = applied  # the event of the last operation that was handed out
        self._waiting: deque[Operation] = deque()

    @property
    def whole(self) -> bool:
        return not self._waiting or self._waiting[0].seq > self._begun

    @property
    def labels_waiting(self) -> int:
        return sum(isinstance(operation, Teach) for operation in self._waiting)

    @property
    def oldest_waiting(self) -> float | None:
        """When the first label that waits was given."""
        return next((operation.at for operation in self._waiting if isinstance(operation, Teach)), None)

    def put(self, events: Iterable[Event]) -> None:
        for event in events:
            self._waiting += operations(event)
            self.read = event.seq

    def next(self, most_labels: int) -> list[Operation]:
        """The operations at the front that are of one kind; none when nothing waits."""
        batch, taught = list[Operation](), set[int]()
        while self._waiting and (not batch or type(self._waiting[0]) is type(batch[0])):
            operation = self._waiting[0]
            if isinstance(operation, Teach):
                # Labelled anew before the learner came to it: one after the other.
                if len(batch) == most_labels or operation.sample_id in taught:
                    break
                taught.add(operation.sample_id)
            elif len(batch) == TOGETHER:
                break
            self._begun = operation.seq
            batch.append(self._waiting.popleft())
        if not batch:
            self.done()
        return batch

    def done(self) -> None:
        """What `next` gave has been done."""
        self.applied = self._waiting[0].seq - 1 if self._waiting else self.read
