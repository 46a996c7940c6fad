"""What was done in a workspace, in words, the newest first: the actions that can be undone, and those that were."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from edge_hpcr.common.text import many
from edge_hpcr.workspace.queries import Action, Queries
from edge_hpcr.workspace.records import Body, ClassState, Event

_AT_ONCE = 1000  # actions that are read together


@dataclass(frozen=True)
class Entry:
    """An action, or an import with all that it did one after the other."""

    seq: int  # of its last event
    at: float
    text: str
    undone: bool
    author: str | None
    classes: int = 0  # of an import: made by it
    samples: int = 0
    of_import: str | None = None

    def goes_on_with(self, earlier: "Entry") -> bool:
        part = (earlier.of_import, earlier.undone) == (self.of_import, self.undone)
        return self.of_import is not None and part

    def with_part(self, earlier: "Entry") -> "Entry":
        classes, samples = self.classes + earlier.classes, self.samples + earlier.samples
        return replace(self, classes=classes, samples=samples, text=_import_text(samples, classes))


def history(journal: Queries) -> Iterator[Entry]:
    names = journal.class_states()
    waiting: Entry | None = None
    for action in _actions(journal):
        entry = _entry(action, names)
        if waiting is not None and waiting.goes_on_with(entry):
            waiting = waiting.with_part(entry)
            continue
        if waiting is not None:
            yield waiting
        waiting = entry
    if waiting is not None:
        yield waiting


def taken_back_text(journal: Queries, event: Event) -> str:
    """What an undo or redo was about."""
    (action,) = journal.actions_before((event.of or 0) + 1, 1)
    if action.body.of_import is not None:
        return _import_text(len(event.moves), 0)
    return in_words(action.kind, action.body, journal.class_states())


def _actions(journal: Queries) -> Iterator[Action]:
    before = journal.last_seq + 1
    while found := journal.actions_before(before, _AT_ONCE):
        yield from found
        before = found[-1].seq


def _entry(action: Action, names: Mapping[int, ClassState]) -> Entry:
    body = action.body
    if body.of_import is None:
        text = in_words(action.kind, body, names)
        return Entry(action.seq, action.at, text, action.undone, body.author)
    classes, samples = len(body.classes), len(body.samples)
    text = _import_text(samples, classes)
    return Entry(action.seq, action.at, text, action.undone, body.author, classes, samples, body.of_import)


def _import_text(samples: int, classes: int) -> str:
    made = f", with {many(classes, 'new class')}" if classes else ""
    return f"import of {many(samples, 'picture')}{made}"


def in_words(kind: str, body: Body, names: Mapping[int, ClassState]) -> str:
    """An action as a person would tell it; classes have the names that they have now.

    >>> mug = ClassState("mug", None, "live", None)
    >>> in_words("rename_class", Body([], [(1, mug._replace(name="cup"), mug)]), {1: mug})
    'class cup renamed to mug'
    """
    pictures = many(len(body.samples), "picture")
    given = {after.class_id for _, _, after in body.samples if after.class_id is not None}
    called = ", ".join(sorted(names[i].name for i in given if i in names)) or "a class"
    _, old, new = body.classes[0] if body.classes else (0, None, None)
    name = new.name if new else "a class"
    labels = f", with {many(len(body.samples), 'label')}" if body.samples else ""
    into = names.get(new.merged_into or 0) if new else None
    return {
        "label": f"{pictures} labelled {called}",
        "correct": f"{pictures} corrected to {called}",
        "dismiss": f"{pictures} dismissed",
        "delete": f"{pictures} deleted",
        "create_class": f"class {name} made",
        "rename_class": f"class {old.name if old else name} renamed to {name}",
        "recolour_class": f"another colour for class {name}",
        "merge_classes": f"class {name} merged into {into.name if into else 'another'}{labels}",
        "delete_class": f"class {name} deleted{labels}",
        "undo_import": f"import taken back{labels}",
    }.get(kind, kind)
