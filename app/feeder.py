"""What the pages need of the source: the newest frames by number, one held still, each as a picture with an answer.

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
from edge_hpcr.live import feeder
from edge_hpcr.live.feeder import Seen
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import NOTHING_KNOWN, Answer
from edge_hpcr.stream import DEMONSTRATION, Frame, Rules, Stream, open_stream
from edge_hpcr.stream.gate import hamming, perceptual_hash
from edge_hpcr.stream.region import Region
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.sample_files import shrink

LOG = logging.getLogger(__name__)

FRAMES_KEPT = 100  # ten seconds: longer than a burst may be
RECENTLY_HELD_KEPT = 8
BROUGHT_KEPT = 120  # pictures that pages have brought: more than a burst or one drop on a class may have
RECENT_ANSWERS = 100
FRAME_SECONDS = 0.1  # between two frames: more than ten a second help nobody, and cost the learner time
READ_SECONDS = 0.2
ASK_AGAIN_SECONDS = 0.4  # of a picture that stands still, since the learner changes
STILLS_PER_SECOND = 1.0  # of a folder, or the digits
OPEN_SECONDS = 2.0  # for a remembered source before the page starts without it
RETRY_SECONDS = 10.0  # between two tries to open it


@dataclass(eq=False)
class Shown:
    """A frame on the page."""

    number: int
    image: np.ndarray  # as it would be stored
    origin: str
    digest: str | None
    hash64: int
    verdict: str  # what the gate said
    answer: Answer
    sample_id: int | None  # once it is in the workspace
    picture: bytes  # PNG or JPEG; the whole one, where `image` is a part of it
    media_type: str


class Feeder(feeder.Feeder):
    """Feeds sources in a thread of its own; any thread may ask for frames, hold one, or choose another source."""

    def __init__(self, workspace: Workspace, live: LiveLearner, rules: Rules | None = None) -> None:
        super().__init__(workspace, live)
        self._rules = rules
        self.spec = ""
        self._brings_labels = False
        self._chosen = False  # whether somebody has chosen a source; until then the remembered one is tried
        self._shown: OrderedDict[int, Shown] = OrderedDict()
        self._newest: Shown | None = None
        self._held: Shown | None = None
        # Somebody may be typing a name for one of them, while somebody else lets the picture go on.
        self._recently_held: deque[Shown] = deque(maxlen=RECENTLY_HELD_KEPT)
        # Not from 1: a page that outlives a restart must not mean another picture by an old number.
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._asked_at = 0.0
        self._brought: OrderedDict[int, Shown] = OrderedDict()
        self._last: Frame | None = None  # of the source, as it came
        self.recent: deque[Answer] = deque(maxlen=RECENT_ANSWERS)  # to pictures that differ
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
    def problem(self) -> str | None:
        """With the source; kept where the learner's report finds it."""
        return self.live.source_problem

    @problem.setter
    def problem(self, problem: str | None) -> None:
        self.live.source_problem = problem

    @property
    def browser_camera(self) -> BrowserCamera | None:
        return self.stream if isinstance(self.stream, BrowserCamera) else None

    def choose(self, spec: str, labels: str = "none", page: str = "") -> None:
        """Go over to another source; a bad one is refused, and the present one goes on."""
        stream = BrowserCamera(page) if spec == BROWSER else self._open(spec, labels)
        with self._lock:
            self._chosen = True
            self._go_over(stream, spec, labels)

    def close(self) -> None:
        """Go on without a source."""
        with self._lock:
            self._chosen = True
            self.leave()
            self.spec, self._brings_labels = "", False
            self.problem = self._held = self._newest = self._last = None

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
                        self.problem = str(error)
                self.stopping.wait(RETRY_SECONDS)
                continue
            with self._lock:
                if self._chosen or self.stopping.is_set():
                    stream.close()
                else:
                    self._go_over(stream, spec, labels)
                return

    def _go_over(self, stream: Stream, spec: str, labels: str) -> None:
        if spec != self.spec:
            self._newest = self._last = None  # another source's last picture would look like one of this
        self.use(stream, labels != "none")
        self.spec, self._brings_labels = spec, labels != "none"
        self.problem = self._held = None

    def set_region(self, region: Region | None) -> None:
        """As always. Pictures of another part can no longer be labelled; of the last one, this part is shown."""
        with self._lock:
            super().set_region(region)
            self._held, self._asked_at = None, 0.0
            self._shown.clear()
            self._recently_held.clear()
            if (stream := self.stream) is None:
                return
            for number in [each.number for each in self._brought.values() if each.origin == stream.name]:
                del self._brought[number]
            if self._last is not None and self._last.label is None:
                self._take_next(stream, self._last)

    def leave(self) -> None:
        """As always; of the demonstration, nothing stays that nobody has ever labelled."""
        with self._lock:
            name = self.stream.name if self.stream is not None else None
            super().leave()
            if name == DEMONSTRATION:
                queued = self.workspace.journal.samples(state="queued", origin=name)
                try:
                    self.workspace.drop_queued(row.id for row in queued if row.labelled_seq is None)
                except UserError as error:  # of the disk; another source is wanted all the same
                    self.live.report(str(error))

    def _open(self, spec: str, labels: str) -> Stream:
        if spec == BROWSER:
            return BrowserCamera()
        # Slow enough to find the key; what brings its own labels may hurry.
        slow = labels == "none" and (spec == "digits" or _is_folder(spec))
        pace = STILLS_PER_SECOND if slow else None
        return open_stream(spec, labels, self.workspace.quarantine, pace, self._rules)

    def newest(self) -> Shown | None:
        """What the pages show."""
        return self._held or self._newest

    @property
    def held(self) -> bool:
        return self._held is not None

    def find(self, number: int) -> Shown | None:
        kept = (shown for shown in tuple(self._recently_held) if shown.number == number)
        return self._shown.get(number) or self._brought.get(number) or next(kept, None)

    def bring(self, image: np.ndarray, origin: str, digest: str | None = None, ask: bool = False) -> Shown:
        """Take a picture that a page has: what its camera showed as a key was pressed, or a file.

        The learner is asked about it only on demand: a label need not wait for an answer.
        """
        region = self.workspace.regions.of(origin)
        whole, image = shrink(image), shrink(region.cut(image) if region else image)
        answer = self.live.answer([image])[0] if ask else NOTHING_KNOWN
        shown = Shown(
            next(self._numbers),
            *(image, origin, digest, perceptual_hash(image), "brought", answer, None),
            *encoded(whole),
        )
        with self._lock:
            self._brought[shown.number] = shown
            while len(self._brought) > BROUGHT_KEPT:
                self._brought.popitem(last=False)
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
                self._recently_held.append(self._held)

    # The feeding thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.stopping.is_set():
            begun = time.monotonic()
            try:
                self._show_next()
            except Exception:
                LOG.exception("a frame could not be shown")
                self.problem = "a frame could not be shown; the log says why"
                self.stopping.wait(1.0)
            if not self._brings_labels:
                self.stopping.wait(max(0.0, FRAME_SECONDS - (time.monotonic() - begun)))

    def _show_next(self) -> None:
        if self.held:
            self.stopping.wait(READ_SECONDS)  # a camera's newest frame will be there all the same
        elif self.turn(READ_SECONDS) is not None:
            return
        if (newest := self.newest()) is not None and self._is_outdated:
            newest.answer = self._ask(newest.image)

    def _take_next(self, stream: Stream, frame: Frame | None) -> Seen | None:
        self._last = frame or self._last
        seen = super()._take_next(stream, frame)
        if seen is not None:
            self._show(seen)
        return seen

    def _show(self, seen: Seen) -> None:
        image = shrink(seen.frame.image)
        if seen.answer is not None:
            self._asked_at = time.monotonic()
        shown = Shown(
            next(self._numbers),
            image,
            seen.frame.origin,
            seen.frame.digest,
            seen.hash64,
            seen.verdict,
            seen.answer or self._answer_of_last(seen.hash64) or self._ask(image),
            seen.sample_id,
            *encoded(image if seen.frame.whole is None else shrink(seen.frame.whole)),
        )
        self.problem = None
        if self._newest is None or shown.answer is not self._newest.answer:
            self.recent.append(shown.answer)
        self._shown[shown.number] = self._newest = shown
        while len(self._shown) > FRAMES_KEPT:
            self._shown.popitem(last=False)

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

    def _ask(self, image: np.ndarray) -> Answer:
        self._asked_at = time.monotonic()
        (answer,) = self.live.answer([image])
        return answer


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
