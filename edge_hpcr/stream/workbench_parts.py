"""The shapes of the workbench: parts to be taught, each drawn as a height above the bench.

A shape is float32 [GRID, GRID] and fills the square from -1 to 1 in both directions; heights have the same unit. What is not
there has height 0. Every function takes a random generator and draws another specimen of its kind.
"""

from collections.abc import Callable

import cv2
import numpy as np

GRID = 640  # pixels of a side: more than are shown, so that edges come out smooth
_LINE = (np.arange(GRID, dtype=np.float32) + 0.5) / (GRID / 2) - 1
X, Y = _LINE[None, :], _LINE[:, None]
RADIUS, ANGLE = np.hypot(X, Y), np.arctan2(Y, X)

Rng = np.random.Generator


# Building blocks ------------------------------------------------------------------------------------------------------


def _zigzag(phase: np.ndarray) -> np.ndarray:
    return np.abs(2 * (phase % 1) - 1)


def _dome(radius: np.ndarray | float, across: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(radius**2 - across**2, 0))


def _plate(solid: np.ndarray, thickness: float, bevel: float) -> np.ndarray:
    """A flat sheet of this outline with rounded edges."""
    inside = cv2.distanceTransform(solid.astype(np.uint8), cv2.DIST_L2, 5) / (GRID / 2)
    short = 1 - np.clip(inside / bevel, 0, 1)
    return np.where(solid, thickness - bevel + bevel * np.sqrt(1 - short**2), 0)


def _wire(points: np.ndarray, thick: float, chosen: np.ndarray | None = None) -> np.ndarray:
    """The round of a wire along a path, or along its chosen steps."""
    height = np.zeros((GRID, GRID), np.float32)
    for step in range(len(points) - 1) if chosen is None else np.flatnonzero(chosen[:-1]):
        (x0, y0), (dx, dy) = points[step], points[step + 1] - points[step]
        ends = points[step : step + 2]
        low, high = ends.min(axis=0) - thick, ends.max(axis=0) + thick
        left, top, right, bottom = np.clip((np.array([*low, *high]) + 1) * (GRID / 2), 0, GRID).astype(int)
        x, y = X[:, left : right + 1] - x0, Y[top : bottom + 1] - y0
        share = np.clip((x * dx + y * dy) / (dx**2 + dy**2), 0, 1)
        part = height[top : bottom + 1, left : right + 1]
        np.maximum(part, _dome(thick, np.hypot(x - share * dx, y - share * dy)), out=part)
    return height


def _hexagon(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The distance from the middle, measured so that a hexagon is a circle."""
    return np.maximum.reduce([x * np.cos(a) + y * np.sin(a) for a in np.arange(6) * (np.pi / 3)])


def _lying_hexagon(across: np.ndarray, inner: float) -> np.ndarray:
    """The upper side of a hexagonal bar that lies on its side."""
    sides = [(inner - across * np.sin(a)) / np.cos(a) for a in (-np.pi / 3, 0, np.pi / 3)]
    return np.maximum(np.minimum.reduce(sides), 0)


def _ring(inner: float, outer: float) -> np.ndarray:
    return (inner < RADIUS) & (outer > RADIUS)


# The parts ------------------------------------------------------------------------------------------------------------


def bolt(rng: Rng) -> np.ndarray:
    wide, long = rng.uniform(0.27, 0.34), rng.uniform(1.15, 1.75)
    head, thick, left = wide * 0.85, wide * 0.6, -long / 2
    begin = left + head + rng.uniform(0.03, 0.4) * (long - head)
    turn = np.arcsin(np.clip(Y / thick, -1, 1)) / (2 * np.pi)
    thread = (begin < X) * 0.035 * _zigzag(X / rng.uniform(0.065, 0.09) + turn)
    shank = np.where((left < X) & (-left > X), _dome(thick - thread, Y), 0)
    prism = np.where((left < X) & (left + head > X), _lying_hexagon(Y, wide * 0.9), 0)
    body = np.maximum(shank, prism)
    return np.where(body > 0, body + wide * 0.8, 0)


def screw(rng: Rng) -> np.ndarray:
    wide, long = rng.uniform(0.2, 0.27), rng.uniform(1.3, 1.8)
    left, core = -long / 2, wide * rng.uniform(0.36, 0.44)
    tip = np.clip((-left - X) / 0.3, 0, 1)
    cone = np.where(left < X, np.clip(wide - (X - left) * 1.05, core, wide), 0)
    begin = left + long * rng.uniform(0.28, 0.42)
    ridge = wide * 0.3 * (1 - _zigzag(X / rng.uniform(0.095, 0.125) + np.clip(Y / wide, -1, 1) * 0.28)) ** 1.6
    body = _dome(np.where(begin < X, (core * 0.92 + ridge) * tip, cone), Y)
    return np.where(body > 0, body + wide * 0.6, 0)


def nut(rng: Rng) -> np.ndarray:
    inner = rng.uniform(0.6, 0.76)
    hole, thick = inner * rng.uniform(0.5, 0.62), inner * rng.uniform(0.5, 0.8)
    chamfer = thick - np.maximum(RADIUS - inner * 0.98, 0) * 0.75 - np.maximum(hole * 1.13 - RADIUS, 0) * 0.9
    height = np.where((_hexagon(X, Y) < inner) & (hole < RADIUS), np.minimum(chamfer, thick), 0)
    thread = thick * 0.55 * (RADIUS / hole) + 0.05 * _zigzag(RADIUS / (hole * 0.055) + ANGLE / (2 * np.pi))
    return np.where(_ring(hole * 0.84, hole), thread, height)


def washer(rng: Rng) -> np.ndarray:
    outer = rng.uniform(0.62, 0.85)
    solid = _ring(outer * rng.uniform(0.25, 0.64), outer)
    height = _plate(solid, 0.1, 0.03)
    return height + np.where(solid, 0.02 * np.cos(ANGLE + rng.uniform(0, 6)), 0)


def gear(rng: Rng) -> np.ndarray:
    teeth, tip = int(rng.integers(12, 27)), rng.uniform(0.8, 0.93)
    root, bore = tip - 2.3 * tip / (teeth + 2), tip * rng.uniform(0.14, 0.24)
    climb = np.clip((RADIUS - root) / (tip - root), 0, 1)
    solid = (root > RADIUS) | ((tip > RADIUS) & (_zigzag(ANGLE * teeth / (2 * np.pi)) < 0.66 - 0.36 * climb))
    solid &= bore < RADIUS
    hub, rim = bore * 1.9, root * 0.82
    holes, middle = int(rng.choice([0, 4, 5, 6])), (hub + rim) / 2
    for turn in np.arange(holes) * (2 * np.pi / max(holes, 1)) + 0.4:
        solid &= np.hypot(X - middle * np.cos(turn), Y - middle * np.sin(turn)) > (rim - hub) * 0.34
    sunk = 0.1 * np.clip(
        np.minimum(RADIUS - hub, rim - RADIUS) / 0.04, 0, 1
    )  # turned down between hub and rim
    return np.where(solid, np.maximum(_plate(solid, 0.3, 0.035) - sunk, 0.01), 0)


def spring(rng: Rng) -> np.ndarray:
    coil, wire = rng.uniform(0.27, 0.4), rng.uniform(0.036, 0.056)
    turns, half = int(rng.integers(6, 12)), rng.uniform(0.68, 0.9)
    at = np.linspace(-1, 1, turns * 24)
    phase = at * turns * np.pi
    path = np.stack([at * half, coil * np.sin(phase)], 1).astype(np.float32)
    height = np.zeros((GRID, GRID), np.float32)
    for side in (-1, 1):  # the wires below, then those above
        wires = _wire(path, wire, np.cos(phase) * side >= 0)
        height = np.where(wires > 0, coil + wire + side * _dome(coil * 1.05, Y) + wires, height)
    return height


def key(rng: Rng) -> np.ndarray:
    bow, blade = rng.uniform(0.32, 0.4), rng.uniform(0.11, 0.14)
    middle, end = -0.85 + bow, rng.uniform(0.7, 0.92)
    x = X - middle
    head = _hexagon(x, Y) < bow if rng.random() < 0.3 else np.hypot(x, Y * rng.uniform(0.8, 1.1)) < bow
    hole = np.hypot(x + bow * 0.5, Y) < bow * rng.uniform(0.2, 0.3)
    first, cuts = middle + bow + 0.15, int(rng.integers(4, 7))
    places = np.repeat(np.linspace(first, end, cuts + 1), 2)[1:-1] + np.tile([0.02, -0.02], cuts)
    deep = np.repeat(rng.uniform(0.1, 1.0, cuts) * blade, 2)
    edge = np.interp(X[0], places, deep, left=0.0).astype(np.float32)[None]
    tip = np.maximum(X - end + 0.12, 0)
    long = (x > 0) & (end > X) & (-blade + edge + tip * 0.9 < Y) & (blade - tip * 0.9 > Y)
    solid = (head | long) & ~hole
    groove = (first - 0.2 < X) & (np.abs(Y - blade * 0.35) < blade * 0.17)
    return np.where(solid, np.maximum(_plate(solid, 0.08, 0.022) - 0.03 * groove, 0.01), 0)


def bearing(rng: Rng) -> np.ndarray:
    outer = rng.uniform(0.7, 0.9)
    bore = outer * rng.uniform(0.36, 0.48)
    wall = (outer - bore) * 0.27
    rings = _plate(_ring(outer - wall, outer), 0.34, 0.03) + _plate(_ring(bore, bore + wall), 0.34, 0.03)
    middle, ball = (outer + bore) / 2, ((outer - bore) / 2 - wall) * 1.12
    between = _ring(bore + wall, outer - wall)
    balls = int(rng.integers(7, 11))
    turn = (ANGLE + rng.uniform(0, 6)) % (2 * np.pi / balls) - np.pi / balls
    away = np.hypot(RADIUS * np.cos(turn) - middle, RADIUS * np.sin(turn))
    inside = np.where(away < ball, 0.16 + _dome(ball, away), 0.08)
    return np.where(between, inside, rings)


def wrench(rng: Rng) -> np.ndarray:
    wide, shaft = rng.uniform(0.24, 0.3), rng.uniform(0.085, 0.115)
    lean = rng.uniform(0.15, 0.4)
    x = X + 0.92 - wide
    along, across = x * np.cos(lean) + Y * np.sin(lean), Y * np.cos(lean) - x * np.sin(lean)
    jaw = (np.hypot(x, Y) < wide) & ~((along < wide * 0.25) & (np.abs(across) < wide * 0.47))
    eye = (np.hypot(X - 0.72, Y) < wide * 0.8) & (_hexagon(X - 0.72, Y) > wide * 0.5)
    bar = (np.abs(Y) < shaft) & (wide * 0.6 < x) & (0.72 - wide * 0.6 > X)
    height = np.maximum(_plate(jaw | bar, 0.16, 0.045), _plate(eye, 0.2, 0.05))
    return height - 0.03 * ((np.abs(Y) < shaft * 0.55) & (np.abs(X) < 0.38))


def hex_key(rng: Rng) -> np.ndarray:
    thick, short = rng.uniform(0.055, 0.085), rng.uniform(0.45, 0.7)
    bend, right, low = 0.2, 0.62, rng.uniform(0.2, 0.32)
    arc = np.linspace(np.pi / 2, 0, 12)
    corner = np.stack([right - bend + bend * np.cos(arc), low - bend + bend * np.sin(arc)], 1)
    path = np.concatenate([[[-0.88, low]], corner, [[right, low - short]]]).astype(np.float32)
    body = np.minimum(_wire(path, thick * 1.25), thick * 0.9)  # flat above
    return np.where(body > 0, body + thick, 0)


PARTS: dict[str, Callable[[Rng], np.ndarray]] = {
    part.__name__.replace("_", " "): part
    for part in (bearing, bolt, gear, hex_key, key, nut, screw, spring, washer, wrench)
}
