"""What devices send to the server of models: reports on themselves, and frames that are worth a label.

    POST /devices/ID/report               204
    POST /devices/ID/frames/FRAME_ID      201 stored, 200 already there, 413, 415, 429 with Retry-After, 507 no room

docs/export.md describes both for whoever writes another client.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import LONGEST_NAME
from edge_hpcr.stream.decode import BadImage
from edge_hpcr.workspace.devices import Report
from export.publish.intake import LARGEST_FRAME, PRIORITIES, Full, TooMany
from export.publish.tokens import NEEDED

if TYPE_CHECKING:
    from export.publish.serve import Handler

LARGEST_REPORT = 10_000
MOST_DISCARDED = 2 * LARGEST_FRAME  # bytes, of a device whose frame is refused
_PATH = re.compile(r"/devices/([A-Za-z0-9._-]{1,64})/(?:report|frames/([A-Za-z0-9._-]{1,64}))")


@dataclass(frozen=True)
class Route:
    device: str
    frame: str | None  # None: a report

    def answer(self, request: Handler) -> None:
        if self.frame is None:
            _take_report(request, self.device)
            return
        try:
            _take_frame(request, self.device, self.frame)
        except TooMany as error:
            wait = {"Retry-After": str(math.ceil(error.seconds))}
            request.refuse(HTTPStatus.TOO_MANY_REQUESTS, str(error), wait)


def route(path: str) -> Route | None:
    """What a path asks for.

    >>> route("/devices/cam-1/frames/17")
    Route(device='cam-1', frame='17')
    """
    match = _PATH.fullmatch(path)
    return Route(match[1], match[2]) if match else None


def _take_report(request: Handler, device: str) -> None:
    data = request.body(LARGEST_REPORT)
    if data is None:
        return
    try:
        report = Report.parse(data)
        if report.device != device:
            raise UserError(f"device: the report is of another one than {device}")
    except UserError as error:
        request.refuse(HTTPStatus.BAD_REQUEST, str(error))
        return
    try:
        request.server.registry.report(device, report)
    except UserError as error:
        request.refuse(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
        return
    request.head(HTTPStatus.NO_CONTENT, {}, length=None)


def _take_frame(request: Handler, device: str, frame: str) -> None:
    if not request.server.tokens.are_wanted:
        request.refuse(HTTPStatus.FORBIDDEN, f"frames are taken from who has a token only: {NEEDED}")
        return
    reason = request.headers.get("Reason", "unknown")
    if reason not in PRIORITIES:
        request.refuse(HTTPStatus.BAD_REQUEST, f"Reason: {' or '.join(PRIORITIES)}")
        return
    try:
        captured = float(text) if (text := request.headers.get("Captured-At")) is not None else None
    except ValueError:
        request.refuse(HTTPStatus.BAD_REQUEST, "Captured-At: a Unix time, in seconds")
        return
    answer = unquote(request.headers.get("Answer", ""), errors="replace")
    answer = "".join(each for each in answer if each.isprintable())[:LONGEST_NAME]
    with request.server.intake.admitted(device):
        data = request.body(LARGEST_FRAME)
        if data is not None:
            _store(request, (device, frame, data, reason, answer, captured))


def _store(request: Handler, frame: tuple[str, str, bytes, str, str, float | None]) -> None:
    try:
        stored = request.server.intake.take(*frame)
    except BadImage as error:
        request.refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, str(error))
    except (Full, UserError) as error:  # a queue or a budget; or a disk, or a workspace that cannot be opened
        request.refuse(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
    else:
        request.head(HTTPStatus.CREATED if stored else HTTPStatus.OK, {})
