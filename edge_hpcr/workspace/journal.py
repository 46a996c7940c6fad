"""The journal: every label, correction and change of a class as an event, on disk before it is acknowledged.

An event and what it changes are one SQLite transaction, with full sync: when a call returns, the action survives a
power cut, and when it raises, nothing has happened. Any process may call; the learner follows by sequence number.
"""

import itertools
import json
import re
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace import records
from edge_hpcr.workspace.database import apply, as_user_errors, note_action, open_for_writing
from edge_hpcr.workspace.held_out import choose_held_out
from edge_hpcr.workspace.queries import COLUMNS, IDS, Queries, unknown_sample
from edge_hpcr.workspace.records import Body, ClassState, Event, NewSample, SampleRow, SampleState, TakenBack

# Ids are handed out before their rows exist; taking them by the block saves a sync a sample, and gaps do no harm.
_ID_BLOCK = 64
_COMPARED = 500  # newest samples of a class that a new one is compared with


class _Known(NamedTuple):
    state: SampleState
    has_image: bool
    ever_trained: bool


class Journal(Queries):
    """One learner's labels and classes. Thread-safe.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> journal = Journal(Path(folder.name) / "journal.sqlite")
    >>> mug = journal.create_class("mug")
    >>> (sample,) = journal.add_samples([NewSample(file_bytes=700, digest="", origin="camera 0")])
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

    def create_class(self, name: str, colour: str | None = None) -> int:
        """Make a class; its id is never used again, even if the class is deleted."""
        name = records.clean_name(name)
        _check_colour(colour)
        with self.transaction() as db:
            inserted = db.execute(
                "INSERT INTO classes (name, folded, colour, state) VALUES (?, ?, ?, 'absent')",
                (name, records.folded(name), colour),
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
        name = records.clean_name(name)
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

    def skip_ids(self, used: int) -> None:
        """Never give this id, or one below: images of it are there that belong to no sample of this journal."""
        with self.transaction() as db:
            db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'next_sample'", (used + 1,))

    def add_samples(self, samples: Iterable[NewSample]) -> list[int]:
        """Queue samples whose images are on disk; one whose source file is known already gives the known id.

        Not an event: nobody has said anything about them yet.
        """
        with self.transaction():
            return [self._known_or_added(sample) for sample in samples]

    def _known_or_added(self, new: NewSample) -> int:
        # Asked inside the transaction: a folder may be fed and imported at the same time.
        known = None if new.source_digest is None else self.known_source(new.source_digest)
        if known is not None:
            return known
        sample_id = self._next_ids(1)[0] if new.id is None else new.id
        self._db.execute(
            f"INSERT INTO samples ({COLUMNS}, ever_trained)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued', NULL, 0, NULL, 1, 0)",
            (
                *(sample_id, new.file, new.digest, new.file_bytes, new.origin, new.source_digest),
                *(_signed(new.hash64), new.priority, new.width, new.height, time.time()),
            ),
        )
        return sample_id

    def label(self, ids: Iterable[int], class_id: int) -> Event:
        """Give samples a class, or another class, as one event; nothing is recorded if nothing changes."""
        with self.transaction():
            self._live_class(class_id)
            known = self._known(ids)
            for sample_id, row in known.items():
                _refuse_unless_image(sample_id, row)
            fresh = {i: row for i, row in known.items() if row.state.state != "labelled"}
            held_out = self._held_out_of(class_id, fresh)
            after = {
                i: SampleState("labelled", class_id, i in held_out if i in fresh else row.state.held_out)
                for i, row in known.items()
            }
            return self._record("label" if fresh else "correct", after, {})

    def label_each(self, labels: Iterable[tuple[int, int]]) -> list[Event]:
        """Label samples by separate events in one transaction: each may be held out by itself."""
        with self.transaction():
            return [self.label([sample_id], class_id) for sample_id, class_id in labels]

    def dismiss(self, ids: Iterable[int]) -> Event:
        """Take samples out of the queue without a label."""
        with self.transaction():
            known = self._known(ids)
            for sample_id, row in known.items():
                state = row.state.state
                if state not in ("queued", "dismissed"):
                    raise UserError(f"sample {sample_id} is {state}: only a queued one can be dismissed")
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

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add to the counters, such as what the gate skipped and why."""
        query = "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"
        with self.transaction() as db:
            db.executemany(query, list(counts.items()))

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
        """Take back the last action that is not undone; of an import everything at once."""
        with self.transaction():
            if not (last := self._run_of_actions("undone = 0 ORDER BY seq DESC")):
                raise UserError("nothing to undo: no action is left that could be taken back")
            return self._restore("undo", last)

    def undo_to(self, seq: int, newest: int | None = None) -> Event:
        """Take back every action after this one, or all of them after 0: all or, if anything fails, none.

        `newest` is the last action that the caller knows of: if there is a newer one, nothing is taken back.
        """
        with self.transaction():
            done = [each for each, undone in self.actions() if not undone]
            if newest is not None and newest != max(done, default=0):
                raise UserError("something was done or undone meanwhile: look at the history again")
            if seq and seq not in done:
                raise UserError("that action is undone already: look at the history again")
            if not (later := [each for each in reversed(done) if each > seq]):
                raise UserError("nothing to undo: that is the last action")
            return self._restore("undo", later)

    def redo(self) -> Event:
        """Do again what was undone last; of an import everything at once."""
        with self.transaction():
            if not (first := self._run_of_actions("undone = 1 ORDER BY seq")):
                raise UserError("nothing to redo: nothing was undone since the last action")
            return self._restore("redo", first)

    def _run_of_actions(self, which: str) -> list[int]:
        """The first of these actions; if an import did it, also those of the import that come right after it."""
        number = "CASE WHEN json_valid(body) THEN json_extract(body, '$.import') END"
        rows = self._db.execute(f"SELECT seq, {number} FROM actions JOIN events USING (seq) WHERE {which}")
        if (first := rows.fetchone()) is None:
            return []
        alike = itertools.takewhile(lambda row: first[1] is not None and row[1] == first[1], rows)
        return [first[0], *(seq for seq, _ in alike)]

    def _restore(self, kind: str, actions: Iterable[int]) -> Event:
        """Undo or redo these actions, in this order; what it all changed as one event, whose `of` is the first of them."""
        events = [self._restore_one(kind, seq) for seq in actions]
        moves = [move for event in events for move in event.moves]
        closed = [class_id for event in events for class_id in event.closed]
        lost = [sample_id for event in events for sample_id in event.lost]
        return replace(events[-1], moves=moves, closed=closed, lost=lost, of=events[0].of)

    def _restore_one(self, kind: str, seq: int) -> Event:
        ((text,),) = self._rows("SELECT body FROM events WHERE seq = ?", (seq,))
        body = self._body(seq, text)
        wanted = {i: before if kind == "undo" else after for i, before, after in body.samples}
        if kind == "undo" and body.of_import is not None:
            wanted = {i: _not_queued(state) for i, state in wanted.items()}
        known = self._known(wanted) if wanted else {}
        reached = {i: _reachable(state, known[i]) for i, state in wanted.items()}
        classes = {i: before if kind == "undo" else after for i, before, after in body.classes}
        lost = [i for i in wanted if wanted[i] != reached[i]]
        with records.import_number(body.of_import):
            return self._record(kind, reached, classes, of=seq, lost=lost)

    def take_back_import(self, number: str) -> TakenBack:
        """Undo everything that an import did, as one action; what somebody has changed since stays as it is.

        Its new samples are dismissed and not queued: nobody has asked to label them by hand. The same import given
        again takes them up again.
        """
        with self.transaction():
            bodies = dict(self._of_import(number))
            before: dict[int, SampleState] = {}
            for body in bodies.values():
                for sample_id, was, _ in body.samples:
                    before.setdefault(sample_id, was)
            query = f"SELECT id, labelled_seq FROM samples WHERE state = 'labelled' AND id IN {IDS}"
            untouched = [i for i, seq in self._rows(query, (json.dumps([*before]),)) if seq in bodies]
            after = {i: _not_queued(before[i]) for i in untouched}
            made = {i for body in bodies.values() for i, _, now in body.classes if now.state == "live"}
            known = {i: self._class(i) for i in made if self._of_class(i).keys() <= after.keys()}
            classes = {i: each._replace(state="absent") for i, each in known.items() if each.state == "live"}
            if not after and not classes:
                raise UserError("nothing to undo: nothing of that import is left as it was imported")
            event = self._record("undo_import", after, classes)
            return TakenBack(event, len(after), len(classes), len(before) - len(after))

    # Transactions -------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything that is written in the block is stored at its end, or nothing of it; blocks may be nested."""
        with self._lock, as_user_errors(self.path):
            nested = self._db.in_transaction
            if not nested:
                self._check_file()
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

    def _check_file(self) -> None:
        """A deleted file could be written on, and what was acknowledged would be gone with the process."""
        try:
            here = self.path.stat().st_ino == self._file
        except FileNotFoundError:
            here = False
        if not here:
            gone = f"{self.path} was deleted or replaced while it was in use: nothing more is saved"
            raise UserError(f"{gone}; end the program, put the workspace back and start it again")

    def _rows(self, query: str, parameters: Collection[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return super()._rows(query, parameters)

    @property
    def next_id(self) -> int:
        """The first id that was never given, nor reserved."""
        return int(self._rows("SELECT value FROM meta WHERE key = 'next_sample'")[0][0])

    def _next_ids(self, count: int) -> list[int]:
        first = self.next_id
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
    ) -> Event:
        """Append an event that brings these rows to these states, and change the rows."""
        before = {i: row.state for i, row in self._known(samples).items()} if samples else {}
        old = {i: self._class(i) for i in classes}
        body = Body(
            [(i, before[i], after) for i, after in samples.items() if before[i] != after],
            [(i, old[i], after) for i, after in classes.items() if old[i] != after],
            of,
            list(lost),
            records.AUTHOR.get(),
            records.current_import(),
        )
        for class_id, _, state in body.classes:
            if state.state == "live":
                self._refuse_taken(state.name, class_id)
        at = time.time()
        if not body.samples and not body.classes and of is None:
            return Event(self.last_seq, at, kind, [], [])
        values = (at, kind, body.to_json())
        inserted = self._db.execute("INSERT INTO events (at, kind, body) VALUES (?, ?, ?)", values)
        seq = int(inserted.lastrowid or 0)
        apply(self._db, seq, body)
        note_action(self._db, seq, kind, of)
        event = Event.of_body(seq, at, kind, body)
        for class_id in event.closed:
            if self._of_class(class_id):
                raise UserError(f"class {class_id} still has labels: undo or change those first")
        return event

    def _known(self, ids: Iterable[int]) -> dict[int, _Known]:
        wanted = list(dict.fromkeys(int(i) for i in ids))
        if not wanted:
            raise UserError("no sample was named: give at least one")
        query = (
            f"SELECT id, state, class_id, held_out, has_image, ever_trained FROM samples WHERE id IN {IDS}"
        )
        rows = self._rows(query, (json.dumps(wanted),))
        found = {i: _Known(SampleState(s, c, bool(h)), bool(image), bool(t)) for i, s, c, h, image, t in rows}
        for sample_id in wanted:
            if sample_id not in found:
                raise unknown_sample(sample_id)
        return {i: found[i] for i in wanted}

    def _of_class(self, class_id: int) -> dict[int, SampleState]:
        query = "SELECT id, state, class_id, held_out FROM samples WHERE class_id = ? ORDER BY id"
        rows = self._rows(query, (class_id,))
        return {i: SampleState(state, of, bool(held_out)) for i, state, of, held_out in rows}

    def _class(self, class_id: int) -> ClassState:
        query = f"SELECT name, colour, state, merged_into FROM classes WHERE id IN {IDS}"
        rows = self._rows(query, (json.dumps([int(class_id)]),))
        if not rows:
            raise UserError(f"unknown class {class_id}: no class has that id")
        return ClassState(*rows[0])

    def _live_class(self, class_id: int) -> ClassState:
        found = self._class(class_id)
        name = f"class {class_id} {found.name!r}"
        if found.state == "merged":
            raise UserError(f"{name} was merged into {found.merged_into}: use that one")
        if found.state != "live":
            raise UserError(f"{name} was deleted: undo that, or choose another class")
        return found

    def _refuse_taken(self, name: str, own_id: int) -> None:
        query = "SELECT id, name FROM classes WHERE folded = ? AND state = 'live' AND id != ?"
        for taken, existing in self._rows(query, (records.folded(name), own_id)):
            how = "exists already" if existing == name else f"differs only in case from {existing!r}"
            change = "choose another name, or rename that class"
            raise UserError(f"class name {name!r} {how} (class {taken}): {change}")

    def _held_out_of(self, class_id: int, fresh: Mapping[int, _Known]) -> set[int]:
        """Those of an action's new labels that are for measuring."""
        query = "SELECT count(*), coalesce(sum(held_out), 0) FROM samples WHERE class_id = ?"
        (counts,) = self._rows(query, (class_id,))
        # What has been trained on once, before an undo, must not measure.
        ids = [i for i, row in fresh.items() if not row.ever_trained]
        if not ids or len(ids) < len(fresh):
            return set()
        hashes = f"SELECT id, hash64 FROM samples WHERE id IN {IDS} ORDER BY id"
        wanted = {i: hash64 % 2**64 for i, hash64 in self._rows(hashes, (json.dumps(ids),))}
        earlier = "SELECT hash64 FROM samples WHERE class_id = ? AND held_out = ? ORDER BY id DESC LIMIT ?"
        trained, held_out = (
            [hash64 % 2**64 for (hash64,) in self._rows(earlier, (class_id, side, _COMPARED))]
            for side in (0, 1)
        )
        return choose_held_out(wanted, trained, held_out, counts, self.held_out_share)


def _reachable(wanted: SampleState, row: _Known) -> SampleState:
    """A sample whose image is gone cannot be queued or learned again; one that is labelled may change its class."""
    if row.has_image or wanted.state in ("dismissed", "deleted"):
        return wanted
    return wanted if wanted.state == row.state.state == "labelled" else records.DELETED


def _not_queued(state: SampleState) -> SampleState:
    """What an import took in is not queued when it is undone: nobody has asked to label it by hand."""
    return records.DISMISSED if state == records.QUEUED else state


def _refuse_unless_image(sample_id: int, row: _Known) -> None:
    if row.state.state == "deleted":
        raise UserError(f"sample {sample_id} was deleted: undo that before you label it")
    if row.state.state != "labelled" and not row.has_image:
        raise UserError(f"sample {sample_id} has no image any more: it cannot be labelled")


def _check_colour(colour: str | None) -> None:
    if colour is not None and re.fullmatch(r"#[0-9a-fA-F]{6}", colour) is None:
        raise UserError(f"colour {colour!r}: write it like #1f77b4")


def _signed(hash64: int) -> int:
    return hash64 - 2**64 if hash64 >= 2**63 else hash64  # SQLite's whole numbers are signed
