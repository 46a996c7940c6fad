"""What a page may ask for with `/edge/act`: one model for each action, checked before anything is done."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from app.studio import Done, Studio
from edge_hpcr.common.errors import UserError

MOST_IDS = 5000
Id = Annotated[int, Field(gt=0, lt=2**53)]
Ids = Annotated[list[Id], Field(max_length=MOST_IDS)]
Text = Annotated[str, Field(max_length=2000)]
ClassId = Annotated[int, Field(gt=0, lt=2**53, alias="class")]


class Action(BaseModel):
    """An action of a person's; other fields of the request are passed over."""

    model_config = ConfigDict(strict=True, frozen=True)

    def perform(self, studio: Studio) -> Done:
        raise NotImplementedError


class Label(Action):
    frames: Ids = []
    class_id: ClassId

    def perform(self, studio: Studio) -> Done:
        return studio.label_frames(self.frames, self.class_id)


class NewClass(Action):
    name: Text
    frames: Ids = []

    def perform(self, studio: Studio) -> Done:
        return studio.new_class(self.name, self.frames)


class Undo(Action):
    def perform(self, studio: Studio) -> Done:
        return studio.undo()


class Redo(Action):
    def perform(self, studio: Studio) -> Done:
        return studio.redo()


class ClearProblem(Action):
    problem: Text

    def perform(self, studio: Studio) -> Done:
        return studio.clear_problem(self.problem)


class Hold(Action):
    held: bool = False
    frame: Id | None = None

    def perform(self, studio: Studio) -> Done:
        return studio.hold(self.held, self.frame)


class Source(Action):
    source: Text
    labels: Text = "none"

    def perform(self, studio: Studio) -> Done:
        return studio.use_source(self.source, self.labels)


class LabelSamples(Action):
    samples: Ids = []
    class_id: ClassId

    def perform(self, studio: Studio) -> Done:
        return studio.label_samples(self.samples, self.class_id)


class LabelSamplesAs(Action):
    samples: Ids = []
    name: Text

    def perform(self, studio: Studio) -> Done:
        return studio.label_samples_as(self.samples, self.name)


class Dismiss(Action):
    samples: Ids = []

    def perform(self, studio: Studio) -> Done:
        return studio.dismiss(self.samples)


class DeleteSamples(Action):
    samples: Ids = []

    def perform(self, studio: Studio) -> Done:
        return studio.delete_samples(self.samples)


class CreateClass(Action):
    name: Text

    def perform(self, studio: Studio) -> Done:
        return studio.create_class(self.name)


class RenameClass(Action):
    class_id: ClassId
    name: Text

    def perform(self, studio: Studio) -> Done:
        return studio.rename_class(self.class_id, self.name)


class RecolourClass(Action):
    class_id: ClassId
    colour: Text

    def perform(self, studio: Studio) -> Done:
        return studio.recolour_class(self.class_id, self.colour)


class MergeClasses(Action):
    class_id: ClassId
    into: Id

    def perform(self, studio: Studio) -> Done:
        return studio.merge_classes(self.class_id, self.into)


class DeleteClass(Action):
    class_id: ClassId

    def perform(self, studio: Studio) -> Done:
        return studio.delete_class(self.class_id)


class Import(Action):
    path: Text

    def perform(self, studio: Studio) -> Done:
        return studio.import_folder(self.path)


class Export(Action):
    def perform(self, studio: Studio) -> Done:
        return studio.export_samples()


class CancelTransfer(Action):
    def perform(self, studio: Studio) -> Done:
        return studio.cancel_transfer()


KINDS = {
    "integer": "a whole number",
    "array": f"a list of at most {MOST_IDS} whole numbers",
    "string": "a text",
    "boolean": "true or false",
}
# By the names that pages use: "label", "new_class" and so on.
ACTIONS = {re.sub(r"(?<!^)(?=[A-Z])", "_", each.__name__).lower(): each for each in Action.__subclasses__()}


def parsed(body: bytes) -> Action:
    """The action that a request asks for; what is wrong with a bad one is said in a sentence."""
    try:
        request = from_json(body)
    except ValueError as error:
        raise UserError("the request is not JSON") from error
    if not isinstance(request, dict) or not isinstance(name := request.get("do"), str):
        raise UserError('the request must be an object like {"do": "undo"}')
    if name not in ACTIONS:
        raise UserError(f"unknown action {name[:40]!r}: choose one of {', '.join(ACTIONS)}")
    try:
        return ACTIONS[name].model_validate(request)
    except ValidationError as error:
        (field, *place) = error.errors()[0]["loc"]
        kind = ACTIONS[name].model_json_schema()["properties"][field]
        wanted = KINDS["integer" if place else kind.get("type", "integer")]
        raise UserError(f"the request's {field!r} must be {wanted}") from error
