"""Fetch a file over HTTP so that an interruption costs only what was not yet received.

What has arrived is kept in FILE.part; the next try asks the server for the rest (a Range request), and the
whole is compared with the published checksum before it gets its name.
"""

import http.client
import socket
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

from edge_hpcr.bench.datasets.store import file_hash
from edge_hpcr.common.errors import UserError

CHUNK = 1 << 18
_OK, _PARTIAL, _RANGE_NOT_SATISFIABLE = 200, 206, 416
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: the addresses that have it, in the order to try, and its published MD5."""

    addresses: tuple[str, ...]
    md5: str

    @property
    def name(self) -> str:
        return urlsplit(self.addresses[0]).path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Patience:
    """How long to keep trying: so many tries without a byte gained, with growing pauses between them."""

    attempts: int = 4
    timeout_seconds: float = 30.0
    pause_seconds: float = 1.0


PATIENCE = Patience()


class _Interrupted(Exception):
    """The connection failed; what has arrived is kept, and another try may get the rest."""


def fetch(remote: RemoteFile, folder: Path, patience: Patience = PATIENCE) -> Path:
    """Download a file into a folder, from the first of its addresses that delivers it."""
    reasons = []
    for address in remote.addresses:
        if urlsplit(address).scheme not in ("http", "https"):
            raise UserError(f"{address}: only http and https addresses are allowed")
        try:
            return _fetch(address, remote.md5, folder / remote.name, patience)
        except UserError as error:
            reasons.append(str(error))
    raise UserError("; ".join(reasons))


def _fetch(address: str, md5: str, target: Path, patience: Patience) -> Path:
    if target.is_file() and file_hash(target, "md5") == md5:
        return target
    part = target.with_name(target.name + ".part")
    resumed = part.is_file()
    _receive_all(address, part, patience)
    if resumed and file_hash(part, "md5") != md5:
        # Its beginning may be from another file or another day: once more from the start.
        part.unlink()
        _receive_all(address, part, patience)
    if file_hash(part, "md5") != md5:
        part.unlink()
        raise UserError(f"{address}: the file received has the wrong checksum (MD5); it was not kept")
    part.replace(target)
    return target


def _receive_all(address: str, part: Path, patience: Patience) -> None:
    """Add to the part until it is whole; the tries are counted anew whenever one has gained something."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _receive(address, part, patience.timeout_seconds)
            return
        except _Interrupted as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= patience.attempts:
                kept = f"; {_size(part):,} bytes are kept, the same command continues" if _size(part) else ""
                raise UserError(f"{address}: {error}{kept}") from error
            time.sleep(patience.pause_seconds * 2 ** (failures - 1))


def _receive(address: str, part: Path, timeout_seconds: float) -> None:
    have = _size(part)
    request = urllib.request.Request(
        address, headers={"User-Agent": "edge-hpcr", "Accept-Encoding": "identity"}
    )
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with _opener().open(request, timeout=timeout_seconds) as response:
            if response.status == _PARTIAL and not _starts_at(response, have):
                raise _Interrupted("the server sent another part than the one asked for")
            start = have if response.status == _PARTIAL else 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            _save(response, part, start, total)
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE and have:
            return  # nothing behind what we have: the checksum tells whether it is the whole
        if error.code in _WORTH_ANOTHER_TRY:
            raise _Interrupted(f"the server answers {error.code} {error.reason}") from error
        raise UserError(f"{address}: the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, socket.gaierror) and error.reason.errno == socket.EAI_NONAME:
            raise UserError(f"{address}: no such host, or no internet here") from error
        raise _Interrupted(f"cannot be reached ({error.reason})") from error
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"the connection broke ({error or type(error).__name__})") from error
    if total is not None and _size(part) < total:
        raise _Interrupted(f"the connection ended after {_size(part):,} of {total:,} bytes")


def _save(response: Any, part: Path, start: int, total: int | None) -> None:
    try:
        file = part.open("ab" if start else "wb")
    except OSError as error:
        raise UserError(f"{part}: cannot be written: {error.strerror}") from error
    name = part.name.removesuffix(".part")
    with (
        file,
        tqdm(
            desc=name,
            initial=start,
            total=total,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            file=sys.stderr,
        ) as bar,
    ):
        while chunk := response.read(CHUNK):
            try:
                file.write(chunk)
                file.flush()  # what was received survives a kill of this process
            except OSError as error:
                raise UserError(f"{part}: cannot be written: {error.strerror}") from error
            bar.update(len(chunk))


def _starts_at(response: Any, offset: int) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _opener() -> urllib.request.OpenerDirector:
    """Only HTTP and HTTPS, also behind a redirect: the default opener would follow one to FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
