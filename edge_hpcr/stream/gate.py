"""The gate between a stream and the queue: near-duplicates, frames that teach nothing, and too many at once stay out."""

from collections import Counter

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError, check_positive

_SIDE = 32
_FREQUENCIES = sorted(
    ((row, column) for row in range(_SIDE) for column in range(_SIDE)), key=lambda p: (sum(p), p)
)
_ROWS, _COLUMNS = np.array(_FREQUENCIES[1:65]).T  # the 64 coarsest patterns; the very first is the mean
_FLAT = 40.0  # a weaker pattern (of about 2 grey levels) is noise: an even wall must not hash at random
_LIGHT_STEPS = np.linspace(-112, 112, 8)
_TINT_STEPS = np.array([-64, -40, -24, -12, -4, 4, 12, 24, 40, 64])
_TINT_PATTERNS = 32 - len(_TINT_STEPS)  # so that the two tints fill the 64 bits
_BURST_SECONDS = 2.0


def perceptual_hash(image: np.ndarray) -> int:
    """64 bits (unsigned) of a uint8 RGB image `[H, W, 3]`, of which look-alikes differ in few.

    One bit for each of the 64 coarsest patterns (DCT) of its light. Things of one shape and another colour would be
    taken for duplicates; so coarse patterns of the two tints, and the means of all three, are mixed in by exclusive or.
    """
    small = cv2.resize(image, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    light, red, blue = np.moveaxis(cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb).astype(np.float32) - 128, 2, 0)
    patterns = _patterns(light)
    bits = patterns > max(float(np.median(patterns)), _FLAT)
    # Backwards, because one thing often changes the same pattern of the light and of a tint: the bits would cancel.
    bits ^= np.concatenate([_tint_bits(red), _tint_bits(blue)])[::-1]
    bits[: len(_LIGHT_STEPS)] ^= light.mean() > _LIGHT_STEPS
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def _patterns(plane: np.ndarray) -> np.ndarray:
    return cv2.dct(np.ascontiguousarray(plane))[_ROWS, _COLUMNS]


def _tint_bits(plane: np.ndarray) -> np.ndarray:
    return np.concatenate([plane.mean() > _TINT_STEPS, _patterns(plane)[:_TINT_PATTERNS] > _FLAT])


def hamming(one: int, other: int) -> int:
    """In how many bits two hashes differ.

    >>> hamming(0b1011, 0b0010)
    2
    """
    return (one ^ other).bit_count()


class Gate:
    """Says of each frame whether it may enter the queue, and counts what it did not let in, and why.

    distance: a hash that differs from a remembered one in at most so many bits is a duplicate; -1: nothing is.
    sure: the confidence from which the learner counts as sure; above 1: it never does.
    stable: from this many sure frames of one class in a row on, they are skipped; 1: every sure frame is.
    per_second: how many frames may enter on average; 0: none may; infinity: no limit.
    remember: how many hashes are kept, the latest.

    A gate belongs to one thread. The same frames at the same times give the same answers.
    """

    def __init__(
        self, distance: int, sure: float, stable: int, per_second: float, remember: int = 512
    ) -> None:
        if not -1 <= distance <= 64:
            raise UserError(f"gate distance {distance} is out of range: use 0 to 64 bits, or -1 for off")
        if not sure >= 0:
            raise UserError(f"gate confidence {sure} is out of range: use 0 to 1, or more than 1 for off")
        if not per_second >= 0:
            raise UserError(f"gate rate {per_second} is out of range: use 0 or more frames per second")
        check_positive("stable frames of the gate", stable)
        check_positive("remembered hashes of the gate", remember)
        self._distance, self._sure, self._stable, self._per_second = distance, sure, stable, per_second
        self._hashes = np.zeros(remember, np.uint64)  # a ring
        self._replaced = np.uint64(0)  # by the last one
        self._admitted = 0
        self._sure_class: int | None = None
        self._sure_frames = 0
        self._tokens = self._burst = max(1.0, per_second * _BURST_SECONDS) if per_second else 0.0
        self._filled: float | None = None
        self._counts: Counter[str] = Counter()

    def judge(self, hash64: int, confident: tuple[int, float] | None, now: float) -> str:
        """ "queue", or why not: "duplicate" (of one queued or labelled), "sure" (and stable) or "rate".

        `confident` is the learner's class and calibrated confidence; None if it knows nothing or calls it unknown.
        """
        self._follow(confident)  # of skipped frames too: "in a row" is meant of the stream, not of the queue
        verdict = "queue"
        if self.is_duplicate(hash64):
            verdict = "duplicate"
        elif self._sure_frames >= self._stable:
            verdict = "sure"
        elif not self._spend_token(now):
            verdict = "rate"
        else:
            self.admit(hash64)
        self._counts["queued" if verdict == "queue" else f"skipped_{verdict}"] += 1
        return verdict

    def admit(self, hash64: int) -> None:
        """Remember a sample that is queued or labelled already; what looks like it is a duplicate from now on."""
        slot = self._admitted % len(self._hashes)
        self._replaced = self._hashes[slot]
        self._hashes[slot] = hash64
        self._admitted += 1

    def withdraw(self) -> None:
        """Forget the frame that was admitted last, because it could not be stored; it may come again."""
        self._admitted -= 1
        self._hashes[self._admitted % len(self._hashes)] = self._replaced
        self._counts["queued"] -= 1

    def take_counts(self) -> dict[str, int]:
        """What happened since the last call, by the journal's names: queued, skipped_duplicate, …; none is 0."""
        counts, self._counts = dict(+self._counts), Counter()
        return counts

    def _follow(self, confident: tuple[int, float] | None) -> None:
        class_id, confidence = confident or (None, 0.0)
        if class_id is None or not confidence >= self._sure:
            self._sure_class, self._sure_frames = None, 0
        elif class_id == self._sure_class:
            self._sure_frames += 1
        else:
            self._sure_class, self._sure_frames = class_id, 1

    def is_duplicate(self, hash64: int) -> bool:
        """Whether it is near to a remembered one: known before the learner is asked, which takes far longer."""
        remembered = self._hashes[: self._admitted]  # a slice past the end is the whole ring
        return bool((np.bitwise_count(remembered ^ np.uint64(hash64)) <= self._distance).any())

    def _spend_token(self, now: float) -> bool:
        if self._filled is not None and now > self._filled:  # a clock that was set back gives nothing
            self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
