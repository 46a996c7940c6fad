"""The secret that a server of models and its devices share, from a file or the environment, never from an option.

An option can be read by everybody on the machine, in the list of processes.
"""

import os
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of

VARIABLE = "EDGE_HPCR_TOKEN"
SHORTEST = 16
LONGEST = 4096
HOW_TO_MAKE = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes a good one"


def read_token(path: Path | None) -> str | None:
    """The token in the file, else in EDGE_HPCR_TOKEN, else None."""
    if path is not None:
        where = str(path)
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(LONGEST + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the token file {path}: {reason_of(error)}") from None
    else:
        where = f"the environment variable {VARIABLE}"
        if VARIABLE not in os.environ:
            return None
        text = os.environ[VARIABLE]
    return check_token(text.strip(), where)


def check_token(token: str, where: str) -> str:
    """The token, or a `UserError` that says what one looks like and does not repeat it."""
    if not SHORTEST <= len(token) <= LONGEST:
        raise UserError(f"{where}: a token has {SHORTEST} to {LONGEST} characters; {HOW_TO_MAKE}")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(f"{where}: a token is one word of ASCII letters, digits and signs; {HOW_TO_MAKE}")
    return token
