"""A bench with clutter at its edges, seen from above by a camera: what each frame of the workbench shows."""

from dataclasses import replace
from functools import cache

import cv2
import numpy as np

from edge_hpcr.stream.workbench.light import Light, Pose, Sprite, clouds, put, scratches, sprite
from edge_hpcr.stream.workbench.parts import CLUTTER, PARTS, Rng

WIDTH, HEIGHT = 640, 480
_SWAY = 8  # pixels by which the camera may move
_WIDE, _HIGH = WIDTH + 2 * _SWAY, HEIGHT + 2 * _SWAY
_LARGE = (720, 960)  # of a bench's surface, of which a scene shows a piece

# Which metals a part is made of, by how often.
_TOOLS = ("steel", "steel", "zinc", "black oxide")
_MADE_OF = dict.fromkeys(("hex key", "spring", "wrench"), _TOOLS) | {
    "bearing": ("steel",),
    "key": ("brass", "steel", "zinc"),
}
_USUALLY = (*_TOOLS, "steel", "brass")


def specimen(name: str, rng: Rng) -> Sprite:
    """Another part of this class: its measures, metal and wear are drawn."""
    metals = _MADE_OF.get(name, _USUALLY)
    metal = metals[rng.integers(len(metals))]
    return sprite(PARTS[name](rng), metal, float(rng.uniform(0, 1) ** 2 * 0.75), rng)


def _coloured(values: np.ndarray, dark: tuple[int, ...], light: tuple[int, ...]) -> np.ndarray:
    low, high = np.array(dark, np.float32), np.array(light, np.float32)
    return low + values[..., None] * (high - low)


@cache
def _surface(kind: int) -> np.ndarray:
    """A bench of wood, a cutting mat, sheet steel or rubber: float32 RGB."""
    rng = np.random.default_rng([77, kind])
    high, wide = _LARGE
    speckle = rng.random(_LARGE, np.float32)
    if kind == 0:
        rows = np.arange(high)[:, None]
        planks = np.floor(rows / 150).astype(int)
        rings = clouds(rng, _LARGE, (420, 46), (160, 18))
        shift = rng.random(6)[planks]
        grain = 0.5 + 0.5 * np.sin((rings * 7 + shift * 9 + rows / 60) * 2 * np.pi)
        fibre = clouds(rng, _LARGE, (110, 2), (40, 1))
        tone = 0.3 * grain + 0.4 * fibre + 0.25 * rng.random(6)[planks] + 0.08 * speckle
        image = _coloured(tone.astype(np.float32), (92, 58, 34), (206, 158, 106))
        seam = np.exp(-((((rows % 150) - 2) / 1.6) ** 2))[..., None]
        return image * (1 - 0.75 * seam)
    if kind == 1:
        tone = 0.55 * clouds(rng, _LARGE, (200, 200), (60, 60)) + 0.35 * speckle
        image = _coloured(tone, (26, 74, 66), (50, 108, 94))
        for step, strength in ((40, 0.16), (200, 0.3)):
            lines = (np.arange(high)[:, None] % step < 2) | (np.arange(wide)[None] % step < 2)
            image += (lines * strength)[..., None] * (np.array([190, 215, 190]) - image)
        return image.astype(np.float32)
    if kind == 2:
        brushed = clouds(rng, _LARGE, (240, 1), (60, 1))
        tone = 0.6 * brushed + 0.3 * clouds(rng, _LARGE, (260, 200), (90, 90)) + 0.06 * speckle
        return _coloured(tone, (104, 110, 118), (182, 187, 192))
    tone = 0.6 * clouds(rng, _LARGE, (3, 3)) + 0.3 * clouds(rng, _LARGE, (180, 180), (50, 50))
    return _coloured(tone, (40, 44, 54), (82, 88, 100))


class Bench:
    """A bench's surface with marks of use, and the things that lie around on it."""

    def __init__(self, rng: Rng) -> None:
        high, wide = _LARGE
        top, left = rng.integers(high - _HIGH), rng.integers(wide - _WIDE)
        piece = _surface(int(rng.integers(4)))[top : top + _HIGH, left : left + _WIDE]
        image = piece[:: rng.choice([-1, 1]), :: rng.choice([-1, 1])] * rng.uniform(1.0, 1.3)
        stain = np.clip(clouds(rng, (_HIGH, _WIDE), (150, 150), (40, 40)) * 3 - 1.9, 0, 1)
        marks = scratches(rng, (_HIGH, _WIDE), int(rng.integers(6, 22))) * rng.choice([-0.3, 0.25])
        image = image * (1 + marks - 0.16 * stain)[..., None]
        self._image = np.clip(image, 0, 255).astype(np.uint8)
        self._things: list[tuple[Sprite, Pose]] = []
        corners = rng.permutation(4)[: rng.integers(2, 5)]
        for corner, kind in zip(corners, rng.permutation(len(CLUTTER)), strict=False):
            inwards = rng.uniform(-10, 40, 2)
            x, y = np.where([corner % 2, corner // 2], (_WIDE, _HIGH) - inwards, inwards)
            turn = rng.uniform(-0.5, 0.5) + rng.integers(4) * np.pi / 2
            thing = _thing(int(kind), int(rng.integers(4)))
            self._things.append((thing, Pose(float(x), float(y), float(turn), float(rng.uniform(0.8, 1.1)))))

    def lit(self, light: Light) -> np.ndarray:
        """The bench under this light, without a part: uint8 RGB, a little larger than a frame."""
        image = self._image.copy()
        for thing, pose in self._things:
            put(image, thing, pose, light)
        lx, ly, _ = light.direction
        x = np.linspace(-1, 1, _WIDE, dtype=np.float32)[None]
        y = np.linspace(-0.75, 0.75, _HIGH, dtype=np.float32)[:, None]
        fall = 1.08 - 0.2 * ((x - lx * 0.5) ** 2 + (y - ly * 0.5) ** 2)
        return np.clip(image * (fall[..., None] * light.tint), 0, 255).astype(np.uint8)


@cache
def _thing(kind: int, number: int) -> Sprite:
    rng = np.random.default_rng([78, kind, number])
    return sprite(CLUTTER[kind](rng), "steel", float(rng.uniform(0, 0.3)), rng)


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
    image = cv2.GaussianBlur(image, (3, 3), 0.55)
    down, across = rng.integers(0, 160, 2)
    return cv2.add(image, _grain()[down : down + HEIGHT, across : across + WIDTH], dtype=cv2.CV_8U)


def lying(rng: Rng) -> Pose:
    """Somewhere near the middle, turned anyhow."""
    x, y = WIDTH / 2 + rng.uniform(-60, 60), HEIGHT / 2 + rng.uniform(-45, 45)
    return Pose(x, y, float(rng.uniform(0, 2 * np.pi)), float(rng.uniform(0.78, 1.1)))


def still(name: str, rng: Rng) -> np.ndarray:
    """A picture of some part of this class on some bench: uint8 RGB [480, 640, 3]."""
    light = Light(*map(float, rng.uniform((0, 0.75, -1), (2 * np.pi, 1.1, 1))))
    return photograph(Bench(rng).lit(light), specimen(name, rng), lying(rng), light, (0, 0), rng)
