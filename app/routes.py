"""What the page's own scripts ask for: the state, the current frame, actions, and pictures of samples.

Gradio serves the page itself. These few routes are beside it because a key press must be on disk and acknowledged
within a quarter of a second while the learner runs flat out, and because a frame must not leave a temporary file.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app import actions, metrics, review
from app.browser_camera import BrowserCamera
from app.states import answer_state
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.stream.decode import decode_image
from export.device.manifest import MANIFEST
from export.publish.bundle import bundle_name
from export.publish.versions import folder_name, versions

LOG = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
SCRIPTS = {path.name: path for path in STATIC.iterdir()}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
LONGEST_SILENCE = 20.0  # seconds, of an upload
HEALTH_SECONDS = 2.0  # between two looks, each of which writes to the disk
LONGEST_HEALTH = 5.0
LARGEST_ACTION = 200_000  # bytes
LARGEST_FRAME = 4_000_000
LARGEST_FRAME_PIXELS = 10_000_000
LONGEST_NAME = 200  # of a picture's file
MOST_CARDS, CARD_PICTURES = 100, 4
IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}
NEVER_STORE = {"Cache-Control": "no-store"}
SAMPLES_STAY = {"Cache-Control": "private, max-age=86400, immutable"}  # an id is never given to another image


def routes(studio: Studio, invitation: Callable[[], dict[str, Any]] | None = None) -> list[Route]:
    """`invitation` says how a phone gets here."""
    answers = Answers(studio, invitation or dict)

    def route(path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        return Route(path, _saying_errors(answer, answers.requests), methods=[method])

    return [
        route("/healthz", answers.healthz),
        route("/metrics", answers.metrics),
        route("/edge/state", answers.state),
        route("/edge/frame/{number:int}", answers.frame),
        route("/edge/camera", answers.camera, "POST"),
        route("/edge/picture", answers.picture, "POST"),
        route("/edge/health", answers.health),
        route("/edge/history", answers.history),
        route("/edge/workspaces", answers.workspaces),
        route("/edge/newest", answers.newest),
        route("/edge/unknown", answers.unknown),
        route("/edge/phone", answers.phone),
        route("/edge/act", answers.act, "POST"),
        route("/edge/sample/{id:int}", answers.sample),
        route("/edge/samples", answers.samples),
        route("/edge/import", answers.import_zip, "POST"),
        route("/edge/export.zip", answers.export_zip),
        route("/edge/model/{version:int}/{file}", answers.model),
        route("/edge/device/{version:int}.zip", answers.bundle),
        route("/edge/bench/{name}.json", answers.bench),
        route("/edge/static/{name}", answers.static),
    ]


class Answers:
    """One for each route."""

    def __init__(self, studio: Studio, invitation: Callable[[], dict[str, Any]]) -> None:
        self._studio, self._invitation = studio, invitation
        self.requests = metrics.Requests()
        self._asking: asyncio.Task[list[str]] | None = None
        self._asked_at = -math.inf

    async def healthz(self, request: Request) -> Response:
        """Ready, or not; why not is nothing for strangers, who may ask this as well."""
        reasons = await self._reasons()
        known = request.scope.get("state", {}).get("author") is not None
        lines = ["not ready" if reasons else "ready", *(reasons if known else [])]
        return Response(
            "".join(f"{line}\n" for line in lines),
            503 if reasons else 200,
            media_type="text/plain",
            headers=NEVER_STORE,
        )

    async def _reasons(self) -> list[str]:
        """Asked once for all who ask within a moment; while one answer hangs, no further thread is spent on it."""
        if self._asking is None or (
            self._asking.done() and time.monotonic() - self._asked_at > HEALTH_SECONDS
        ):
            self._asked_at = time.monotonic()
            self._asking = asyncio.ensure_future(run_in_threadpool(self._studio.reasons_not_ready))
        try:
            return await asyncio.wait_for(asyncio.shield(self._asking), LONGEST_HEALTH)
        except TimeoutError:
            return [f"the pages have had no answer for {time.monotonic() - self._asked_at:.0f} s"]

    async def metrics(self, request: Request) -> Response:
        content = await run_in_threadpool(metrics.text, self._studio, self.requests)
        return Response(content, media_type=metrics.MEDIA_TYPE, headers=NEVER_STORE)

    async def state(self, request: Request) -> Response:
        return JSONResponse(await self._now(request, fresh=False), headers=NEVER_STORE)

    async def frame(self, request: Request) -> Response:
        shown = self._studio.feeder.shown(request.path_params["number"])
        return Response(shown.picture, media_type=shown.media_type, headers=NEVER_STORE)

    async def camera(self, request: Request) -> Response:
        """A frame of a page's camera; the answer says whether it is wanted, and whether another page has taken over."""
        camera, page = self._studio.feeder.browser_camera, request.query_params.get("page", "")
        if camera is None or not camera.is_of(page):
            return JSONResponse({"wanted": False, "taken": camera is not None})
        camera.push(await self._picture_in(request))
        return JSONResponse({"wanted": self._studio.feeder.browser_camera is camera, "taken": False})

    async def picture(self, request: Request) -> Response:
        """A picture that is to be labelled or asked about, by the number that it gets here."""
        self._studio.check_room(request.query_params.get("room", ""))
        file = Path(request.query_params.get("name", "")[:LONGEST_NAME]).name
        data = await _body(request, LARGEST_FRAME)
        image = await run_in_threadpool(decode_image, data, file or "the picture", LARGEST_FRAME_PIXELS)
        origin, digest = (file, sha256(data)) if file else (BrowserCamera.name, None)
        ask = request.query_params.get("ask") == "1"
        shown = await run_in_threadpool(self._studio.feeder.bring, image, origin, digest, ask)
        return JSONResponse({"number": shown.number, **answer_state(shown.answer)}, headers=NEVER_STORE)

    async def _picture_in(self, request: Request) -> np.ndarray:
        data = await _body(request, LARGEST_FRAME)
        return await run_in_threadpool(decode_image, data, "the camera's frame", LARGEST_FRAME_PIXELS)

    async def health(self, request: Request) -> Response:
        rows = await run_in_threadpool(self._studio.health)
        return JSONResponse({"classes": [asdict(row) for row in rows]}, headers=NEVER_STORE)

    async def history(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._studio.history), headers=NEVER_STORE)

    async def workspaces(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._studio.workspaces), headers=NEVER_STORE)

    async def newest(self, request: Request) -> Response:
        """Of the named classes the samples that were labelled last, for their cards."""
        parts = [part for part in request.query_params.get("classes", "").split(",") if part][:MOST_CARDS]
        if not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in parts):
            raise UserError("classes: name them by their numbers, like 1,2,3")
        found = await run_in_threadpool(self._studio.journal.newest_of, [*map(int, parts)], CARD_PICTURES)
        return JSONResponse(found, headers=NEVER_STORE)

    async def unknown(self, request: Request) -> Response:
        try:
            share = float(request.query_params.get("share", ""))
        except ValueError as error:
            raise UserError("share: give a number from 0 to 0.5") from error
        return JSONResponse(
            await run_in_threadpool(self._studio.try_unknown_share, share), headers=NEVER_STORE
        )

    async def phone(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._invitation), headers=NEVER_STORE)

    async def act(self, request: Request) -> Response:
        body = await _body(request, LARGEST_ACTION)
        room = request.query_params.get("room", "")
        self._studio.check_room(room)
        begun = time.monotonic()
        done = await run_in_threadpool(actions.perform, self._studio, body, room)
        self.requests.time(time.monotonic() - begun)
        # Fresh, or a page would show what was before its own action.
        return JSONResponse(
            {"state": await self._now(request, fresh=True), **asdict(done)}, headers=NEVER_STORE
        )

    async def _now(self, request: Request, fresh: bool) -> dict[str, Any]:
        since = request.query_params.get("since", "")  # what the page knows already
        return await run_in_threadpool(self._studio.state, fresh=fresh, since=since)

    async def sample(self, request: Request) -> Response:
        row = await run_in_threadpool(self._studio.journal.sample, request.path_params["id"])
        path = self._studio.workspace.files.folder / row.file
        try:
            # Read here: the image may be dropped while a response is on its way.
            content = await run_in_threadpool(path.read_bytes) if row.has_image else None
        except FileNotFoundError:
            content = None
        if content is None:
            return Response("its image is no longer kept\n", 404)
        return Response(content, media_type=IMAGE_TYPES[path.suffix], headers=SAMPLES_STAY)

    async def samples(self, request: Request) -> Response:
        page = await run_in_threadpool(review.page, self._studio, dict(request.query_params))
        return JSONResponse(page, headers=NEVER_STORE)

    async def import_zip(self, request: Request) -> Response:
        name, size = request.query_params.get("name", ""), request.headers.get("content-length", "")
        with self._studio.transfers.receiving(name, int(size) if size.isdecimal() else None) as upload:
            parts = request.stream()
            try:
                # A browser that falls silent must not keep everybody else from importing.
                while part := await asyncio.wait_for(anext(parts, None), LONGEST_SILENCE):
                    await run_in_threadpool(upload.write, part)
            except (ClientDisconnect, TimeoutError) as error:
                raise UserError("the upload broke off: nothing was imported") from error
        return JSONResponse({"state": await self._now(request, fresh=True)}, headers=NEVER_STORE)

    async def export_zip(self, request: Request) -> Response:
        if request.method == "HEAD":  # which must not use up what can be fetched once
            return Response(headers=NEVER_STORE)
        file = await run_in_threadpool(self._studio.transfers.take_export)
        return _download(file, "edge-hpcr-samples.zip")

    async def model(self, request: Request) -> Response:
        return await run_in_threadpool(
            _model_file, self._studio, request.path_params["version"], request.path_params["file"]
        )

    async def bundle(self, request: Request) -> Response:
        version = request.path_params["version"]
        file = await run_in_threadpool(self._studio.models.bundle, version)
        return _download(file, f"{bundle_name(version)}.zip")

    async def bench(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = await run_in_threadpool(self._studio.runs.result_file, name)
        if path is None:
            return Response("there is no such result\n", 404)
        return FileResponse(path, media_type="application/json", filename=f"{name}.json", headers=NEVER_STORE)

    async def static(self, request: Request) -> Response:
        path = SCRIPTS.get(request.path_params["name"])
        if path is None:
            return Response("there is no such file\n", 404)
        # Checked again each time: after an upgrade an old script would not know a new page.
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


def _saying_errors(
    answer: Callable[[Request], Awaitable[Response]], requests: metrics.Requests
) -> Callable[[Request], Awaitable[Response]]:
    async def answer_or_say(request: Request) -> Response:
        try:
            answered = await answer(request)
            requests.count("done")
            return answered
        except UserError as error:
            requests.count("refused")
            return JSONResponse({"error": str(error)}, 400, headers=NEVER_STORE)
        except Exception:
            requests.count("failed")
            LOG.exception("%s %s failed", request.method, request.url.path)
            return JSONResponse({"error": "something went wrong here; the program's log says what"}, 500)

    return answer_or_say


def _download(file: IO[bytes], name: str) -> Response:
    """A zip that is open, and closed when it was sent."""
    headers = {
        "Content-Length": str(os.fstat(file.fileno()).st_size),
        "Content-Disposition": f'attachment; filename="{name}"',
        **NEVER_STORE,
    }
    return StreamingResponse(_pieces(file), media_type="application/zip", headers=headers)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(1 << 20):
            yield piece


async def _body(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise UserError(f"more than {most:,} bytes were sent: send less at once")
        parts.append(part)
    return b"".join(parts)


def _model_file(studio: Studio, version: int, file: str) -> Response:
    """A file of a published version, if the version's own manifest names it."""
    exports = studio.workspace.layout.exports
    for manifest in versions(exports):
        names = {MANIFEST} | {each.file for each in manifest.files}
        if (
            manifest.version == version
            and file in names
            and (exports / folder_name(version) / file).is_file()
        ):
            return FileResponse(exports / folder_name(version) / file, filename=f"v{version}-{file}")
    return Response("there is no such version or file\n", 404)
