"""Pictures to feed: scikit-learn's two photographs, as frames, as tiles, and as a film that never repeats itself."""

import threading
from functools import cache

import cv2
import numpy as np

from edge_hpcr.stream import EndOfStream, Frame, Stream

FPS = 30.0
SCENE_SECONDS, PLACES = 5.0, 5


@cache
def photographs() -> tuple[np.ndarray, ...]:
    """Real pictures, RGB: what an image costs to encode, to hash and to tell apart depends on what it shows."""
    from sklearn.datasets import load_sample_images  # here, because importing it takes a second

    return tuple(load_sample_images().images)


def frames(size: tuple[int, int]) -> list[np.ndarray]:
    """The photographs as a camera of this width and height would show them."""
    return [cv2.resize(photo, size, interpolation=cv2.INTER_AREA) for photo in photographs()]


def tiles(count: int, side: int, classes: int, seed: int) -> list[tuple[np.ndarray, int]]:
    """Square pieces with a class each: where in the photographs they are from, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    pictures = photographs()
    cut = []
    for _ in range(count):
        which = int(rng.integers(len(pictures)))
        height, width = pictures[which].shape[:2]
        left, top = int(rng.integers(width - side)), int(rng.integers(height - side))
        stripe = left * (classes // len(pictures)) // (width - side)
        tile = pictures[which][top : top + side, left : left + side].copy()
        cut.append((tile, which * (classes // len(pictures)) + stripe))
    return cut


class Film(Stream):
    """The photographs, filmed by a hand that moves, turns and zooms, in a light that changes; a new scene every 5 s.

    It delivers every frame, and its clock is the film's own: an hour of film is an hour, however fast it is watched.
    """

    name = "generated film"

    def __init__(
        self, count: int, size: tuple[int, int] = (160, 120), seed: int = 0, started: float = 0.0
    ) -> None:
        self.shown = self.shown_before = (
            ""  # places, by the names that a person would give them: now, a frame ago
        )
        self._count, self._wanted, self._seed, self._started = count, size, seed, started
        self._closed = threading.Event()

    def read(self, timeout: float) -> Frame | None:
        if self._closed.is_set() or self._frames >= self._count:
            raise EndOfStream(self.state().message)
        at = self._frames / FPS
        return self._counted(Frame(self._picture(at), self.name, None, None, self._started + at))

    def _picture(self, at: float) -> np.ndarray:
        rng = np.random.default_rng([self._seed, int(at // SCENE_SECONDS)])  # the same all through a scene
        which, place = int(rng.integers(len(photographs()))), int(rng.integers(PLACES))
        self.shown_before, self.shown = self.shown, f"photograph {which}, place {place}"
        photo = photographs()[which]
        height, width = photo.shape[:2]
        moved = np.sin(at * rng.uniform(0.2, 1.5, 4) + rng.uniform(0, 6, 4))
        centre = (
            width * (place + 0.5 + 0.4 * float(moved[0])) / PLACES,
            height * (0.5 + 0.2 * float(moved[1])),
        )
        zoom = 2.0 ** (1 + 0.5 * float(moved[2])) * self._wanted[0] / width
        view = cv2.getRotationMatrix2D(centre, 15 * float(moved[3]), zoom)
        view[:, 2] += np.array(self._wanted) / 2 - np.array(centre)
        picture = cv2.warpAffine(
            photo, view, self._wanted, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
        )
        light = 25 * (1 + np.sin(at / 7 + rng.uniform(0, 6)))
        return cv2.convertScaleAbs(picture, alpha=rng.uniform(0.6, 1.0), beta=float(light))

    def _doing(self) -> tuple[str, str]:
        phase = "closed" if self._closed.is_set() else "ended" if self._frames >= self._count else "live"
        return phase, f"{phase}, frame {self._frames} of {self._count}"

    def close(self) -> None:
        self._closed.set()
