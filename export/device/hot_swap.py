"""Follows new models while the old one answers: each is loaded and tried beside it, then swapped between two frames."""

import ctypes
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from edge_hpcr.common.errors import UserError
from export.device.errors import BadModel, Unavailable
from export.device.model import Classifier
from export.device.model_source import Loading, ModelSource, Offer

LOG = logging.getLogger(__name__)

REMEMBERED = 32  # frames on which a new model is compared with the old one
PAUSE_SHARE = 3  # times as long as trying one of them takes: a device busy with its camera must keep up
COMPARE_SECONDS = 2.0  # after which the comparison ends: a slow device must not hold back what was taught
FEWEST_COMPARED = 8  # frames, however long they take


class HotSwap:
    """Holds the model in use; a thread looks for new ones every `poll` seconds.

    Take `classifier` once for each frame. A model that is damaged, does not fit or answers too differently is reported
    once and not tried again until something about it changes.
    """

    def __init__(
        self,
        source: ModelSource,
        loading: Loading,
        report: Callable[[str], None],
        poll: float = 5.0,
        min_agreement: float | None = None,
    ) -> None:
        self._source = source
        self._loading = loading
        self._report = report
        self._poll = poll
        self._min_agreement = min_agreement
        self._classifier: Classifier | None = None
        self._used: Offer | None = None
        self._rejected: str | None = None  # the key of the last model that was refused
        self._refusal = ""  # and why
        self._trouble: str | None = None
        self._notes: set[str] = set()
        self._frames: deque[np.ndarray] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()  # of the frames
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._untidy = False
        self.swaps = 0

    @property
    def problem(self) -> str | None:
        """What is wrong with the models, told already."""
        return self._trouble or (self._refusal if self._rejected is not None else None) or None

    @property
    def classifier(self) -> Classifier:
        if self._classifier is None:
            raise RuntimeError("call `first` before")
        return self._classifier

    def remember(self, image: np.ndarray) -> None:
        """A frame as the model saw it; the last ones are what a new model is tried on."""
        with self._lock:
            self._frames.append(image)

    # The first model ----------------------------------------------------------------------------------------------

    def first(self, wait: bool = False) -> Classifier:
        """The newest model, or else one that is known to be good; with `wait` for as long as it takes."""
        while True:
            problem = self._try_first()
            if self._classifier is not None:
                return self._classifier
            if not wait:
                raise UserError(f"no model to start with: {problem} (--wait waits for one)")
            self._say_trouble(f"waiting for a first model: {problem}")
            if self._stop.wait(self._poll):
                raise UserError("stopped before there was a model")

    def _try_first(self) -> str:
        """Why the newest model is not in use, if it is not."""
        offer = None
        try:
            offer = self._source.newest()
            if offer.key == self._rejected:
                return self._refusal
            self._source.fetch(offer)
            self._take(offer)
            return ""
        except Unavailable as error:
            problem = str(error)
        except BadModel as error:
            problem = str(error)
            if offer is not None and not self._source.lost(offer):
                self._rejected, self._refusal = offer.key, problem
        for fallback in self._source.fallbacks():
            try:
                self._take(fallback)
            except BadModel:
                continue
            self._say_trouble(f"{problem}; started with {fallback.name} instead")
            break
        return problem

    def _use(self, offer: Offer, classifier: Classifier) -> None:
        # One assignment: a frame is answered by the old model or by the new one.
        self._classifier, self._used = classifier, offer
        for note in (classifier.provider_note, classifier.variant_note):
            if note is not None and note not in self._notes:
                self._notes.add(note)
                running = "CPU" if classifier.provider.startswith("CPU") else classifier.provider
                self._report(f"warning: {note}: running {classifier.variant} on the {running}")
        try:
            self._source.accepted(offer)
        except Unavailable as error:
            self._say_trouble(str(error))

    # New models ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="hot swap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            # Not longer: a download may hang for its whole time limit.
            self._thread.join(1.0)

    def _watch(self) -> None:
        pause = self._poll
        while not self._stop.wait(pause):
            begun, swapped = time.monotonic(), False
            try:
                swapped = self.look()
            except Exception as error:
                # Frames are still answered, and another model may do better.
                problem = f"looking for a new model failed ({type(error).__name__}); {self._in_use()} goes on"
                if problem != self._trouble:
                    LOG.exception("%s", problem)
                self._say_trouble(problem)
            pause = self._pause(time.monotonic() - begun, swapped)

    def _pause(self, took: float, swapped: bool) -> float:
        """Until the next look. What was published while a new model was tried has waited for that already."""
        return max(0.0, self._poll - took) if swapped else self._poll

    def look(self) -> bool:
        """Look once; whether another model is in use now."""
        if self._untidy:
            # The old model has answered its last frame since the last look.
            self._untidy = False
            _give_memory_back()
        offer = None
        try:
            offer = self._source.newest()
            known = self._is_used(offer) or offer.key == self._rejected
            if not known:
                self._source.fetch(offer)
            if self._trouble is not None and offer.key != self._rejected:
                self._trouble = None
                self._report("models can be had again")
            if known:
                return False
            self._take(offer)
        except Unavailable as error:
            self._say_trouble(f"{error}; {self._in_use()} goes on")
        except (BadModel, UserError) as error:
            if offer is None or self._source.lost(offer):
                self._say_trouble(f"{error}; {self._in_use()} goes on")
            else:
                self._refusal = f"model {offer.name} is refused: {error}; {self._in_use()} goes on"
                self._rejected = offer.key
                self._report(self._refusal)
        except Exception:
            if offer is not None:
                self._rejected = offer.key  # it would fail at every look
            raise
        else:
            self._rejected = None
            return True
        return False

    def _is_used(self, offer: Offer) -> bool:
        used = self._used
        if used is None or offer.manifest is None:
            return used is not None and used.key == offer.key
        return (used.path, used.manifest) == (offer.path, offer.manifest)

    def _in_use(self) -> str:
        return self._used.name if self._used is not None else "nothing"

    def _take(self, offer: Offer) -> None:
        """Load a model, try it beside the one in use, if there is one, and use it instead."""
        started = time.perf_counter()
        new, old = self._loading.load(offer), self._used
        agreement = self._compare(new) if old is not None else ""
        self._use(offer, new)
        seconds, classes = time.perf_counter() - started, f"{len(new.info.classes)} classes"
        if old is None:
            how = f"{new.info.width}x{new.info.height} pixels, {new.variant}, {new.provider}"
            self._report(f"model {offer.name}: {classes}, {how}, loaded in {seconds:.2f} s")
            return
        self.swaps += 1
        self._untidy = True
        self._report(
            f"model {offer.name} is in use instead of {old.name}: {agreement}, {classes}, ready after {seconds:.2f} s"
        )

    def _compare(self, new: Classifier) -> str:
        """How often the new model says what the old one says of the last frames; `BadModel` if too rarely."""
        with self._lock:
            images = list(self._frames)
        if not images:
            return "no frames yet to compare on"
        same = count = 0
        started = time.perf_counter()
        for image in reversed(images):
            begun = time.perf_counter()
            if count >= FEWEST_COMPARED and begun - started >= COMPARE_SECONDS:
                break
            count += 1
            ours = self.classifier.predict([image], top=1)[0].top[0]
            theirs = new.predict([image], top=1)[0].top[0]
            same += ours.id == theirs.id
            self._stop.wait(PAUSE_SHARE * (time.perf_counter() - begun))
        if self._min_agreement is not None and same < self._min_agreement * count:
            raise BadModel(
                f"it agrees with {self._in_use()} on {same} of the last {count} frames only, "
                f"and --min-agreement is {self._min_agreement:g}"
            )
        return f"same answer on {same} of the last {count} frames"

    def _say_trouble(self, problem: str) -> None:
        """Report what does not work, once and not at every look."""
        if problem != self._trouble:
            self._trouble = problem
            self._report(problem)


def _give_memory_back() -> None:
    """glibc keeps what a model took for the next one, which then takes some elsewhere.

    Resident after each of 300 swaps of a 32x32 model: 133 to 142 MB without this; of 1,000 with it: 123 to 128 MB.
    """
    if sys.platform == "linux" and (
        trim := getattr(ctypes.CDLL(None), "malloc_trim", None)
    ):  # only glibc has it
        trim(0)
