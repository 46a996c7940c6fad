"""The one resize rule: what a network sees of a frame, in training and on a device alike."""

import cv2
import numpy as np

RESIZE_RULE = "centre-square-area"
# For whoever writes it again in another language; every manifest has it.
RESIZE_STEPS = (
    "Turn a grey picture into RGB by repeating its values. A picture has h rows and w columns, the model's input H and W.",
    "Crop the middle: h' = min(h, max(1, round(w * H / W))) rows and w' = min(w, max(1, round(h * W / H))) columns, halves "
    "rounded to even, from row (h - h') // 2 and column (w - w') // 2 on.",
    "If h' >= H and w' >= W, each pixel of the result is the mean of the area that it covers: rows y * h' / H to "
    "(y + 1) * h' / H, columns x * w' / W to (x + 1) * w' / W; a source pixel that is covered in part counts by that part.",
    "Otherwise interpolate linearly between the four pixels around row (y + 0.5) * h' / H - 0.5 and column "
    "(x + 0.5) * w' / W - 0.5; beyond the edge, the edge's pixel counts.",
    "Round to whole numbers from 0 to 255. No other scaling: the rest is in the model.",
)


def prepare(frame: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A uint8 RGB frame `[H, W, 3]`, or a grey one `[H, W]`, as uint8 RGB of `size` (height, width).

    The largest part in the middle that has the target's aspect ratio, shrunk by area or grown linearly.

    >>> prepare(np.zeros((480, 640, 3), np.uint8), (32, 32)).shape
    (32, 32, 3)
    """
    if (
        frame.dtype != np.uint8
        or frame.ndim not in (2, 3)
        or frame.shape[2:] not in ((), (3,))
        or not frame.size
    ):
        raise ValueError(
            f"a frame must be uint8 RGB [H, W, 3] or grey [H, W], not {frame.dtype} {list(frame.shape)}"
        )
    height, width = size
    if height < 1 or width < 1:
        raise ValueError(f"a frame cannot be made {height} x {width} pixels large")
    middle = _crop(frame, height, width)
    if middle.shape[:2] != (height, width):
        shrinks = middle.shape[0] >= height and middle.shape[1] >= width
        method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        middle = cv2.resize(np.ascontiguousarray(middle), (width, height), interpolation=method)
    if middle.ndim == 2:
        middle = np.repeat(middle[..., None], 3, axis=2)
    # Never a view: a camera may write the next frame into the same memory.
    return np.array(middle, order="C")


def _crop(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    frame_height, frame_width = frame.shape[:2]
    crop_height = min(frame_height, max(1, round(frame_width * height / width)))
    crop_width = min(frame_width, max(1, round(frame_height * width / height)))
    top, left = (frame_height - crop_height) // 2, (frame_width - crop_width) // 2
    return frame[top : top + crop_height, left : left + crop_width]
