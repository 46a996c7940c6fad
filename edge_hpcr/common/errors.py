"""The errors that reach a person: what was wrong, where, and what to do about it."""

import math
from collections.abc import Collection


class UserError(Exception):
    """Bad input. The command line prints it as one line and exits with 2; it never needs a traceback."""


class Failed(Exception):
    """Right input, and yet it could not be done. The command line prints it as one line and exits with 1."""


def one_of(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices, and list them."""
    if value not in choices:
        raise UserError(f"unknown {name} {value!r}: choose one of {', '.join(choices)}")


def check_positive(name: str, value: float) -> None:
    """Refuse what is no finite number above 0."""
    if not 0 < value < math.inf:
        raise UserError(f"{name} {value:g}: give a positive number")
