"""A better model while the old one answers: loaded and tried beside it, then put in its place between two frames."""

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
PAUSE_SHARE = (
    3  # times as long as trying one of them takes: a device that is nearly busy with its camera must keep up
)


class HotSwap:
    """Holds the model in use; a thread looks for new ones every `poll` seconds.

    Who wants to classify takes `classifier` once for each frame. A model that is damaged, does not fit or answers too
    differently is reported once and not tried again until something about it changes.
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
    def classifier(self) -> Classifier:
        if self._classifier is None:
            raise RuntimeError("`first` comes first")
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
            self._take_first(offer)
            return ""
        except Unavailable as error:
            problem = str(error)
        except BadModel as error:
            problem = str(error)
            if offer is not None and not self._source.lost(offer):
                self._rejected, self._refusal = offer.key, problem
        for fallback in self._source.fallbacks():
            try:
                self._take_first(fallback)
            except BadModel:
                continue
            self._say_trouble(f"{problem}; started with {fallback.name} instead")
            break
        return problem

    def _take_first(self, offer: Offer) -> None:
        self._source.fetch(offer)
        started = time.perf_counter()
        classifier = self._loading.load(offer)
        self._use(offer, classifier)
        info = classifier.info
        self._report(
            f"model {offer.name}: {len(info.classes)} classes, {info.width}x{info.height} pixels, "
            f"{classifier.variant}, {classifier.provider}, loaded in {time.perf_counter() - started:.2f} s"
        )

    def _use(self, offer: Offer, classifier: Classifier) -> None:
        # One assignment: a frame is answered by the old model or by the new one, and the old one goes with its last
        # frame.
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
            # A download may hang for its whole time limit; nobody waits for it.
            self._thread.join(1.0)

    def _watch(self) -> None:
        while not self._stop.wait(self._poll):
            try:
                self.look()
            except Exception as error:
                # Whatever it is: frames are answered, and another model may do better.
                problem = f"looking for a new model failed ({type(error).__name__}); {self._in_use()} goes on"
                if problem != self._trouble:
                    LOG.exception("%s", problem)
                self._say_trouble(problem)

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
            self._swap(offer)
        except Unavailable as error:
            self._say_trouble(f"{error}; {self._in_use()} goes on")
        except (BadModel, UserError) as error:
            if offer is None or self._source.lost(offer):
                self._say_trouble(f"{error}; {self._in_use()} goes on")
            else:
                self._rejected = offer.key
                self._report(f"model {offer.name} is refused: {error}; {self._in_use()} goes on")
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

    def _swap(self, offer: Offer) -> None:
        started = time.perf_counter()
        new = self._loading.load(offer)
        agreement = self._compare(new)
        old = self._in_use()
        self._use(offer, new)
        self.swaps += 1
        self._untidy = True
        self._report(
            f"model {offer.name} is in use instead of {old}: {agreement}, {len(new.info.classes)} classes, "
            f"ready after {time.perf_counter() - started:.2f} s"
        )

    def _compare(self, new: Classifier) -> str:
        """How often the new model says what the old one says of the last frames; `BadModel` if too rarely."""
        with self._lock:
            images = list(self._frames)
        if not images:
            return "no frames yet to compare on"
        same = 0
        for image in images:
            begun = time.perf_counter()
            ours = self.classifier.predict([image], top=1)[0].top[0]
            theirs = new.predict([image], top=1)[0].top[0]
            same += ours.id == theirs.id
            self._stop.wait(PAUSE_SHARE * (time.perf_counter() - begun))
        if self._min_agreement is not None and same < self._min_agreement * len(images):
            raise BadModel(
                f"it agrees with {self._in_use()} on {same} of the last {len(images)} frames only, "
                f"and --min-agreement is {self._min_agreement:g}"
            )
        return f"same answer on {same} of the last {len(images)} frames"

    def _say_trouble(self, problem: str) -> None:
        """Report what does not work, once and not at every look."""
        if problem != self._trouble:
            self._trouble = problem
            self._report(problem)


def _give_memory_back() -> None:
    """glibc keeps what a model took for the next one, which then takes some elsewhere.

    Resident after each of 300 swaps of a 32x32 model: 133 to 142 MB without this; of 1,000 with it: 123 to 128 MB.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    trim = getattr(library, "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
