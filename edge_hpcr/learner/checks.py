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


def check_inputs(inputs: np.ndarray, shape: tuple[int, ...], latents: bool) -> None:
    """Refuse anything but a batch of images, or of finite latents, of this shape."""
    if not latents:
        check_images(inputs, shape[0], shape[1])
        return
    if not isinstance(inputs, np.ndarray) or inputs.dtype != np.float32 or inputs.shape[1:] != shape:
        kind = f"{getattr(inputs, 'dtype', type(inputs).__name__)} {list(getattr(inputs, 'shape', ()))}"
        raise UserError(f"latents are {kind}: this learner takes float32 [N, {', '.join(map(str, shape))}]")
    if len(inputs) == 0:
        raise UserError("an empty batch: give at least 1 latent")
    if not np.isfinite(inputs).all():
        raise UserError("the latents of a batch are not finite: are the trunk's weights damaged?")


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
