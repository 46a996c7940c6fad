"""The journal's tables as they are read and kept: samples, classes, counters, the list of events."""

import json
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.database import as_user_errors, open_for_writing
from edge_hpcr.workspace.records import (
    Body,
    ClassRow,
    Counts,
    Event,
    NewSample,
    SampleRow,
    clean_name,
    folded,
)

# Ids are handed out before their rows exist; taking them by the block saves a sync a sample, and gaps do no harm.
_ID_BLOCK = 64
COLUMNS = ", ".join(field.name for field in fields(SampleRow))
IDS = "(SELECT value FROM json_each(?))"  # a list of any length as one parameter

COUNTS = (  # in the order of Counts
    "SELECT (SELECT count(*) FROM samples WHERE class_id IS NOT NULL),"
    " (SELECT count(*) FROM samples WHERE class_id IS NOT NULL AND held_out = 1),"
    " (SELECT count(*) FROM samples WHERE state = 'queued'),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples WHERE state = 'queued'),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples"
    "  WHERE class_id IS NOT NULL AND held_out = 1 AND has_image = 1),"
    " (SELECT count(*) FROM samples WHERE has_image = 1),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples WHERE has_image = 1)"
)


class JournalTables:
    """What needs no event: reading, queueing new samples, and housekeeping. Thread-safe."""

    def __init__(self, path: Path | str, *, held_out_share: float = 0.1) -> None:
        self.path = Path(path)
        self.held_out_share = held_out_share
        self._lock = threading.RLock()
        self._spare_ids: list[int] = []
        self._db = open_for_writing(self.path)

    def close(self) -> None:
        with self._lock, as_user_errors(self.path):
            self._db.close()

    # Classes and events -----------------------------------------------------------------------------------------------

    def classes(self) -> list[ClassRow]:
        """The live classes, oldest first."""
        rows = self._rows(
            "SELECT c.id, c.name, c.colour, count(s.class_id), coalesce(sum(s.held_out), 0)"
            " FROM classes c LEFT JOIN samples s ON s.class_id = c.id"
            " WHERE c.state = 'live' GROUP BY c.id ORDER BY c.id"
        )
        return [ClassRow(*row) for row in rows]

    def class_id(self, name: str) -> int | None:
        """The live class of this name, in any case."""
        key = folded(clean_name(name))
        rows = self._rows("SELECT id FROM classes WHERE folded = ? AND state = 'live'", (key,))
        return rows[0][0] if rows else None

    @property
    def last_seq(self) -> int:
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])

    def events_after(self, seq: int, limit: int = 1000) -> list[Event]:
        rows = self._rows(
            "SELECT seq, at, kind, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit)
        )
        return [Event.of_body(number, at, kind, Body.from_json(body)) for number, at, kind, body in rows]

    # Samples ----------------------------------------------------------------------------------------------------------

    def reserve_ids(self, count: int) -> list[int]:
        """Ids that nobody else gets, for images that go to disk before their rows."""
        with self._lock:
            if len(self._spare_ids) < count:
                with self.transaction():
                    fresh = self._next_ids(max(count, _ID_BLOCK))
                self._spare_ids += fresh  # not before the commit: a full disk takes them back
            taken, self._spare_ids = self._spare_ids[:count], self._spare_ids[count:]
            return taken

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

    def sample(self, sample_id: int) -> SampleRow:
        rows = self._rows(f"SELECT {COLUMNS} FROM samples WHERE id IN {IDS}", (json.dumps([sample_id]),))
        if not rows:
            raise unknown_sample(sample_id)
        return to_sample_row(rows[0])

    def queued(self, limit: int = 1000) -> list[SampleRow]:
        """The queue, highest priority first."""
        query = (
            f"SELECT {COLUMNS} FROM samples WHERE state = 'queued' ORDER BY priority DESC, id LIMIT {limit:d}"
        )
        return [to_sample_row(row) for row in self._rows(query)]

    def samples(
        self,
        class_id: int | None = None,
        state: str | None = None,
        held_out: bool | None = None,
        after_id: int = 0,
        limit: int = 1000,
    ) -> list[SampleRow]:
        """Samples by id, page by page: give the last id of a page as `after_id` for the next one."""
        wanted = {"class_id": class_id, "state": state, "held_out": held_out}
        given = {name: value for name, value in wanted.items() if value is not None}
        query = f"SELECT {COLUMNS} FROM samples WHERE id > ?{''.join(f' AND {name} = ?' for name in given)}"
        rows = self._rows(f"{query} ORDER BY id LIMIT ?", (after_id, *given.values(), limit))
        return [to_sample_row(row) for row in rows]

    def all_samples(self, state: str | None = None, held_out: bool | None = None) -> Iterator[SampleRow]:
        """Every sample, oldest first, however many there are."""
        after = 0
        while page := self.samples(state=state, held_out=held_out, after_id=after):
            yield from page
            after = page[-1].id

    def image_files(self) -> set[str]:
        """The files that belong to a sample which still has its image."""
        return {file for (file,) in self._rows("SELECT file FROM samples WHERE has_image = 1")}

    def known_source(self, digest: str) -> int | None:
        """The sample that came from a file with this SHA-256, so that a folder shown twice is recognised."""
        rows = self._rows("SELECT id FROM samples WHERE source_digest = ? ORDER BY id LIMIT 1", (digest,))
        return rows[0][0] if rows else None

    def newest_hashes(self, count: int) -> list[int]:
        """Perceptual hashes of the newest samples that are queued or labelled, oldest first."""
        rows = self._rows(
            "SELECT hash64 FROM samples WHERE state IN ('queued', 'labelled') ORDER BY id DESC LIMIT ?",
            (count,),
        )
        return [hash64 % 2**64 for (hash64,) in reversed(rows)]

    # Housekeeping -----------------------------------------------------------------------------------------------------

    def set_priorities(self, priorities: Mapping[int, float]) -> None:
        with self.transaction() as db:
            db.executemany(
                "UPDATE samples SET priority = ? WHERE id = ?", [(p, i) for i, p in priorities.items()]
            )

    def forget_images(self, ids: Iterable[int], covered: int | None = None) -> list[SampleRow]:
        """Note that these images leave the disk; returns the samples whose files may now be removed.

        A sample that was queued, or changed by an event after `covered`, keeps its image: somebody may have undone or
        given its label since the caller looked, and nobody has learned it yet.
        """
        wanted = (self.last_seq if covered is None else covered, json.dumps([int(i) for i in ids]))
        which = f"has_image = 1 AND state != 'queued' AND coalesce(labelled_seq, 0) <= ? AND id IN {IDS}"
        with self.transaction() as db:
            rows = self._rows(f"SELECT {COLUMNS} FROM samples WHERE {which}", wanted)
            db.execute(f"UPDATE samples SET has_image = 0 WHERE {which}", wanted)
            return [to_sample_row(row) for row in rows]

    def counts(self) -> Counts:
        return Counts(*self._rows(COUNTS)[0])

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add to counters that are kept for ever, such as what the gate skipped and why."""
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                list(counts.items()),
            )

    def counters(self) -> dict[str, int]:
        return dict(self._rows("SELECT name, value FROM counters ORDER BY name"))

    # Transactions -----------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything that is written in the block is stored at its end, or nothing of it; blocks may be nested."""
        with self._lock, as_user_errors(self.path):
            nested = self._db.in_transaction
            if not nested:
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

    def _rows(self, query: str, parameters: Collection[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, as_user_errors(self.path):
            return self._db.execute(query, tuple(parameters)).fetchall()

    def _next_ids(self, count: int) -> list[int]:
        ((first,),) = self._rows("SELECT value FROM meta WHERE key = 'next_sample'")
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'next_sample'", (first + count,))
        return list(range(first, first + count))


def unknown_sample(sample_id: int) -> UserError:
    return UserError(f"unknown sample {sample_id}: no sample has that id")


def _signed(hash64: int) -> int:
    return hash64 - 2**64 if hash64 >= 2**63 else hash64  # SQLite's whole numbers are signed


def to_sample_row(row: tuple[Any, ...]) -> SampleRow:
    values = dict(zip((field.name for field in fields(SampleRow)), row, strict=True))
    values |= {"held_out": bool(values["held_out"]), "has_image": bool(values["has_image"])}
    return SampleRow(**{**values, "hash64": values["hash64"] % 2**64})
