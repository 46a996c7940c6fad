"""The thread between the source and the page: it shows the newest frame to the learner, and keeps the last few.

A person labels what they saw, not what the camera shows by the time their key press arrives: every frame has a
number, the page sends it back, and the frame is still here.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from app.browser_camera import SPEC as BROWSER
from app.browser_camera import BrowserCamera
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.intake import Intake
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer
from edge_hpcr.stream import EndOfStream, Frame, Stream, open_stream
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.sample_files import shrink

LOG = logging.getLogger(__name__)

FRAMES_KEPT = 100  # ten seconds: longer than a burst may be
RECENTLY_HELD_KEPT = 8  # of those that were held still
FRAME_SECONDS = (
    0.1  # between two frames of a source: more than ten a second help nobody, and cost the learner time
)
READ_SECONDS = 0.2
ASK_AGAIN_SECONDS = 0.4  # of a picture that stands still, since the learner changes
STILLS_PER_SECOND = 1.0  # of a folder, or the digits


@dataclass(eq=False)
class Shown:
    """A frame on the page."""

    number: int
    image: np.ndarray  # as it would be stored
    digest: str | None
    origin: str
    answer: Answer
    verdict: str  # what the gate said
    sample_id: int | None  # once it is in the workspace
    picture: bytes  # PNG or JPEG
    media_type: str


class Feeder:
    """Feeds one source after another; any thread may ask for frames, hold one, or choose another source."""

    def __init__(self, workspace: Workspace, live: LiveLearner) -> None:
        self.workspace, self.live = workspace, live
        self.problem: str | None = None  # with the source, for the page
        self.ended = False  # a finite source has shown everything
        self._spec = ""
        self._brings_labels = False
        self._stream: Stream | None = None
        self._intake: Intake | None = None
        self._change = threading.Lock()
        self._shown: OrderedDict[int, Shown] = OrderedDict()
        self._newest: Shown | None = None
        self._held: Shown | None = None
        # Somebody may be typing a name for one of them, while somebody else lets the picture go on.
        self._recently_held: deque[Shown] = deque(maxlen=RECENTLY_HELD_KEPT)
        # Not from 1: a page that outlives a restart must not mean another picture by an old number.
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._asked_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    # For other threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._leave()

    @property
    def spec(self) -> str:
        return self._spec

    @property
    def stream(self) -> Stream | None:
        return self._stream

    @property
    def browser_camera(self) -> BrowserCamera | None:
        return self._stream if isinstance(self._stream, BrowserCamera) else None

    def use(self, spec: str, labels: str = "none") -> None:
        """Go over to another source; a bad one is refused, and the present one goes on."""
        stream = self._open(spec, labels)
        with self._change:
            self._leave()
            self._spec, self._stream, self._brings_labels = spec, stream, labels != "none"
            self.problem, self.ended, self._held = None, False, None
            self._intake = Intake(self.workspace, self.live, source_waits=not stream.live)
            self.live.stream = stream

    def _open(self, spec: str, labels: str) -> Stream:
        if spec == BROWSER:
            return BrowserCamera()
        # Slow enough to find the key; what brings its own labels may hurry.
        slow = labels == "none" and (spec == "digits" or _is_folder(spec))
        return open_stream(spec, labels, self.workspace.quarantine, STILLS_PER_SECOND if slow else None)

    def newest(self) -> Shown | None:
        """What the pages show."""
        return self._held or self._newest

    @property
    def held(self) -> bool:
        return self._held is not None

    def find(self, number: int) -> Shown | None:
        kept = (shown for shown in tuple(self._recently_held) if shown.number == number)
        return self._shown.get(number) or next(kept, None)

    def shown(self, number: int) -> Shown:
        found = self.find(number)
        if found is None:
            raise UserError("that frame is no longer here: label a newer one")
        return found

    def hold(self, held: bool, number: int | None = None) -> None:
        """Let this picture stand still, for everybody; a source that can wait does so."""
        if not held:
            self._held = None
        else:
            self._held = self._newest if number is None else self.shown(number)
            if self._held is not None:
                self._recently_held.append(self._held)

    # The feeding thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                self._turn()
            except UserError as error:
                # A full disk, say: the picture goes on, and so do we once there is room.
                self.live.report(str(error))
                self._stopping.wait(READ_SECONDS)
            except Exception:
                LOG.exception("a frame could not be shown")
                self.problem = "a frame could not be shown; the log says why"
                self._stopping.wait(1.0)
            if not self._brings_labels:
                self._stopping.wait(max(0.0, FRAME_SECONDS - (time.monotonic() - begun)))

    def _turn(self) -> None:
        with self._change:
            stream, intake = self._stream, self._intake
        if stream is None or intake is None or self.ended or (self.held and not stream.live):
            self._ask_again()
            self._stopping.wait(READ_SECONDS)
            return
        if intake.must_wait and not stream.live:
            intake.flush()
            self.live.wait_until_caught_up(READ_SECONDS)
            return
        try:
            frame = stream.read(READ_SECONDS)
        except EndOfStream:
            with self._change:
                if stream is self._stream:
                    intake.close()
                    self.ended = True
            return
        intake.count_dropped(stream.state().dropped)
        if frame is None:
            intake.flush()  # labels that no further frame would carry along
        if frame is None or (self.held and stream.live):
            self._ask_again()
            return
        with self._change:  # nobody else may close this intake meanwhile
            if stream is self._stream:
                self._show(frame, intake)

    def _show(self, frame: Frame, intake: Intake) -> None:
        try:
            seen = intake.take(frame)
            answer, verdict, sample_id = seen.answer, seen.verdict, seen.sample_id
        except UserError as error:
            self.live.report(str(error))
            (answer,) = self.live.answer([frame.image])
            verdict, sample_id = "disk", None
        image = shrink(frame.image)
        picture, media_type = encoded(image)
        shown = Shown(
            next(self._numbers),
            image,
            frame.digest,
            frame.origin,
            answer,
            verdict,
            sample_id,
            picture,
            media_type,
        )
        self._asked_at = time.monotonic()
        self.problem = None
        self._shown[shown.number] = self._newest = shown
        while len(self._shown) > FRAMES_KEPT:
            self._shown.popitem(last=False)

    def _ask_again(self) -> None:
        newest = self.newest()
        if newest is not None and time.monotonic() - self._asked_at > ASK_AGAIN_SECONDS:
            self._asked_at = time.monotonic()
            (newest.answer,) = self.live.answer([newest.image])

    def _leave(self) -> None:
        stream, intake = self._stream, self._intake
        self._stream = self._intake = self.live.stream = None
        if stream is not None:
            stream.close()
        if intake is not None:
            try:
                intake.close()
            except UserError as error:
                self.live.report(str(error))


def _is_folder(spec: str) -> bool:
    try:
        return Path(spec).is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


def encoded(image: np.ndarray) -> tuple[bytes, str]:
    """An RGB image for a browser: small ones without loss, since each of their pixels can be seen."""
    small = max(image.shape[:2]) <= 64
    suffix, media_type = (".png", "image/png") if small else (".jpg", "image/jpeg")
    done, data = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not done:
        raise RuntimeError(f"OpenCV could not encode an image of {image.shape}")
    return data.tobytes(), media_type
