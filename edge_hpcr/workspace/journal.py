"""The journal: every label, correction and change of a class as an event, on disk before it is acknowledged.

An event and what it changes are one SQLite transaction, with full sync: when a call returns, the action survives a
power cut, and when it raises, nothing has happened. Any process may call; the learner follows by sequence number.
"""

import json
import re
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.queries import COLUMNS, IDS, to_sample_row, unknown_sample
from edge_hpcr.workspace.records import (
    DELETED,
    DISMISSED,
    Body,
    ClassRow,
    ClassState,
    Counts,
    Event,
    Move,
    NewSample,
    SampleRow,
    SampleState,
    clean_name,
    folded,
)
from edge_hpcr.workspace.tables import JournalTables

__all__ = ["ClassRow", "Counts", "Event", "Journal", "Move", "NewSample", "SampleRow"]


class _Known(NamedTuple):
    state: SampleState
    has_image: bool
    ever_trained: bool


class Journal(JournalTables):
    """One learner's labels and classes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> journal = Journal(Path(folder.name) / "journal.sqlite")
    >>> mug = journal.create_class("mug")
    >>> (sample,) = journal.add_samples([NewSample(file_bytes=700, digest="", origin="camera 0")])
    >>> journal.label([sample], mug).moves
    [Move(sample_id=1, was=None, now=1, held_out=False)]
    >>> journal.undo().moves
    [Move(sample_id=1, was=1, now=None, held_out=False)]
    >>> journal.close(); folder.cleanup()
    """

    # Classes ------------------------------------------------------------------------------------------------------

    def create_class(self, name: str, colour: str | None = None) -> int:
        """A new class; its id is never used again, whatever becomes of the class."""
        name = clean_name(name)
        _check_colour(colour)
        with self.transaction() as db:
            inserted = db.execute(
                "INSERT INTO classes (name, folded, colour, state) VALUES (?, ?, ?, 'absent')",
                (name, folded(name), colour),
            )
            class_id = int(inserted.lastrowid or 0)
            self._record("create_class", {}, {class_id: ClassState(name, colour, "live", None)})
            return class_id

    def class_named(self, name: str) -> int:
        """The live class of this name, which is made if there is none."""
        with self.transaction():
            found = self.class_id(name)
            return self.create_class(name) if found is None else found

    def rename_class(self, class_id: int, name: str) -> Event:
        name = clean_name(name)
        with self.transaction():
            changed = self._live_class(class_id)._replace(name=name)
            return self._record("rename_class", {}, {class_id: changed})

    def recolour_class(self, class_id: int, colour: str | None) -> Event:
        _check_colour(colour)
        with self.transaction():
            changed = self._live_class(class_id)._replace(colour=colour)
            return self._record("recolour_class", {}, {class_id: changed})

    def merge_classes(self, source: int, into: int) -> int:
        """Move every label of one class to another, which stays; returns how many. Held-out samples stay held out."""
        if source == into:
            raise UserError(f"class {source} cannot be merged into itself: name two classes")
        with self.transaction():
            self._live_class(into)
            merged = self._live_class(source)._replace(state="merged", merged_into=into)
            samples = self._of_class(source)
            moved = {i: state._replace(class_id=into) for i, state in samples.items()}
            self._record("merge_classes", moved, {source: merged})
            return len(moved)

    def delete_class(self, class_id: int) -> int:
        """End a class; its labelled samples are deleted with it. Returns how many those were."""
        with self.transaction():
            ended = self._live_class(class_id)._replace(state="deleted")
            samples = self._of_class(class_id)
            self._record("delete_class", dict.fromkeys(samples, DELETED), {class_id: ended})
            return len(samples)

    # Samples ------------------------------------------------------------------------------------------------------

    def label(self, ids: Iterable[int], class_id: int) -> Event:
        """Give samples a class, or another class; one event for all of them. Nothing to change: nothing is recorded."""
        with self.transaction():
            return self._label(ids, class_id)

    def label_each(self, labels: Iterable[tuple[int, int]]) -> list[Event]:
        """Samples and their classes, each an action of its own (each may be held out by itself), in one flush."""
        with self.transaction():
            return [self._label([sample_id], class_id) for sample_id, class_id in labels]

    def _label(self, ids: Iterable[int], class_id: int) -> Event:
        self._live_class(class_id)
        known = self._known(ids)
        fresh = [row for row in known.values() if row.state.state != "labelled"]
        for sample_id, row in known.items():
            _refuse_unless_image(sample_id, row)
        held_out = self._holds_out(class_id, fresh)
        after = {
            i: SampleState(
                "labelled", class_id, row.state.held_out if row.state.state == "labelled" else held_out
            )
            for i, row in known.items()
        }
        return self._record("label" if fresh else "correct", after, {})

    def dismiss(self, ids: Iterable[int]) -> Event:
        """Take samples out of the queue without a label."""
        with self.transaction():
            known = self._known(ids)
            for sample_id, row in known.items():
                if row.state.state not in ("queued", "dismissed"):
                    raise UserError(
                        f"sample {sample_id} is {row.state.state}: only a queued one can be dismissed"
                    )
            return self._record("dismiss", dict.fromkeys(known, DISMISSED), {})

    def delete_samples(self, ids: Iterable[int]) -> Event:
        with self.transaction():
            return self._record("delete", dict.fromkeys(self._known(ids), DELETED), {})

    # Housekeeping -------------------------------------------------------------------------------------------------

    def drop_queued(self, ids: Iterable[int]) -> list[SampleRow]:
        """Let samples leave the bounded queue; returns those that were still in it. Their files go afterwards."""
        wanted = json.dumps([int(i) for i in ids])
        with self.transaction() as db:
            dropped = self._rows(
                f"SELECT {COLUMNS} FROM samples WHERE state = 'queued' AND id IN {IDS}", (wanted,)
            )
            rows = [to_sample_row(row) for row in dropped]
            # A sample that events speak of keeps its row: they must still add up, and redo must find it.
            mentioned = [row.id for row in rows if row.labelled_seq is not None]
            if mentioned:
                self._record("evict", dict.fromkeys(mentioned, DELETED), {})
                db.execute(f"UPDATE samples SET has_image = 0 WHERE id IN {IDS}", (json.dumps(mentioned),))
            rest = json.dumps([row.id for row in rows if row.labelled_seq is None])
            db.execute(f"DELETE FROM samples WHERE id IN {IDS}", (rest,))
            return rows

    # Events -------------------------------------------------------------------------------------------------------

    def undo(self) -> Event:
        """Take back the last action that still stands."""
        with self.transaction() as db:
            (seq,) = db.execute("SELECT max(seq) FROM actions WHERE undone = 0").fetchone()
            if seq is None:
                raise UserError("nothing to undo: no action is left that could be taken back")
            return self._restore(seq, "undo")

    def redo(self) -> Event:
        """Do again what was undone last."""
        with self.transaction() as db:
            (seq,) = db.execute("SELECT min(seq) FROM actions WHERE undone = 1").fetchone()
            if seq is None:
                raise UserError("nothing to redo: nothing was undone since the last action")
            return self._restore(seq, "redo")

    # Inside a transaction -----------------------------------------------------------------------------------------

    def _record(
        self,
        kind: str,
        samples: Mapping[int, SampleState],
        classes: Mapping[int, ClassState],
        of: int | None = None,
        lost: Collection[int] = (),
    ) -> Event:
        """Append an event that brings these rows to these states, and change the rows."""
        before = {i: row.state for i, row in self._known(samples).items()} if samples else {}
        old = {i: self._class(i) for i in classes}
        body = Body(
            [(i, before[i], after) for i, after in samples.items() if before[i] != after],
            [(i, old[i], after) for i, after in classes.items() if old[i] != after],
            of,
            list(lost),
        )
        for class_id, _, state in body.classes:
            if state.state == "live":
                self._refuse_taken(state.name, class_id)
        at = time.time()
        if not body.samples and not body.classes and of is None:
            return Event(self.last_seq, at, kind, [], [])
        inserted = self._db.execute(
            "INSERT INTO events (at, kind, body) VALUES (?, ?, ?)", (at, kind, body.to_json())
        )
        seq = int(inserted.lastrowid or 0)
        apply(self._db, seq, body)
        note_action(self._db, seq, kind, of)
        event = Event.of_body(seq, at, kind, body)
        self._refuse_labels_of(event.closed)
        return event

    def _restore(self, seq: int, kind: str) -> Event:
        ((text,),) = self._rows("SELECT body FROM events WHERE seq = ?", (seq,))
        body = Body.from_json(text)
        wanted = {i: before if kind == "undo" else after for i, before, after in body.samples}
        known = self._known(wanted) if wanted else {}
        reached = {i: _reachable(state, known[i]) for i, state in wanted.items()}
        classes = {i: before if kind == "undo" else after for i, before, after in body.classes}
        return self._record(
            kind, reached, classes, of=seq, lost=[i for i in wanted if wanted[i] != reached[i]]
        )

    def _known(self, ids: Iterable[int]) -> dict[int, _Known]:
        wanted = list(dict.fromkeys(int(i) for i in ids))
        if not wanted:
            raise UserError("no sample was named: give at least one")
        rows = self._rows(
            f"SELECT id, state, class_id, held_out, has_image, ever_trained FROM samples WHERE id IN {IDS}",
            (json.dumps(wanted),),
        )
        found = {i: _Known(SampleState(s, c, bool(h)), bool(image), bool(t)) for i, s, c, h, image, t in rows}
        for sample_id in wanted:
            if sample_id not in found:
                raise unknown_sample(sample_id)
        return {i: found[i] for i in wanted}

    def _of_class(self, class_id: int) -> dict[int, SampleState]:
        rows = self._rows(
            "SELECT id, state, class_id, held_out FROM samples WHERE class_id = ? ORDER BY id", (class_id,)
        )
        return {i: SampleState(state, of, bool(held_out)) for i, state, of, held_out in rows}

    def _class(self, class_id: int) -> ClassState:
        rows = self._rows(
            f"SELECT name, colour, state, merged_into FROM classes WHERE id IN {IDS}",
            (json.dumps([int(class_id)]),),
        )
        if not rows:
            raise UserError(f"unknown class {class_id}: no class has that id")
        return ClassState(*rows[0])

    def _live_class(self, class_id: int) -> ClassState:
        found = self._class(class_id)
        if found.state == "merged":
            raise UserError(
                f"class {class_id} {found.name!r} was merged into {found.merged_into}: use that one"
            )
        if found.state != "live":
            raise UserError(
                f"class {class_id} {found.name!r} was deleted: undo that, or choose another class"
            )
        return found

    def _refuse_taken(self, name: str, own_id: int) -> None:
        rows = self._rows(
            "SELECT id, name FROM classes WHERE folded = ? AND state = 'live' AND id != ?",
            (folded(name), own_id),
        )
        if rows:
            taken, existing = rows[0]
            how = "exists already" if existing == name else f"differs only in case from {existing!r}"
            raise UserError(
                f"class name {name!r} {how} (class {taken}): choose another name, or rename that class"
            )

    def _refuse_labels_of(self, closed: Collection[int]) -> None:
        for class_id in closed:
            if self._of_class(class_id):
                raise UserError(f"class {class_id} still has labels: undo or change those first")

    def _holds_out(self, class_id: int, fresh: Collection[_Known]) -> bool:
        """Whether this action's new labels are for measuring. All or none: a burst's frames look the same."""
        rows = self._rows(
            "SELECT count(*), coalesce(sum(held_out), 0) FROM samples WHERE class_id = ?", (class_id,)
        )
        labels, held_out = rows[0]
        # What has been trained on once, before an undo, must not measure.
        if labels == 0 or any(row.ever_trained for row in fresh):
            return False
        return bool(held_out + len(fresh) / 2 <= self.held_out_share * (labels + len(fresh)))


def apply(db: sqlite3.Connection, seq: int, body: Body) -> None:
    """Change the rows as an event says."""
    db.executemany(
        "UPDATE samples SET state = ?, class_id = ?, held_out = ?, labelled_seq = ?,"
        " ever_trained = ever_trained OR ? WHERE id = ?",
        [
            (*after, seq, after.state == "labelled" and not after.held_out, sample_id)
            for sample_id, _, after in body.samples
        ],
    )
    db.executemany(
        "UPDATE classes SET name = ?, colour = ?, state = ?, merged_into = ?, folded = ? WHERE id = ?",
        [(*after, folded(after.name), class_id) for class_id, _, after in body.classes],
    )


def note_action(db: sqlite3.Connection, seq: int, kind: str, of: int | None) -> None:
    """A new action can be undone, and what was undone before it can no longer be done again."""
    if kind in ("undo", "redo"):
        db.execute("UPDATE actions SET undone = ? WHERE seq = ?", (kind == "undo", of))
    elif kind != "evict":  # the queue's own housekeeping is nothing that a person did
        db.execute("DELETE FROM actions WHERE undone = 1")
        db.execute("INSERT INTO actions VALUES (?, 0)", (seq,))


def _reachable(wanted: SampleState, row: _Known) -> SampleState:
    """A sample whose image is gone cannot be queued or learned again; one that is labelled may change its class."""
    if row.has_image or wanted.state in ("dismissed", "deleted"):
        return wanted
    return wanted if wanted.state == row.state.state == "labelled" else DELETED


def _refuse_unless_image(sample_id: int, row: _Known) -> None:
    if row.state.state == "deleted":
        raise UserError(f"sample {sample_id} was deleted: undo that before you label it")
    if row.state.state != "labelled" and not row.has_image:
        raise UserError(f"sample {sample_id} has no image any more: it cannot be labelled")


def _check_colour(colour: str | None) -> None:
    if colour is not None and re.fullmatch(r"#[0-9a-fA-F]{6}", colour) is None:
        raise UserError(f"colour {colour!r}: write it like #1f77b4")
