"""The order of the classes on the page and their keys, where a person has chosen them; kept with the workspace's settings.

Only the page follows them: exported labels and models list classes by their age, which programs rely on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.folder import Workspace

OWN_KEYS = "bdnrux"  # letters by which the page itself does something on one of its tabs


def chosen_order(text: str) -> list[int]:
    """
    >>> chosen_order("3,1,2")
    [3, 1, 2]
    """
    return [int(number) for number in re.findall(r"\d{1,15}", text)]


def chosen_keys(text: str) -> dict[int, str]:
    """
    >>> chosen_keys("3=a,7=m")
    {3: 'a', 7: 'm'}
    """
    return {int(number): key for number, key in re.findall(r"(\d{1,15})=(\w)", text)}


def arranged(ids: Iterable[int], order: str) -> list[int]:
    """The classes in the chosen order; those that nobody has moved come after them, the oldest first.

    >>> arranged([1, 2, 3, 4], "3,1,9")
    [3, 1, 2, 4]
    """
    places = {class_id: place for place, class_id in enumerate(chosen_order(order))}
    return sorted(ids, key=lambda class_id: (places.get(class_id, len(places)), class_id))


def move_class(workspace: Workspace, class_id: int, place: int) -> None:
    """Put a class at a place, 1 being the first; those behind it move up by one."""
    ids = arranged(_live(workspace, class_id), workspace.settings.class_order)
    ids.remove(class_id)
    ids.insert(place - 1, class_id)
    workspace.change_settings(class_order=",".join(map(str, ids)))


def choose_key(workspace: Workspace, class_id: int, key: str) -> None:
    """Give a class a key of its own; an empty one: the digit of its place again."""
    live, key = _live(workspace, class_id), key.strip()
    if (key and not re.fullmatch(r"[^\W_]", key)) or key != key.lower():
        raise UserError(f"key {key[:20]!r}: give one small letter or a digit")
    if key and key in OWN_KEYS:
        raise UserError(f"key {key!r} does something else on this page: choose none of {', '.join(OWN_KEYS)}")
    keys = {i: each for i, each in chosen_keys(workspace.settings.class_keys).items() if i in live}
    keys.pop(class_id, None)
    if key in keys.values():
        (other,) = (i for i, each in keys.items() if each == key)
        name = workspace.journal.class_name(other)
        raise UserError(f"key {key!r} is that of {name}: choose another, or take it from {name} first")
    keys |= {class_id: key} if key else {}
    workspace.change_settings(class_keys=",".join(f"{i}={each}" for i, each in keys.items()))


def _live(workspace: Workspace, class_id: int) -> list[int]:
    ids = [row.id for row in workspace.journal.classes()]
    if class_id not in ids:
        raise UserError(f"there is no class {class_id} any more: look again")
    return ids
