"""Who may ask this server for anything: the guard that stands before every route, ours and Gradio's.

Other sites that a person has open must not reach the learner through their browser, by a form, a script, an image or a
name that suddenly points here. Beyond this machine a password is asked for, of every request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from edge_hpcr.common.errors import UserError

LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
ENVIRONMENT = "EDGE_HPCR_AUTH"
# Neither says more than that the page is ready. Gradio asks itself for the second when it starts, without a password.
OPEN_PATHS = frozenset({"/healthz", "/gradio_api/startup-events"})
UPLOADS, MOST_UPLOADED = "/gradio_api/upload", 200_000_000  # bytes that Gradio may keep at once
SHORTEST_PASSWORD = 8
MOST_FAILURES, FAILURE_SECONDS = 5, 60.0
CLIENTS_REMEMBERED = 10_000


class Credentials(NamedTuple):
    user: str
    password: str


def read_credentials(option: str | None) -> Credentials | None:
    """From `--auth user:file`, or from the environment as user:password; None when neither is given."""
    if option is not None:
        user, separator, file = option.partition(":")
        if not separator or not user or not file:
            raise UserError("--auth: write it as user:file, where the file's first line is the password")
        try:
            password = Path(file).read_text(encoding="utf-8").partition("\n")[0].strip("\r")
        except (OSError, ValueError) as error:
            raise UserError(f"--auth: the password file {file} cannot be read: {error}") from error
        return _checked(Credentials(user, password), f"the first line of {file}")
    if ENVIRONMENT in os.environ:
        user, separator, password = os.environ[ENVIRONMENT].partition(":")
        if not separator or not user:
            raise UserError(f"{ENVIRONMENT}: write it as user:password")
        return _checked(Credentials(user, password), f"the password in {ENVIRONMENT}")
    return None


def _checked(credentials: Credentials, what: str) -> Credentials:
    if len(credentials.password) < SHORTEST_PASSWORD:
        raise UserError(f"{what} is too short: a password has at least {SHORTEST_PASSWORD} characters")
    return credentials


def refuse_open_address(host: str, credentials: Credentials | None) -> None:
    if host not in LOCAL and credentials is None:
        raise UserError(
            f"--host {host} lets other machines in: that needs a password, by --auth user:file or {ENVIRONMENT}=user:password"
        )


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, credentials: Credentials | None, uploads: Path | None = None) -> None:
        self.app = app
        self._uploads = uploads
        self._expected = (
            None if credentials is None else _digest(f"{credentials.user}:{credentials.password}")
        )
        self._failures: OrderedDict[str, dict[bytes, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        # With a password any name will do: a page under a false name has not got it.
        if self._expected is None and _host_name(host) not in LOCAL:
            return PlainTextResponse("this name does not belong to this server\n", 400)
        if _from_elsewhere(scope, headers, host):
            return PlainTextResponse("requests from other sites are refused\n", 403)
        if self._expected is not None and scope["path"] not in OPEN_PATHS:
            refusal = self._unless_password(scope, headers)
            if refusal is not None:
                return refusal
        if (
            scope["path"].startswith(UPLOADS)
            and self._uploads is not None
            and _bytes_in(self._uploads) > MOST_UPLOADED
        ):
            return PlainTextResponse("too much was uploaded within the last hour: wait, or restart\n", 413)
        return None

    def _unless_password(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        client = scope["client"][0] if scope.get("client") else "unknown"
        now = time.monotonic()
        failures = self._failures.get(client, {})
        recent = {guess: at for guess, at in failures.items() if now - at < FAILURE_SECONDS}
        if len(recent) >= MOST_FAILURES:
            return PlainTextResponse("too many wrong passwords: wait a minute\n", 429, {"Retry-After": "60"})
        given = headers.get("authorization")
        if given is not None and self._is_right(given):
            self._failures.pop(client, None)
            return None
        if given is not None:  # a browser's first request has none, and that is no guess
            # The same one again, by a page that was left open, is no further guess either.
            self._failures[client] = recent | {_digest(given): now}
            self._failures.move_to_end(client)
            while len(self._failures) > CLIENTS_REMEMBERED:
                self._failures.popitem(last=False)
        challenge = {"WWW-Authenticate": 'Basic realm="Edge HPCR", charset="UTF-8"'}
        return PlainTextResponse("a user's name and password are needed\n", 401, challenge)

    def _is_right(self, header: str) -> bool:
        kind, _, value = header.partition(" ")
        try:
            given = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return False
        expected = self._expected or b""
        return kind.lower() == "basic" and hmac.compare_digest(hashlib.sha256(given).digest(), expected)


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # which passes over folders that vanish meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _from_elsewhere(scope: Scope, headers: Headers, host: str) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        try:
            return urlsplit(origin).netloc.lower() != host.lower() or not host  # "null" has no host
        except ValueError:
            return True
    # Images, scripts and frames of other sites come without an origin, but browsers say where they are from.
    site = headers.get("sec-fetch-site", "none")
    followed_a_link = (
        scope["type"] == "http"
        and scope["method"] in ("GET", "HEAD")
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    return site not in ("same-origin", "none") and not followed_a_link
