"""What the journal takes and gives: samples, classes, events, and the rules for a class's name."""

import re
import secrets
import unicodedata
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from edge_hpcr.common.errors import UserError, first_of
from edge_hpcr.common.text import LONGEST_NAME, is_class_name

IMPORT = "import"


def new_group(name: str) -> str:
    """For several events that are one action: one entry in the history, one undo, one redo."""
    return f"{name} {secrets.token_hex(8)}"


class SampleState(NamedTuple):
    """The part of a sample that events change: all that undo must be able to bring back."""

    state: Literal["queued", "labelled", "dismissed", "deleted"]
    class_id: int | None  # of a labelled sample only
    held_out: bool


class ClassState(NamedTuple):
    name: str
    colour: str | None  # that a person chose in an earlier version
    state: Literal["absent", "live", "deleted", "merged"]  # absent: its creation was undone
    merged_into: int | None


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
    group: str | None = None  # the action of several events that it is a part of: its name and a number

    @property
    def is_import(self) -> bool:
        return self.group is not None and self.group.startswith(IMPORT)

    def to_json(self) -> str:
        return _BODY.dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> "Body":
        """An event as `to_json` wrote it; a ValueError for anything else, such as what a newer version writes."""
        try:
            return _BODY.validate_json(text)
        except ValidationError as error:
            raise ValueError(first_of(error)) from None


_BODY = TypeAdapter(Body)


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
    """An acknowledged action, and what it means for those who follow the journal."""

    seq: int
    at: float
    kind: str
    body: Body
    undone: bool = False

    @cached_property
    def moves(self) -> list[Move]:
        return [
            Move(sample_id, before.class_id, after.class_id, after.held_out, before.held_out)
            for sample_id, before, after in self.body.samples
            if before.class_id != after.class_id
        ]

    @property
    def action(self) -> str | int:
        """What the events of one action have in common, and no others."""
        return self.body.group or self.seq

    @property
    def closed(self) -> list[int]:
        """Classes that stopped being live."""
        return [i for i, old, new in self.body.classes if old.state == "live" and new.state != "live"]


class ClassRow(NamedTuple):  # a page asks for thousands of them with every label
    id: int
    name: str
    colour: str | None
    labels: int  # labelled samples, the held-out ones among them
    held_out: int


@dataclass(frozen=True)
class SampleRow:
    id: int = 0  # 0: the journal chooses
    file: str = ""
    digest: str = ""
    bytes: int = 0
    origin: str = ""
    source_digest: str | None = None
    hash64: int = 0  # unsigned
    priority: float = 0.0
    width: int = 0
    height: int = 0
    added: float = 0.0
    state: Literal["queued", "labelled", "dismissed", "deleted"] = "queued"
    class_id: int | None = None
    held_out: bool = False
    labelled_seq: int | None = None  # the last event that changed the sample
    has_image: bool = True
    ever_trained: bool = False

    @property
    def label(self) -> SampleState:
        return SampleState(self.state, self.class_id, self.held_out)


@dataclass(frozen=True)
class Counts:
    labels: int
    held_out: int
    queued: int
    queued_bytes: int
    images: int  # on disk
    image_bytes: int


def is_sample_name(file: str) -> bool:
    """Whether a file of the images may have this name: its folder, the sample's id and the kind of picture.

    >>> is_sample_name("23/000123.png"), is_sample_name("../../x.png")
    (True, False)
    """
    return re.fullmatch(r"[0-9]{2}/[0-9]{6,18}\.(png|jpg)", file) is not None


def clean_name(name: str) -> str:
    """A class's name as it is kept; one that cannot be stored or printed is refused.

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
    return name


def folded(name: str) -> str:
    """Names that are equal in this form are too alike for two classes.

    Folding can undo the normal form, so it is taken again.
    """
    return unicodedata.normalize("NFC", name.casefold())
