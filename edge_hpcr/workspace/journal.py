"""The journal: every label, correction and change of a class as an event, on disk before it is acknowledged.

An event and what it changes are one SQLite transaction, with full sync: when a call returns, the action survives a
power cut, and when it raises, nothing has happened. Any process may call; the learner follows by sequence number.
"""

import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace import records
from edge_hpcr.workspace.database import JournalGone, apply, as_user_errors, note_action, open_for_writing
from edge_hpcr.workspace.queries import COLUMNS, IDS, SAMPLE_FIELDS, Queries
from edge_hpcr.workspace.records import Body, ClassState, Event, SampleRow, SampleState
from edge_hpcr.workspace.selection import DRAWN, PICKED, choose_held_out

# Ids are handed out before their rows exist; taking them by the block saves a sync a sample, and gaps do no harm.
_ID_BLOCK = 64
_COMPARED = 500  # newest samples of a class that a new one is compared with


class Journal(Queries):
    """One learner's labels and classes. Thread-safe.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> journal = Journal(Path(folder.name) / "journal.sqlite")
    >>> mug = journal.create_class("mug")
    >>> (sample,) = journal.add_samples([SampleRow(bytes=700, origin="camera 0")])
    >>> journal.label([sample], mug).moves
    [Move(sample_id=1, was=None, now=1, held_out=False, was_held_out=False)]
    >>> journal.undo().moves
    [Move(sample_id=1, was=1, now=None, held_out=False, was_held_out=False)]
    >>> journal.close(); folder.cleanup()
    """

    def __init__(self, path: Path | str, *, held_out_share: float = 0.1) -> None:
        self.path = Path(path)
        self.held_out_share = held_out_share
        self._lock = threading.RLock()
        self._spare_ids: list[int] = []
        super().__init__(open_for_writing(self.path), self.path)
        self._file = self.path.stat().st_ino

    def close(self) -> None:
        with self._lock, as_user_errors(self.path):
            self._db.close()

    # Classes ------------------------------------------------------------------------------------------------

    def create_class(self, name: str, group: str | None = None) -> int:
        """Make a class; its id is never used again, even if the class is deleted."""
        name = records.clean_name(name)
        with self.transaction() as db:
            inserted = db.execute(
                "INSERT INTO classes (name, folded, state) VALUES (?, ?, 'absent')",
                (name, records.folded(name)),
            )
            class_id = int(inserted.lastrowid or 0)
            made = {class_id: ClassState(name, None, "live", None)}
            self._record("create_class", {}, made, group=group)
            return class_id

    def class_named(self, name: str) -> int:
        """The live class of this name, which is made if there is none."""
        with self.transaction():
            found = self.class_id(name)
            return self.create_class(name) if found is None else found

    def rename_class(self, class_id: int, name: str) -> Event:
        name = records.clean_name(name)
        with self.transaction():
            changed = self._live_class(class_id)._replace(name=name)
            return self._record("rename_class", {}, {class_id: changed})

    def merge_classes(self, source: int, into: int) -> int:
        """Move every label of one class to another, which stays; returns how many. Held-out samples stay held out."""
        if source == into:
            raise UserError(f"class {source} cannot be merged into itself: name two classes")
        with self.transaction():
            self._live_class(into)
            merged = self._live_class(source)._replace(state="merged", merged_into=into)
            moved = {i: state._replace(class_id=into) for i, state in self._of_class(source).items()}
            self._record("merge_classes", moved, {source: merged})
            return len(moved)

    def delete_class(self, class_id: int) -> int:
        """End a class; its labelled samples are deleted with it. Returns how many those were."""
        with self.transaction():
            ended = self._live_class(class_id)._replace(state="deleted")
            samples = self._of_class(class_id)
            self._record("delete_class", dict.fromkeys(samples, records.DELETED), {class_id: ended})
            return len(samples)

    # Samples ------------------------------------------------------------------------------------------------

    def reserve_ids(self, count: int) -> list[int]:
        """Ids that nobody else gets, for images that go to disk before their rows."""
        with self._lock:
            if len(self._spare_ids) < count:
                with self.transaction():
                    fresh = self._next_ids(max(count, _ID_BLOCK))
                self._spare_ids += fresh  # not before the commit: a full disk takes them back
            taken, self._spare_ids = self._spare_ids[:count], self._spare_ids[count:]
            return taken

    def add_samples(self, samples: Iterable[SampleRow]) -> list[int]:
        """Queue samples whose images are on disk; one whose source file is known already gives the known id.

        Not an event: nobody has said anything about them yet.
        """
        with self.transaction():
            return [self._known_or_added(sample) for sample in samples]

    def _known_or_added(self, new: SampleRow) -> int:
        # Asked inside the transaction: a folder may be fed and imported at the same time.
        known = None if new.source_digest is None else self.known_source(new.source_digest)
        if known is not None:
            return known
        sample_id = new.id or self._next_ids(1)[0]
        signed = new.hash64 - (2**64 if new.hash64 >= 2**63 else 0)  # as SQLite's whole numbers are
        row = replace(new, id=sample_id, hash64=signed, added=time.time())
        places = ", ".join("?" * len(SAMPLE_FIELDS))
        self._db.execute(f"INSERT INTO samples ({COLUMNS}) VALUES ({places})", tuple(vars(row).values()))
        return sample_id

    def label(self, ids: Iterable[int], class_id: int, group: str | None = None) -> Event:
        """Give samples a class, or another class, as one event; nothing is recorded if nothing changes."""
        with self.transaction():
            self._live_class(class_id)
            known = self._known(ids)
            for row in known.values():
                if row.state == "deleted" or not (row.has_image or row.state == "labelled"):
                    raise UserError(
                        f"sample {row.id} was deleted, or has no image any more: undo that, or leave it out"
                    )
            fresh = {i: row for i, row in known.items() if row.state != "labelled"}
            picked = [i for i, row in fresh.items() if row.priority == PICKED or 0 < row.priority < DRAWN]
            self.set_priorities(dict.fromkeys(picked, PICKED))
            held_out = self._held_out_of(class_id, fresh, picked)
            after = {
                i: SampleState("labelled", class_id, i in held_out if i in fresh else row.held_out)
                for i, row in known.items()
            }
            return self._record("label" if fresh else "correct", after, {}, group=group)

    def label_each(self, labels: Iterable[tuple[int, int]], group: str | None = None) -> list[Event]:
        """Label samples as one action, by separate events: each may be held out by itself."""
        group = group or records.new_group("labels")
        with self.transaction():
            return [self.label([sample_id], class_id, group) for sample_id, class_id in labels]

    def dismiss(self, ids: Iterable[int]) -> Event:
        """Take samples out of the queue without a label."""
        with self.transaction():
            known = self._known(ids)
            for sample_id, row in known.items():
                if row.state not in ("queued", "dismissed"):
                    raise UserError(f"sample {sample_id} is {row.state}: only a queued one can be dismissed")
            return self._record("dismiss", dict.fromkeys(known, records.DISMISSED), {})

    def delete_samples(self, ids: Iterable[int]) -> Event:
        with self.transaction():
            return self._record("delete", dict.fromkeys(self._known(ids), records.DELETED), {})

    def check_writable(self) -> None:
        """Write, and change nothing; a `UserError` says why that cannot be done."""
        with self.transaction() as db:
            db.execute("UPDATE meta SET value = value WHERE key = 'next_sample'")

    # Housekeeping -------------------------------------------------------------------------------------------

    def set_priorities(self, priorities: Mapping[int, float]) -> None:
        values = [(priority, sample_id) for sample_id, priority in priorities.items()]
        with self.transaction() as db:
            db.executemany("UPDATE samples SET priority = ? WHERE id = ?", values)

    def forget_images(self, ids: Iterable[int], covered: int | None = None) -> list[SampleRow]:
        """Mark these images as dropped; returns the samples whose files may now be removed.

        A sample that is queued, or changed by an event after `covered`, keeps its image: its label may have been undone
        or given since the caller looked, and is not learned yet.
        """
        wanted = (self.last_seq if covered is None else covered, json.dumps([int(i) for i in ids]))
        which = f"has_image = 1 AND state != 'queued' AND coalesce(labelled_seq, 0) <= ? AND id IN {IDS}"
        with self.transaction() as db:
            rows = self._samples(which, wanted)
            db.execute(f"UPDATE samples SET has_image = 0 WHERE {which}", wanted)
            return rows

    def drop_queued(self, ids: Iterable[int]) -> list[SampleRow]:
        """Remove samples from the queue; returns those that were still in it. Their files go afterwards."""
        with self.transaction() as db:
            rows = self._samples(f"state = 'queued' AND id IN {IDS}", (json.dumps([int(i) for i in ids]),))
            # A sample that events speak of keeps its row: they must still add up, and redo must find it.
            mentioned = [row.id for row in rows if row.labelled_seq is not None]
            if mentioned:
                self._record("evict", dict.fromkeys(mentioned, records.DELETED), {})
                db.execute(f"UPDATE samples SET has_image = 0 WHERE id IN {IDS}", (json.dumps(mentioned),))
            rest = json.dumps([row.id for row in rows if row.labelled_seq is None])
            db.execute(f"DELETE FROM samples WHERE id IN {IDS}", (rest,))
            return rows

    # Events -------------------------------------------------------------------------------------------------

    def undo(self) -> Event:
        """Take back the last action that is not undone."""
        with self.transaction():
            if not (last := _first_action(self.actions(undone=False))):
                raise UserError("nothing to undo: no action is left that could be taken back")
            return self._restore("undo", last)

    def undo_to(self, seq: int, newest: int | None = None) -> Event:
        """Take back every action after this one, or all of them after 0: all or, if anything fails, none.

        `newest` is the last action that the caller knows of: if there is a newer one, nothing is taken back.
        """
        with self.transaction():
            done = list(itertools.takewhile(lambda each: each.seq >= seq, self.actions(undone=False)))
            if newest is not None and newest != (done[0].seq if done else 0):
                raise UserError("something was done or undone meanwhile: look at the history again")
            if seq and (not done or done[-1].seq != seq):
                raise UserError("that action is undone already: look at the history again")
            if not (later := [each for each in done if each.seq != seq]):
                raise UserError("nothing to undo: that is the last action")
            return self._restore("undo", later)

    def redo(self) -> Event:
        """Do again what was undone last."""
        with self.transaction():
            if not (first := _first_action(self.actions(undone=True, oldest_first=True))):
                raise UserError("nothing to redo: nothing was undone since the last action")
            return self._restore("redo", first)

    def _restore(self, kind: str, actions: list[Event]) -> Event:
        """Undo or redo these events, in this order; what it all changed as one event, whose `of` is the last of them."""
        events = [self._restore_one(kind, each.seq, each.body) for each in actions]
        samples, classes, lost = (
            [each for event in events for each in getattr(event.body, name)]
            for name in ("samples", "classes", "lost")
        )
        last = max(each.seq for each in actions)
        return replace(events[-1], body=Body(samples, classes, last, lost))

    def _restore_one(self, kind: str, seq: int, body: Body) -> Event:
        wanted = {i: before if kind == "undo" else after for i, before, after in body.samples}
        if kind == "undo" and body.is_import:  # nobody has asked to label its pictures by hand
            wanted = {
                i: records.DISMISSED if state == records.QUEUED else state for i, state in wanted.items()
            }
        known = self._known(wanted) if wanted else {}
        reached = {i: _reachable(state, known[i]) for i, state in wanted.items()}
        classes = {i: before if kind == "undo" else after for i, before, after in body.classes}
        lost = [i for i in wanted if wanted[i] != reached[i]]
        return self._record(kind, reached, classes, of=seq, lost=lost)

    # Transactions -------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything that is written in the block is stored at its end, or nothing of it; blocks may be nested."""
        with self._lock, as_user_errors(self.path):
            nested = self._db.in_transaction
            if not nested:
                self.check_here()
                self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                if not nested:
                    self._db.execute("COMMIT")
            except BaseException:
                # After a full disk SQLite may have rolled back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def check_here(self) -> None:
        """A file that is gone could be written on, and what was acknowledged would be gone with the process."""
        try:
            here = self.path.stat().st_ino == self._file
        except FileNotFoundError:
            here = False
        if not here:
            raise JournalGone(self.path)

    def _rows(self, query: str, parameters: Collection[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return super()._rows(query, parameters)

    def _next_ids(self, count: int) -> list[int]:
        ((first,),) = self._rows("SELECT value FROM meta WHERE key = 'next_sample'")
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'next_sample'", (first + count,))
        return list(range(first, first + count))

    # Inside a transaction -----------------------------------------------------------------------------------

    def _record(
        self,
        kind: str,
        samples: Mapping[int, SampleState],
        classes: Mapping[int, ClassState],
        of: int | None = None,
        lost: Collection[int] = (),
        group: str | None = None,
    ) -> Event:
        """Append an event that brings these rows to these states, and change the rows."""
        before = {i: row.label for i, row in self._known(samples).items()} if samples else {}
        old = {i: self._class(i) for i in classes}
        body = Body(
            [(i, before[i], after) for i, after in samples.items() if before[i] != after],
            [(i, old[i], after) for i, after in classes.items() if old[i] != after],
            of,
            list(lost),
            group,
        )
        for class_id, _, state in body.classes:
            if state.state == "live":
                self._refuse_taken(state.name, class_id)
        at = time.time()
        if not body.samples and not body.classes and of is None:
            return Event(self.last_seq, at, kind, body)
        values = (at, kind, body.to_json())
        inserted = self._db.execute("INSERT INTO events (at, kind, body) VALUES (?, ?, ?)", values)
        seq = int(inserted.lastrowid or 0)
        apply(self._db, seq, body)
        note_action(self._db, seq, kind, of)
        event = Event(seq, at, kind, body)
        for class_id in event.closed:
            if self._of_class(class_id):
                raise UserError(f"class {class_id} still has labels: undo or change those first")
        return event

    def _known(self, ids: Iterable[int]) -> dict[int, SampleRow]:
        rows = self.rows_of(dict.fromkeys(ids))
        if not rows:
            raise UserError("no sample was named: give at least one")
        return {row.id: row for row in rows}

    def _of_class(self, class_id: int) -> dict[int, SampleState]:
        return {row.id: row.label for row in self._samples("class_id = ? ORDER BY id", (class_id,))}

    def _class(self, class_id: int) -> ClassState:
        rows = self._rows("SELECT name, colour, state, merged_into FROM classes WHERE id = ?", (class_id,))
        if not rows:
            raise UserError(f"unknown class {class_id}: no class has that id")
        return ClassState(*rows[0])

    def _live_class(self, class_id: int) -> ClassState:
        found = self._class(class_id)
        if found.state != "live":
            raise UserError(
                f"class {class_id} {found.name!r} was {found.state}: undo that, or use another class"
            )
        return found

    def _refuse_taken(self, name: str, own_id: int) -> None:
        query = "SELECT id, name FROM classes WHERE folded = ? AND state = 'live' AND id != ?"
        for taken, existing in self._rows(query, (records.folded(name), own_id)):
            how = "exists already" if existing == name else f"differs only in case from {existing!r}"
            change = "choose another name, or rename that class"
            raise UserError(f"class name {name!r} {how} (class {taken}): {change}")

    def _held_out_of(
        self, class_id: int, fresh: Mapping[int, SampleRow], picked: Collection[int]
    ) -> set[int]:
        """Those of an action's new labels that are for measuring: none that were picked for being difficult."""
        query = "SELECT count(*), coalesce(sum(held_out), 0) FROM samples WHERE class_id = ?"
        ((labels, kept),) = self._rows(query, (class_id,))
        # What has been trained on once, before an undo, must not measure.
        if any(row.ever_trained for row in fresh.values()):
            return set()
        wanted = {i: fresh[i].hash64 for i in sorted(fresh) if i not in picked}
        earlier = "class_id = ? AND held_out = ?"
        trained, held_out = (self._hashes(earlier, (class_id, side), _COMPARED) for side in (0, 1))
        trained += [fresh[i].hash64 for i in picked]
        counts = labels + len(picked), kept
        return choose_held_out(wanted, trained, held_out, counts, self.held_out_share)


def _first_action(events: Iterable[Event]) -> list[Event]:
    """The first of these events, with all that are one action with it."""
    for _, run in itertools.groupby(events, lambda each: each.action):
        return list(run)
    return []


def _reachable(wanted: SampleState, row: SampleRow) -> SampleState:
    """A sample whose image is gone cannot be queued or learned again; one that is labelled may change its class."""
    if row.has_image or wanted.state in ("dismissed", "deleted"):
        return wanted
    return wanted if wanted.state == row.state == "labelled" else records.DELETED
