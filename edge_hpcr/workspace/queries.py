"""All that is asked of a journal, while others write it or not. No other module reads its tables."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.workspace import records
from edge_hpcr.workspace.database import (
    JournalDamaged,
    UnreadableEvent,
    as_user_errors,
    check_tables,
    is_old,
    open_read_only,
    wrong_types,
)
from edge_hpcr.workspace.records import ClassRow, ClassState, Counts, Event, SampleRow, SampleState

SAMPLE_FIELDS = [field.name for field in fields(SampleRow)]
COLUMNS = ", ".join(SAMPLE_FIELDS)
IDS = "(SELECT value FROM json_each(?))"  # a list of any length as one parameter

_EVENTS = "SELECT seq, at, kind, body FROM events WHERE seq > ? ORDER BY seq"
_COUNTS = (  # in the order of Counts
    "SELECT (SELECT count(*) FROM samples WHERE class_id IS NOT NULL),"
    " (SELECT count(*) FROM samples WHERE class_id IS NOT NULL AND held_out = 1),"
    " (SELECT count(*) FROM samples WHERE state = 'queued'),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples WHERE state = 'queued'),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples"
    "  WHERE class_id IS NOT NULL AND held_out = 1 AND has_image = 1),"
    " (SELECT count(*) FROM samples WHERE has_image = 1),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples WHERE has_image = 1)"
)


class Action(NamedTuple):
    """An event that can be undone or redone."""

    seq: int
    at: float
    kind: str
    body: records.Body
    undone: bool


class Queries:
    """The questions to a journal. `reading` opens one to look only; a `Journal` answers them too."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._db = db

    def _rows(self, query: str, parameters: Collection[Any] = ()) -> list[tuple[Any, ...]]:
        with as_user_errors(self.path):
            return self._db.execute(query, tuple(parameters)).fetchall()

    def _samples(self, condition: str, parameters: Collection[Any] = ()) -> list[SampleRow]:
        rows = self._rows(f"SELECT {COLUMNS} FROM samples WHERE {condition}", parameters)
        try:
            return [to_sample_row(row) for row in rows]
        except TypeError as error:
            raise JournalDamaged(self.path, f"a sample is not of the right types: {error}") from error

    # Classes and events -----------------------------------------------------------------------------------------------

    def classes(self) -> list[ClassRow]:
        """The live classes, oldest first."""
        rows = self._rows(
            "SELECT c.id, c.name, c.colour, count(s.class_id), coalesce(sum(s.held_out), 0)"
            " FROM classes c LEFT JOIN samples s ON s.class_id = c.id"
            " WHERE c.state = 'live' GROUP BY c.id ORDER BY c.id"
        )
        self._check_names(rows)
        return [ClassRow(*row) for row in rows]

    def _check_names(self, rows: Iterable[Sequence[Any]]) -> None:
        """Refuse rows whose second column is no text."""
        if not all(isinstance(name, str) for _, name, *_ in rows):
            raise JournalDamaged(self.path, "the name of a class is no text")

    def class_name(self, class_id: int) -> str | None:
        """The name of a live class."""
        rows = self._rows("SELECT name FROM classes WHERE id = ? AND state = 'live'", (class_id,))
        return rows[0][0] if rows else None

    def class_id(self, name: str) -> int | None:
        """The live class of this name, in any case."""
        key = records.folded(records.clean_name(name))
        rows = self._rows("SELECT id FROM classes WHERE folded = ? AND state = 'live'", (key,))
        return rows[0][0] if rows else None

    @property
    def last_seq(self) -> int:
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])

    def fingerprint(self, seq: int) -> str | None:
        """What tells an event from every other with its number, such as that of a copy which went its own way."""
        rows = self._rows("SELECT seq, at, kind, body FROM events WHERE seq = ?", (seq,))
        return sha256(repr(rows[0]).encode("utf-8", "surrogatepass")) if rows else None

    def events_after(self, seq: int, limit: int = 1000) -> list[Event]:
        rows = self._rows(f"{_EVENTS} LIMIT ?", (seq, limit))
        return [Event.of_body(i, at, kind, self._body(i, body)) for i, at, kind, body in rows]

    def _body(self, seq: int, text: str) -> records.Body:
        try:
            return records.Body.from_json(text)
        except ValueError as error:
            raise UnreadableEvent(self.path, seq, error) from error

    def stored_events(self, after: int = 0) -> Iterator[tuple[int, float, str, str]]:
        """Every event as it is stored, its body unread; all of them need not fit into memory."""
        with as_user_errors(self.path):
            yield from self._db.execute(_EVENTS, (after,))

    def actions(self) -> list[tuple[int, bool]]:
        """The events that can be undone or redone, and whether each is undone."""
        rows = self._rows("SELECT seq, undone FROM actions ORDER BY seq")
        return [(seq, bool(undone)) for seq, undone in rows]

    def actions_before(self, seq: int, limit: int) -> list[Action]:
        """The same with what they did, the newest first."""
        query = (
            "SELECT seq, at, kind, body, undone FROM actions JOIN events USING (seq) WHERE seq < ?"
            " ORDER BY seq DESC LIMIT ?"
        )
        rows = self._rows(query, (seq, limit))
        return [Action(i, at, kind, self._body(i, body), bool(undone)) for i, at, kind, body, undone in rows]

    def last_import(self) -> str | None:
        """The number of the newest import of which something is left as it was imported."""
        rows = self._rows(
            "SELECT json_extract(e.body, '$.import') FROM samples s JOIN events e ON e.seq = s.labelled_seq"
            " WHERE s.state = 'labelled' AND json_valid(e.body) AND json_extract(e.body, '$.import') IS NOT NULL"
            " ORDER BY e.seq DESC LIMIT 1"
        )
        return rows[0][0] if rows else None

    def _of_import(self, number: str) -> list[tuple[int, records.Body]]:
        query = "SELECT seq, body FROM events WHERE json_valid(body) AND json_extract(body, '$.import') = ? ORDER BY seq"
        return [(seq, self._body(seq, text)) for seq, text in self._rows(query, (number,))]

    def class_states(self) -> dict[int, ClassState]:
        """Every class that ever was."""
        rows = self._rows("SELECT id, name, colour, state, merged_into FROM classes")
        self._check_names(rows)
        return {class_id: ClassState(*state) for class_id, *state in rows}

    # Samples ----------------------------------------------------------------------------------------------------------

    def sample(self, sample_id: int) -> SampleRow:
        return self.rows_of([sample_id])[0]

    def queued(self, limit: int = 1000) -> list[SampleRow]:
        """The queue, highest priority first."""
        return self._samples("state = 'queued' ORDER BY priority DESC, id LIMIT ?", (limit,))

    def samples(self, after_id: int = 0, limit: int = 1000, **wanted: int | str | None) -> list[SampleRow]:
        """Samples by id whose columns have these values, None for any; `after_id` is the last id of the page before."""
        given = {name: value for name, value in wanted.items() if value is not None}
        columns = "".join(f" AND {name} = ?" for name in given)
        return self._samples(f"id > ?{columns} ORDER BY id LIMIT ?", (after_id, *given.values(), limit))

    def all_samples(self, **wanted: int | str | None) -> Iterator[SampleRow]:
        """Every sample with these values, oldest first; all of them need not fit into memory."""
        after = 0
        while page := self.samples(after, 1000, **wanted):
            yield from page
            after = page[-1].id

    def image_files(self) -> dict[str, str]:
        """The files that belong to a sample which still has its image, each with its SHA-256."""
        return dict(self._rows("SELECT file, digest FROM samples WHERE has_image = 1"))

    def dropped_files(self) -> set[str]:
        """The files of samples whose images were dropped."""
        return {file for (file,) in self._rows("SELECT file FROM samples WHERE has_image = 0")}

    def known_source(self, digest: str) -> int | None:
        """The sample that came from a file with this SHA-256, so that a folder shown twice is recognised."""
        rows = self._rows("SELECT id FROM samples WHERE source_digest = ? ORDER BY id LIMIT 1", (digest,))
        return rows[0][0] if rows else None

    def queued_from(self, origin: str) -> tuple[int, int]:
        """How many queued samples have an origin that begins so, and their bytes."""
        query = "SELECT count(*), coalesce(sum(bytes), 0) FROM samples WHERE state = 'queued' AND substr(origin, 1, ?) = ?"
        ((count, size),) = self._rows(query, (len(origin), origin))
        return int(count), int(size)

    def newest_hashes(self, count: int) -> list[int]:
        """Perceptual hashes of the newest samples that are queued or labelled, oldest first."""
        rows = self._rows(
            "SELECT hash64 FROM samples WHERE state IN ('queued', 'labelled') ORDER BY id DESC LIMIT ?",
            (count,),
        )
        return [hash64 % 2**64 for (hash64,) in reversed(rows)]

    def hashes_of(self, ids: Iterable[int]) -> dict[int, int]:
        """The perceptual hashes of these samples, as far as they are here."""
        rows = self._rows(f"SELECT id, hash64 FROM samples WHERE id IN {IDS}", (json.dumps([*ids]),))
        return {sample_id: hash64 % 2**64 for sample_id, hash64 in rows}

    def newest_of(self, class_ids: Iterable[int], count: int) -> dict[int, list[int]]:
        """Of each of these classes the samples that were labelled last and have their image, the newest first."""
        query = "SELECT id FROM samples WHERE class_id = ? AND has_image = 1 ORDER BY labelled_seq DESC, id DESC LIMIT ?"
        return {c: [i for (i,) in self._rows(query, (c, count))] for c in class_ids}

    def rows_of(self, ids: list[int]) -> list[SampleRow]:
        """These samples, in this order."""
        rows = {row.id: row for row in self._samples(f"id IN {IDS}", (json.dumps(ids),))}
        for sample_id in ids:
            if sample_id not in rows:
                raise unknown_sample(sample_id)
        return [rows[sample_id] for sample_id in ids]

    def sample_states(self) -> dict[int, SampleState]:
        rows = self._rows("SELECT id, state, class_id, held_out FROM samples")
        return {i: SampleState(state, class_id, bool(held_out)) for i, state, class_id, held_out in rows}

    def labels_of(self, ids: Iterable[int]) -> dict[int, int]:
        """The class of each of these samples that is labelled."""
        query = f"SELECT id, class_id FROM samples WHERE state = 'labelled' AND id IN {IDS}"
        return dict(self._rows(query, (json.dumps([*ids]),)))

    def has_trained_label(self, class_id: int) -> bool:
        """Whether a sample of the class is there to learn from; the others are kept for measuring."""
        return bool(
            self._rows("SELECT 1 FROM samples WHERE class_id = ? AND held_out = 0 LIMIT 1", (class_id,))
        )

    def authors_of(self, ids: Iterable[int]) -> dict[int, str]:
        """Who acted last on each of these samples, as far as it was noted."""
        query = (
            "SELECT s.id, json_extract(e.body, '$.author') FROM samples s JOIN events e ON e.seq = s.labelled_seq"
            f" WHERE s.id IN {IDS} AND json_valid(e.body)"
        )
        return {i: author for i, author in self._rows(query, (json.dumps([*ids]),)) if author}

    def origins(self, state: str) -> list[str]:
        """Where the samples of a state came from, each once."""
        return [
            origin
            for (origin,) in self._rows("SELECT DISTINCT origin FROM samples WHERE state = ?", (state,))
        ]

    def origins_of(self, state: str) -> dict[int, str]:
        return dict(self._rows("SELECT id, origin FROM samples WHERE state = ?", (state,)))

    def taken_back(self) -> set[int]:
        """Samples of imports that were undone, as they were left by that; the same import may bring them again."""
        query = (
            "SELECT s.id FROM samples s JOIN events e ON e.seq = s.labelled_seq"
            " LEFT JOIN events done ON e.kind = 'redo' AND json_valid(e.body) AND done.seq = json_extract(e.body, '$.of')"
            " WHERE s.state = 'dismissed' AND s.has_image = 1 AND ('undo_import' IN (e.kind, done.kind)"
            " OR e.kind = 'undo' AND json_valid(e.body) AND json_extract(e.body, '$.import') IS NOT NULL)"
        )
        return {sample_id for (sample_id,) in self._rows(query)}

    def in_state(self, state: str, ids: list[int]) -> list[int]:
        rows = self._rows(f"SELECT id FROM samples WHERE state = ? AND id IN {IDS}", (state, json.dumps(ids)))
        return [sample_id for (sample_id,) in rows]

    def find_labelled(self, class_id: int | None = None, text: str = "") -> list[int]:
        """The labelled samples of a class, or with this text as id, in the origin or in the class's name; latest first."""
        where, values = "state = 'labelled'", list[int | str]()
        if class_id:
            where += " AND class_id = ?"
            values.append(class_id)
        if text:
            named = [row.id for row in self.classes() if text.casefold() in row.name.casefold()]
            pattern = "".join(f"\\{c}" if c in "\\%_" else c for c in text)
            where += rf" AND (class_id IN {IDS} OR CAST(id AS TEXT) = ? OR origin LIKE ? ESCAPE '\')"
            values += [json.dumps(named), text.removeprefix("#"), f"%{pattern}%"]
        query = f"SELECT id FROM samples WHERE {where} ORDER BY labelled_seq DESC, id DESC"
        return [sample_id for (sample_id,) in self._rows(query, values)]

    # The whole --------------------------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        return Counts(*self._rows(_COUNTS)[0])

    def counters(self) -> dict[str, int]:
        return dict(self._rows("SELECT name, value FROM counters ORDER BY name"))

    def damage(self, most: int = 10, quick: bool = False) -> list[str]:
        """What SQLite itself finds wrong with the file; `quick` leaves out the indices."""
        check = "quick_check" if quick else "integrity_check"
        answers = [answer for (answer,) in self._rows(f"PRAGMA {check}({most:d})")]
        with as_user_errors(self.path):
            return wrong_types(self._db) if answers == ["ok"] else answers

    def broken_references(self) -> list[str]:
        """Rows that speak of others which are missing, or of classes that have ended."""
        missing = [
            f"row {row} of {table} refers to a row of {other} that is missing"
            for table, row, other, _ in self._rows("PRAGMA foreign_key_check")
        ]
        ended = "SELECT s.id, c.id FROM samples s JOIN classes c ON s.class_id = c.id WHERE c.state != 'live'"
        return missing + [
            f"sample {sample} is labelled with class {class_id}, which is not live"
            for sample, class_id in self._rows(ended)
        ]


@contextmanager
def reading(path: Path) -> Iterator[Queries]:
    """One moment of a journal, of this format or an older one; nobody who writes it has to wait."""
    with closing(open_read_only(path)) as db, as_user_errors(path):
        db.execute("BEGIN")
        check_tables(db, path)
        is_old(db, path)  # refuses one of a newer version
        yield Queries(db, path)


def unknown_sample(sample_id: int) -> UserError:
    return UserError(f"unknown sample {sample_id}: no sample has that id")


def to_sample_row(row: tuple[Any, ...]) -> SampleRow:
    values = dict(zip(SAMPLE_FIELDS, row, strict=True))
    values |= {name: bool(values[name]) for name in ("held_out", "has_image")}
    return SampleRow(**{**values, "hash64": values["hash64"] % 2**64})
