"""`python -m export serve`: the exports folder of a workspace over HTTP, for devices in the field.

    GET  /latest.json                     the version for the device in `Device-Id`, else the one for everybody
    GET  /v000017/model.onnx              the files that the manifests of published versions name
    GET  /healthz                         200, without a token
    POST /devices/ID/report               204: what a device says of itself
    POST /devices/ID/frames/FRAME_ID      201 stored, 200 already there, 413, 415, 507 no room

docs/export.md describes them for other clients. It speaks plain HTTP: on an open network put a server
with TLS in front of it; to give out models, any static file server does as well.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import uvicorn
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.common.text import LONGEST_NAME
from edge_hpcr.stream.base import Frame
from edge_hpcr.stream.decode import BadImage, decode_image
from edge_hpcr.stream.gate import perceptual_hash
from edge_hpcr.workspace.devices import ID, Report, note_report
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.sample_files import shrink
from edge_hpcr.workspace.selection import UNKNOWN
from edge_hpcr.workspace.workspace import Workspace
from export.device import BadModel
from export.device.identity import NEEDED, listen, read_token, shows_token, url_of
from export.device.manifest import LARGEST_LATEST, LATEST, MANIFEST, read_manifest, read_plain_file
from export.publish.versions import pinned

LARGEST_REPORT, LARGEST_FRAME = 10_000, 5_000_000  # bytes
BODY_SECONDS = 60.0  # until a picture has come whole
REQUEST_SECONDS = 10.0  # for a request to come, but for its body
QUEUE_SHARE = 0.5  # of the queue that may be frames of devices: one that takes all for unknown must not push out the rest
# A device does not say how unsure it was: as unsure as can be, until the learner has looked by itself.
PRIORITIES = {"unknown": UNKNOWN, "unsure": 1.0}
NICE = 10  # a learner here gets the processors first; answers take milliseconds in any case
_VERSION = re.compile(r"v[0-9]{6,15}")
_HEADERS = {"Cache-Control": "no-cache", "Vary": "Device-Id", "X-Content-Type-Options": "nosniff"}


class _InTime(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that ends unless something is answered on it: else those that ask slowly would lock devices out."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(REQUEST_SECONDS, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._end_if_idle)


class ModelServer(uvicorn.Server):
    """The exports of a workspace, and what devices send."""

    def __init__(self, workspace: Path, host: str, port: int, token: str | None) -> None:
        if not workspace.is_dir():
            raise UserError(f"{workspace}: there is no such workspace")
        self._socket = listen(host, port, token is not None, "--host")
        self.port, self.url = int(self._socket.getsockname()[1]), url_of(host, self._socket)
        layout = Layout(workspace)
        self._workspace, self._devices, self._token = workspace, layout.devices, token
        self.exports = layout.exports
        # One at a time: the learner wants the processor and the disk too.
        self._writer = ThreadPoolExecutor(1)
        app: ASGIApp = self._answer
        if token is None:
            # Only this machine may ask, under its own name: else a page of anybody's in a browser here could, whose name
            # leads to this address (DNS rebinding).
            own_names = ["localhost", "127.0.0.1", "[::1]", host, f"[{host}]"]
            app = TrustedHostMiddleware(app, allowed_hosts=own_names, www_redirect=False)
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=_InTime,
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="critical",  # a fleet asks every few seconds
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=5,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [self._socket])

    def stop(self) -> None:
        """End `run`; from any thread."""
        self.should_exit = True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """By hand: a router would take as long as everything else that a poll needs, and hundreds come each second."""
        request = Request(scope, receive)
        asks = request.method in ("GET", "HEAD")
        try:
            match scope["path"].split("/")[1:]:
                case ["healthz"] if asks:
                    answer = Response()
                case [name] if name == LATEST and asks:
                    answer = self._latest(request)
                case [version, name] if asks:
                    self._check(request, request.headers.get("Device-Id"))
                    answer = await asyncio.to_thread(self._file, request, version, name)
                case ["devices", device, "report"] if request.method == "POST":
                    answer = await self._take_report(request, device)
                case ["devices", device, "frames", frame] if request.method == "POST":
                    answer = await self._take_frame(request, device, frame)
                case _:
                    raise HTTPException(404)
        except HTTPException as error:
            answer = PlainTextResponse(error.detail, error.status_code, error.headers)
        await answer(scope, receive, send)

    # What is given out ------------------------------------------------------------------------------------------------

    def _latest(self, request: Request) -> Response:
        device = request.headers.get("Device-Id")
        self._check(request, device)
        kept = pinned(self.exports)
        try:
            if kept is not None and device in kept.devices:
                data = kept.latest.encode()
            else:
                data = read_plain_file(self.exports / LATEST, LARGEST_LATEST)
        except BadModel:
            raise HTTPException(404) from None  # before the first version
        digest = sha256(data)
        return _unchanged(request, digest) or Response(
            data, headers=_of_a_file(digest), media_type="application/json"
        )

    def _file(self, request: Request, version: str, name: str) -> Response:
        folder = self.exports / version
        try:
            if _VERSION.fullmatch(version) is None:
                raise BadModel("not a version")
            files = {each.file: each.sha256 for each in read_manifest(folder).files}
            digest = sha256((folder / MANIFEST).read_bytes()) if name == MANIFEST else files[name]
            state = (folder / name).lstat()
            if not stat.S_ISREG(state.st_mode):
                raise BadModel("a link, or no file")
        except (BadModel, KeyError, OSError):
            # Without the reason, which could tell a stranger what is here.
            raise HTTPException(404) from None
        kind = "json" if name.endswith(".json") else "octet-stream"
        return _unchanged(request, digest) or FileResponse(
            folder / name, headers=_of_a_file(digest), media_type=f"application/{kind}", stat_result=state
        )

    # What devices send ------------------------------------------------------------------------------------------------

    async def _take_report(self, request: Request, device: str) -> Response:
        self._check_sender(request, device)
        data = await _body(request, LARGEST_REPORT)
        try:
            report = Report.parse(data)
            if report.device != device:
                raise UserError(f"device: the report is from another device than {device}")
        except UserError as error:
            raise HTTPException(400, str(error)) from None
        try:
            await self._write(note_report, self._devices, device, report)
        except UserError as error:
            raise HTTPException(507, str(error)) from None
        return Response(status_code=204)

    async def _take_frame(self, request: Request, device: str, frame: str) -> Response:
        self._check_sender(request, device)
        if self._token is None:
            raise HTTPException(403, f"frames need a token: {NEEDED}")
        reason = request.headers.get("Reason", "unknown")
        if ID.fullmatch(frame) is None or reason not in PRIORITIES:
            reasons = " or ".join(PRIORITIES)
            raise HTTPException(400, f"Reason: {reasons}; the id of a frame: as that of a device")
        answer = unquote(request.headers.get("Answer", ""), errors="replace")
        answer = "".join(each for each in answer if each.isprintable())[:LONGEST_NAME]
        data = await _body(request, LARGEST_FRAME)
        try:
            stored = await self._write(take_frame, self._workspace, device, frame, data, reason, answer)
        except BadImage as error:
            raise HTTPException(415, str(error)) from None
        except UserError as error:  # a queue or a budget; or a disk, or a workspace that does not open
            raise HTTPException(507, str(error)) from None
        return Response(status_code=201 if stored else 200)

    async def _write(self, act: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._writer, act, *arguments)

    def _check_sender(self, request: Request, device: str) -> None:
        self._check(request, device)
        if "Origin" in request.headers:
            # No device sends one: it is a browser, and any site's page could ask through it.
            raise HTTPException(403, "requests of a browser's page are refused")

    def _check(self, request: Request, device: str | None) -> None:
        """Refuse who may not ask."""
        if device is not None and ID.fullmatch(device) is None:
            raise HTTPException(400, "the id of a device has 1 to 64 letters, digits, . _ and -")
        if not shows_token(request.headers.get("Authorization"), self._token):
            raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})


def _of_a_file(digest: str) -> dict[str, str]:
    return {"ETag": f'"{digest}"', **_HEADERS}


def _unchanged(request: Request, digest: str) -> Response | None:
    """304 if `If-None-Match` names this ETag, as one of several, or as a weak one, which a proxy may have made of it."""
    if f'"{digest}"' not in request.headers.get("If-None-Match", ""):
        return None
    return Response(status_code=304, headers=_of_a_file(digest))


async def _body(request: Request, limit: int) -> bytes:
    """What was sent, if it is not too much and comes in time."""
    data, too_much = bytearray(), HTTPException(413, f"at most {limit:,} bytes are taken")
    if int(request.headers.get("Content-Length", 0)) > limit:
        raise too_much
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for block in request.stream():
                data += block
                if len(data) > limit:
                    raise too_much
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, headers={"Connection": "close"}) from None
    return bytes(data)


def take_frame(path: Path, device: str, frame: str, data: bytes, reason: str, answer: str) -> bool:
    """Put a frame into a workspace's queue, also while a learner runs there; False if it is there already.

    `BadImage` or another `UserError` say why not.
    """
    digest = sha256(f"device {device}/{frame}".encode())
    with Workspace.open(path, create=False, learning=False) as workspace:
        journal, settings = workspace.journal, workspace.settings
        if journal.known_source(digest) is not None:
            return False
        if workspace.is_full(journal.counts().image_bytes):
            raise UserError("the disk budget of the workspace is full: raise disk_bytes or delete samples")
        if journal.queued_from("device ") >= max(1, QUEUE_SHARE * settings.queue_samples):
            raise UserError(
                f"{QUEUE_SHARE:.0%} of the queue are frames of devices: label or dismiss some of them"
            )
        name = f"frame {frame} of {device}"
        if not data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
            raise BadImage(f"{name} is neither a JPEG nor a PNG")
        image = shrink(decode_image(data, name))
        workspace.make_room()
        origin = f"device {device}, {reason}" + (f": {answer}" if answer else "")
        code = perceptual_hash(image)
        workspace.take_many([Frame(image, origin, digest=digest, hash64=code, priority=PRIORITIES[reason])])
    return True


# The command ----------------------------------------------------------------------------------------------------------


def serve(workspace: Path, host: str, port: int, token: Path | None) -> None:
    """Serve a workspace until Ctrl-C or SIGTERM."""
    server = ModelServer(workspace, host, port, read_token(token))
    print(f"serving {server.exports} at {server.url}", file=sys.stderr, flush=True)
    # uvicorn ends at them, and then raises them again for the handler of before.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop())
    os.nice(NICE)
    server.run()
