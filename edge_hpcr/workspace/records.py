"""What the journal takes and gives: samples, classes, events, and the rules for a class's name."""

import json
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import LONGEST_NAME, hidden_character, is_class_name, many

# Who acts in this thread or request: events carry it. A server sets it to the user's name.
AUTHOR: ContextVar[str] = ContextVar("author", default="local")
_IMPORT: ContextVar[str | None] = ContextVar("import", default=None)


@contextmanager
def import_number(number: str | None) -> Iterator[None]:
    """Events of this block belong to one import, which can be taken back as a whole."""
    token = _IMPORT.set(number)
    try:
        yield
    finally:
        _IMPORT.reset(token)


def current_import() -> str | None:
    return _IMPORT.get()


class SampleState(NamedTuple):
    """The part of a sample that events change: all that undo must be able to bring back."""

    state: str  # queued, labelled, dismissed or deleted
    class_id: int | None  # of a labelled sample only
    held_out: bool


class ClassState(NamedTuple):
    name: str
    colour: str | None
    state: str  # absent (its creation was undone), live, deleted or merged
    merged_into: int | None


_SAMPLE_STATES = ("queued", "labelled", "dismissed", "deleted")
_CLASS_STATES = ("absent", "live", "deleted", "merged")
QUEUED = SampleState("queued", None, False)
DISMISSED = SampleState("dismissed", None, False)
DELETED = SampleState("deleted", None, False)


@dataclass(frozen=True)
class Body:
    """What an event changed: of every row the state before and after it."""

    samples: list[tuple[int, SampleState, SampleState]]
    classes: list[tuple[int, ClassState, ClassState]]
    of: int | None = None  # the event that an undo or redo is about
    lost: list[int] = field(default_factory=list)  # samples that undo or redo could not restore: no image
    author: str | None = None  # None: of a version that did not note it
    of_import: str | None = None  # the number of the import that it is a part of

    def to_json(self) -> str:
        fields: dict[str, Any] = {"samples": self.samples, "classes": self.classes}
        fields |= {"of": self.of} if self.of is not None else {}
        fields |= {"lost": self.lost} if self.lost else {}
        fields |= {"author": self.author} if self.author is not None else {}
        fields |= {"import": self.of_import} if self.of_import is not None else {}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Body":
        """An event as `to_json` wrote it; a ValueError for anything else, such as what a newer version writes."""
        try:
            fields = json.loads(text)
            body = cls(
                [(i, SampleState(*before), SampleState(*after)) for i, before, after in fields["samples"]],
                [(i, ClassState(*before), ClassState(*after)) for i, before, after in fields["classes"]],
                fields.get("of"),
                fields.get("lost", []),
                fields.get("author"),
                fields.get("import"),
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if not body._is_known():
            raise ValueError("it says something that this version does not know")
        return body

    def _is_known(self) -> bool:
        states = [state for _, *both in self.samples for state in both]
        classes = [state for _, *both in self.classes for state in both]
        numbers = [*(i for i, *_ in self.samples), *(i for i, *_ in self.classes), *self.lost]
        links = [self.of, *(state.class_id for state in states), *(state.merged_into for state in classes)]
        texts = [
            *(each for each in (self.author, self.of_import) if each is not None),
            *(each.name for each in classes),
            *(each.colour for each in classes if each.colour is not None),
        ]
        return (
            all(state.state in _SAMPLE_STATES and state.held_out in (False, True) for state in states)
            and all(each.state in _CLASS_STATES for each in classes)
            and all(type(number) is int for number in numbers)
            and all(link is None or type(link) is int for link in links)
            and all(isinstance(text, str) for text in texts)
        )


@dataclass(frozen=True)
class Move:
    """A sample got, changed or lost its class; None stands for unlabelled."""

    sample_id: int
    was: int | None
    now: int | None
    held_out: bool  # after the event
    was_held_out: bool = False  # before it


@dataclass(frozen=True)
class Event:
    """An acknowledged action, as those who follow the journal need it."""

    seq: int
    at: float
    kind: str
    moves: list[Move]
    closed: list[int]  # classes that stopped being live
    lost: list[int] = field(default_factory=list)  # samples that undo or redo had to leave deleted
    of: int | None = None

    @classmethod
    def of_body(cls, seq: int, at: float, kind: str, body: Body) -> "Event":
        moves = [
            Move(sample_id, before.class_id, after.class_id, after.held_out, before.held_out)
            for sample_id, before, after in body.samples
            if before.class_id != after.class_id
        ]
        closed = [i for i, before, after in body.classes if before.state == "live" and after.state != "live"]
        return cls(seq, at, kind, moves, closed, body.lost, body.of)


class TakenBack(NamedTuple):
    """An import that was undone."""

    event: Event
    samples: int
    classes: int
    kept: int  # samples that somebody has changed since

    def __str__(self) -> str:
        kept = f"; {many(self.kept, 'sample')} changed since stay as they are" if self.kept else ""
        return (
            f"import undone: {many(self.samples, 'label')} and {many(self.classes, 'class')} taken back{kept}"
        )


@dataclass(frozen=True)
class ClassRow:
    id: int
    name: str
    colour: str | None
    labels: int  # labelled samples, the held-out ones among them
    held_out: int


@dataclass(frozen=True)
class NewSample:
    """A sample whose image is on disk already, under an id that `Journal.reserve_ids` gave."""

    file_bytes: int
    digest: str
    origin: str
    hash64: int = 0  # unsigned
    priority: float = 0.0
    width: int = 0
    height: int = 0
    file: str = ""
    source_digest: str | None = None
    id: int | None = None  # None: the journal chooses


@dataclass(frozen=True)
class SampleRow:
    id: int
    file: str
    digest: str
    bytes: int
    origin: str
    source_digest: str | None
    hash64: int
    priority: float
    width: int
    height: int
    added: float
    state: str
    class_id: int | None
    held_out: bool
    labelled_seq: int | None  # the last event that changed the sample
    has_image: bool


@dataclass(frozen=True)
class Counts:
    labels: int
    held_out: int
    queued: int
    queued_bytes: int
    held_out_bytes: int  # of held-out samples' images
    images: int  # on disk
    image_bytes: int


def clean_name(name: str) -> str:
    """A class's name as it is kept; a name that nobody could read, type or tell apart is refused.

    >>> clean_name("  mug ")
    'mug'
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise UserError("an empty class name: give the class a name")
    if len(name) > LONGEST_NAME:
        raise UserError(f"class name {name[:20]!r}… has {len(name)} characters: give at most {LONGEST_NAME}")
    # Surrogates cannot be stored as UTF-8; separators other than a space would break a list of names.
    if not is_class_name(name):
        raise UserError(f"class name {name!r} holds control characters: use letters, digits and signs")
    if (hidden := hidden_character(name)) is not None:
        sign = f"U+{ord(hidden):04X} {unicodedata.name(hidden, '')}".strip()
        raise UserError(f"class name {name!r} holds a character that nobody sees ({sign}): write it without")
    return name


def folded(name: str) -> str:
    """Names that are equal in this form are too alike for two classes.

    Folding can undo the normal form, so it is taken again.
    """
    return unicodedata.normalize("NFC", name.casefold())
