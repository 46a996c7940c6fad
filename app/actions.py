"""What a page may ask for with `/edge/act`: labels, undo, classes, the source, imports. What is done here is on disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, from_json

from app.page_feeder import Shown
from app.review import answers_about
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import many
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.queries import Queries, history, taken_back_text
from edge_hpcr.workspace.records import Event, new_group

# What actions take: arguments are checked by these types.
Id = Annotated[int, Field(gt=0, lt=2**53)]
ClassId = Annotated[Id, Field(alias="class")]
AnyClass = Annotated[Id | None, Field(alias="class")]
Point = Annotated[int, Field(ge=0, lt=2**53)]
Ids = Annotated[list[Id], Field(max_length=5000)]
Pair = Annotated[list[Id], Field(min_length=2, max_length=2)]
Text = Annotated[str, Field(max_length=2000)]

HISTORY_SHOWN = 100  # actions
ASK_SECONDS = 20.0  # for the guesses of samples that the page does not show


@dataclass(frozen=True)
class Done:
    """An action that is on disk."""

    message: str
    seq: int | None = None  # of the journal, by which the learner's reply is found
    class_id: int | None = None
    samples: int = 0


class Actions:
    """Each public method is an action of its name."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._journal, self._live, self._feeder = studio.journal, studio.live, studio.feeder

    # Frames that the page has shown -----------------------------------------------------------------------------------

    def label(self, frames: Ids, class_id: ClassId) -> Done:
        """Label frames that the page has shown; one action for all of them."""
        if not frames:
            raise UserError("there is no frame yet: choose a source first")
        return self._label(frames, lambda: class_id)

    def new_class(self, name: Text, frames: Ids | None = None) -> Done:
        """Make a class. With frames as its first samples, a name that exists already means that class."""
        if frames:
            return self._label(frames, lambda: self._journal.class_named(name))
        class_id = self._journal.create_class(name)
        return Done(f"{self._name(class_id)}: a new class, without labels yet", None, class_id)

    def _label(self, frames: list[int], find_class: Callable[[], int]) -> Done:
        kept = [frame for frame in map(self._feeder.find, dict.fromkeys(frames)) if frame is not None]
        shown = kept or [self._feeder.shown(frames[0])]  # of a burst, a few may be gone
        for frame in shown:
            if frame.sample_id is None and frame.digest is not None:
                frame.sample_id = self._journal.known_source(frame.digest)
        # The queue may have dropped a sample since; then the frame is taken again.
        known = [frame for frame in shown if self._is_here(frame)]
        fresh = [frame for frame in shown if frame not in known]
        for frame in fresh:
            frame.priority = 0.0  # labelled as it came: nobody has picked it from the queue
            if frame.sample_id is not None:  # which was dropped, and keeps the file's digest
                frame.digest = None
        with self._studio.workspace.taking(fresh) as ids:
            self._journal.set_priorities({each.sample_id or 0: 0.0 for each in known})
            for frame, sample_id in zip(fresh, ids, strict=True):
                self._live.predictor.encoder.name(sample_id, frame)
            class_id = find_class()  # in the same transaction: a failure leaves no new class behind
            event = self._journal.label([*(each.sample_id or 0 for each in known), *ids], class_id)
        for frame, sample_id in zip(fresh, ids, strict=True):
            frame.sample_id = sample_id
        self._live.notify()
        if self._feeder.held:
            self._feeder.hold(False)
        name, changed = self._name(class_id), len(event.moves)
        if not changed:
            return Done(f"{name}: saved already", None, class_id)
        held_out = sum(move.held_out for move in event.moves)
        pictures = f" · {changed} pictures" if changed > 1 else ""
        part = f"{held_out} of them " if changed > 1 else ""
        kept_out = f" · {part}kept for measuring, not for learning" if held_out else ""
        return Done(f"{name} saved{pictures}{kept_out}", event.seq, class_id, changed)

    def _is_here(self, frame: Shown) -> bool:
        if frame.sample_id is None:
            return False
        try:
            row = self._journal.sample(frame.sample_id)
        except UserError:
            return False
        return row.state == "labelled" or (row.state in ("queued", "dismissed") and row.has_image)

    def hold(self, held: bool = False, frame: Id | None = None) -> Done:
        self._feeder.hold(held, frame)
        return Done("held: label it, or press Space to let it go" if held else "")

    # Back and forth ---------------------------------------------------------------------------------------------------

    def undo(self) -> Done:
        self._studio.imports.refuse_while_busy()
        return self._taken_back(self._journal.undo(), "undone")

    def redo(self) -> Done:
        return self._taken_back(self._journal.redo(), "done again")

    def undo_to(self, seq: Point, newest: Point) -> Done:
        """Take back everything after an action of the history, whose newest action the page knows."""
        self._studio.imports.refuse_while_busy()
        with self._journal.transaction():
            back = itertools.takewhile(lambda entry: entry.seq > seq, history(self._journal))
            count = sum(not entry.undone for entry in back)
            event = self._journal.undo_to(seq, newest)
        self._live.notify()
        return Done(f"undone: {many(count, 'action')}{_lost(event)}", event.seq, None, len(event.moves))

    def _taken_back(self, event: Event, how: str) -> Done:
        self._live.notify()
        what = taken_back_text(self._journal, event)
        return Done(f"{how}: {what}{_lost(event)}", event.seq, None, len(event.moves))

    def clear_problem(self, problem: Text) -> Done:
        """Hide a problem until it happens again."""
        self._live.clear_problem(problem)
        return Done("no longer shown")

    # Samples ----------------------------------------------------------------------------------------------------------

    def label_samples(self, samples: Ids, class_id: AnyClass = None, name: Text = "") -> Done:
        """Label samples as a class, or by a class's name, which is made if there is none of that name."""
        with self._journal.transaction():  # a failure leaves no new class behind
            target = self._journal.class_named(name) if class_id is None else class_id
            event = self._journal.label(samples, target)
        self._live.notify()
        changed = len(event.moves)
        return Done(f"{changed} labelled {self._name(target)}", event.seq, target, changed)

    def accept_guesses(self, samples: Ids, shown: list[Pair] | None = None) -> Done:
        """Label samples as what the learner takes them for; `shown` are the guesses that the page shows, with their samples."""
        guesses = {pair[0]: pair[1] for pair in shown or []}
        answers = answers_about(self._live, [i for i in samples if i not in guesses], ASK_SECONDS)
        guesses |= {i: each.best[0] for i, each in answers.items() if each.best and not each.unknown}
        given = [(i, guesses[i]) for i in samples if i in guesses]
        if not given:
            raise UserError("there is no guess to accept: give it a class")
        event = self._journal.label_each(given, new_group("accepted guesses"))[-1]
        self._live.notify()
        classes = {class_id for _, class_id in given}
        named = self._name(given[0][1]) if len(classes) == 1 else many(len(classes), "class")
        left = f"; {len(samples) - len(given)} without a guess stay" if len(given) < len(samples) else ""
        return Done(f"{len(given)} labelled as guessed: {named}{left}", event.seq, None, len(given))

    def dismiss(self, samples: Ids) -> Done:
        event = self._journal.dismiss(samples)
        return Done(f"{len(samples)} dismissed", event.seq, None, len(samples))

    def delete_samples(self, samples: Ids) -> Done:
        event = self._journal.delete_samples(samples)
        self._live.notify()
        return Done(f"{len(samples)} deleted", event.seq, None, len(samples))

    # Classes ----------------------------------------------------------------------------------------------------------

    def rename_class(self, class_id: ClassId, name: Text) -> Done:
        event = self._journal.rename_class(class_id, name)
        return Done(f"now called {self._name(class_id)}", event.seq, class_id)

    def merge_classes(self, class_id: ClassId, into: Id) -> Done:
        name = self._name(class_id)
        moved = self._journal.merge_classes(class_id, into)
        self._live.notify()
        return Done(
            f"{name} merged into {self._name(into)}: {many(moved, 'sample')} moved", None, into, moved
        )

    def delete_class(self, class_id: ClassId) -> Done:
        name = self._name(class_id)
        lost = self._journal.delete_class(class_id)
        self._live.notify()
        return Done(f"{name} deleted with {many(lost, 'sample')}. Press u to undo", None, None, lost)

    def _name(self, class_id: int) -> str:
        return self._journal.class_name(class_id) or f"class {class_id}"

    # Imports ----------------------------------------------------------------------------------------------------------

    def take_import(self, number: Id) -> Done:
        self._studio.imports.take(number)
        return Done("")  # the page follows the import's own state

    def cancel_import(self) -> Done:
        self._studio.imports.cancel()
        return Done("")

    # The source -------------------------------------------------------------------------------------------------------

    def source(self, source: Text, labels: Text = "none", page: Text = "") -> Done:
        """Change the source, or let none run; `page` names the page whose camera it is, if it is a browser's."""
        source = source.strip()
        self._feeder.choose(source, labels, page)
        self._studio.workspace.change_settings(source=source, source_labels=labels)
        stream = self._feeder.stream
        return Done(f"source: {stream.name}" if stream else "no source")

    def set_region(self, source: Text, region: list[float] | None = None) -> Done:
        """Look at a part of this source's picture only; without numbers, at all of it."""
        stream = self._feeder.stream
        if stream is None or stream.name != source:
            raise UserError("another source is shown by now: draw the region on its picture")
        self._feeder.set_region(None if region is None else Region.of(region))
        part = "the whole picture is" if region is None else "only what is inside the rectangle is"
        return Done(f"{source}: {part} learned from now on")

    # Workspaces -------------------------------------------------------------------------------------------------------

    def demonstrate(self) -> Done:
        self._studio.demonstrate()
        return Done("the demonstration: nothing is saved")

    def leave_demonstration(self) -> Done:
        self._studio.leave_demonstration()
        return Done("back in your own workspace")

    def open_workspace(self, name: Text) -> Done:
        unstored = self._studio.open_workspace(name)
        lost = f"; {many(unstored, 'label')} of the source before could not be stored" if unstored else ""
        return Done(f"this is {self._studio.workspace.path.name} now{lost}")


METHODS = {name: each for name, each in vars(Actions).items() if not name.startswith("_")}
CHECKED = {name: TypeAdapter(each, config=ConfigDict(strict=True)) for name, each in METHODS.items()}
FIELDS = {name: each.json_schema()["properties"] for name, each in CHECKED.items()}
ELSEWHERE = frozenset({"demonstrate", "leave_demonstration", "open_workspace"})  # say nothing of a room


def perform(studio: Studio, body: bytes, room: str = "") -> Done:
    """Do what a page asks for that shows this room.

    A bad request is refused in a sentence, and fields that mean nothing are passed over.
    """
    try:
        request = from_json(body)
    except ValueError as error:
        raise UserError("the request is not JSON") from error
    if not isinstance(request, dict) or not isinstance(name := request.get("do"), str):
        raise UserError('the request must be an object like {"do": "undo"}')
    if name not in CHECKED:
        raise UserError(f"unknown action {name[:40]!r}: choose one of {', '.join(CHECKED)}")
    fields = FIELDS[name]
    given = {field: value for field, value in request.items() if field in fields and field != "self"}
    try:
        with studio.acting("" if name in ELSEWHERE else room):
            return CHECKED[name].validate_python(ArgsKwargs((Actions(studio),), given))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UserError(f"the request's {wrong['loc'][0]!r} is refused: {wrong['msg']}") from error


def last_actions(journal: Queries) -> dict[str, Any]:
    """The last actions, and whether there are more."""
    shown = list(itertools.islice(history(journal), HISTORY_SHOWN + 1))
    names = ("seq", "at", "text", "undone")
    entries = [{name: getattr(entry, name) for name in names} for entry in shown[:HISTORY_SHOWN]]
    return {"entries": entries, "more": len(shown) > HISTORY_SHOWN}


def _lost(event: Event) -> str:
    return f"; {many(len(event.body.lost), 'image')} gone, which stay deleted" if event.body.lost else ""
