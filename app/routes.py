"""What the page's own scripts ask for: the state, the current frame, actions, and pictures of samples.

Gradio serves the page itself. These few routes are beside it because a key press must be on disk and acknowledged
within a quarter of a second while the learner runs flat out, and because a frame must not leave a temporary file.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app import actions, review
from app.page_feeder import BrowserCamera, answer_state, encoded
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, sha256
from edge_hpcr.stream.decode import decode_image
from edge_hpcr.workspace.sample_files import sample_path
from edge_hpcr.workspace.transfer import export_samples
from export.publish.handout import bundle_name, write_bundle

LOG = logging.getLogger(__name__)

SCRIPTS = {path.name: path for path in (Path(__file__).parent / "static").iterdir()}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}
HEALTH_SECONDS = 2.0  # between two looks, each of which writes to the disk
LONGEST_HEALTH = 5.0
LARGEST_ACTION = 200_000  # bytes
LARGEST_FRAME, LARGEST_FRAME_PIXELS = 4_000_000, 10_000_000
LONGEST_NAME = 200  # of a picture's file
MOST_FILES = 20_000  # of an upload
MOST_CARDS, CARD_PICTURES = 100, 3
SMALLEST_THING = 0.45  # of a picture's shorter side
MIDDLE = (0.5, 0.5, 1.0)  # if nobody knows where the thing is
IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}
NEVER_STORE = {"Cache-Control": "no-store"}
SAMPLES_STAY = {"Cache-Control": "private, max-age=86400, immutable"}  # an id is never given to another image

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Answer = Callable[[Request], Awaitable[Response]]


def routes(studio: Studio, invitation: Callable[[], dict[str, Any]] = dict) -> list[Route]:
    """`invitation` says how a phone gets here."""
    answers = Answers(studio)

    def route(path: str, answer: Answer, method: str = "GET") -> Route:
        return Route(path, answers.saying_errors(answer), methods=[method])

    def asking(path: str, question: Callable[[Request], Any]) -> Route:
        """A question whose answer is JSON."""

        async def answer(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(question, request), headers=NEVER_STORE)

        return route(path, answer)

    def sending(path: str, download: Callable[[Request], Response]) -> Route:
        async def answer(request: Request) -> Response:
            return await run_in_threadpool(download, request)

        return route(path, answer)

    return [
        route("/healthz", answers.healthz),
        route("/metrics", answers.metrics),
        asking("/edge/state", answers.now),
        route("/edge/frame/{number:int}", answers.frame),
        route("/edge/camera", answers.camera, "POST"),
        route("/edge/picture", answers.picture, "POST"),
        asking("/edge/history", lambda request: actions.last_actions(studio.journal)),
        asking("/edge/workspaces", lambda request: studio.workspaces()),
        asking("/edge/newest", answers.newest),
        asking("/edge/phone", lambda request: invitation()),
        route("/edge/act", answers.act, "POST"),
        route("/edge/sample/{id:int}", answers.sample),
        asking("/edge/samples", lambda request: review.page(studio, dict(request.query_params))),
        route("/edge/import", answers.import_files, "POST"),
        sending("/edge/export.zip", answers.export_zip),
        sending("/edge/device/{version:int}.zip", answers.bundle),
        route("/edge/static/{name}", answers.static),
    ]


class Answers:
    """One for each route that is more than a question."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._asking: asyncio.Task[list[str]] | None = None
        self._asked_at = -math.inf

    def saying_errors(self, answer: Answer) -> Answer:
        async def answer_or_say(request: Request) -> Response:
            try:
                return await answer(request)
            except HTTPException as error:  # more than may be sent, or no form
                return JSONResponse({"error": error.detail}, error.status_code, headers=NEVER_STORE)
            except (UserError, ClientDisconnect) as error:
                return JSONResponse({"error": str(error)}, 400, headers=NEVER_STORE)
            except Exception:
                LOG.exception("%s %s failed", request.method, request.url.path)
                said = "something went wrong here; the program's log says what"
                return JSONResponse({"error": said}, 500)

        return answer_or_say

    # How it is --------------------------------------------------------------------------------------------------------

    async def healthz(self, request: Request) -> Response:
        """Ready, or not; why not is nothing for strangers, who may ask this as well."""
        reasons = await self._reasons()
        known = request.scope.get("state", {}).get("author") is not None
        lines = ["not ready" if reasons else "ready", *(reasons if known else [])]
        text = "".join(f"{line}\n" for line in lines)
        return Response(text, 503 if reasons else 200, NEVER_STORE, "text/plain")

    async def _reasons(self) -> list[str]:
        """Asked once for all who ask within a moment; while one answer hangs, no further thread is spent on it."""
        silent = time.monotonic() - self._asked_at
        if self._asking is None or (self._asking.done() and silent > HEALTH_SECONDS):
            self._asked_at = time.monotonic()
            self._asking = asyncio.ensure_future(run_in_threadpool(self._studio.reasons_not_ready))
        try:
            return await asyncio.wait_for(asyncio.shield(self._asking), LONGEST_HEALTH)
        except TimeoutError:
            return [f"the pages have had no answer for {time.monotonic() - self._asked_at:.0f} s"]

    async def metrics(self, request: Request) -> Response:
        registry = CollectorRegistry()
        registry.register(Metrics(self._studio))
        content = await run_in_threadpool(generate_latest, registry)
        return Response(content, media_type=METRICS_TYPE, headers=NEVER_STORE)

    def now(self, request: Request, fresh: bool = False) -> dict[str, Any]:
        return self._studio.state(fresh, since=request.query_params.get("since", ""))  # what the page knows

    # Frames and actions -----------------------------------------------------------------------------------------------

    async def frame(self, request: Request) -> Response:
        shown = self._studio.feeder.shown(request.path_params["number"])
        return Response(shown.picture, media_type=shown.media_type, headers=NEVER_STORE)

    async def camera(self, request: Request) -> Response:
        """A frame of a page's camera; the answer says whether it is wanted, and whether another page has taken over."""
        camera, page = self._studio.feeder.browser_camera, request.query_params.get("page", "")
        if camera is None or not camera.is_of(page):
            return JSONResponse({"wanted": False, "taken": camera is not None})
        data = await _body(request, LARGEST_FRAME)
        camera.push(await run_in_threadpool(decode_image, data, "the camera's frame", LARGEST_FRAME_PIXELS))
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

    async def act(self, request: Request) -> Response:
        body = await _body(request, LARGEST_ACTION)
        room = request.query_params.get("room", "")
        done = await run_in_threadpool(actions.perform, self._studio, body, room)
        # Fresh, or a page would show what was before its own action.
        state = await run_in_threadpool(self.now, request, fresh=True)
        return JSONResponse({"state": state, **asdict(done)}, headers=NEVER_STORE)

    def newest(self, request: Request) -> Any:
        """Of the named classes the samples that were labelled last, for their cards."""
        ids = review.ids_in(dict(request.query_params), "classes")[:MOST_CARDS]
        return self._studio.journal.newest_of(ids, CARD_PICTURES)

    # Files ------------------------------------------------------------------------------------------------------------

    async def sample(self, request: Request) -> Response:
        """A sample's image; with `thing`, the square of it that shows the thing."""
        row = await run_in_threadpool(self._studio.journal.sample, request.path_params["id"])
        path = sample_path(self._studio.workspace.files.folder, row.file)
        content, media_type = None, IMAGE_TYPES[path.suffix]
        # Read here: the image may be dropped while a response is on its way.
        with suppress(FileNotFoundError):
            if row.has_image and "thing" in request.query_params:
                content, media_type = await run_in_threadpool(self._thing, row.id)
            elif row.has_image:
                content = await run_in_threadpool(path.read_bytes)
        if content is None:
            return Response("its image is no longer kept\n", 404)
        return Response(content, media_type=media_type, headers=SAMPLES_STAY)

    def _thing(self, sample_id: int) -> tuple[bytes, str]:
        live, image = self._studio.live, self._studio.workspace.image(sample_id)
        where = live.learner.method.where(live.predictor.encoder.of_sample(sample_id))
        return encoded(square(image, *(where or MIDDLE)))

    async def import_files(self, request: Request) -> Response:
        """Pictures, a folder or a zip: each file with its path as its name."""
        self._studio.imports.refuse_while_busy()
        with disk_errors("the upload cannot be kept", "make room and try again"):
            async with request.form(max_files=MOST_FILES) as form:
                files = [
                    (each.filename or "", each.file)
                    for each in form.getlist("files")
                    if isinstance(each, UploadFile)
                ]
                await run_in_threadpool(self._studio.imports.receive, files)
        state = await run_in_threadpool(self.now, request, fresh=True)
        return JSONResponse({"state": state}, headers=NEVER_STORE)

    def export_zip(self, request: Request) -> Response:
        return _download("edge-hpcr-samples.zip", partial(export_samples, self._studio.workspace))

    def bundle(self, request: Request) -> Response:
        """Everything for a device."""
        version = request.path_params["version"]
        return _download(
            f"{bundle_name(version)}.zip",
            lambda path: write_bundle(self._studio.own.workspace.layout.exports, version, path),
        )

    async def static(self, request: Request) -> Response:
        path = SCRIPTS.get(request.path_params["name"])
        if path is None:
            return Response("there is no such file\n", 404)
        # Checked again each time: after an upgrade an old script would not know a new page.
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


def square(image: np.ndarray, across: float, down: float, side: float) -> np.ndarray:
    """A square of an image by its middle and its side, as shares.

    >>> square(np.zeros((40, 60, 3), np.uint8), 0.9, 0.1, 0.5).shape
    (20, 20, 3)
    """
    height, width = image.shape[:2]
    pixels = round(min(max(side, SMALLEST_THING), 1.0) * min(height, width))
    left = round(min(max(across * width - pixels / 2, 0), width - pixels))
    top = round(min(max(down * height - pixels / 2, 0), height - pixels))
    return image[top : top + pixels, left : left + pixels]


def _download(name: str, write: Callable[[Path], object]) -> Response:
    """A zip that is written now. While it is sent its file is removed already: nothing is left if that breaks off."""
    with (
        disk_errors("the zip cannot be written", "make room and try again"),
        tempfile.TemporaryDirectory(prefix="export-", dir=os.environ.get("GRADIO_TEMP_DIR")) as folder,
    ):
        write(Path(folder, name))
        file = Path(folder, name).open("rb")  # noqa: SIM115  # whoever sends it closes it
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


# What Prometheus may ask for ------------------------------------------------------------------------------------------


class Metrics(Collector):
    """What Prometheus is told: asked of the learner and the journal when somebody wants it."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def collect(self) -> Iterator[Metric]:
        own = self._studio.own  # also while the pages show the demonstration
        journal, status = own.journal, own.live.status()
        counts, alarms = journal.counts(), own.live.alarms()
        memory, settings, stream = status["memory"], own.workspace.settings, status["stream"]
        gauges: list[tuple[str, str, float]] = [
            ("labels", "labelled samples", counts.labels),
            ("held_out_labels", "labelled samples that are kept for measuring", counts.held_out),
            ("classes", "classes", len(own.classes.rows())),
            ("queue_samples", "samples that wait for a label", counts.queued),
            ("queue_bytes", "bytes of the images of samples that wait for a label", counts.queued_bytes),
            ("events", "labels and other actions in the journal", journal.last_seq),
            ("events_waiting", "events of the journal that are not learned yet", status["events_waiting"]),
            ("oldest_waiting_seconds", "how long the oldest label waits", status["oldest_waiting_seconds"]),
            ("memory_bytes", "bytes of the replay memory", memory["bytes"]["total"]),
            ("memory_budget_bytes", "bytes that the replay memory may take", memory["budget"]),
            ("image_bytes", "bytes of stored images", counts.image_bytes),
            ("image_budget_bytes", "bytes that stored images may take", settings.disk_bytes),
            ("disk_free_bytes", "free on the workspace's disk", shutil.disk_usage(own.workspace.path).free),
            ("source_live", "whether the source shows frames", bool(stream and stream["phase"] == "live")),
            ("problems", "reported problems that were not cleared", len(status["problems"])),
            ("alarms", "alerts: things that need attention now", len(alarms)),
            ("ready", "whether it learns and answers", not any(alarm.stops for alarm in alarms)),
        ]
        if (accuracy := status["held_out"]["accuracy"]) is not None:
            gauges.append(("held_out_accuracy", "accuracy on held-out samples", accuracy))
        for name, says, value in gauges:
            yield GaugeMetricFamily(f"edge_hpcr_{name}", says, value)
        yield CounterMetricFamily("edge_hpcr_steps", "training steps", status["step"])
