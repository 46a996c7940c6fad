"""Follows new models while the old one answers: each is loaded and checked beside it, then swapped between two frames."""

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from edge_hpcr.common.errors import UserError
from export.device import BadModel, Unavailable
from export.device.health import Health
from export.device.model import CPU, Classifier
from export.device.source import LocalModels, Offer

LOG = logging.getLogger(__name__)
PART = "models"  # of what may be wrong with a device

# `Classifier.load`, with how this device loads its models.
Load = Callable[..., Classifier]


class HotSwap:
    """Holds the model in use; a thread looks for new ones every `poll` seconds.

    Take `classifier` once for each frame. A model that is damaged or does not fit is reported once and not tried again
    until something about it changes.
    """

    def __init__(self, source: LocalModels, load: Load, health: Health, poll: float = 5.0) -> None:
        self._source = source
        self._load = load
        self._health = health
        self._poll = poll
        self._classifier: Classifier | None = None
        self._used: Offer | None = None
        self._refused: tuple[str, BadModel] | None = None  # the key of the last model that was, and why
        self._notes: set[str] = set()
        self._stop = threading.Event()
        self._untidy = False
        self.swaps = 0

    @property
    def classifier(self) -> Classifier:
        assert self._classifier is not None, "call `first` before"
        return self._classifier

    # The first model ----------------------------------------------------------------------------------------------

    def first(self, wait: bool = False) -> Classifier:
        """The newest model, or else one that is known to be good; with `wait` for as long as it takes."""
        while True:
            problem = ""
            try:
                self._follow()
            except (Unavailable, BadModel) as error:
                problem = str(error)
            if self._classifier is None:
                self._fall_back()
            if self._classifier is not None:
                if problem:
                    self._say(problem)
                return self._classifier
            if not wait:
                raise UserError(f"no model to start with: {problem} (--wait waits for one)")
            self._say(problem)
            if self._stop.wait(self._poll):
                raise UserError("stopped before there was a model")

    def _fall_back(self) -> None:
        with suppress(BadModel, Unavailable):
            if (kept := self._source.kept()) is not None:
                self._take(kept)

    # New models ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        threading.Thread(target=self._watch, name="hot swap", daemon=True).start()

    def close(self) -> None:
        """Not waited for: a download may hang for its whole time limit."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._poll):
            try:
                self.look()
            except Exception:
                # Frames are still answered, and the next look may do better.
                LOG.exception("looking for a new model failed")

    def look(self) -> bool:
        """Look once; whether another model is in use now."""
        if self._untidy:
            # The old model has answered its last frame since the last look.
            self._untidy = False
            _give_memory_back()
        before = self.swaps
        try:
            self._follow()
        except (Unavailable, BadModel, UserError) as error:
            self._say(str(error))
        else:
            # A new model says so itself.
            mended = "models are available again" if self.swaps == before else ""
            self._health.trouble(PART, None, mended)
        return self.swaps > before

    def _follow(self) -> None:
        """Use the newest model; an error says why not, and `BadModel` the same as long as the model is the same."""
        offer = self._source.newest()
        if self._refused is not None and offer.key == self._refused[0]:
            raise self._refused[1]
        used = self._used
        if used is not None and (used.path, used.manifest) == (offer.path, offer.manifest):
            return
        try:
            self._source.fetch(offer)
            self._take(offer)
        except (Unavailable, UserError):
            raise
        except Exception as error:
            why = str(error) if isinstance(error, BadModel) else f"{type(error).__name__}"
            if not isinstance(error, BadModel):
                LOG.exception("model %s", offer.name)
            self._refused = offer.key, BadModel(f"model {offer.name} is refused: {why}")
            raise self._refused[1] from None
        self._refused = None

    def _take(self, offer: Offer) -> None:
        """Load a model beside the one in use, if there is one, and use it instead."""
        started = time.perf_counter()
        new, old = self._load(offer.path, manifest=offer.manifest), self._used
        # One assignment: a frame is answered by the old model or by the new one.
        self._classifier, self._used = new, offer
        for note in (new.provider_note, new.variant_note):
            if note is not None and note not in self._notes:
                self._notes.add(note)
                running = "CPU" if new.provider == CPU else new.provider
                self._health.tell(f"warning: {note}: running {new.variant} on the {running}")
        seconds, classes = time.perf_counter() - started, f"{len(new.info.classes)} classes"
        if old is None:
            how = f"{new.info.image.width}x{new.info.image.height} pixels, {new.variant}, {new.provider}"
            self._health.tell(f"model {offer.name}: {classes}, {how}, loaded in {seconds:.2f} s")
        else:
            self.swaps += 1
            self._untidy = True
            self._health.tell(
                f"model {offer.name} is in use instead of {old.name}: {classes}, ready after {seconds:.2f} s"
            )
        self._source.accepted(offer)

    def _say(self, why: str) -> None:
        """Report what does not work, once and not at every look."""
        outcome = f"{self._used.name} stays in use" if self._used else "waiting for a first model"
        self._health.trouble(PART, f"{why}; {outcome}")


def _give_memory_back() -> None:
    """glibc, which alone has `malloc_trim`, keeps what a model took for the next one, which then takes some elsewhere.

    Resident after each of 300 swaps of a 32x32 model: 133 to 142 MB without this; of 1,000 with it: 123 to 128 MB.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
