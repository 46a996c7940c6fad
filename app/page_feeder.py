"""What the pages need of the source: the newest frames by number, one held still, each as a picture with an answer.

A person labels what they saw, not what the camera shows by the time their key press arrives: every frame has a
number, the page sends it back, and the frame is still here.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import NOTHING_KNOWN, Answer
from edge_hpcr.stream import Frame, Stream, open_stream
from edge_hpcr.stream.base import LiveStream, StreamState
from edge_hpcr.stream.gate import hamming
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.sample_files import looked_at, shrink
from edge_hpcr.workspace.workspace import Workspace, warn_of_bad_file

LOG = logging.getLogger(__name__)

FRAMES_KEPT = 100  # ten seconds: longer than a burst may be
KEPT = 120  # pictures that pages have brought or held: more than a burst or one drop on a class may have
FRAME_SECONDS = 0.1  # between two frames: more than ten a second help nobody, and cost the learner time
READ_SECONDS = 0.2
ASK_AGAIN_SECONDS = 0.4  # of a picture that stands still, since the learner changes
STILLS_PER_SECOND = 1.0  # of a folder
OPEN_SECONDS = 2.0  # for a remembered source before the page starts without it
RETRY_SECONDS = 10.0  # between two tries to open it
NO_STREAM = StreamState("closed", "", frames=0, dropped=0, bad=0, size=None)
BROUGHT = "brought"  # the verdict of a picture that a page has
BROWSER = "browser"  # what a person chooses as the source: the camera of a page
STALLED_SECONDS = 3.0
RATE_OVER = 2.0  # seconds


class BrowserCamera(LiveStream):
    """Frames are pushed by the page that has the camera: the last one that asked for it. Without one, the first that does."""

    name = "browser camera"

    def __init__(self, owner: str = "") -> None:
        super().__init__(self.name)
        self.owner = owner
        self._arrivals: list[float] = []

    def is_of(self, page: str) -> bool:
        """Whether this page's frames are wanted."""
        self.owner = self.owner or page
        return page == self.owner

    def push(self, image: np.ndarray) -> None:
        now = time.monotonic()
        self._arrivals = [*(at for at in self._arrivals if now - at < RATE_OVER), now]
        self._put(image)

    def _doing(self) -> tuple[str, str]:
        if not self._arrivals:
            return "opening", "is not on yet"
        silent = time.monotonic() - self._arrivals[-1]
        if silent > STALLED_SECONDS:  # no trouble: a person may close a page
            return "opening", f"stopped {silent:.0f} s ago"
        return "live", f"live, {len(self._arrivals) / RATE_OVER:.0f} frames/s"


@dataclass(eq=False)
class Shown(Frame):
    """A frame on the page."""

    number: int = 0
    picture: bytes = b""  # PNG or JPEG; the whole one, where `image` is a part of it
    media_type: str = ""

    def say(self, answer: Answer) -> None:
        self.answer, self.priority = answer, answer.priority


class PageFeeder(Feeder):
    """Feeds sources in a thread of its own; any thread may ask for frames, hold one, or choose another source."""

    def __init__(self, workspace: Workspace, live: LiveLearner) -> None:
        super().__init__(workspace, live)
        self._spec = ""
        self._brings_labels = False
        self._chosen = False  # whether somebody has chosen a source; until then the remembered one is tried
        self._shown: OrderedDict[int, Shown] = OrderedDict()
        self._newest: Shown | None = None
        self._held: Shown | None = None
        # Brought by pages; or held still: somebody may be typing a name for one, while somebody else lets it go on.
        self._kept: OrderedDict[int, Shown] = OrderedDict()
        # Not from 1: a page that outlives a restart must not mean another picture by an old number.
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._asked_at = 0.0
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    # For other threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """End; returns how many labels could not be stored."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.leave()
        return self.finish()

    @property
    def browser_camera(self) -> BrowserCamera | None:
        return self.stream if isinstance(self.stream, BrowserCamera) else None

    def choose(self, spec: str, labels: str = "none", page: str = "") -> None:
        """Go over to another source, or with an empty one to none; a bad one is refused, and the present one goes on."""
        stream = self._open(spec, labels, page) if spec else None
        with self._lock:
            self._chosen = True
            self._go_over(stream, spec, labels)

    def resume(self, spec: str, labels: str) -> None:
        """Go on with a remembered source. One that hangs or is away is tried again, and the page starts without it."""
        opening = threading.Thread(
            target=self._resume, args=(spec, labels), name="remembered source", daemon=True
        )
        opening.start()
        opening.join(OPEN_SECONDS)

    def _resume(self, spec: str, labels: str) -> None:
        while not self._chosen and not self.stopping.is_set():
            try:
                stream = self._open(spec, labels)
            except UserError as error:
                with self._lock:
                    if not self._chosen:  # or it would be said of the source that was chosen meanwhile
                        self.live.source_problem = str(error)
                self.stopping.wait(RETRY_SECONDS)
                continue
            with self._lock:
                if self._chosen or self.stopping.is_set():
                    stream.close()
                else:
                    self._go_over(stream, spec, labels)
                return

    def _go_over(self, stream: Stream | None, spec: str, labels: str) -> None:
        if spec != self._spec:
            self._newest = None  # another source's last picture would look like one of this
        if stream is None:
            self.leave()
        else:
            self.use(stream, labels != "none")
        self._spec, self._brings_labels = spec, labels != "none"
        self.live.source_problem = self._held = None

    def set_region(self, region: Region | None) -> None:
        """As always. Pictures of another part can no longer be labelled; of the last one, this part is shown."""
        with self._lock:
            if (stream := self.stream) is not None:
                self._held, self._asked_at = None, 0.0
                self._shown.clear()
                for each in [*self._kept.values()]:
                    if each.verdict != BROUGHT or each.origin == stream.name:
                        del self._kept[each.number]
            super().set_region(region)

    def _open(self, spec: str, labels: str, page: str = "") -> Stream:
        if spec == BROWSER:
            return BrowserCamera(page)
        # Slow enough to find the key; what brings its own labels may hurry.
        slow = labels == "none" and _is_folder(spec)
        return open_stream(spec, labels, warn_of_bad_file, STILLS_PER_SECOND if slow else None)

    def newest(self) -> Shown | None:
        """What the pages show."""
        return self._held or self._newest

    @property
    def held(self) -> bool:
        return self._held is not None

    def find(self, number: int) -> Shown | None:
        return self._shown.get(number) or self._kept.get(number)

    def _keep(self, shown: Shown) -> None:
        with self._lock:
            self._kept[shown.number] = shown
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def bring(self, image: np.ndarray, origin: str, digest: str | None = None, ask: bool = False) -> Shown:
        """Take a picture that a page has: what its camera showed as a key was pressed, or a file.

        The learner is asked about it only on demand: a label need not wait for an answer.
        """
        region = self.workspace.regions.of(origin)
        whole = Frame(image, origin, digest=digest)
        frame = looked_at(region.of_frame(whole) if region else whole)
        shown = self._shown_as(frame, self.live.predictor.look(frame) if ask else NOTHING_KNOWN)
        shown.verdict, shown.digest = BROUGHT, digest
        self._keep(shown)
        return shown

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
                self._keep(self._held)

    def source_state(self) -> dict[str, Any]:
        stream, camera = self.stream, self.browser_camera
        state = stream.state() if stream else NO_STREAM
        ended = stream is not None and self.ended
        return {
            "name": stream.name if stream else "no source",
            "phase": "ended" if ended else state.phase,
            "message": self.live.source_problem or ("it has shown everything" if ended else state.message),
            "dropped": state.dropped,
            "browser": camera is not None,
            "owner": camera.owner if camera else "",
            "region": self.region.to_list() if stream and self.region else None,
        }

    def frame_state(self) -> dict[str, Any] | None:
        if (shown := self.newest()) is None:
            return None
        return {
            "number": shown.number,
            "held": self.held,
            "small": max(shown.image.shape[:2]) <= 64,
            **answer_state(shown.answer),
        }

    # The feeding thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.stopping.is_set():
            begun = time.monotonic()
            try:
                self._show_next()
            except Exception:
                LOG.exception("a frame could not be shown")
                self.live.source_problem = "a frame could not be shown; the log says why"
                self.stopping.wait(1.0)
            if not self._brings_labels:
                self.stopping.wait(max(0.0, FRAME_SECONDS - (time.monotonic() - begun)))

    def _show_next(self) -> None:
        if self.held:
            self.stopping.wait(READ_SECONDS)  # a camera's newest frame will be there all the same
        elif self.turn(READ_SECONDS) is not None:
            return
        if (newest := self.newest()) is not None and self._is_outdated:
            newest.say(self._ask(newest))

    def take(self, frame: Frame) -> Frame:
        """As always; and it is shown, whatever became of it."""
        with self._lock:
            taken = super().take(frame)
            self._show(taken)
            return taken

    def _show(self, frame: Frame) -> None:
        if frame.answer is not None:
            self._asked_at = time.monotonic()
        answer = frame.answer or self._answer_of_last(frame.hash64) or self._ask(frame)
        shown = self._shown_as(frame, answer)
        self.live.source_problem = None
        self._shown[shown.number] = self._newest = shown
        while len(self._shown) > FRAMES_KEPT:
            self._shown.popitem(last=False)

    def _shown_as(self, frame: Frame, answer: Answer) -> Shown:
        picture, media_type = encoded(frame.image if frame.whole is None else shrink(frame.whole))
        facts = {**vars(frame), "whole": None}  # of which the picture is enough
        shown = Shown(**facts, number=next(self._numbers), picture=picture, media_type=media_type)
        shown.say(answer)
        return shown

    def _answer_of_last(self, hash64: int) -> Answer | None:
        """The last frame's answer, if it is recent and this frame looks the same: that needs no forward pass."""
        last = self._newest
        if last is None or self._is_outdated:
            return None
        alike = hamming(hash64, last.hash64) <= self.workspace.settings.gate_distance
        return last.answer if alike else None

    @property
    def _is_outdated(self) -> bool:
        return time.monotonic() - self._asked_at > ASK_AGAIN_SECONDS

    def _ask(self, frame: Frame) -> Answer:
        self._asked_at = time.monotonic()
        return self.live.predictor.look(frame)


def answer_state(answer: Answer) -> dict[str, Any]:
    """For the pages."""
    return {
        "top": [[class_id, round(confidence, 4)] for class_id, confidence in answer.top],
        "unknown": answer.unknown,
        "similarity": round(answer.similarity, 3),
        "calibrated": answer.calibrated,
    }


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
