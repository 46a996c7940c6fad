"""The demonstration camera: parts on a workbench, drawn as they are shown, without end and without a download.

>>> film = Film(seed=7)
>>> film.shows(0), film.frame(0).shape
('washer', (480, 640, 3))
"""

import math
import secrets
import time
from dataclasses import replace

import numpy as np

from edge_hpcr.common.files import sha256
from edge_hpcr.stream.contract import Frame, PacedStream
from edge_hpcr.stream.workbench.light import Light, Pose, smooth_step
from edge_hpcr.stream.workbench.parts import PARTS
from edge_hpcr.stream.workbench.scene import Bench, lying, photograph, specimen, still

CLASSES = tuple(PARTS)
FPS = 8.0
LABELLED_FPS = 2.0
STAY = 48  # frames for which a part is there: time to find the key
_PUSH = 12  # frames from one push to the next
_CARRIED = 4  # frames in which it is put down, or taken away
_FROM = 180  # pixels beside its place


def picture(name: str, number: int, seed: int = 0) -> np.ndarray:
    """The picture of a class with this number, each of another part on another bench: uint8 RGB [480, 640, 3]."""
    return still(name, np.random.default_rng([seed, CLASSES.index(name), number]))


class Film:
    """A part is put down, pushed about and taken away, then comes the next: frames by their number, made on demand.

    The same seed gives the same film. Every class comes once a round, and every round has another bench.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._visit = self._round = -1

    def shows(self, number: int) -> str:
        """The class of the part in a frame."""
        turn, place = divmod(number // STAY, len(CLASSES))
        return CLASSES[self._rng(0, turn).permutation(len(CLASSES))[place]]

    def frame(self, number: int) -> np.ndarray:
        visit, moment = divmod(number, STAY)
        if visit != self._visit:
            self._prepare(visit)
        sway = (math.sin(number * 0.31) * 2 + math.sin(number * 0.117), math.cos(number * 0.23) * 2)
        pose = self._pose(moment)
        return photograph(self._bench_lit, self._part, pose, self._light, sway, self._rng(1, number))

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *purpose])

    def _prepare(self, visit: int) -> None:
        turn = visit // len(CLASSES)
        if turn != self._round:
            self._round, self._bench = turn, Bench(self._rng(2, turn))
        rng = self._rng(3, visit)
        self._visit, self._part = visit, specimen(self.shows(visit * STAY), rng)
        # The lamp wanders: once around in five minutes.
        height, warmth = 0.92 + 0.16 * math.sin(visit * 0.7), math.sin(self._seed + visit * 0.2)
        self._light = Light(self._seed + visit * 0.13, height, warmth)
        self._bench_lit = self._bench.lit(self._light)
        self._rests = [lying(rng)]
        while len(self._rests) <= STAY // _PUSH:
            last, new = self._rests[-1], lying(rng)
            turned = last.angle + float(rng.uniform(-1.2, 1.2))
            self._rests.append(replace(new, angle=turned, scale=last.scale))
        self._ways = rng.uniform(0, 2 * np.pi, 2)  # by which it comes and goes

    def _pose(self, moment: int) -> Pose:
        push, since = divmod(moment, _PUSH)
        share = float(smooth_step(since / _PUSH, 0.4, 1.0))
        old, new = self._rests[push : push + 2]
        x, y, angle = (
            (1 - share) * a + share * b for a, b in ((old.x, new.x), (old.y, new.y), (old.angle, new.angle))
        )
        left = moment - (STAY - _CARRIED)
        lift = max(1 - moment / _CARRIED, (left + 1) / _CARRIED, 0.0)
        way, far = self._ways[int(left >= 0)], _FROM * lift**2
        return Pose(x + far * math.cos(way), y + far * math.sin(way), angle, old.scale, lift)


class Workbench(PacedStream):
    """The film as a camera; with labels, a picture of another part in each frame, and its class."""

    def __init__(self, labels: str = "none", fps: float | None = None, seed: int | None = None) -> None:
        self._labelled = labels == "folders"
        super().__init__("workbench", fps or (LABELLED_FPS if self._labelled else FPS))
        # Another film each time: what was held out must not come back as something new.
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self._film = Film(self._seed)

    def _frame(self, number: int) -> Frame:
        if not self._labelled:
            return Frame(self._film.frame(number), self.name, None, None, time.time())
        name = self._film.shows(number * STAY)
        image = still(name, np.random.default_rng([self._seed, number]))
        return Frame(image, self.name, name, sha256(image.tobytes()), time.time())

    def _doing(self) -> tuple[str, str]:
        phase, message = super()._doing()
        if phase != "live" or self._labelled:
            return phase, message
        return phase, f"{message}, now a {self._film.shows(max(self._next - 1, 0))}"
