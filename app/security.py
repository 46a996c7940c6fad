"""Who may ask this server for anything, and how much: what stands before every route, ours and Gradio's.

Other sites that a person has open must not reach the learner through their browser, by a form, a script, an image or a
name that suddenly points here. Other users of this machine need the token that is printed at the start; whoever comes
from another machine needs a password.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import math
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors

LOG = logging.getLogger(__name__)

LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
ENVIRONMENT = "EDGE_HPCR_AUTH"
# Neither says more than that the page is ready. Gradio asks itself for the second when it starts, without a password.
OPEN_PATHS = frozenset({"/healthz", "/gradio_api/startup-events"})
SHORTEST_PASSWORD = 8
# That wrong passwords wait for their answer: each twice as long as the one before.
FIRST_SECONDS, LONGEST_SECONDS = 0.1, 2.0
FORGOTTEN_SECONDS = 600.0  # without a wrong password
IMPORT = "/edge/import"
# Of Gradio's: no tab takes a file, and the second keeps a film in the system's folder, and edits it.
CLOSED = frozenset({"/gradio_api/upload", "/gradio_api/process_recording"})
LARGEST_BODY, LARGEST_UPLOAD = 10_000_000, 500_000_000
COOKIE_SECONDS = 365 * 86_400
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# Gradio's page begins with inline scripts that differ each time, its components have inline styles, and its HTML
# component makes a function out of a template: 'unsafe-eval' cannot go as long as a tab has one.
PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; worker-src 'self' blob:;"
    " object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
# Everything else is no page: a file that somebody uploaded must not act as one.
OTHER_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
NO_TOKEN = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>Edge HPCR</title>
<p>Please open the link that <code>python -m app</code> printed when it started: it ends with <code>?token=…</code>, and the
token is also in the file <code>token</code> of the workspace. <a href="/">I have opened it in this browser before</a></p>
"""


class Credentials(NamedTuple):
    user: str
    password: str


def read_credentials(option: str | None) -> Credentials | None:
    """From `--auth user:file`, or from the environment as user:password; None when neither is given."""
    if option is None and ENVIRONMENT not in os.environ:
        return None
    asked, given = ("--auth", option) if option is not None else (ENVIRONMENT, os.environ[ENVIRONMENT])
    user, _, password = given.partition(":")
    if not user or not password:
        form = (
            "user:file, where the file's first line is the password"
            if option is not None
            else "user:password"
        )
        raise UserError(f"{asked}: write it as {form}")
    if option is not None:
        try:
            password = Path(password).read_text(encoding="utf-8").partition("\n")[0].strip("\r")
        except (OSError, ValueError) as error:
            raise UserError(f"--auth: the password file cannot be read: {error}") from error
    if len(password) < SHORTEST_PASSWORD:
        raise UserError(f"{asked}: the password is too short: give it {SHORTEST_PASSWORD} characters or more")
    return Credentials(user, password)


def refuse_open_address(host: str, credentials: Credentials | None, phone: bool = False) -> None:
    if (phone or host not in LOCAL) and credentials is None:
        opened = "--phone" if phone else f"--host {host}"
        raise UserError(
            f"{opened} lets other machines in: that needs a password, by --auth user:file or {ENVIRONMENT}=user:password"
        )


def own_token(path: Path) -> str:
    """The token in this file, which is made if there is none; only its owner may read it.

    It is kept, with the workspace: open pages and bookmarks outlive a restart, and whoever may read the workspace's
    files owns the learner without a token.
    """
    with disk_errors(f"the page's token {path}", "make the workspace writable"):
        with suppress(FileNotFoundError):
            path.chmod(0o600)
            if re.fullmatch(r"[A-Za-z0-9_-]{32,100}", token := path.read_text("utf-8", "replace").strip()):
                return token
        path.unlink(missing_ok=True)
        token = secrets.token_urlsafe(32)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
    return token


class LoginThrottle:
    """A right password is let in at once; wrong ones are answered one at a time, each later than the one before.

    While one of them waits, every other password waits behind it, right or wrong. So a thousand at once are no faster
    than one after the other, from however many addresses they come.
    """

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._seconds, self._last_at = 0.0, -math.inf

    async def answer(self, right: bool) -> bool:
        """Say whether a password is right, late if it is not."""
        if right and not self._line.locked():
            return True
        async with self._line:
            if not right:
                before = 0.0 if time.monotonic() - self._last_at > FORGOTTEN_SECONDS else self._seconds
                self._seconds = min(LONGEST_SECONDS, max(FIRST_SECONDS, 2 * before))
                self._last_at = time.monotonic()
                await asyncio.sleep(self._seconds)
        return right


class Guard:
    """ASGI middleware: in come those who have the password, or the token where no password is asked for."""

    def __init__(
        self,
        app: ASGIApp,
        credentials: Credentials | None = None,
        token: str | None = None,
        port: int = 0,
    ) -> None:
        self.app, self._credentials = app, credentials
        self._throttle = LoginThrottle()
        self._cookie_name = f"edge-hpcr-{port}"  # a browser sends a host's cookies to all of its ports
        # Also the cookie; beside a password, that only says that this browser has given the right one before.
        self._token = token or secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cookies = cookie_parser(headers.get("cookie", ""))
        known = _same(cookies.get(self._cookie_name, ""), self._token)
        author: str | None = None
        refusal = self._refused_site(scope, headers)
        if refusal is None:
            admitted = await self._admit(scope, headers, known)
            if isinstance(admitted, str):
                author = admitted
            elif scope["path"] not in OPEN_PATHS:
                refusal = admitted

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                policy = PAGE_POLICY if scope["path"] == "/" else OTHER_POLICY
                answered.update({**HEADERS, "Content-Security-Policy": policy})
                if self._credentials is not None and author is not None and not known:
                    answered.append("Set-Cookie", self._set_cookie(scope))
            await send(message)

        if refusal is None:
            scope.setdefault("state", {})["author"] = author  # None: a stranger, at an open path
            # uvicorn has looked at those of a proxy on this machine; Gradio would believe anybody's.
            scope["headers"] = [each for each in scope["headers"] if not each[0].startswith(b"x-forwarded-")]
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refused_site(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        # With a password any name will do: a page under a false name has not got it.
        if self._credentials is None and _host_name(host) not in LOCAL:
            return PlainTextResponse("this name does not belong to this server\n", 400)
        if _from_elsewhere(scope, headers, host):
            return PlainTextResponse("requests from other sites are refused\n", 403)
        return None

    async def _admit(self, scope: Scope, headers: Headers, known: bool) -> str | Response:
        """Who asks, or what to answer to somebody who may not."""
        if self._credentials is not None:
            return await self._by_password(self._credentials, scope, headers, known)
        query = parse_qsl(scope["query_string"].decode("latin1"), keep_blank_values=True)
        if _same(dict(query).get("token", ""), self._token):  # first: the address is not to keep it
            rest = urlencode([each for each in query if each[0] != "token"])
            # One slash: what follows two is a host.
            clean = f"/{scope['path'].lstrip('/')}{'?' if rest else ''}{rest}"
            return RedirectResponse(clean, 303, {"Set-Cookie": self._set_cookie(scope)})
        kind, _, given = headers.get("authorization", "").partition(" ")
        if known or (kind.lower() == "bearer" and _same(given.strip(), self._token)):
            return "local"
        return HTMLResponse(NO_TOKEN, 401, {"WWW-Authenticate": "Bearer"})

    async def _by_password(
        self, expected: Credentials, scope: Scope, headers: Headers, known: bool
    ) -> str | Response:
        header = headers.get("authorization")
        if header is not None:  # a browser's first request has none, and that is no guess
            given = _read_basic(header)
            right = _same(":".join(given), ":".join(expected))
            if not right:
                address = scope["client"][0] if scope.get("client") else ""
                LOG.warning("a wrong password for user %r from %s", given.user[:40], address)
            # A browser that has given the right one before does not wait for those who guess.
            if (known and right) or await self._throttle.answer(right):
                return expected.user
        challenge = {"WWW-Authenticate": 'Basic realm="Edge HPCR", charset="UTF-8"'}
        return PlainTextResponse("a user's name and password are needed\n", 401, challenge)

    def _set_cookie(self, scope: Scope) -> str:
        secure = "; Secure" if scope.get("scheme") in ("https", "wss") else ""
        lasts = f"Max-Age={COOKIE_SECONDS}; Path=/; HttpOnly; SameSite=Strict{secure}"
        return f"{self._cookie_name}={self._token}; {lasts}"


class BodyLimit:
    """ASGI middleware: how much a request may send, counted while it is received."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"] in CLOSED:
            await PlainTextResponse("the page does not use this\n", 404)(scope, receive, send)
            return
        most = LARGEST_UPLOAD if scope["path"] == IMPORT else LARGEST_BODY
        left = most

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"more than {most // 1_000_000:,} MB were sent at once: send less")
            return message

        await self.app(scope, counted, send)


def internal_error(request: Request, error: Exception) -> Response:
    """What Starlette answers outside of all middleware; the traceback goes to the log."""
    return PlainTextResponse(
        "something went wrong here; the program's log says what\n",
        500,
        {**HEADERS, "Content-Security-Policy": OTHER_POLICY},
    )


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _read_basic(header: str) -> Credentials:
    kind, _, value = header.partition(" ")
    with suppress(binascii.Error, ValueError):
        if kind.lower() == "basic":
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            return Credentials(user, password)
    return Credentials("", "")


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
