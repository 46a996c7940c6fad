"""How a shape looks: metal and paint under a lamp, with a soft shadow on what lies below.

Bare metal shows what it reflects. So the room around (a lamp, a window, the bench) is drawn once per light as a small
picture over the direction of a surface, and every point of a part looks its colour up there.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np

from edge_hpcr.stream.workbench.parts import GRID, RADIUS, Colour, Rng, Shape

SIDE = 400  # pixels of a part at scale 1
_ROOM = 96  # pixels a side of the reflected room
_COARSE = 4  # pixels of a frame in one of a shadow, which is soft

METALS: dict[str, Colour] = {
    "steel": (0.86, 0.88, 0.92),
    "zinc": (0.93, 0.87, 0.7),
    "brass": (0.98, 0.78, 0.42),
    "black oxide": (0.27, 0.27, 0.3),
}
_RUST = (0.42, 0.22, 0.11)


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
        sideways = rx * lx + ry * ly
        lamp = smooth_step(sideways + rz * lz, 0.78, 0.93)
        window = smooth_step(-sideways, 0.45, 0.6) * smooth_step(0.35 - np.abs(rz - 0.4), 0, 0.2)
        bench = smooth_step(-rz, -0.12, 0.12)
        ceiling = (0.4 + 0.3 * np.clip(rz, 0, 1) + 0.1 * sideways) * (1 - bench)
        metal = 0.85 * lamp[..., None] * self.tint
        for seen, colour in (
            (ceiling, (0.96, 1, 1.05)),
            (bench, (0.2, 0.17, 0.14)),
            (window, (0.3, 0.36, 0.42)),
        ):
            metal += seen[..., None] * np.array(colour, np.float32)
        matte = 0.38 + 0.12 * nz + 0.68 * np.maximum(nx * lx + ny * ly + nz * lz, 0)
        matte += 0.3 * smooth_step(sideways + rz * lz, 0.86, 1)
        return np.dstack([cv2.GaussianBlur(metal, (0, 0), 1.6), matte]).astype(np.float32)


@dataclass
class Sprite:
    """A shape with its finish, ready to be put anywhere in any light."""

    surface: np.ndarray  # float32 [SIDE, SIDE, 4]: slope in x and y, height, coverage
    colour: np.ndarray  # float32 [SIDE, SIDE, 4]: the colour of metal or paint, and how matte it is
    reach: float  # of its farthest point from the middle, in pixels


@dataclass(frozen=True)
class Pose:
    x: float
    y: float
    angle: float
    scale: float
    lift: float = 0.0  # above the bench: 0 lies, 1 is held up


def sprite(shape: Shape, metal: str, wear: float, rng: Rng) -> Sprite:
    """The shape made of this metal, worn (scratched, rusty) from 0 to 1."""
    square = (GRID, GRID)
    solid = shape.height > 0
    height = cv2.GaussianBlur(shape.height.astype(np.float32), (0, 0), 1.3)
    rough = clouds(rng, square, (160, 6)) * 0.0008 + clouds(rng, square, (14, 14)) * 0.0006
    rough = height + rough * (1 + 1.5 * wear) - 0.006 * scratches(rng, square, int(30 * wear))
    dx, dy = (cv2.Sobel(rough, cv2.CV_32F, *axis, ksize=3, scale=GRID / 16) for axis in ((1, 0), (0, 1)))
    steep = np.sqrt(1 + dx**2 + dy**2)
    surface = np.dstack([-dx / steep, -dy / steep, height, solid.astype(np.float32)])

    rust = np.clip((clouds(rng, square, (70, 70), (22, 22), (5, 5)) + wear * 0.9 - 0.98) * 5, 0, 0.9)[
        ..., None
    ]
    bare = np.array(METALS[metal], np.float32) * (1 - 0.1 * clouds(rng, square, (40, 40)))[..., None]
    rusty = np.array(_RUST, np.float32) * (0.6 + 0.8 * clouds(rng, square, (9, 9), (4, 4)))[..., None]
    colour = np.dstack([bare + rust * (rusty - bare), 0.12 + 0.8 * rust])
    for where, paint in shape.paint:
        colour[where] = (*paint, 1)
    # Less light reaches what lies deeper than its neighbourhood.
    for across, strength, most in ((41, 2.2, 0.5), (13, 4, 0.3)):
        hollow = np.clip((cv2.blur(height, (across, across)) - height) * strength, 0, most)
        colour[..., :3] *= (1 - hollow)[..., None]
    return Sprite(
        cv2.resize(surface, (SIDE, SIDE), interpolation=cv2.INTER_AREA),
        cv2.resize(colour, (SIDE, SIDE), interpolation=cv2.INTER_AREA),
        float(RADIUS[solid].max()) * SIDE / 2 + 2,
    )


def put(image: np.ndarray, part: Sprite, pose: Pose, light: Light) -> None:
    """Draw a part and its shadow into a uint8 RGB image."""
    scale = pose.scale * (1 + 0.18 * pose.lift)
    half = math.ceil(part.reach * scale) + 2
    left, top = math.floor(pose.x) - half, math.floor(pose.y) - half
    cos, sin, middle = math.cos(pose.angle), math.sin(pose.angle), (SIDE - 1) / 2
    turn = scale * np.array([[cos, -sin], [sin, cos]])
    to = np.array([pose.x - left, pose.y - top]) - turn @ (middle, middle)
    move = np.column_stack([turn, to])
    surface, colour = (
        cv2.warpAffine(each, move, (2 * half, 2 * half)) for each in (part.surface, part.colour)
    )
    _shade(image, surface[..., 2:], scale, pose.lift, (left, top), light)
    target, rows, columns = _overlap(image, (left, top), surface)
    nx, ny, _, cover = cv2.split(surface[rows, columns])
    # A flat face shows another place of the room at each of its ends, since the lamp and the lens are near.
    line = np.arange(2 * half, dtype=np.float32)
    x, y = (left + line[None, columns]) / 640 - 0.5, (top + line[rows, None]) / 640 - 0.375
    u = ((nx * cos - ny * sin) * 0.9 + x * 0.45 + 1) * ((_ROOM - 1) / 2)
    v = ((nx * sin + ny * cos) * 0.9 + y * 0.45 + 1) * ((_ROOM - 1) / 2)
    *reflected, dull = cv2.split(
        cv2.remap(light.room, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    )
    *colours, matte = cv2.split(colour[rows, columns])
    # Channel by channel: numpy is slow where the last axis is short.
    for channel, (tint, metal, own) in enumerate(zip(light.tint, reflected, colours, strict=True)):
        lit = own * (metal + matte * (dull * tint - metal)) * 255
        below = target[..., channel]
        below[:] = np.clip(below + cover * (lit - below), 0, 255)


def _shade(
    image: np.ndarray, part: np.ndarray, scale: float, lift: float, corner: tuple[int, int], light: Light
) -> None:
    """Darken the bench where a part (its height and coverage) keeps the light away, softer the higher it is."""
    lx, ly, lz = light.direction
    run = (
        -np.array([lx, ly]) / lz * (SIDE / 2 * scale) / _COARSE
    )  # of a shadow, by the height above the bench
    pad = 6 + round(float(np.abs(run).max()) * (0.9 + lift * 0.6))
    small = cv2.resize(part, None, fx=1 / _COARSE, fy=1 / _COARSE, interpolation=cv2.INTER_AREA)
    height, cover = cv2.split(cv2.copyMakeBorder(small, pad, pad, pad, pad, cv2.BORDER_CONSTANT))
    dark, highest = np.zeros_like(cover), float(height.max())
    for level in np.linspace(0.25, 1, 4) * highest:
        away = np.column_stack([np.eye(2), run * (level * 0.85 + lift * 0.5)])
        np.maximum(dark, cv2.warpAffine((height >= level * 0.8) * cover, away, cover.shape[::-1]), out=dark)
    dark = 0.48 * cv2.GaussianBlur(dark, (0, 0), 0.9 + highest * 1.6 + lift * 4)
    dark += (1 - lift) * 0.34 * cv2.GaussianBlur(cover, (0, 0), 1.8)
    dark = cv2.resize(dark, None, fx=_COARSE, fy=_COARSE, interpolation=cv2.INTER_LINEAR)
    target, rows, columns = _overlap(image, (corner[0] - pad * _COARSE, corner[1] - pad * _COARSE), dark)
    cv2.multiply(target, cv2.merge([1 - dark[rows, columns]] * 3), target, dtype=cv2.CV_8U)


def _overlap(
    image: np.ndarray, corner: tuple[int, int], thing: np.ndarray
) -> tuple[np.ndarray, slice, slice]:
    """The part of an image that a thing covers when its corner lies there, and which of its rows and columns do."""
    (left, top), (high, wide) = corner, thing.shape[:2]
    rows, columns = (
        slice(max(-first, 0), min(size - first, most))
        for first, size, most in ((top, image.shape[0], high), (left, image.shape[1], wide))
    )
    return (
        image[top + rows.start : top + rows.stop, left + columns.start : left + columns.stop],
        rows,
        columns,
    )


def scratches(rng: Rng, shape: tuple[int, int], count: int) -> np.ndarray:
    """Thin lines anywhere, each of a strength from 0 to 1."""
    image = np.zeros(shape, np.float32)
    for _ in range(count):
        at, turn = rng.uniform(0, max(shape), 2), rng.uniform(0, 2 * np.pi)
        to = at + rng.uniform(20, 200) * np.array([math.cos(turn), math.sin(turn)])
        start, end = (np.rint(each * 16).astype(int).tolist() for each in (at, to))
        cv2.line(image, start, end, float(rng.uniform(0.2, 1)), 1, cv2.LINE_AA, 4)
    return image


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
