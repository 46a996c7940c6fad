"""Who may talk to a server of models: a file of tokens, one a line, read again when it changes.

    # everybody who knows it
    5mZk1hJt0QwXr8uVb3yNs7cDf2gLp9aE
    # only the device cam-3
    cam-3: Yq4nT8sWk2rJx6mBv1zPd9cHf3gLa7uE

Removing a line revokes its token, without a restart. A file that cannot be used any more lets nobody in.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import read_regular
from edge_hpcr.workspace.devices import ID
from export.device.access_token import HOW_TO_MAKE, VARIABLE, check_token, read_token

LARGEST_FILE = 2_000_000  # bytes: ten thousand devices have a line each

Owners = dict[bytes, str | None]  # by a token's hash: the device that may use it, None for any


def parse_tokens(text: str, where: str) -> Owners:
    """The tokens of a file; a `UserError` names a bad line."""
    found: Owners = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, separator, token = line.partition(": ")  # a token holds no space
        if not separator:
            name, token = "", line
        elif ID.fullmatch(name) is None:
            raise UserError(f"{where}, line {number}: before the colon belongs the id of a device")
        found[_hashed(check_token(token.strip(), f"{where}, line {number}"))] = name or None
    return found


def _hashed(token: str) -> bytes:
    # Looked up by its hash: how long that takes says nothing about a token.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Tokens:
    """The tokens that are valid now."""

    def __init__(self, owners: Owners, path: Path | None = None) -> None:
        self._owners = owners
        self._path = path
        self._state = self._look()
        self._lock = threading.Lock()
        self.are_wanted = bool(owners)  # whether anybody is asked for one

    @classmethod
    def read(cls, path: Path | None) -> Tokens:
        """Those of the file, else the one in EDGE_HPCR_TOKEN, else none."""
        if path is None:
            return cls.only(read_token(None))
        tokens = cls({}, path)  # which looks at the file before it is read: a change in between is noticed
        tokens._owners = _read(path)
        tokens.are_wanted = bool(tokens._owners)
        if not tokens.are_wanted:
            raise UserError(f"{path}: there is not a token in it; {HOW_TO_MAKE}")
        return tokens

    @classmethod
    def only(cls, token: str | None) -> Tokens:
        """One token for everybody, or none at all."""
        return cls({} if token is None else {_hashed(token): None})

    def owner(self, token: str) -> tuple[bool, str | None]:
        """Whether the token is valid, and the one device that may use it, if it is for one."""
        self._read_again()
        key = _hashed(token)
        return key in self._owners, self._owners.get(key)

    def _read_again(self) -> None:
        if self._path is None or (state := self._look()) == self._state:
            return
        with self._lock:
            self._state = state
            try:
                self._owners = _read(self._path)
            except UserError as error:
                self._owners = {}
                print(f"export: nobody is let in: {error}", file=sys.stderr, flush=True)

    def _look(self) -> tuple[int, ...] | None:
        try:
            state = self._path.stat() if self._path else None
        except OSError:
            state = None
        if state is None:
            return None
        return (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)


def _read(path: Path) -> Owners:
    def refuse(reason: str) -> UserError:
        return UserError(f"cannot read the token file {path}: {reason}")

    try:
        # A link is followed: secrets are often mounted as one.
        return parse_tokens(read_regular(path, LARGEST_FILE, refuse).decode(), str(path))
    except UnicodeDecodeError as error:
        raise refuse(str(error)) from None


NEEDED = f"give a token (--token FILE or {VARIABLE})"
