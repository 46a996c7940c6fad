"""All that is asked of a journal, while others write it or not. No other module reads its tables."""

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.common.text import many
from edge_hpcr.workspace import records
from edge_hpcr.workspace.database import JournalDamaged, as_user_errors, check_journal, open_read_only
from edge_hpcr.workspace.records import (
    Body,
    ClassRow,
    ClassState,
    Counts,
    Event,
    SampleRow,
    is_sample_name,
)

SAMPLE_FIELDS = [field.name for field in fields(SampleRow)]
COLUMNS = ", ".join(SAMPLE_FIELDS)
IDS = "(SELECT value FROM json_each(?))"  # a list of any length as one parameter

CLASSES_TOLD = 3  # of an action of many labels
_PAGE = 1000  # rows that are read at once
_EVENTS = "SELECT seq, at, kind, body FROM events WHERE seq > ? ORDER BY seq"
_COUNTS = (  # in the order of Counts
    "SELECT (SELECT count(*) FROM samples WHERE class_id IS NOT NULL),"
    " (SELECT count(*) FROM samples WHERE class_id IS NOT NULL AND held_out = 1),"
    " (SELECT count(*) FROM samples WHERE state = 'queued'),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples WHERE state = 'queued'),"
    " (SELECT count(*) FROM samples WHERE has_image = 1),"
    " (SELECT coalesce(sum(bytes), 0) FROM samples WHERE has_image = 1)"
)


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
            return [_sample_row(row) for row in rows]
        except TypeError as error:
            raise JournalDamaged(self.path, f"a sample is not of the right types: {error}") from error

    # Classes and events -----------------------------------------------------------------------------------------------

    def classes(self) -> list[ClassRow]:
        """The live classes, oldest first."""
        rows = self._rows(
            "SELECT id, name, colour, coalesce(labels, 0), coalesce(held_out, 0) FROM classes LEFT JOIN"
            " (SELECT class_id, count(*) AS labels, sum(held_out) AS held_out FROM samples"
            " WHERE class_id IS NOT NULL GROUP BY class_id) ON class_id = id WHERE state = 'live' ORDER BY id"
        )
        return [ClassRow(*row) for row in rows]

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
        return [Event(i, at, kind, self._body(i, body)) for i, at, kind, body in rows]

    def _body(self, seq: int, text: str) -> Body:
        try:
            return Body.from_json(text)
        except ValueError as error:
            newer = "a newer version wrote it, or it is damaged: use that version, or restore a backup"
            raise JournalDamaged(self.path, f"event {seq} cannot be read ({error})", newer) from error

    def actions(self, undone: bool | None = None, oldest_first: bool = False) -> Iterator[Event]:
        """The events that can be undone or redone, or only one of both; all of them need not fit into memory."""
        last, beyond, order = (0, ">", "") if oldest_first else (self.last_seq + 1, "<", " DESC")
        which = "" if undone is None else f" AND undone = {undone:d}"
        query = (
            "SELECT seq, at, kind, body, undone FROM actions JOIN events USING (seq)"
            f" WHERE seq {beyond} ?{which} ORDER BY seq{order} LIMIT {_PAGE}"
        )
        while rows := self._rows(query, (last,)):
            for seq, at, kind, body, is_undone in rows:
                yield Event(seq, at, kind, self._body(seq, body), bool(is_undone))
            last = rows[-1][0]

    def class_states(self) -> dict[int, ClassState]:
        """Every class that ever was."""
        rows = self._rows("SELECT id, name, colour, state, merged_into FROM classes")
        return {class_id: ClassState(*state) for class_id, *state in rows}

    # Samples ----------------------------------------------------------------------------------------------------------

    def sample(self, sample_id: int) -> SampleRow:
        return self.rows_of([sample_id])[0]

    def queued(self, limit: int = -1) -> list[SampleRow]:
        """The queue, highest priority first; -1: all of it."""
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

    def image_files(self, has_image: bool = True) -> dict[str, str]:
        """The files of the samples that still have their images, or of those whose images were dropped; each with its SHA-256."""
        return dict(self._rows("SELECT file, digest FROM samples WHERE has_image = ?", (has_image,)))

    def known_source(self, digest: str) -> int | None:
        """The sample that came from a file with this SHA-256, so that a folder shown twice is recognised."""
        return next((row.id for row in self.samples(source_digest=digest, limit=1)), None)

    def queued_from(self, origin: str) -> int:
        """How many queued samples have an origin that begins so."""
        query = "SELECT count(*) FROM samples WHERE state = 'queued' AND substr(origin, 1, ?) = ?"
        return int(self._rows(query, (len(origin), origin))[0][0])

    def newest_hashes(self, count: int) -> list[int]:
        """Perceptual hashes of the newest samples that are queued or labelled, oldest first."""
        # +: by id; by the index of states all samples would be sorted.
        return self._hashes("+state IN ('queued', 'labelled')", (), count)[::-1]

    def _hashes(self, condition: str, parameters: Collection[Any], count: int) -> list[int]:
        """Perceptual hashes of the newest samples, the newest first."""
        query = f"SELECT hash64 FROM samples WHERE {condition} ORDER BY id DESC LIMIT ?"
        return [hash64 % 2**64 for (hash64,) in self._rows(query, (*parameters, count))]

    def newest_of(self, class_ids: Iterable[int], count: int) -> dict[int, list[int]]:
        """Of each of these classes the samples that were labelled last and have their image, the newest first."""
        which = "class_id = ? AND has_image = 1 ORDER BY labelled_seq DESC, id DESC LIMIT ?"
        return {c: [row.id for row in self._samples(which, (c, count))] for c in class_ids}

    def over_classes(self, held_out: bool, newest: bool, limit: int = -1) -> list[tuple[int, int, int]]:
        """Labelled samples with images, as evenly over the classes as can be; of each its id, its class and its bytes.

        One of each class, its newest or its oldest, then another one of each, and so on. Sorted by SQLite: of a hundred
        thousand samples a few are wanted.
        """
        by_id = "id DESC" if newest else "id"
        rows = self._rows(
            "SELECT id, class_id, bytes FROM samples WHERE class_id IS NOT NULL AND held_out = ? AND has_image = 1"
            f" ORDER BY row_number() OVER (PARTITION BY class_id ORDER BY {by_id}), {by_id} LIMIT ?",
            (held_out, limit),
        )
        return [(sample_id, class_id, size) for sample_id, class_id, size in rows]

    def some(self, ids: Iterable[int]) -> list[SampleRow]:
        """Those of these samples that are there, in any order."""
        return self._samples(f"id IN {IDS}", (json.dumps([int(i) for i in ids]),))

    def rows_of(self, ids: Iterable[int]) -> list[SampleRow]:
        """These samples, in this order."""
        wanted = [int(i) for i in ids]
        rows = {row.id: row for row in self.some(wanted)}
        for sample_id in wanted:
            if sample_id not in rows:
                raise UserError(f"unknown sample {sample_id}: no sample has that id")
        return [rows[sample_id] for sample_id in wanted]

    def labels_of(self, ids: Iterable[int]) -> dict[int, int]:
        """The class of each of these samples that is labelled."""
        return {row.id: row.class_id for row in self.some(ids) if row.class_id is not None}

    def labelled(self, class_id: int | None = None) -> list[int]:
        """The labelled samples, or those of a class, the latest label first."""
        which, values = (" AND class_id = ?", (class_id,)) if class_id else ("", ())
        query = f"SELECT id FROM samples WHERE state = 'labelled'{which} ORDER BY labelled_seq DESC, id DESC"
        return [sample_id for (sample_id,) in self._rows(query, values)]

    # The whole --------------------------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        return Counts(*self._rows(_COUNTS)[0])

    def check(self, quick: bool = False) -> None:
        """Raise `JournalDamaged` if anything is wrong with the file; `quick` leaves out its indices, events and names."""
        ((answer,),) = self._rows(f"PRAGMA {'quick_check' if quick else 'integrity_check'}(1)")
        if answer != "ok":
            raise JournalDamaged(
                self.path, " ".join(answer.split())
            )  # SQLite's own words may be several lines
        last = 0
        while not quick and (page := self.events_after(last)):  # raises at one that cannot be read
            last = page[-1].seq
        if not quick and (foreign := [file for file in self.image_files() if not is_sample_name(file)]):
            raise JournalDamaged(self.path, f"{foreign[0][:100]!r} is no name of a sample's image")


@contextmanager
def reading(path: Path) -> Iterator[Queries]:
    """One moment of a journal, of this format or an older one; nobody who writes it has to wait."""
    with closing(open_read_only(path)) as db, as_user_errors(path):
        db.execute("BEGIN")
        check_journal(db, path)
        yield Queries(db, path)


def _sample_row(row: tuple[Any, ...]) -> SampleRow:
    values = dict(zip(SAMPLE_FIELDS, row, strict=True))
    booleans = {name: bool(values[name]) for name in ("held_out", "has_image", "ever_trained")}
    return SampleRow(**values | booleans | {"hash64": values["hash64"] % 2**64})


# The history --------------------------------------------------------------------------------------------------------
# The actions that can be undone, and those that were, in words.


@dataclass(frozen=True)
class Entry:
    """An action, which may be of many events, such as an import."""

    seq: int  # of its last event
    at: float
    text: str
    undone: bool


def history(journal: Queries) -> Iterator[Entry]:
    """Every action, the newest first."""
    names = journal.class_states()
    for (_, undone), run in itertools.groupby(journal.actions(), lambda each: (each.action, each.undone)):
        events = list(run)
        yield Entry(events[0].seq, events[0].at, in_words(events, names), undone)


def taken_back_text(journal: Queries, event: Event) -> str:
    """What an undo or redo was about."""
    return next(entry.text for entry in history(journal) if entry.seq == event.body.of)


def in_words(events: list[Event], names: Mapping[int, ClassState]) -> str:
    """An action as a person would tell it; classes have the names that they have now.

    >>> mug = ClassState("mug", None, "live", None)
    >>> in_words([Event(3, 0.0, "rename_class", Body([], [(1, mug._replace(name="cup"), mug)]))], {1: mug})
    'class cup renamed to mug'
    """
    body, kind = events[0].body, events[0].kind
    if body.group and (len(events) > 1 or body.is_import):
        kind = body.group.rpartition(" ")[0]
    after = [state for event in events for _, _, state in event.body.samples]
    pictures, made = many(len(after), "picture"), sum(len(event.body.classes) for event in events)
    new_classes = f", with {many(made, 'new class')}" if made else ""
    given = Counter(names[i].name for _, i, _ in after if i is not None)
    told = [
        f"{name} {count:,}" if len(given) > 1 else name for name, count in given.most_common(CLASSES_TOLD)
    ]
    called = (", ".join(told) or "a class") + (" …" if len(given) > CLASSES_TOLD else "")
    _, old, new = body.classes[0] if body.classes else (0, None, None)
    name = new.name if new else "a class"
    labels = f", with {many(len(after), 'label')}" if after else ""
    into = names.get(new.merged_into or 0) if new else None
    return {
        "import": f"import of {pictures}{new_classes}: {called}",
        "accepted guesses": f"{pictures} labelled as guessed: {called}",
        "labels": f"{pictures} labelled {called}",
        "label": f"{pictures} labelled {called}",
        "correct": f"{pictures} corrected to {called}",
        "dismiss": f"{pictures} dismissed",
        "delete": f"{pictures} deleted",
        "create_class": f"class {name} made",
        "rename_class": f"class {old.name if old else name} renamed to {name}",
        "recolour_class": f"another colour for class {name}",
        "merge_classes": f"class {name} merged into {into.name if into else 'another'}{labels}",
        "delete_class": f"class {name} deleted{labels}",
    }.get(kind, kind)
