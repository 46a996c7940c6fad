"""Streams: where frames come from. `open_stream` finds the right one for what a person wrote."""

import math
import re
from pathlib import Path

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.text import as_text
from edge_hpcr.stream.camera import DEVICE, SCHEMES, device_camera, network_camera, usb_camera
from edge_hpcr.stream.contract import LABELS, BadFile, EndOfStream, Frame, Stream, StreamState
from edge_hpcr.stream.digits import Digits
from edge_hpcr.stream.folder import Folder
from edge_hpcr.stream.rules import Rules
from edge_hpcr.stream.video import Video
from edge_hpcr.stream.watched import WatchedFolder
from edge_hpcr.stream.workbench import Workbench

__all__ = [
    "DEMONSTRATION",
    "KINDS",
    "LABELS",
    "WATCH",
    "BadFile",
    "EndOfStream",
    "Frame",
    "Rules",
    "Stream",
    "StreamState",
    "open_stream",
]

KINDS = (
    "a camera's number (0) or file (/dev/video0, /dev/v4l/by-id/…), a camera's address (rtsp://, http://, https://), a video file, a folder of images, "
    "watch:FOLDER, workbench (or workbench:SEED), or digits"
)
DEMONSTRATION = "workbench"
WATCH = "watch:"  # before a folder: go on with the files that arrive later


def open_stream(
    spec: str,
    labels: str = "none",
    on_bad_file: BadFile | None = None,
    fps: float | None = None,
    rules: Rules | None = None,
) -> Stream:
    """The stream that `spec` names; a `UserError` says what is wrong with it, or that `rules` forbid it.

    `labels="folders"` takes class names from sub-folders (the workbench and the digits have their own); `fps` is the
    pace of those two, a folder or a video.
    """
    one_of("labels", labels, LABELS)
    rules = rules or Rules()
    if fps is not None and not (math.isfinite(fps) and 0 < fps <= 1000):
        raise UserError(f"fps must be above 0 and at most 1000, not {fps:g}")
    place = spec.removeprefix(WATCH)
    path = Path(place)
    if not place:  # which would be the current folder as a path
        raise UserError(f"there is no source {spec!r}: give {KINDS}")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", place)
    if place != spec:
        if scheme:  # whose address may hold a password
            raise UserError("only a folder can be watched, and not an address")
        _refuse_pace(fps)
        rules.check_path(path)
        return WatchedFolder(path, labels, on_bad_file)
    if spec == "digits":
        return Digits(labels, fps)
    if film := re.fullmatch(rf"{DEMONSTRATION}(?::(\d{{1,9}}))?", spec, re.ASCII):
        return Workbench(labels, fps, int(film[1]) if film[1] else None)
    if (spec.isascii() and spec.isdecimal()) or scheme or DEVICE.fullmatch(spec):
        return _camera(spec, scheme[1].lower() if scheme else None, labels, fps, rules)
    rules.check_path(path)  # before it is looked for: whether it exists is nobody's business then
    if _exists(path) and path.is_dir():
        return Folder(path, labels, on_bad_file, fps)
    if _exists(path):
        _refuse_labels(labels)
        return Video(path, fps)
    raise UserError(f"there is no source {as_text(spec)!r}: give {KINDS}")


def _camera(spec: str, scheme: str | None, labels: str, fps: float | None, rules: Rules) -> Stream:
    if scheme is not None and scheme not in SCHEMES:
        # The rest of the address may hold a password.
        raise UserError(f"unknown kind of source {scheme}://: give {KINDS}")
    _refuse_labels(labels)
    _refuse_pace(fps)
    if scheme is not None:
        return network_camera(spec, rules=rules)
    if not spec.isdecimal():
        return device_camera(spec)
    if len(spec) > 4:
        raise UserError(f"there is no camera with the number {spec}: the first one is 0")
    return usb_camera(int(spec))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or has a zero byte
        return False


def _refuse_labels(labels: str) -> None:
    if labels == "folders":
        raise UserError("labels from folders need a folder of images (or workbench, or digits) as the source")


def _refuse_pace(fps: float | None) -> None:
    if fps is not None:
        raise UserError(
            "fps is for a video file, a folder, workbench or digits: the other sources have their own pace"
        )
