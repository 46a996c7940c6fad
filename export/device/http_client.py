"""Asking a server for files: a limit on every wait and every size, and never led to another server."""

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, urljoin, urlsplit

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import split_address
from export.device.errors import BadModel, Unavailable

MOST_REDIRECTS = 3
BLOCK = 65_536
_REDIRECTS = (301, 302, 303, 307, 308)


class Reply:
    """An answer whose body is yet to be read, all of it before the deadline."""

    def __init__(self, url: str, connection: http.client.HTTPConnection, most_seconds: float) -> None:
        self.url = url
        self._connection = connection
        self._most_seconds = most_seconds
        self._late = False
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        # A socket's own timeout starts anew with every byte; this one does not.
        self._timer = threading.Timer(most_seconds, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def ask(self, path: str, headers: Mapping[str, str], body: bytes | None = None) -> None:
        try:
            self._connection.connect()
            # Kept here: the connection forgets its socket when the answer is the last one on it.
            self._socket = self._connection.sock
            if self._late:
                raise TimeoutError
            self._connection.request("GET" if body is None else "POST", path, body, dict(headers))
            self._response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from None
        self.status = self._response.status
        self._headers = self._response.headers
        self.length = self._response.length  # of the body, if the server says

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    def blocks(self, limit: int) -> Iterator[bytes]:
        """The body as it comes; `Unavailable` if it ends early, `BadModel` if it is larger than `limit`."""
        taken = 0
        while self._response is not None:
            try:
                block = self._response.read1(BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise self._unavailable(error) from None
            if not block:
                break
            taken += len(block)
            if taken > limit:
                raise BadModel(f"{self.url}: more than {limit} bytes, which is refused")
            yield block
        if self._late or (self.length is not None and taken < self.length):
            raise self._unavailable(None, f"cut off after {taken} of {self.length} bytes")

    def close(self) -> None:
        self._timer.cancel()
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def _give_up(self) -> None:
        self._late = True
        with contextlib.suppress(OSError):
            if self._socket is not None:
                # The plain socket's method: that of TLS would change what the other thread reads from.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _unavailable(self, error: Exception | None, otherwise: str = "") -> Unavailable:
        if self._late:
            reason = f"the server took longer than {self._most_seconds:g} s"
        elif isinstance(error, TimeoutError):
            reason = "the server does not answer in time"
        elif isinstance(error, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted: {error.verify_message}"
        elif isinstance(error, http.client.HTTPException):
            reason = f"the server does not speak HTTP as expected ({type(error).__name__})"
        else:
            reason = otherwise or f"cannot be reached: {getattr(error, 'strerror', None) or error}"
        return Unavailable(f"{self.url}: {reason}")


class Server:
    """A folder of files at an http:// or https:// address; no proxy is asked."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._place = _place(_checked(url))
        self._token = token
        self._timeout = timeout
        self._headers = headers or {}  # of every request
        self.url = url.rstrip("/")

    def get(
        self, name: str, limit: int, etag: str | None = None, most_seconds: float = 30.0
    ) -> tuple[int, str | None, bytes]:
        """Status (200, or 304 if it still has this ETag), ETag and body of a small file."""
        with self.open(name, {"If-None-Match": etag} if etag else {}, most_seconds) as reply:
            if reply.status not in (200, 304):
                raise Unavailable(f"{reply.url}: the server answers {reply.status}")
            return reply.status, reply.header("ETag"), b"".join(reply.blocks(limit))

    @contextlib.contextmanager
    def open(self, name: str, headers: Mapping[str, str], most_seconds: float) -> Iterator[Reply]:
        """The answer for one file, after redirects within this server."""
        url = f"{self.url}/{name}"
        sent = self._sent(headers)
        for _ in range(MOST_REDIRECTS + 1):
            parts = urlsplit(url)
            with contextlib.closing(
                Reply(f"{self.url}/{name}", self._connection(url), most_seconds)
            ) as reply:
                reply.ask(parts.path + (f"?{parts.query}" if parts.query else ""), sent)
                self._check_allowed(reply)
                if reply.status not in _REDIRECTS:
                    yield reply
                    return
                url = self._redirected(url, reply.header("Location") or "")
        raise Unavailable(f"{self.url}/{name}: the server redirects again and again")

    def post(
        self, name: str, body: bytes, headers: Mapping[str, str], most_seconds: float = 30.0
    ) -> tuple[int, str | None]:
        """Status and Retry-After; the token is not sent to where a redirect leads, so none is followed."""
        url = f"{self.url}/{name}"
        with contextlib.closing(Reply(self.url, self._connection(url), most_seconds)) as reply:
            reply.ask(urlsplit(url).path, self._sent(headers), body)
            self._check_allowed(reply)
            return reply.status, reply.header("Retry-After")

    def _sent(self, headers: Mapping[str, str]) -> dict[str, str]:
        sent = {"Accept-Encoding": "identity", "User-Agent": "edge-hpcr", **self._headers, **headers}
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        return sent

    def _connection(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self._timeout)

    def _check_allowed(self, reply: Reply) -> None:
        if reply.status in (401, 403):
            given = "refuses the token" if self._token else "wants a token (--token FILE)"
            raise Unavailable(f"{self.url}: the server {given}")

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urlsplit(urljoin(url, location))
            same = _place(target) == self._place and location.isascii() and location.isprintable()
        except ValueError:
            same = False
        if not same:
            raise Unavailable(f"{self.url}: the server redirects to another address, which is refused")
        return target.geturl()


def _checked(url: str) -> SplitResult:
    """The address, or a `UserError` that does not repeat what may hold a password."""
    parts = split_address(url, ("http", "https"))
    if parts is None or not url.isascii():
        raise UserError(
            "the models' address is not understood: write it as http://HOST:PORT/PATH or https://…"
        )
    if parts.username is not None or parts.password is not None:
        raise UserError(
            "a password in the models' address is refused: put a token into a file (--token FILE)"
        )
    if parts.query or parts.fragment:
        raise UserError("the models' address must be that of a folder, without ? and #")
    return parts


def _place(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
