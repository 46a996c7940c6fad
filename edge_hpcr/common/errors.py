"""The errors that reach a person: what was wrong, where, and what to do about it."""

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class _Coded(Exception):
    """An error whose text is for a person. Programs and tests ask for its code, where two must be told apart."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class UserError(_Coded):
    """Bad input. The command line prints it as one line and exits with 2; it never needs a traceback."""


class Failed(_Coded):
    """Right input, and yet it could not be done. The command line prints it as one line and exits with 1."""


def one_of(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices, and list them."""
    if value not in choices:
        raise UserError(f"unknown {name} {value!r}: choose one of {', '.join(choices)}")


def first_of(error: "ValidationError") -> str:
    """The first thing that pydantic found wrong, in one line: where it is, and what it should be."""
    wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, wrong["loc"]))
    return " ".join(f"{where[:100]}: {wrong['msg']}".removeprefix(": ").split())


def check_positive(name: str, value: float) -> None:
    """Refuse what is no finite number above 0."""
    if not 0 < value < math.inf:
        raise UserError(f"{name} {value:g}: give a positive number")


def check_at_least(lowest: float, owner: object, *names: str) -> None:
    """Refuse a value below this among the named attributes."""
    for name in names:
        if getattr(owner, name) < lowest:
            raise UserError(f"{name} {getattr(owner, name)}: give at least {lowest}")
