"""The camera of a browser: it sends its frames here, and the learner sees them like those of any other camera."""

import time

import numpy as np

from edge_hpcr.stream.contract import LiveStream

SPEC = "browser"  # what a person chooses as the source
STALLED_SECONDS = 3.0
RATE_OVER = 2.0  # seconds


class BrowserCamera(LiveStream):
    """Frames are pushed by the page that has the camera: the last one that asked for it. Without one, the first that does."""

    name = "browser camera"

    def __init__(self, owner: str = "") -> None:
        super().__init__()
        self.owner = owner
        self._arrivals: list[float] = []

    def is_of(self, page: str) -> bool:
        """Whether this page's frames are wanted."""
        self.owner = self.owner or page
        return page == self.owner

    def push(self, image: np.ndarray) -> None:
        now = time.monotonic()
        self._arrivals = [*(at for at in self._arrivals if now - at < RATE_OVER), now]
        self._put(image)

    def _doing(self) -> tuple[str, str]:
        if self._closed:
            return "closed", "closed"
        if not self._arrivals:
            return "opening", "waiting for a browser to send its camera's picture"
        silent = time.monotonic() - self._arrivals[-1]
        if silent > STALLED_SECONDS:  # no trouble: a person may close a page
            return "opening", f"no frame for {silent:.0f} s: is the page with the camera still open?"
        return "live", f"live, {len(self._arrivals) / RATE_OVER:.0f} frames/s"
