"""The error that reaches a person: what was wrong, where, and what to do about it."""


class UserError(Exception):
    """Bad input. The command line prints it as one line and exits with 2; it never needs a traceback."""
