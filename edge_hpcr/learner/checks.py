"""What every batch is checked for, by the learner and by its memory."""

from typing import Any

import numpy as np

from edge_hpcr.common.errors import UserError


def check_images(images: np.ndarray, height: int, width: int) -> None:
    """Refuse anything but a batch of uint8 RGB images of this size."""
    wanted = f"[N, {height}, {width}, 3]"
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = getattr(images, "dtype", type(images).__name__)
        raise UserError(f"images are {kind}: give a NumPy array of uint8, RGB, {wanted}")
    if images.ndim != 4 or images.shape[1:] != (height, width, 3):
        raise UserError(f"images have shape {images.shape}: this learner takes {wanted}")
    if len(images) == 0:
        raise UserError("an empty batch: give at least 1 image")


def whole_numbers(values: Any, count: int, what: str) -> np.ndarray:
    """As int64; refuses another number of them, and what does not count from 0."""
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise UserError(
            f"{what} are {array.dtype} of shape {array.shape}: give {count} whole numbers, one per image"
        )
    array = array.astype(np.int64)
    if (array < 0).any():
        raise UserError(f"{what}: {array.min()} is negative; they count from 0")
    return array
