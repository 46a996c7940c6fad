"""How much a request may send, counted while it is received: what has arrived cannot be refused any more."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

IMPORT = "/edge/import"  # counts for itself
LARGEST_BODY = 10_000_000
UPLOADS = "/gradio_api/upload"
CLOSED = frozenset({"/gradio_api/process_recording"})  # keeps a film in the system's folder, and edits it
LARGEST_UPLOAD = 50_000_000  # with all of its files: a picture to try a model on
MOST_FILES = 20  # of an upload
_FILE = b"content-disposition"  # begins each of them
MOST_KEPT = 200_000_000  # bytes of uploads that Gradio may keep at once
LONGEST_SILENCE, LONGEST_UPLOAD = 20.0, 600.0  # seconds


class BodyLimit:
    """ASGI middleware. `uploads` is the folder in which Gradio keeps files."""

    def __init__(self, app: ASGIApp, uploads: Path) -> None:
        self.app, self._uploads = app, uploads
        self._expected: list[int] = []  # bytes that each upload under way may still bring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == IMPORT:
            await self.app(scope, receive, send)
        elif scope["path"] in CLOSED:
            await PlainTextResponse("the page does not use this\n", 404)(scope, receive, send)
        elif scope["path"] == UPLOADS:
            await self._upload(scope, receive, send)
        else:
            await self.app(scope, Counted(receive, LARGEST_BODY), send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        size = min(int(length) if length.isdecimal() else LARGEST_UPLOAD, LARGEST_UPLOAD)
        self._expected.append(size)
        try:
            if sum(self._expected) + await run_in_threadpool(_bytes_in, self._uploads) > MOST_KEPT:
                refusal = PlainTextResponse(
                    "too much was uploaded within the last hour: wait, or restart\n", 413
                )
                await refusal(scope, receive, send)
                return
            counted = Counted(receive, LARGEST_UPLOAD, MOST_FILES, LONGEST_UPLOAD)
            await self.app(scope, counted, send)
        finally:
            self._expected.remove(size)
            if not self._expected:
                _remove_unfinished(self._uploads)  # at once: a next upload must not begin meanwhile


class Counted:
    """A request's `receive`, which ends it with an error once it has sent too much or takes too long."""

    def __init__(
        self, receive: Receive, most: int, files: int | None = None, seconds: float | None = None
    ) -> None:
        self._receive, self._left = receive, most
        self._files_left, self._tail = files, b""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout(self._patience()):
                message = await self._receive()
        except TimeoutError as error:
            raise HTTPException(408, "the upload took too long: send it again") from error
        part = message.get("body", b"")
        self._left -= len(part)
        if self._left < 0 or self._has_too_many_files(part):
            raise HTTPException(413, "too much was sent at once: send less, or fewer files")
        return message

    def _patience(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, min(LONGEST_SILENCE, self._deadline - time.monotonic()))

    def _has_too_many_files(self, part: bytes) -> bool:
        if self._files_left is None:
            return False
        seen = self._tail + part.lower()
        self._files_left -= seen.count(_FILE)
        self._tail = seen[1 - len(_FILE) :]  # it may be cut in two
        return self._files_left < 0


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # which passes over folders that vanish meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _remove_unfinished(folder: Path) -> None:
    """Gradio leaves a file of an upload that broke off; a whole one is in a folder of its own."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink(missing_ok=True)
