"""The gate between a stream and the queue: near-duplicates, frames that teach nothing, and too many at once stay out."""

import cv2
import numpy as np

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
    """Says of each frame whether it may enter the queue, or why not.

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
        self._distance, self._sure, self._stable, self._per_second = distance, sure, stable, per_second
        self._hashes = np.zeros(remember, np.uint64)  # a ring
        self._admitted = 0
        self._sure_class: int | None = None
        self._sure_frames = 0
        self._tokens = self._burst = max(1.0, per_second * _BURST_SECONDS) if per_second else 0.0
        self._filled: float | None = None

    def judge(self, hash64: int, confident: tuple[int, float] | None, now: float, drawn: bool = False) -> str:
        """ "queue", or why not: "duplicate" (of one that was admitted), "sure" (and stable) or "rate".

        `confident` is the learner's class and calibrated confidence; None if it knows nothing or calls it unknown. A
        frame that was drawn for measuring is not left out for being sure.
        """
        self._follow(confident)  # of skipped frames too: "in a row" is meant of the stream, not of the queue
        if self.is_duplicate(hash64):
            return "duplicate"
        if self._sure_frames >= self._stable and not drawn:
            return "sure"
        return "queue" if self._spend_token(now) else "rate"

    def admit(self, hash64: int) -> None:
        """Remember a sample that is stored; what looks like it is a duplicate from now on."""
        self._hashes[self._admitted % len(self._hashes)] = hash64
        self._admitted += 1

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
