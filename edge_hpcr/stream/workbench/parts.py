"""The shapes of the workbench: parts to be taught and clutter beside them, each drawn as a height above the bench.

A shape fills the square from -1 to 1 in both directions; heights have the same unit. What is not there has height 0.
Every function takes a random generator and draws another specimen of its kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import cv2
import numpy as np

GRID = 640  # pixels of a side: more than are shown, so that edges come out smooth
_LINE = (np.arange(GRID, dtype=np.float32) + 0.5) / (GRID / 2) - 1
X, Y = _LINE[None, :], _LINE[:, None]
RADIUS, ANGLE = np.hypot(X, Y), np.arctan2(Y, X)

Rng = np.random.Generator
Colour = tuple[float, float, float]


@dataclass
class Shape:
    height: np.ndarray  # float32 [GRID, GRID]
    paint: list[tuple[np.ndarray, Colour]] = field(default_factory=list)  # where it is not bare metal


# Building blocks ------------------------------------------------------------------------------------------------------


def _zigzag(phase: np.ndarray) -> np.ndarray:
    return np.abs(2 * (phase % 1) - 1)


def _dome(radius: np.ndarray | float, across: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(radius**2 - across**2, 0))


def _depth(solid: np.ndarray) -> np.ndarray:
    """How far inside the outline each point lies."""
    return cv2.distanceTransform(solid.astype(np.uint8), cv2.DIST_L2, 5) / (GRID / 2)


def _plate(solid: np.ndarray, thickness: float, bevel: float) -> np.ndarray:
    """A flat sheet of this outline with rounded edges."""
    short = 1 - np.clip(_depth(solid) / bevel, 0, 1)
    return np.where(solid, thickness - bevel + bevel * np.sqrt(1 - short**2), 0)


def _from_path(points: np.ndarray, reach: float, chosen: np.ndarray | None = None) -> np.ndarray:
    """Each point's distance from a path, or from its chosen steps; large where that is beyond reach."""
    away = np.full((GRID, GRID), 9, np.float32)
    for step in range(len(points) - 1) if chosen is None else np.flatnonzero(chosen[:-1]):
        ends = points[step : step + 2]
        low, high = ends.min(axis=0) - reach, ends.max(axis=0) + reach
        left, top, right, bottom = np.clip((np.array([*low, *high]) + 1) * (GRID / 2), 0, GRID).astype(int)
        (x0, y0), (dx, dy) = ends[0], ends[1] - ends[0]
        x, y = X[:, left : right + 1] - x0, Y[top : bottom + 1] - y0
        share = np.clip((x * dx + y * dy) / (dx**2 + dy**2), 0, 1)
        part = away[top : bottom + 1, left : right + 1]
        np.minimum(part, np.hypot(x - share * dx, y - share * dy), out=part)
    return away


def _hexagon(x: np.ndarray, y: np.ndarray, sides: int = 6) -> np.ndarray:
    """The distance from the middle, measured so that a hexagon is a circle."""
    return np.maximum.reduce([x * np.cos(a) + y * np.sin(a) for a in np.arange(sides) * (2 * np.pi / sides)])


def _lying_hexagon(across: np.ndarray, inner: float, turn: float) -> np.ndarray:
    """The upper side of a hexagonal bar that lies on its side."""
    sides = [a for a in turn + np.arange(-3, 3) * (np.pi / 3) if np.cos(a) > 0.05]
    return np.maximum(np.minimum.reduce([(inner - across * np.sin(a)) / np.cos(a) for a in sides]), 0)


def _ring(inner: float, outer: float) -> np.ndarray:
    return (inner < RADIUS) & (outer > RADIUS)


# The parts ------------------------------------------------------------------------------------------------------------


def bolt(rng: Rng) -> Shape:
    wide, long = rng.uniform(0.27, 0.34), rng.uniform(1.15, 1.75)
    head, thick = wide * rng.uniform(0.75, 0.95), wide * rng.uniform(0.55, 0.64)
    left, end = -long / 2, long / 2
    taper = np.minimum(thick, thick * 0.72 + np.maximum(end - X, 0) * 0.9)
    begin = left + head + rng.choice([0.03, rng.uniform(0.1, 0.45) * (long - head)])
    turn = np.arcsin(np.clip(Y / taper, -1, 1)) / (2 * np.pi)
    thread = (begin < X) * 0.035 * _zigzag(X / rng.uniform(0.065, 0.09) + turn)
    shank = np.where((left + head * 0.5 < X) & (end > X), _dome(taper - thread, Y), 0)
    chamfer = _dome(wide * 0.93 + np.clip((X - left) * 1.6, 0, 0.2 * wide), Y)
    prism = np.minimum(_lying_hexagon(Y, wide * 0.9, rng.uniform(0, np.pi / 3)), chamfer)
    prism = np.where((left < X) & (left + head > X), prism, 0)
    collar = np.where((left + head <= X) & (left + head + 0.025 > X), _dome(wide * 0.86, Y), 0)
    body = np.maximum.reduce([shank, prism, collar])
    return Shape(np.where(body > 0, body + wide * 0.8, 0))


def screw(rng: Rng) -> Shape:
    wide, long = rng.uniform(0.2, 0.27), rng.uniform(1.3, 1.8)
    left, end = -long / 2, long / 2
    core = wide * rng.uniform(0.36, 0.44)
    tip = np.clip((end - X) / 0.3, 0, 1)
    cone = np.where(left < X, np.clip(wide - np.maximum(X - left - 0.03, 0) * 1.05, core, wide), 0)
    begin = left + long * rng.uniform(0.28, 0.42)
    ridge = wide * 0.3 * (1 - _zigzag(X / rng.uniform(0.095, 0.125) + np.clip(Y / wide, -1, 1) * 0.28)) ** 1.6
    flank = np.where((begin < X) & (end > X), (core * 0.92 + ridge) * tip**0.8, np.where(end > X, cone, 0))
    body = _dome(flank, Y)
    return Shape(np.where(body > 0, body + wide * 0.6, 0))


def nut(rng: Rng) -> Shape:
    inner = rng.uniform(0.6, 0.76)
    hole, thick = inner * rng.uniform(0.5, 0.62), inner * rng.uniform(0.5, 0.8)
    away = _hexagon(X, Y)
    chamfer = thick - np.maximum(RADIUS - inner * 0.98, 0) * 0.75 - np.maximum(hole * 1.13 - RADIUS, 0) * 0.9
    height = np.where((away < inner) & (hole < RADIUS), np.minimum(chamfer, thick), 0)
    height -= np.where(away > inner - 0.02, (away - inner + 0.02) * 0.8, 0)
    thread = thick * 0.55 * (RADIUS / hole) + 0.05 * _zigzag(RADIUS / (hole * 0.055) + ANGLE / (2 * np.pi))
    shape = Shape(np.where((hole * 0.84 < RADIUS) & (hole >= RADIUS), thread, np.maximum(height, 0)))
    if rng.random() < 0.3:  # a lock nut's ring of nylon
        collar = _ring(hole * 0.98, hole * 1.42)
        rounded = thick + 0.1 * np.sqrt(np.clip(1 - ((RADIUS / hole - 1.2) / 0.22) ** 2, 0, 1))
        shape.height = np.where(collar, rounded, shape.height)
        nylon: Colour = ((0.15, 0.3, 0.75), (0.85, 0.84, 0.78), (0.75, 0.15, 0.12))[rng.integers(3)]
        shape.paint.append((_ring(hole * 0.98, hole * 1.22), nylon))
    return shape


def washer(rng: Rng) -> Shape:
    outer = rng.uniform(0.62, 0.85)
    kind = rng.choice(3)  # plain, wide, sprung
    hole = outer * (rng.uniform(0.5, 0.6), rng.uniform(0.25, 0.36), rng.uniform(0.58, 0.66))[kind]
    solid = _ring(hole, outer)
    if kind == 2:
        along, across = X * 0.8 + Y * 0.6, Y * 0.8 - X * 0.6
        solid &= ~((np.abs(along * 0.35 + across) < 0.035) & (along > 0))
    height = _plate(solid, 0.13 if kind == 2 else 0.08, 0.03)
    return Shape(height + np.where(solid, 0.02 * np.cos(ANGLE + rng.uniform(0, 6)), 0))


def gear(rng: Rng) -> Shape:
    teeth, tip = int(rng.integers(12, 27)), rng.uniform(0.8, 0.93)
    root = tip - 2.3 * tip / (teeth + 2)
    bore = tip * rng.uniform(0.14, 0.24)
    climb = np.clip((RADIUS - root) / (tip - root), 0, 1)
    solid = (root > RADIUS) | ((tip > RADIUS) & (_zigzag(ANGLE * teeth / (2 * np.pi)) < 0.66 - 0.36 * climb))
    slot = (np.abs(Y) < bore * 0.28) & (X > 0) & (bore * 1.35 > RADIUS)
    solid &= (bore < RADIUS) & ~slot
    hub, rim = bore * rng.uniform(1.7, 2.1), root * rng.uniform(0.78, 0.86)
    holes = int(rng.choice([0, 0, 4, 5, 6]))
    middle = (hub + rim) / 2
    for turn in np.arange(holes) * (2 * np.pi / max(holes, 1)) + 0.4:
        there = np.hypot(X - middle * np.cos(turn), Y - middle * np.sin(turn))
        solid &= there > (rim - hub) * 0.34
    height = _plate(solid, 0.3, 0.035)
    if rng.random() < 0.75:  # turned down between hub and rim
        edge = np.minimum(RADIUS - hub, rim - RADIUS)
        height -= np.where(solid, 0.1 * np.clip(edge / 0.04, 0, 1), 0)
    return Shape(np.maximum(height, 0))


def spring(rng: Rng) -> Shape:
    coil, wire = rng.uniform(0.27, 0.4), rng.uniform(0.036, 0.056)
    turns, half = int(rng.integers(6, 12)), rng.uniform(0.68, 0.9)
    at = np.linspace(0, 1, turns * 24)
    phase = at * turns * 2 * np.pi + rng.uniform(0, 6)
    along = (at * 2 - 1 - np.sin(4 * np.pi * at) * 0.05) * half  # its ends are closer
    path = np.stack([along, coil * np.sin(phase)], 1).astype(np.float32)
    height = np.zeros((GRID, GRID), np.float32)
    for side in (-1, 1):  # the wires below, then those above
        away = _from_path(path, wire, np.cos(phase) * side >= 0)
        wires = coil + wire + side * _dome(coil * 1.05, Y) + _dome(wire, away)
        height = np.maximum(height, np.where(away < wire, wires, 0))
    return Shape(height)


def key(rng: Rng) -> Shape:
    bow, blade = rng.uniform(0.32, 0.4), rng.uniform(0.11, 0.14)
    middle, end = -0.85 + bow, rng.uniform(0.7, 0.92)
    x = X - middle
    kind = rng.integers(3)
    if kind == 0:
        head = np.hypot(x, Y * rng.uniform(0.85, 1.0)) < bow
    elif kind == 1:
        head = _hexagon(x, Y, 8) < bow * 0.96
    else:  # three lobes
        lobes = [(-0.45, 0.0), (0.05, 0.5), (0.05, -0.5)]
        head = np.logical_or.reduce([np.hypot(x - a * bow, Y - b * bow) < bow * 0.56 for a, b in lobes])
    hole = np.hypot(x + bow * 0.5, Y) < bow * rng.uniform(0.2, 0.3)
    shoulder = middle + bow * 0.8
    cuts = int(rng.integers(4, 7))
    first = shoulder + 0.22
    pitch = (end - 0.06 - first) / cuts
    places = np.concatenate([[first - pitch * 0.5], first + pitch * (np.arange(cuts) + 0.5), [end]])
    deep = np.concatenate([[0.0], rng.uniform(0.25, 1.0, cuts) * blade * 0.95, [blade * 1.1]])
    flats = np.stack([places - pitch * 0.12, places + pitch * 0.12], 1).ravel()
    edge = np.interp(X[0], flats, np.repeat(deep, 2)).astype(np.float32)[None]
    long = (x > 0) & (end > X) & (-blade + edge < Y) & (blade - np.maximum(X - end + 0.12, 0) * 0.9 > Y)
    stop = (np.abs(X - shoulder - 0.04) < 0.06) & (np.abs(Y) < blade * 1.45)
    solid = (head | long | stop) & ~hole
    height = _plate(solid, 0.08, 0.022)
    groove = (shoulder + 0.02 < X) & (np.abs(Y - blade * 0.35) < blade * 0.17)
    rim = np.clip((_depth(solid & (x < bow * 0.75)) - 0.05) / 0.02, 0, 1)  # the head is pressed in a little
    return Shape(np.where(solid, np.maximum(height - 0.03 * groove - 0.018 * rim, 0.01), 0))


def bearing(rng: Rng) -> Shape:
    outer = rng.uniform(0.7, 0.9)
    bore = outer * rng.uniform(0.36, 0.48)
    wall = (outer - bore) * rng.uniform(0.24, 0.29)
    rings = _plate(_ring(outer - wall, outer), 0.34, 0.03) + _plate(_ring(bore, bore + wall), 0.34, 0.03)
    middle, gap = (outer + bore) / 2, (outer - bore) / 2 - wall
    between = _ring(bore + wall, outer - wall)
    if rng.random() < 0.35:  # a shield of rubber or sheet
        bowl = 0.27 + 0.03 * np.cos((RADIUS - middle) / gap * np.pi)
        shape = Shape(np.where(between, bowl, rings))
        if rng.random() < 0.6:
            rubber: Colour = ((0.1, 0.1, 0.11), (0.45, 0.16, 0.1), (0.1, 0.22, 0.45))[rng.integers(3)]
            shape.paint.append((between & (np.abs(RADIUS - middle) < gap * 0.85), rubber))
        return shape
    balls, ball = int(rng.integers(7, 11)), gap * 1.12
    turn = (ANGLE + rng.uniform(0, 6)) % (2 * np.pi / balls) - np.pi / balls
    away = np.hypot(RADIUS * np.cos(turn) - middle, RADIUS * np.sin(turn))
    cage = np.where(np.abs(RADIUS - middle) < gap * 0.42, 0.13, 0.04)
    inside = np.where(away < ball, np.maximum(0.16 + _dome(ball, away), cage), cage)
    return Shape(np.where(between, inside, rings))


def wrench(rng: Rng) -> Shape:
    wide, shaft = rng.uniform(0.24, 0.3), rng.uniform(0.085, 0.115)
    lean = rng.uniform(0.15, 0.4)
    x, y = X + 0.92 - wide, Y
    along, across = x * np.cos(lean) + y * np.sin(lean), y * np.cos(lean) - x * np.sin(lean)
    jaw = (np.hypot(x, y * 0.93) < wide) & ~((along < wide * 0.25) & (np.abs(across) < wide * 0.47))
    far = np.hypot(X - 0.72, Y)
    eye = (far < wide * 0.8) & (_hexagon(X - 0.72, Y, 12) > wide * 0.5)
    bar = (np.abs(Y) < shaft * (1 + 0.25 * X**2)) & (wide * 0.6 < x) & (0.72 - wide * 0.6 > X)
    height = _plate(jaw | bar, 0.16, 0.045)
    height = np.maximum(height, _plate(eye, 0.2, 0.05))
    sunk = (np.abs(Y) < shaft * 0.55) & (X > -0.38) & (X < 0.38)
    return Shape(height - np.where(sunk, 0.03 * np.clip(_depth(sunk) / 0.02, 0, 1), 0))


def hex_key(rng: Rng) -> Shape:
    thick, short = rng.uniform(0.055, 0.085), rng.uniform(0.45, 0.7)
    bend, right, low = 0.2, 0.62, rng.uniform(0.2, 0.32)
    arc = np.linspace(np.pi / 2, 0, 12)
    corner = np.stack([right - bend + bend * np.cos(arc), low - bend + bend * np.sin(arc)], 1)
    path = np.concatenate([[[-0.92, low]], corner, [[right, low - short]]]).astype(np.float32)
    body = _lying_hexagon(_from_path(path, thick * 1.3), thick, 0.0)
    cut = (X > -0.92) & (low - short < Y)
    return Shape(np.where((body > 0) & cut, body + thick, 0))


# Clutter --------------------------------------------------------------------------------------------------------------

BRIGHT: tuple[Colour, ...] = (
    (0.72, 0.12, 0.1),
    (0.1, 0.25, 0.6),
    (0.85, 0.62, 0.08),
    (0.08, 0.08, 0.09),
    (0.1, 0.42, 0.22),
    (0.85, 0.35, 0.06),
)


def tape(rng: Rng) -> Shape:
    solid, core = _ring(0.5, 0.9), _ring(0.44, 0.52)
    height = np.where(core, 0.5, _plate(solid, 0.55, 0.03) + 0.006 * np.sin(RADIUS * 260) * solid)
    return Shape(height, [(solid, BRIGHT[rng.integers(len(BRIGHT))]), (core, (0.55, 0.42, 0.3))])


def cable(rng: Rng) -> Shape:
    at = np.linspace(0, 1, 40)[:, None]
    a, b, c, d = np.array(
        [(-0.9, rng.uniform(-0.6, 0.6)), *rng.uniform(-1, 1, (2, 2)), (0.9, rng.uniform(-0.6, 0.6))]
    )
    path = (1 - at) ** 3 * a + 3 * at * (1 - at) ** 2 * b + 3 * at**2 * (1 - at) * c + at**3 * d
    round_ = _dome(0.055, _from_path(path, 0.06))
    return Shape(
        round_ * 1.4,
        [(round_ > 0, BRIGHT[rng.integers(len(BRIGHT))]), (np.abs(X) + 0 * Y > 0.82, (0.8, 0.48, 0.3))],
    )


def pencil(rng: Rng) -> Shape:
    point = np.clip((0.95 - X) / 0.3, 0, 1)
    body = np.minimum(_lying_hexagon(Y, 0.085, 0.3), _dome(0.1 * point, Y))
    wood = 0.66 + 0.02 * np.cos(Y * 90) < X
    return Shape(
        np.where(body > 0, body + 0.03, 0),
        [
            (body > 0, BRIGHT[rng.integers(len(BRIGHT))]),
            ((body > 0) & wood, (0.78, 0.6, 0.4)),
            ((body > 0) & (X > 0.86), (0.12, 0.12, 0.13)),
        ],
    )


def screwdriver(rng: Rng) -> Shape:
    flutes = 0.02 * np.cos(np.arcsin(np.clip(Y / 0.22, -1, 1)) * 8)
    grip = 0.2 - 0.05 * np.exp(-(((X - 0.02) / 0.08) ** 2)) - 0.08 * np.clip((-0.8 - X) / 0.15, 0, 1) ** 2
    handle = np.where((X < 0.1) & (X > -0.95), _dome(grip + flutes * (X > -0.75) * (X < -0.1), Y), 0)
    blade = np.where((X >= 0.1) & (X < 0.97), _dome(0.055, Y), 0)
    height = np.maximum(handle, blade)
    stripe = (handle > 0) & (X > -0.82) & (X < -0.76)
    first, second = rng.permutation(len(BRIGHT))[:2]
    return Shape(
        np.where(height > 0, height + 0.15, 0), [(handle > 0, BRIGHT[first]), (stripe, BRIGHT[second])]
    )


PARTS: dict[str, Callable[[Rng], Shape]] = {
    part.__name__.replace("_", " "): part
    for part in (bearing, bolt, gear, hex_key, key, nut, screw, spring, washer, wrench)
}
CLUTTER = (tape, cable, pencil, screwdriver)
