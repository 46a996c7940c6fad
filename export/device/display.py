"""The frames with their labels: drawn, in a window of the desktop; the page is that of server.py."""

from typing import Protocol

import cv2
import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import Frame
from export.device.model import Result

SMALLEST_WIDTH = 480
LARGEST_WIDTH = 1280
_FONT_PIXELS = 20


class Display(Protocol):
    def show(self, frame: Frame, result: Result, version: int) -> None: ...

    def close(self) -> None: ...


def draw(frame: Frame, result: Result, version: int) -> np.ndarray:
    """A BGR picture of a good size with the answers on a bar below."""
    image = cv2.cvtColor(frame.image, cv2.COLOR_RGB2BGR)
    height, width = image.shape[:2]
    wanted = min(max(width, SMALLEST_WIDTH), LARGEST_WIDTH)
    if wanted != width:
        how = cv2.INTER_AREA if wanted < width else cv2.INTER_NEAREST
        image = cv2.resize(image, (wanted, max(1, round(height * wanted / width))), interpolation=how)
    lines = [f"{label.name}  {label.confidence:.0%}" for label in result.top]
    if result.unknown:
        lines.insert(0, "unknown")
    lines.append(f"model v{version}")
    row = round(1.5 * _FONT_PIXELS)
    bar = np.zeros((row * len(lines) + row // 2, wanted, 3), np.uint8)
    font = cv2.FontFace("sans")
    for place, line in enumerate(lines, 1):
        brightness = (255, 255, 255) if place == 1 else (160, 160, 160)
        cv2.putText(bar, line, (12, place * row), brightness, font, _FONT_PIXELS, 400)
    return np.vstack([image, bar])


def as_jpeg(picture: np.ndarray) -> bytes:
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()


class Window:
    """A window of the desktop."""

    def __init__(self) -> None:
        try:
            cv2.namedWindow("Edge HPCR", cv2.WINDOW_NORMAL)
        except cv2.error:
            raise UserError(
                "--display window: this OpenCV has no windows (opencv-python-headless) or there is no screen; "
                "--display 8082 shows a page instead"
            ) from None

    def show(self, frame: Frame, result: Result, version: int) -> None:
        cv2.imshow("Edge HPCR", draw(frame, result, version))
        cv2.waitKey(1)

    def close(self) -> None:
        cv2.destroyAllWindows()
