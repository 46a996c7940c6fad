"""Asking a server for files: a limit on every wait and every size, and never led to another server."""

import contextlib
import http.client
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import split_address
from export.device import BadModel, Unavailable

BLOCK = 65_536
TIMEOUT = 10.0  # seconds of silence
MOST_SECONDS = 30.0  # until a small answer is here
_FAILURES = (OSError, http.client.HTTPException)


class _NoRedirect(HTTPRedirectHandler):
    """None is followed: the token would go along, and a model's files lie where its manifest is."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Server:
    """A folder of files at an http:// or https:// address; no proxy is asked."""

    def __init__(self, url: str, token: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        parts = split_address(url, ("http", "https"))
        if parts is None or not url.isascii() or "@" in parts.netloc or parts.query or parts.fragment:
            # Not repeated: it may hold a password.
            raise UserError(
                "the address is not that of a folder: write it as http://HOST:PORT/PATH or https://…, without ? and #; "
                "instead of a password put a token into a file (--token FILE)"
            )
        self.url = url.rstrip("/")
        self._headers = {"User-Agent": "edge-hpcr", **(headers or {})}  # of every request
        self._has_token = token is not None
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._open = build_opener(ProxyHandler({}), _NoRedirect()).open

    def get(
        self, name: str, limit: int, etag: str | None = None, most_seconds: float | None = None
    ) -> tuple[int, str | None, bytes]:
        """Status (200, or 304 if it still has this ETag), ETag and body of a file of at most `limit` bytes."""
        with self._asked(name, {"If-None-Match": etag} if etag else {}) as reply:
            if reply.status not in (200, 304):
                raise Unavailable(f"{reply.url}: the server answers {reply.status}")
            return reply.status, reply.headers.get("ETag"), _body(reply, limit, most_seconds or MOST_SECONDS)

    def post(self, name: str, body: bytes, headers: Mapping[str, str]) -> int:
        """The status."""
        with self._asked(name, headers, body) as reply:
            return int(reply.status)

    @contextlib.contextmanager
    def _asked(self, name: str, headers: Mapping[str, str], body: bytes | None = None) -> Iterator[Any]:
        """The response, of any status but those that refuse the token; its body is yet to be read."""
        url = f"{self.url}/{name}"
        try:
            reply = self._open(Request(url, body, {**self._headers, **headers}), timeout=TIMEOUT)
        except HTTPError as error:
            reply = error  # any status but 2xx
        except _FAILURES as error:
            raise Unavailable(f"{url}: {_why(error)}") from None
        with reply:
            if reply.status in (401, 403):
                given = "refuses the token" if self._has_token else "needs a token (--token FILE)"
                raise Unavailable(f"{self.url}: the server {given}", code="token")
            yield reply


def _body(reply: Any, limit: int, most_seconds: float) -> bytes:
    """`Unavailable` if it ends early or is late, `BadModel` if it is larger than `limit`."""
    length, body, deadline = reply.length, bytearray(), time.monotonic() + most_seconds
    while True:
        try:
            block = reply.read1(BLOCK)
        except _FAILURES as error:
            raise Unavailable(f"{reply.url}: {_why(error)}") from None
        if not block:
            break
        body += block
        if len(body) > limit:
            raise BadModel(f"{reply.url}: more than {limit} bytes, which is refused")
        if time.monotonic() > deadline:
            raise Unavailable(f"{reply.url}: the server took longer than {most_seconds:g} s")
    if length and len(body) < length:
        raise Unavailable(f"{reply.url}: cut off after {len(body)} of {length} bytes")
    return bytes(body)


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", error)  # of what urllib has wrapped
    if isinstance(reason, TimeoutError):
        return "the server does not answer in time"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {reason.verify_message}"
    return f"cannot be reached: {getattr(reason, 'strerror', None) or repr(reason)}"
