"""Charts as strings of SVG and HTML: lines, bars, a stacked bar, a map of points.

They scale with the page down to a phone's width, take the page's text colour (light and dark), and never tell things
apart by colour alone: lines differ in their dashes and marks, points in their shapes, and every bar has its number.
Names may come from anybody: everything is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]

# The unit is a pixel when the chart is 420 pixels wide; text of 13 is still read at a phone's 300.
WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 46
MARKS_PER_LINE = 8
DASHES = ("", "7 4", "2 4", "10 4 2 4")
SHAPES = ("circle", "square", "triangle", "diamond", "cross")  # five, and fourteen colours: 70 classes differ
MOST_NAMED_STARS = 14
NAME_UNITS, NUMBER_UNITS, ROW_UNITS = 124, 138, 26
LONGEST_NAME = 13


@dataclass(frozen=True)
class Series:
    """A line: its points in the order of x."""

    name: str
    colour: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: `text` is its number as a person reads it; `mark` a line across, such as the best so far."""

    name: str
    colour: str
    value: float
    text: str
    mark: float | None = None
    note: str = ""  # more, for whoever points at it


@dataclass(frozen=True)
class Part:
    """A part of a stacked bar, with its number as a person reads it."""

    name: str
    colour: str
    value: float
    text: str


@dataclass(frozen=True)
class Group:
    """Points of a map that belong together; the hollow ones are of another kind."""

    name: str
    colour: str
    points: Sequence[Point]
    hollow: Sequence[Point] = field(default=())


@dataclass(frozen=True)
class Star:
    """A single point of a map that stands out, such as a class's proxy."""

    name: str
    colour: str
    at: Point


def line_chart(
    series: Sequence[Series],
    x_title: str,
    y_title: str,
    y_percent: bool = True,
    title: str = "",
    y_most: float | None = None,
    last_values: bool = True,
) -> str:
    """Several lines over one axis. With `y_percent`, values are shares and the axis goes from 0 to 100 %.

    Points that are not finite are left out; x counts whole things (labels, steps, tasks). A series of one point is a
    mark. The legend gives each line's last value, unless `last_values` is false. Without any point the answer is a sentence, not empty axes.

    >>> "<svg" in line_chart([Series("held out", "#0072b2", [(0, 0.5), (10, 0.9)])], "step", "right")
    True
    """
    lines = [(index, each, _finite(each.points)) for index, each in enumerate(series)]
    everything = [point for _, _, points in lines for point in points]
    if not everything:
        return empty("Nothing to draw yet.")
    x_ticks = _ticks(min(x for x, _ in everything), max(x for x, _ in everything), 5, whole=True)
    most = y_most or (1.0 if y_percent else max(y for _, y in everything))
    y_ticks = [0, 0.25, 0.5, 0.75, 1.0] if y_percent and most == 1.0 else _ticks(0, most, 4)
    frame = _Frame((x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1]))
    drawn = [frame.axes(x_ticks, y_ticks, x_title, y_title, y_percent)]
    for index, each, points in lines:
        drawn.append(_line(frame, each, points, index, y_percent))
    ends = [
        (each.name, _number(points[-1][1], y_percent) if points else "no value") for _, each, points in lines
    ]
    legend = [
        (name, _line_swatch(series[index].colour, index), text if last_values else "")
        for index, (name, text) in enumerate(ends)
    ]
    said = "; ".join(f"{name}: {text} at the end" for name, text in ends)
    return _figure(
        _svg(drawn, HEIGHT, title or f"{y_title} by {x_title}", said),
        legend if len(series) > 1 else [],
        title,
    )


def bars(
    rows: Sequence[Bar],
    most: float | None = 1.0,
    title: str = "",
    mark_name: str = "",
    number_units: int = NUMBER_UNITS,
) -> str:
    """Horizontal bars, a row each, from 0 to `most` (None: the largest value). `mark_name` says what the marks are;
    `number_units` is the room for the numbers.

    >>> bars([Bar("mug", "#0072b2", 0.9, "90 % (n=40)")]).count("<rect")
    2
    """
    if not rows:
        return empty("Nothing to draw yet.")
    scale = most or max(*(row.value for row in rows), *(row.mark or 0 for row in rows), 0) or 1.0
    room = WIDTH - NAME_UNITS - number_units
    drawn = []
    for index, row in enumerate(rows):
        top = index * ROW_UNITS
        length = room * _between(row.value / scale)
        mark = ""
        if row.mark is not None:
            at = NAME_UNITS + room * _between(row.mark / scale)
            mark = f'<path d="M{at:.1f} {top + 2}v{ROW_UNITS - 4}" class="chart-mark"/>'
        said = f"{row.name}: {row.text}" + (f"; {row.note}" if row.note else "")
        drawn.append(
            f"<g><title>{escape(said)}</title>"
            f'<text x="{NAME_UNITS - 8}" y="{top + 17}" text-anchor="end">{escape(shortened(row.name))}</text>'
            f'<rect x="{NAME_UNITS}" y="{top + 4}" width="{room}" height="{ROW_UNITS - 8}" class="chart-room"/>'
            f'<rect x="{NAME_UNITS}" y="{top + 4}" width="{length:.1f}" height="{ROW_UNITS - 8}"'
            f' fill="{escape(row.colour)}" class="chart-fill"/>{mark}'
            f'<text x="{WIDTH - number_units + 8}" y="{top + 17}">{escape(row.text)}</text></g>'
        )
    said = "; ".join(f"{row.name}: {row.text}" for row in rows)
    swatch = '<svg viewBox="0 0 22 12" aria-hidden="true"><path d="M11 0v12" class="chart-mark"/></svg>'
    legend = [(mark_name, swatch, "")] if mark_name else []
    return _figure(_svg(drawn, len(rows) * ROW_UNITS, title or "bars", said), legend, title)


def stacked_bar(parts: Sequence[Part], total: float, title: str = "", free_text: str = "") -> str:
    """One bar from 0 to `total`, its parts side by side in their order, and what is free; each with its number.

    >>> stacked_bar([Part("images", "#0072b2", 3, "3 MB")], 4, free_text="1 MB").count("<li>")
    2
    """
    height = 44
    scale = max(total, sum(part.value for part in parts)) or 1.0
    drawn = [f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" class="chart-room"/>']
    at = 1.0
    for part in parts:
        length = (WIDTH - 2) * part.value / scale
        label = ""
        if length > 8 * len(part.name):
            label = f'<text x="{at + length / 2:.1f}" y="{height / 2 + 5}" text-anchor="middle" class="chart-inside">{escape(part.name)}</text>'
        drawn.append(
            f"<g><title>{escape(f'{part.name}: {part.text}')}</title>"
            f'<rect x="{at:.2f}" y="1" width="{length:.2f}" height="{height - 2}" fill="{escape(part.colour)}"'
            f' class="chart-fill"/>{label}</g>'
        )
        at += length
    legend = [(part.name, _box_swatch(part.colour), part.text) for part in parts]
    if free_text:
        legend.append(("free", _box_swatch("transparent"), free_text))
    said = "; ".join(f"{name}: {text}" for name, _, text in legend)
    return _figure(_svg(drawn, height, title or "parts of a whole", said), legend, title)


def scatter(
    groups: Sequence[Group],
    stars: Sequence[Star],
    x_title: str = "",
    y_title: str = "",
    title: str = "",
    hollow_name: str = "",
    star_name: str = "",
) -> str:
    """A map of points: a colour and a shape a group, hollow points where a group has them, and stars above all.

    `hollow_name` and `star_name` say in the legend what hollow points and stars are.

    >>> 'class="chart-star"' in scatter([Group("mug", "#0072b2", [(0, 1)])], [Star("mug", "#0072b2", (1, 1))])
    True
    """
    points = [p for g in groups for p in (*_finite(g.points), *_finite(g.hollow))] + _finite(
        [s.at for s in stars]
    )
    if not points:
        return empty("Nothing to draw yet.")
    height = 380
    x_ticks = _ticks(min(x for x, _ in points), max(x for x, _ in points), 5)
    y_ticks = _ticks(min(y for _, y in points), max(y for _, y in points), 5)
    frame = _Frame((x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1]), height)
    drawn = [frame.axes(x_ticks, y_ticks, x_title, y_title, y_percent=False)]
    for index, group in enumerate(groups):
        for kind, chosen in (("chart-dot", group.points), ("chart-ring", group.hollow)):
            path = "".join(_shape(SHAPES[index % len(SHAPES)], *frame.at(p), 4.2) for p in _finite(chosen))
            if path:
                paint = "fill" if kind == "chart-dot" else "stroke"
                drawn.append(
                    f'<path d="{path}" {paint}="{escape(group.colour)}" class="{kind}">'
                    f"<title>{escape(group.name)}</title></path>"
                )
    for star in stars:
        if _finite([star.at]):
            drawn.append(_star(frame, star, named=len(stars) <= MOST_NAMED_STARS))
    legend = [
        (group.name, _shape_swatch(group.colour, index), f"{len(group.points) + len(group.hollow):,}")
        for index, group in enumerate(groups)
    ]
    key = '<svg viewBox="0 0 22 14" aria-hidden="true">{}</svg>'
    if hollow_name:
        ring = f'<path d="{_shape("circle", 11, 7, 4.5)}" stroke="currentColor" class="chart-ring"/>'
        legend.append((hollow_name, key.format(ring), ""))
    if star_name:
        star_mark = f'<path d="{_star_path(11, 7, 7)}" fill="currentColor" class="chart-star"/>'
        legend.append((star_name, key.format(star_mark), ""))
    said = ", ".join(f"{group.name}: {len(group.points) + len(group.hollow)} points" for group in groups)
    return _figure(_svg(drawn, height, title or "a map of points", said), legend, title)


def empty(sentence: str) -> str:
    """What stands where a chart will be: what to do, or what is awaited."""
    return f'<p class="chart-empty">{escape(sentence)}</p>'


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """The middle goes: what tells names apart is often their end.

    >>> shortened("a very long name of a class", 10)
    'a ver…lass'
    """
    return name if len(name) <= most else f"{name[: most - 5]}…{name[-4:]}"


class _Frame:
    """Where values lie on the drawing."""

    def __init__(self, xs: tuple[float, float], ys: tuple[float, float], height: int = HEIGHT) -> None:
        self.xs, self.ys, self.height = xs, ys, height

    def at(self, point: Point) -> Point:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (point[0] - self.xs[0]) / (self.xs[1] - self.xs[0])
        y = TOP + (self.height - TOP - BOTTOM) * (self.ys[1] - point[1]) / (self.ys[1] - self.ys[0])
        return x, y

    def axes(
        self, x_ticks: Sequence[float], y_ticks: Sequence[float], x_title: str, y_title: str, y_percent: bool
    ) -> str:
        bottom, middle = self.height - BOTTOM, (self.height - BOTTOM + TOP) / 2
        parts = []
        for tick in y_ticks:
            y = self.at((self.xs[0], tick))[1]
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="chart-grid"/>')
            parts.append(
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick, y_percent)}</text>'
            )
        for tick in x_ticks:
            x = self.at((tick, self.ys[0]))[0]
            # The last number would stand out of the picture if it were centred.
            anchor = "end" if x > WIDTH - RIGHT - 12 else "middle"
            parts.append(f'<path d="M{x:.1f} {bottom}v4" class="chart-axis"/>')
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{_number(tick, False)}</text>'
            )
        parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" class="chart-axis"/>')
        centre = (LEFT + WIDTH - RIGHT) / 2
        parts.append(
            f'<text x="{centre}" y="{self.height - 8}" text-anchor="middle">{escape(x_title)}</text>'
        )
        parts.append(
            f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{escape(y_title)}</text>'
        )
        return "".join(parts)


def _line(frame: _Frame, series: Series, points: list[Point], index: int, percent: bool) -> str:
    if not points:
        return ""
    places = [frame.at(point) for point in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dash = f' stroke-dasharray="{DASHES[index % len(DASHES)]}"' if DASHES[index % len(DASHES)] else ""
    step = max(1, -(-len(points) // MARKS_PER_LINE))
    marks = []
    for place, point in zip(places[::-1][::step], points[::-1][::step], strict=True):
        said = f"{series.name}: {_number(point[1], percent)} at {_number(point[0], False)}"
        shape = _shape(SHAPES[index % len(SHAPES)], *place, 4)
        marks.append(f'<path d="{shape}"><title>{escape(said)}</title></path>')
    colour = escape(series.colour)
    return (
        f'<path d="{path}" stroke="{colour}" class="chart-line"{dash}/>'
        f'<g fill="{colour}" class="chart-marks">{"".join(marks)}</g>'
    )


def _star(frame: _Frame, star: Star, named: bool) -> str:
    x, y = frame.at(star.at)
    anchor, side = ("end", -11) if x > WIDTH - 110 else ("start", 11)
    name = ""
    if named:
        place = f'x="{x + side:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}"'
        name = f'<text {place} class="chart-name">{escape(shortened(star.name))}</text>'
    return (
        f'<g><title>{escape(star.name)}</title><path d="{_star_path(x, y, 10)}" fill="{escape(star.colour)}"'
        f' class="chart-star"/>{name}</g>'
    )


def _star_path(x: float, y: float, radius: float) -> str:
    corners = []
    for corner in range(10):
        r, angle = (radius, radius * 0.45)[corner % 2], math.pi * (corner / 5 - 0.5)
        corners.append(f"{x + r * math.cos(angle):.1f} {y + r * math.sin(angle):.1f}")
    return f"M{'L'.join(corners)}Z"


def _shape(name: str, x: float, y: float, r: float) -> str:
    if name == "circle":
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
    if name == "square":
        return f"M{x - r * 0.9:.1f} {y - r * 0.9:.1f}h{r * 1.8:.1f}v{r * 1.8:.1f}h{-r * 1.8:.1f}Z"
    if name == "triangle":
        return f"M{x:.1f} {y - r * 1.2:.1f}l{r * 1.15:.1f} {r * 2:.1f}h{-r * 2.3:.1f}Z"
    if name == "diamond":
        return f"M{x:.1f} {y - r * 1.3:.1f}l{r * 1.3:.1f} {r * 1.3:.1f}l{-r * 1.3:.1f} {r * 1.3:.1f}l{-r * 1.3:.1f} {-r * 1.3:.1f}Z"
    arm, wide = r * 1.25, r * 0.45
    return (
        f"M{x - wide:.1f} {y - arm:.1f}h{2 * wide:.1f}v{arm - wide:.1f}h{arm - wide:.1f}v{2 * wide:.1f}h{wide - arm:.1f}"
        f"v{arm - wide:.1f}h{-2 * wide:.1f}v{wide - arm:.1f}h{wide - arm:.1f}v{-2 * wide:.1f}h{arm - wide:.1f}Z"
    )


def _line_swatch(colour: str, index: int) -> str:
    dash = f' stroke-dasharray="{DASHES[index % len(DASHES)]}"' if DASHES[index % len(DASHES)] else ""
    shape = _shape(SHAPES[index % len(SHAPES)], 13, 6, 4)
    return (
        f'<svg viewBox="0 0 26 12" aria-hidden="true"><path d="M0 6h26" stroke="{escape(colour)}" class="chart-line"{dash}/>'
        f'<path d="{shape}" fill="{escape(colour)}"/></svg>'
    )


def _box_swatch(colour: str) -> str:
    return (
        '<svg viewBox="0 0 22 12" aria-hidden="true"><rect x="1" y="1" width="20" height="10"'
        f' fill="{escape(colour)}" class="chart-box"/></svg>'
    )


def _shape_swatch(colour: str, index: int) -> str:
    shape = _shape(SHAPES[index % len(SHAPES)], 11, 6, 4.5)
    return f'<svg viewBox="0 0 22 12" aria-hidden="true"><path d="{shape}" fill="{escape(colour)}"/></svg>'


def _svg(parts: Sequence[str], height: int, title: str, description: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" class="chart-svg">'
        f"<desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )


def _figure(svg: str, legend: Sequence[tuple[str, str, str]], title: str) -> str:
    """The legend is HTML, so that it wraps where the page is narrow."""
    heading = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    entries = "".join(
        f"<li>{swatch}<span>{escape(name)}</span>{f' <b>{escape(text)}</b>' if text else ''}</li>"
        for name, swatch, text in legend
    )
    listed = f'<ul class="chart-legend">{entries}</ul>' if entries else ""
    return f'<figure class="chart">{heading}{svg}{listed}</figure>'


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _ticks(low: float, high: float, about: int, whole: bool = False) -> list[float]:
    """Round numbers from below the lowest to above the highest.

    >>> _ticks(0, 87, 5), _ticks(1, 5, 5, whole=True)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    """
    # Values that differ by next to nothing are drawn as equal ones: numbers have no more digits to tell them apart.
    size = max(abs(low), abs(high))
    span = high - low if high - low > max(1e-6 * size, 1e-6) else (size if size > 1e-6 else 1.0)
    power = 10.0 ** math.floor(math.log10(span / about))
    step = min((power * f for f in (1, 2, 5, 10)), key=lambda s: abs(span / s - about))
    step = max(1.0, step) if whole else step
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _number(value: float, percent: bool) -> str:
    """
    >>> _number(0.914, True), _number(12000, False), _number(0.25, False)
    ('91 %', '12,000', '0.25')
    """
    if percent:
        return f"{100 * value:.0f} %"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.3g}"


def _between(share: float) -> float:
    return min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
