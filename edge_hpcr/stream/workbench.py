"""The demonstration camera: parts on a workbench, drawn as they are shown, without end and without a download.

Bare metal shows what it reflects. So the room around (a lamp, the bench, the ceiling) is drawn once per light as a small
picture over the direction of a surface, and every point of a part looks its colour up there.

>>> film = Film(seed=7)
>>> film.shows(0), film.frame(0).shape
('washer', (480, 640, 3))
"""

import math
import secrets
from dataclasses import dataclass, replace
from functools import cache, cached_property

import cv2
import numpy as np

from edge_hpcr.common.files import sha256
from edge_hpcr.stream.base import FileStream, Frame
from edge_hpcr.stream.workbench_parts import GRID, PARTS, RADIUS, Rng

CLASSES = tuple(PARTS)
FPS = 8.0
LABELLED_FPS = 2.0
STAY = 48  # frames for which a part is there: time to find the key
_PUSH = 12  # frames from one push to the next
_CARRIED = 4  # frames in which it is put down, or taken away
_FROM = 180  # pixels from its place, where it comes from

WIDTH, HEIGHT = 640, 480
SIDE = 400  # pixels of a part at scale 1
_SWAY = 8  # pixels by which the camera may move
_WIDE, _HIGH = WIDTH + 2 * _SWAY, HEIGHT + 2 * _SWAY
_LARGE = (720, 960)  # of a bench's surface, of which a scene shows a piece
_ROOM = 96  # pixels per side of the reflected room
_COARSE = 4  # pixels of a frame in one of a shadow

METALS = {
    "steel": (0.86, 0.88, 0.92),
    "zinc": (0.93, 0.87, 0.7),
    "black oxide": (0.27, 0.27, 0.3),
    "brass": (0.98, 0.78, 0.42),
}
_MATTE = 0.12  # share of the light that bare metal scatters
_NEVER_BRASS = ("bearing", "hex key", "spring", "wrench")


@dataclass(frozen=True)
class Light:
    turn: float  # where the lamp is, as an angle around the bench
    height: float  # of the lamp, as an angle
    warmth: float  # -1 to 1

    @property
    def direction(self) -> tuple[float, float, float]:
        flat = math.cos(self.height)
        return flat * math.cos(self.turn), flat * math.sin(self.turn), math.sin(self.height)

    @property
    def tint(self) -> np.ndarray:
        return np.array([1 + 0.05 * self.warmth, 1, 1 - 0.07 * self.warmth], np.float32)

    @cached_property
    def room(self) -> np.ndarray:
        """What a surface shows by its direction: the room's reflection in metal (3 channels), and matte light."""
        line = np.linspace(-1, 1, _ROOM, dtype=np.float32)
        nx, ny = np.meshgrid(line, line) / np.maximum(np.hypot(line, line[:, None]), 1)
        nz = np.sqrt(np.maximum(1 - nx**2 - ny**2, 0))
        rx, ry, rz = 2 * nz * nx, 2 * nz * ny, 2 * nz**2 - 1
        lx, ly, lz = self.direction
        towards = rx * lx + ry * ly + rz * lz
        bench = smooth_step(-rz, -0.12, 0.12)
        ceiling = (0.4 + 0.3 * np.clip(rz, 0, 1)) * (1 - bench)
        metal = (0.85 * smooth_step(towards, 0.78, 0.93) + ceiling)[..., None] * self.tint
        metal = metal + bench[..., None] * np.array([0.2, 0.17, 0.14], np.float32)
        matte = 0.38 + 0.12 * nz + 0.68 * np.maximum(nx * lx + ny * ly + nz * lz, 0)
        return np.dstack([cv2.GaussianBlur(metal, (0, 0), 1.6), matte]).astype(np.float32)


@dataclass
class Sprite:
    """A shape of some metal, ready to be put anywhere in any light."""

    surface: np.ndarray  # float32 [SIDE, SIDE, 4]: slope in x and y, how much light reaches it, coverage
    colour: tuple[float, float, float]  # of the metal
    reach: float  # of its farthest point from the middle, in pixels


@dataclass(frozen=True)
class Pose:
    x: float
    y: float
    angle: float
    scale: float
    lift: float = 0.0  # above the bench: 0 lies, 1 is held up


def smooth_step(values: np.ndarray | float, low: float, high: float) -> np.ndarray:
    t = np.clip((values - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def clouds(rng: Rng, shape: tuple[int, int], *cells: tuple[int, int]) -> np.ndarray:
    """Smooth noise from 0 to 1: patches of these sizes (width, height), the first the strongest."""
    total, weight = np.zeros(shape, np.float32), 0.0
    for n, (wide, high) in enumerate(cells):
        grid = rng.random((shape[0] // high + 2, shape[1] // wide + 2), np.float32)
        total += cv2.resize(grid, shape[::-1], interpolation=cv2.INTER_CUBIC) / 2**n
        weight += 1 / 2**n
    return np.clip(total / weight, 0, 1)


# Parts ----------------------------------------------------------------------------------------------------------------


def specimen(name: str, rng: Rng) -> Sprite:
    """Another part of this class: its measures, metal and roughness are drawn."""
    metals = [metal for metal in METALS if metal != "brass" or name not in _NEVER_BRASS]
    shape, colour = PARTS[name](rng), METALS[metals[rng.integers(len(metals))]]
    height = cv2.GaussianBlur(shape.astype(np.float32), (0, 0), 1.3)
    rough = height + clouds(rng, height.shape, (160, 6), (14, 14)) * float(rng.uniform(0.0012, 0.0025))
    dx, dy = (cv2.Sobel(rough, cv2.CV_32F, *axis, ksize=3, scale=GRID / 16) for axis in ((1, 0), (0, 1)))
    steep = np.sqrt(1 + dx**2 + dy**2)
    # Less light reaches what lies deeper than its neighbourhood.
    light = 1 - np.clip((cv2.blur(height, (27, 27)) - height) * 3, 0, 0.5)
    surface = np.dstack([-dx / steep, -dy / steep, light, (shape > 0).astype(np.float32)])
    small = cv2.resize(surface, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return Sprite(small, colour, float(RADIUS[shape > 0].max()) * SIDE / 2 + 2)


def put(image: np.ndarray, part: Sprite, pose: Pose, light: Light) -> None:
    """Draw a part and its shadow into a uint8 RGB image."""
    scale = pose.scale * (1 + 0.18 * pose.lift)
    cos, sin, middle = math.cos(pose.angle), math.sin(pose.angle), (SIDE - 1) / 2
    lx, ly, lz = light.direction
    run = -np.array([lx, ly]) / lz * (0.12 + 0.4 * pose.lift) * SIDE / 2 * scale  # of its shadow
    half = math.ceil(part.reach * scale + np.abs(run).max()) + 24
    left, top = math.floor(pose.x) - half, math.floor(pose.y) - half
    turn = scale * np.array([[cos, -sin], [sin, cos]])
    move = np.column_stack([turn, np.array([pose.x - left, pose.y - top]) - turn @ (middle, middle)])
    surface = cv2.warpAffine(part.surface, move, (2 * half, 2 * half))
    rows, columns = (
        slice(max(-first, 0), max(min(end - first, 2 * half), 0))
        for first, end in ((top, image.shape[0]), (left, image.shape[1]))
    )
    target = image[top + rows.start : top + rows.stop, left + columns.start : left + columns.stop]
    shadow = _shadow(surface[..., 3], run, pose.lift)[rows, columns]
    nx, ny, reached, cover = cv2.split(surface[rows, columns])
    # A flat face shows another place of the room at each of its ends, since the lamp and the lens are near.
    x = (left + np.arange(2 * half, dtype=np.float32)[None, columns]) / WIDTH - 0.5
    y = (top + np.arange(2 * half, dtype=np.float32)[rows, None]) / WIDTH - 0.375
    u = ((nx * cos - ny * sin) * 0.9 + x * 0.45 + 1) * ((_ROOM - 1) / 2)
    v = ((nx * sin + ny * cos) * 0.9 + y * 0.45 + 1) * ((_ROOM - 1) / 2)
    *reflected, dull = cv2.split(
        cv2.remap(light.room, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    )
    # Channel by channel: numpy is slow where the last axis is short.
    for channel, (tint, metal, own) in enumerate(zip(light.tint, reflected, part.colour, strict=True)):
        below = target[..., channel] * (1 - shadow)
        shown = own * reached * (metal + _MATTE * (dull * tint - metal)) * 255
        target[..., channel] = np.clip(below + cover * (shown - below), 0, 255)


def _shadow(cover: np.ndarray, run: np.ndarray, lift: float) -> np.ndarray:
    """How dark the bench is below a part, from 0 to 1: the softer the higher it is held. Soft, it may be drawn small."""
    small = cv2.resize(cover, None, fx=1 / _COARSE, fy=1 / _COARSE, interpolation=cv2.INTER_AREA)
    away = cv2.warpAffine(small, np.column_stack([np.eye(2), run / _COARSE]), small.shape[::-1])
    dark = 0.5 * cv2.GaussianBlur(away, (0, 0), 1.3 + 3.5 * lift)
    dark += (1 - lift) * 0.3 * cv2.GaussianBlur(small, (0, 0), 1.8)
    return np.minimum(cv2.resize(dark, cover.shape[::-1], interpolation=cv2.INTER_LINEAR), 1)


# The bench ------------------------------------------------------------------------------------------------------------


def _coloured(values: np.ndarray, dark: tuple[int, ...], light: tuple[int, ...]) -> np.ndarray:
    low, high = np.array(dark, np.float32), np.array(light, np.float32)
    return low + values[..., None].astype(np.float32) * (high - low)


@cache
def _surface(kind: int) -> np.ndarray:
    """A bench of wood, a cutting mat or rubber: float32 RGB."""
    rng = np.random.default_rng([77, kind])
    rows, columns = np.arange(_LARGE[0])[:, None], np.arange(_LARGE[1])[None]
    speckle = rng.random(_LARGE, np.float32)
    if kind == 0:
        rings = clouds(rng, _LARGE, (420, 46), (160, 18)) * 7 + rng.random(6)[rows // 150] * 9
        grain = 0.4 * clouds(rng, _LARGE, (110, 2), (40, 1)) + 0.15 * np.sin((rings + rows / 60) * 2 * np.pi)
        seam = 1 - 0.75 * np.exp(-((((rows % 150) - 2) / 1.6) ** 2))
        return _coloured(0.25 + grain + 0.08 * speckle, (92, 58, 34), (206, 158, 106)) * seam[..., None]
    if kind == 1:
        image = _coloured(
            0.55 * clouds(rng, _LARGE, (200, 200)) + 0.35 * speckle, (26, 74, 66), (50, 108, 94)
        )
        lines = (rows % 40 < 2) | (columns % 40 < 2)
        return image + (lines * np.float32(0.16))[..., None] * (np.array([190, 215, 190], np.float32) - image)
    tone = 0.6 * clouds(rng, _LARGE, (3, 3)) + 0.3 * clouds(rng, _LARGE, (180, 180), (50, 50))
    return _coloured(tone, (40, 44, 54), (82, 88, 100))


class Bench:
    """A piece of some bench's surface."""

    def __init__(self, rng: Rng) -> None:
        high, wide = _LARGE
        top, left = rng.integers(high - _HIGH), rng.integers(wide - _WIDE)
        piece = _surface(int(rng.integers(3)))[top : top + _HIGH, left : left + _WIDE]
        stain = np.clip(clouds(rng, (_HIGH, _WIDE), (150, 150), (40, 40)) * 3 - 1.9, 0, 1)
        image = piece * (rng.uniform(1.0, 1.3) - 0.2 * stain)[..., None]
        self._image = np.clip(image, 0, 255).astype(np.uint8)

    def lit(self, light: Light) -> np.ndarray:
        """The bench under this light, without a part: uint8 RGB, a little larger than a frame."""
        lx, ly, _ = light.direction
        x = np.linspace(-1, 1, _WIDE, dtype=np.float32)[None]
        y = np.linspace(-0.75, 0.75, _HIGH, dtype=np.float32)[:, None]
        fall = 1.08 - 0.2 * ((x - lx * 0.5) ** 2 + (y - ly * 0.5) ** 2)
        return np.clip(self._image * (fall[..., None] * light.tint), 0, 255).astype(np.uint8)


@cache
def _grain() -> np.ndarray:
    """The sensor's noise, of which each frame takes another piece."""
    noise = np.random.default_rng(5).normal(0, 4.2, (HEIGHT + 160, WIDTH + 160, 3)).astype(np.float32)
    return np.rint(cv2.GaussianBlur(noise, (0, 0), 0.6)).astype(np.int16)


def photograph(
    lit_bench: np.ndarray, part: Sprite, pose: Pose, light: Light, sway: tuple[float, float], rng: Rng
) -> np.ndarray:
    """A camera's picture of a part on a bench."""
    x, y = np.clip(sway, -_SWAY, _SWAY)
    image = cv2.getRectSubPix(lit_bench, (WIDTH, HEIGHT), ((_WIDE - 1) / 2 - x, (_HIGH - 1) / 2 - y))
    put(image, part, replace(pose, x=pose.x + x, y=pose.y + y), light)
    down, across = rng.integers(0, 160, 2)
    grain = _grain()[down : down + HEIGHT, across : across + WIDTH]
    return cv2.add(cv2.GaussianBlur(image, (3, 3), 0.55), grain, dtype=cv2.CV_8U)


def lying(rng: Rng) -> Pose:
    """Somewhere near the middle, turned anyhow."""
    x, y = WIDTH / 2 + rng.uniform(-60, 60), HEIGHT / 2 + rng.uniform(-45, 45)
    return Pose(x, y, float(rng.uniform(0, 2 * np.pi)), float(rng.uniform(0.78, 1.1)))


def still(name: str, rng: Rng) -> np.ndarray:
    """A picture of some part of this class on some bench: uint8 RGB [480, 640, 3]."""
    light = Light(*map(float, rng.uniform((0, 0.75, -1), (2 * np.pi, 1.1, 1))))
    return photograph(Bench(rng).lit(light), specimen(name, rng), lying(rng), light, (0, 0), rng)


# The film -----------------------------------------------------------------------------------------------------------


def picture(name: str, number: int, seed: int = 0) -> np.ndarray:
    """The picture of a class with this number, each of another part on another bench: uint8 RGB [480, 640, 3]."""
    return still(name, np.random.default_rng([seed, CLASSES.index(name), number]))


class Film:
    """A part is put down, pushed about and taken away, then comes the next: frames by their number, made on demand.

    The same seed gives the same film. Every class comes once per round, and every round has another bench.
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


class Workbench(FileStream):
    """The film as a camera; with labels, a picture of another part in each frame, and its class."""

    live = True

    def __init__(self, labels: str = "none", fps: float | None = None, seed: int | None = None) -> None:
        self._labelled = labels == "folders"
        super().__init__("workbench", fps or (LABELLED_FPS if self._labelled else FPS))
        # Another film each time: what was held out must not come back as something new.
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self._film = Film(self._seed)

    def _next(self) -> Frame:
        number = self._frames
        if not self._labelled:
            return Frame(self._film.frame(number), self.name)
        name = self._film.shows(number * STAY)
        image = still(name, np.random.default_rng([self._seed, number]))
        return Frame(image, self.name, name, sha256(image.tobytes()))

    def _progress(self) -> str:
        return "live" if self._labelled else f"live, now a {self._film.shows(max(self._frames - 1, 0))}"
