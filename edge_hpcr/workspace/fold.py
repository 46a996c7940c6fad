"""What all events together add up to; the journal's tables must say the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from edge_hpcr.workspace.queries import Queries
from edge_hpcr.workspace.records import QUEUED, Body, ClassState, SampleState


class BrokenChain(ValueError):
    """An event that does not follow from those before it."""


@dataclass
class Fold:
    """The state of every sample and class that an event has spoken of, and what can be undone and redone.

    >>> fold = Fold()
    >>> fold.add(1, "dismiss", Body([(7, QUEUED, SampleState("dismissed", None, False))], []))
    >>> fold.samples[7].state, fold.done
    ('dismissed', [1])
    """

    samples: dict[int, SampleState] = field(default_factory=dict)
    classes: dict[int, ClassState] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    undone: list[int] = field(default_factory=list)  # the next one to redo is last
    last_seq: int = 0

    def add(self, seq: int, kind: str, body: Body) -> None:
        if seq != self.last_seq + 1:
            raise BrokenChain(f"event {seq} follows event {self.last_seq}: those between are missing")
        for sample_id, before, _ in body.samples:
            if self.samples.get(sample_id, QUEUED) != before:
                raise BrokenChain(f"event {seq} does not follow from those before: sample {sample_id}")
        for class_id, old, _ in body.classes:
            known = self.classes.get(class_id)
            if known != old if known else old.state != "absent":
                raise BrokenChain(f"event {seq} does not follow from those before: class {class_id}")
        self._move_action(seq, kind, body)
        self.samples.update({sample_id: after for sample_id, _, after in body.samples})
        self.classes.update({class_id: new for class_id, _, new in body.classes})
        self.last_seq = seq

    def _move_action(self, seq: int, kind: str, body: Body) -> None:
        if kind in ("undo", "redo"):
            source, target = (self.done, self.undone) if kind == "undo" else (self.undone, self.done)
            if not source or source[-1] != body.of:
                raise BrokenChain(f"event {seq} does not follow from those before: {kind} of {body.of}")
            target.append(source.pop())
        elif kind != "evict":
            self.done.append(seq)
            self.undone.clear()


def read_events(journal: Queries, after: int = 0) -> Iterator[tuple[int, float, str, Body]]:
    """The events in order, as far as they can be understood; `BrokenChain` at the first that cannot."""
    for seq, at, kind, text in journal.stored_events(after):
        try:
            yield seq, at, kind, Body.from_json(text)
        except ValueError as error:
            raise BrokenChain(f"event {seq} cannot be read ({error})") from error


def fold_events(journal: Queries) -> Fold:
    fold = Fold()
    for seq, _, kind, body in read_events(journal):
        fold.add(seq, kind, body)
    return fold


def differences(fold: Fold, journal: Queries) -> list[str]:
    """Where the tables say something else than the events."""
    found = []
    samples, classes = journal.sample_states(), journal.class_states()
    for sample_id in sorted(samples.keys() | fold.samples.keys()):
        expected = fold.samples.get(sample_id, QUEUED)
        if samples.get(sample_id) != expected:
            found.append(f"sample {sample_id} is {samples.get(sample_id)}, its events say {expected}")
    for class_id in sorted(classes.keys() | fold.classes.keys()):
        known, said = classes.get(class_id), fold.classes.get(class_id)
        if known != said:
            found.append(f"class {class_id} is {known}, its events say {said}")
    actions = journal.actions()
    if [seq for seq, undone in actions if not undone] != fold.done:
        found.append("the list of what can be undone differs from the events")
    if [seq for seq, undone in actions if undone] != sorted(fold.undone):
        found.append("the list of what can be redone differs from the events")
    return found
