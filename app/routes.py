"""What the page's own scripts ask for: the state, the current frame, actions, and pictures of samples.

Gradio serves the page itself. These few routes are beside it because a key press must be on disk and acknowledged
within a quarter of a second while the learner runs flat out, and because a frame must not leave a temporary file.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app import actions, review
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.stream.decode import decode_image
from export.device.manifest import MANIFEST
from export.publish.versions import folder_name, versions

LOG = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
SCRIPTS = {path.name: path for path in STATIC.iterdir()}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
LONGEST_SILENCE = 20.0  # seconds, of an upload
LARGEST_ACTION = 200_000  # bytes
LARGEST_FRAME = 4_000_000
LARGEST_FRAME_PIXELS = 10_000_000
IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}
NEVER_STORE = {"Cache-Control": "no-store"}
SAMPLES_STAY = {"Cache-Control": "private, max-age=86400, immutable"}  # an id is never given to another image


def routes(studio: Studio) -> list[Route]:
    answers = Answers(studio)

    def route(path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        return Route(path, _saying_errors(answer), methods=[method])

    return [
        route("/healthz", answers.healthz),
        route("/edge/state", answers.state),
        route("/edge/frame/{number:int}", answers.frame),
        route("/edge/camera", answers.camera, "POST"),
        route("/edge/act", answers.act, "POST"),
        route("/edge/sample/{id:int}", answers.sample),
        route("/edge/samples", answers.samples),
        route("/edge/import", answers.import_zip, "POST"),
        route("/edge/export.zip", answers.export_zip),
        route("/edge/model/{version:int}/{file}", answers.model),
        route("/edge/bench/{name}.json", answers.bench),
        route("/edge/static/{name}", answers.static),
    ]


class Answers:
    """One for each route."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    async def healthz(self, request: Request) -> Response:
        return Response("ready\n", media_type="text/plain", headers=NEVER_STORE)

    async def state(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._studio.state), headers=NEVER_STORE)

    async def frame(self, request: Request) -> Response:
        shown = self._studio.feeder.shown(request.path_params["number"])
        return Response(shown.picture, media_type=shown.media_type, headers=NEVER_STORE)

    async def camera(self, request: Request) -> Response:
        if self._studio.feeder.browser_camera is None:
            return JSONResponse({"wanted": False})
        data = await _body(request, LARGEST_FRAME)
        image = await run_in_threadpool(decode_image, data, "the camera's frame", LARGEST_FRAME_PIXELS)
        return JSONResponse({"wanted": self._studio.push_browser_frame(image)})

    async def act(self, request: Request) -> Response:
        body = await _body(request, LARGEST_ACTION)
        done = await run_in_threadpool(actions.perform, self._studio, body)
        # Fresh, or a page would show what was before its own action.
        now = await run_in_threadpool(self._studio.state, fresh=True)
        return JSONResponse({"state": now, **asdict(done)}, headers=NEVER_STORE)

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
        return JSONResponse(
            {"state": await run_in_threadpool(self._studio.state, fresh=True)}, headers=NEVER_STORE
        )

    async def export_zip(self, request: Request) -> Response:
        if request.method == "HEAD":  # which must not use up what can be fetched once
            return Response(headers=NEVER_STORE)
        file = await run_in_threadpool(self._studio.transfers.take_export)
        headers = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": 'attachment; filename="edge-hpcr-samples.zip"',
            **NEVER_STORE,
        }
        return StreamingResponse(_pieces(file), media_type="application/zip", headers=headers)

    async def model(self, request: Request) -> Response:
        return await run_in_threadpool(
            _model_file, self._studio, request.path_params["version"], request.path_params["file"]
        )

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
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def answer_or_say(request: Request) -> Response:
        try:
            return await answer(request)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 400, headers=NEVER_STORE)
        except Exception:
            LOG.exception("%s %s failed", request.method, request.url.path)
            return JSONResponse({"error": "something went wrong here; the program's log says what"}, 500)

    return answer_or_say


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
