"""What a page may ask for with `/edge/act`: a method of the studio, whose arguments are checked before it is called."""

from __future__ import annotations

from contextlib import nullcontext

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, from_json

from app.arguments import Done
from app.studio import Studio
from edge_hpcr.common.errors import UserError

CHANGES_ROOM = ("demonstrate", "leave_demonstration", "open_workspace", "new_workspace")
NAMED_ALIKE = (
    *CHANGES_ROOM,
    *("new_class", "undo", "redo", "undo_to", "clear_problem", "hold"),
    *("label_samples", "label_samples_as", "dismiss", "delete_samples"),
    *("create_class", "rename_class", "recolour_class", "move_class", "choose_key"),
    *("merge_classes", "delete_class", "close_source", "set_unknown_share", "set_region"),
    *("cancel_transfer", "choose_split", "take_import", "undo_import"),
)
METHODS = {
    "label": Studio.label_frames,
    "source": Studio.use_source,
    "import": Studio.look_at_import,
    "export": Studio.export_samples,
} | {name: getattr(Studio, name) for name in NAMED_ALIKE}
ACTIONS = {name: TypeAdapter(method, config=ConfigDict(strict=True)) for name, method in METHODS.items()}


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
    if name not in ACTIONS:
        raise UserError(f"unknown action {name[:40]!r}: choose one of {', '.join(ACTIONS)}")
    fields = ACTIONS[name].json_schema()["properties"]
    given = {field: value for field, value in request.items() if field in fields and field != "self"}
    try:
        with nullcontext() if name in CHANGES_ROOM else studio.staying(room):
            return ACTIONS[name].validate_python(ArgsKwargs((studio,), given))
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        (wanted, *_) = fields[field].get("anyOf", [fields[field]])
        raise UserError(f"the request's {field!r} must be {wanted['description']}") from error
