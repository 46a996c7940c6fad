"""Streams: where frames come from. `open_stream` finds the right one for what a person wrote."""

import math
import re
from contextlib import suppress
from pathlib import Path

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.text import as_text
from edge_hpcr.stream.base import LABELS, BadFile, EndOfStream, Frame, Stream, StreamState
from edge_hpcr.stream.camera import DEVICE, SCHEMES, local_camera, network_camera
from edge_hpcr.stream.captures import Video
from edge_hpcr.stream.image_folder import Folder, WatchedFolder
from edge_hpcr.stream.workbench import Workbench

__all__ = [
    "DEMONSTRATION",
    "KINDS",
    "LABELS",
    "WATCH",
    "BadFile",
    "EndOfStream",
    "Frame",
    "Stream",
    "StreamState",
    "open_stream",
]

KINDS = (
    "a camera's number (0) or file (/dev/video0, /dev/v4l/by-id/…), a camera's address (rtsp://, http://, https://), a video file, a folder of images, "
    "watch:FOLDER, or workbench (or workbench:SEED)"
)
SOURCE_VARIABLE = (
    "EDGE_HPCR_SOURCE"  # on the command line everybody on the machine can read an address's password
)
DEMONSTRATION = "workbench"
NEED_FOLDERS = "labels from folders need a folder of images (or workbench) as the source"
WATCH = "watch:"  # before a folder: go on with the files that arrive later


def open_stream(
    spec: str,
    labels: str = "none",
    on_bad_file: BadFile | None = None,
    fps: float | None = None,
) -> Stream:
    """The stream that `spec` names; a `UserError` says what is wrong with it.

    `labels="folders"` takes class names from sub-folders (the workbench has its own); `fps` is the pace of that, a
    folder or a video.
    """
    one_of("labels", labels, LABELS)
    if fps is not None and not (math.isfinite(fps) and 0 < fps <= 1000):
        raise UserError(f"fps must be above 0 and at most 1000, not {fps:g}")
    place = spec.removeprefix(WATCH)
    path = Path(place)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", place)
    watched = place != spec
    film = re.fullmatch(rf"{DEMONSTRATION}(?::(\d{{1,9}}))?", spec, re.ASCII)
    is_camera = bool(scheme or re.fullmatch("[0-9]{1,4}", spec) or DEVICE.fullmatch(spec))
    if not place or (scheme and (watched or scheme[1].lower() not in SCHEMES)):
        # Nothing would be the current folder as a path, and the rest of an address may hold a password.
        shown = f"{scheme[1]}://" if scheme else repr(spec)
        raise UserError(f"there is no source {shown}{' to watch' if watched else ''}: give {KINDS}")
    if fps is not None and (is_camera or watched):
        raise UserError("fps is for a video file, a folder or workbench: others have their own pace")
    if labels == "folders" and is_camera:
        raise UserError(NEED_FOLDERS)
    if film:
        return Workbench(labels, fps, int(film[1]) if film[1] else None)
    if is_camera and scheme:
        return network_camera(spec)
    if is_camera:
        return local_camera(spec)
    if watched:
        return WatchedFolder(path, labels, on_bad_file)
    with suppress(OSError, ValueError):  # a name that is too long, or has a zero byte
        if path.is_dir():
            return Folder(path, labels, on_bad_file, fps)
        if path.exists():
            if labels == "folders":
                raise UserError(NEED_FOLDERS)
            return Video(path, fps)
    raise UserError(f"there is no source {as_text(spec)!r}: give {KINDS}")
