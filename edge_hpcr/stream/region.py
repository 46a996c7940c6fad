"""The part of a source's picture that is looked at, in training and on a device alike.

Its numbers are shares of the picture's sides, so that a camera may change its resolution.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.stream.base import Frame

SMALLEST = 0.05  # of a side: less is a slip of the hand
WANTED = "left, top, width and height as shares of the picture like 0.25,0.1,0.5,0.5"
_DIGITS = 4  # which is finer than a pixel of any camera


@dataclass(frozen=True)
class Region:
    """A rectangle in a picture.

    >>> Region.of([0.25, 0.0, 0.5, 1.0]).cut(np.zeros((480, 640, 3), np.uint8)).shape
    (480, 320, 3)
    """

    left: float
    top: float
    width: float
    height: float

    @classmethod
    def of(cls, values: Any) -> Region:
        """The region of four numbers that come from outside; a `UserError` says what is wrong with them."""
        is_list = isinstance(values, list | tuple) and len(values) == 4
        if not is_list or not all(type(each) in (int, float) and abs(each) < 1e6 for each in values):
            raise UserError(f"a region needs four numbers, and not {repr(values)[:60]}: give {WANTED}")
        left, top, width, height = (round(float(each), _DIGITS) for each in values)
        if min(left, top) < 0 or max(left + width, top + height) > 1 + 10**-_DIGITS:
            raise UserError(f"the region {values} extends beyond the picture: give {WANTED}")
        if min(width, height) < SMALLEST:
            raise UserError(
                f"the region {values} is too small, less than {SMALLEST:.0%} of a side: give {WANTED}"
            )
        return cls(left, top, width, height)

    @classmethod
    def parse(cls, text: str) -> Region:
        """As `of`, from a command line.

        >>> Region.parse("0.25,0.1,0.5,0.5")
        Region(left=0.25, top=0.1, width=0.5, height=0.5)
        """
        try:
            return cls.of([float(part) for part in text.split(",")])
        except ValueError:
            raise UserError(f"a region needs four numbers, and not {text[:60]!r}: give {WANTED}") from None

    def __str__(self) -> str:
        return ",".join(f"{each:g}" for each in astuple(self))

    def to_list(self) -> list[float]:
        return list(astuple(self))

    def cut(self, image: np.ndarray) -> np.ndarray:
        """This part of an image `[H, W, ...]`, never empty."""
        rows = _pixels(self.top, self.height, image.shape[0])
        columns = _pixels(self.left, self.width, image.shape[1])
        return np.ascontiguousarray(image[rows, columns])

    def of_frame(self, frame: Frame) -> Frame:
        """The frame with this part as its image. Of a file, another part is another sample."""
        digest = None if frame.digest is None else sha256(f"{frame.digest} {self}".encode())
        return replace(frame, image=self.cut(frame.image), digest=digest, whole=frame.image)


def _pixels(start: float, length: float, side: int) -> slice:
    first = min(round(start * side), side - 1)
    return slice(first, max(first + 1, round((start + length) * side)))
