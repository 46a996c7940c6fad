"""What changes the journal's tables without an event: new samples, priorities, images that leave, counters."""

import json
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edge_hpcr.workspace.database import as_user_errors, open_for_writing
from edge_hpcr.workspace.queries import COLUMNS, IDS, Queries, to_sample_row
from edge_hpcr.workspace.records import NewSample, SampleRow

# Ids are handed out before their rows exist; taking them by the block saves a sync a sample, and gaps do no harm.
_ID_BLOCK = 64


class JournalTables(Queries):
    """What needs no event: queueing new samples, and housekeeping. Thread-safe."""

    def __init__(self, path: Path | str, *, held_out_share: float = 0.1) -> None:
        self.path = Path(path)
        self.held_out_share = held_out_share
        self._lock = threading.RLock()
        self._spare_ids: list[int] = []
        super().__init__(open_for_writing(self.path), self.path)

    def close(self) -> None:
        with self._lock, as_user_errors(self.path):
            self._db.close()

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

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add to the counters, such as what the gate skipped and why."""
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                list(counts.items()),
            )

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
        with self._lock:
            return super()._rows(query, parameters)

    def _next_ids(self, count: int) -> list[int]:
        ((first,),) = self._rows("SELECT value FROM meta WHERE key = 'next_sample'")
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'next_sample'", (first + count,))
        return list(range(first, first + count))


def _signed(hash64: int) -> int:
    return hash64 - 2**64 if hash64 >= 2**63 else hash64  # SQLite's whole numbers are signed
