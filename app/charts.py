"""Charts for the tabs: lines and maps drawn by matplotlib as SVG, bars as HTML.

They scale down to a phone's width, take the page's text colour, and never tell things apart by colour alone: lines
differ in dashes and marks, points in shapes, and every bar has its number. All names are escaped.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from math import isfinite
from typing import Any

Point = tuple[float, float]

WIDTH, HEIGHT, MAP_HEIGHT, LEGEND_ROW = 420, 240, 360, 18  # pixels when the chart is 420 pixels wide
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 12, 48
MARKS_PER_LINE = 8
DASHES = ("-", "--", ":", "-.")
SHAPES = ("o", "s", "^", "D", "P")  # five, and fourteen colours: 70 classes differ
MOST_NAMED_STARS = 14
INK = "#010203"  # stands for the page's text colour, which matplotlib cannot name
_DRAWING = threading.Lock()  # matplotlib's settings are one for all threads
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: the page's fonts, and a screen reader can read it
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 13,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


@dataclass(frozen=True)
class Series:
    """A line: its points in the order of x."""

    name: str
    colour: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: `text` is its number as a person reads it; `mark` a line across, such as the best so far."""

    name: str
    colour: str
    value: float
    text: str
    mark: float | None = None
    note: str = ""  # shown beside the number when it is pointed at


@dataclass(frozen=True)
class Group:
    """Points of a map that belong together; hollow ones are of another kind, and a star is above all others."""

    name: str
    colour: str
    points: Sequence[Point] = ()
    hollow: Sequence[Point] = ()
    star: Point | None = None


@lru_cache(maxsize=64)  # pages ask every second; a chart is drawn once for all of them
def line_chart(
    series: tuple[Series, ...], x_title: str, y_title: str, title: str = "", last_values: bool = True
) -> str:
    """Lines of shares, from 0 to 100 %; x counts whole things. Several have a legend, with their last values.

    >>> "<svg" in line_chart((Series("held out", "#0072b2", ((0, 0.5), (10, 0.9))),), "step", "right")
    True
    """
    drawn = [(each, [p for p in each.points if isfinite(p[0]) and isfinite(p[1])]) for each in series]
    if not any(points for _, points in drawn):
        return empty()
    ends = [f"{100 * points[-1][1]:.0f} %" if points else "no value" for _, points in drawn]
    with _axes(HEIGHT, len(series) if len(series) > 1 else 0) as (figure, axes):
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        for index, (each, points) in enumerate(drawn):
            axes.plot(
                *zip(*points, strict=True) if points else ([], []),
                color=each.colour,
                linestyle=DASHES[index % len(DASHES)],
                marker=SHAPES[index % len(SHAPES)],
                markevery=slice(None, None, -(-len(points) // MARKS_PER_LINE) or 1),
                label=f"{each.name}  {ends[index]}" if last_values else each.name,
                linewidth=2.2,
                clip_on=False,
            )
        axes.set(ylim=(0, 1), xlabel=x_title, ylabel=y_title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0, " %"))
        axes.grid(axis="y", color=INK, alpha=0.15)
        if len(series) > 1:
            _legend(figure, axes, 1)
        said = "; ".join(f"{each.name}: {end} at the end" for (each, _), end in zip(drawn, ends, strict=True))
        return _figure(_svg(figure, title or f"{y_title} by {x_title}", said), title)


def scatter(
    groups: Sequence[Group],
    x_title: str,
    y_title: str,
    title: str,
    hollow_name: str = "",
    star_name: str = "",
) -> str:
    """A map of points, a colour and a shape for each group; the names say in the legend what is hollow or a star.

    >>> "<svg" in scatter([Group("mug", "#0072b2", [(0, 1)], star=(1, 1))], "x", "y", "Mugs")
    True
    """
    stars = [(group, group.star) for group in groups if group.star is not None]
    if not stars and not any((*group.points, *group.hollow) for group in groups):
        return empty()
    keys = [key for key in ((hollow_name, "o", "none"), (star_name, "*", INK)) if key[0]]
    counts = [len(group.points) + len(group.hollow) for group in groups]
    with _axes(MAP_HEIGHT, -(-(len(groups) + len(keys)) // 2)) as (figure, axes):
        for index, (group, count) in enumerate(zip(groups, counts, strict=True)):
            shape, colour = SHAPES[index % len(SHAPES)], group.colour
            for points, paint in ((group.points, colour), (group.hollow, "none")):
                x, y = zip(*points, strict=True) if len(points) else ([], [])
                axes.scatter(x, y, 30, facecolors=paint, edgecolors=colour, marker=shape)
            axes.plot([], [], shape, color=colour, label=f"{shortened(group.name, 16)}: {count:,}")
        for group, at in stars:
            axes.scatter(*at, 190, color=group.colour, edgecolors=INK, marker="*", zorder=3)
            if len(stars) <= MOST_NAMED_STARS:
                right = at[0] > sum(axes.get_xlim()) / 2  # its name goes to the side where there is room
                place, side = (-9 if right else 9, -4), "right" if right else "left"
                style: Any = {"textcoords": "offset points", "ha": side, "weight": "bold", "zorder": 4}
                axes.annotate(shortened(group.name), at, place, **style)
        for label, shape, paint in keys:
            axes.plot([], [], shape, color=INK, markerfacecolor=paint, markersize=9, label=label)
        axes.set(xlabel=x_title, ylabel=y_title)
        axes.grid(color=INK, alpha=0.15)
        _legend(figure, axes, 2)
        said = ", ".join(f"{group.name}: {count:,}" for group, count in zip(groups, counts, strict=True))
        return _figure(_svg(figure, title, said), title)


def bars(rows: Sequence[Bar], most: float | None = 1.0, title: str = "", mark_name: str = "") -> str:
    """Horizontal bars from 0 to `most` (None: the largest value). `mark_name` says what the marks are.

    >>> bars([Bar("mug", "#0072b2", 0.9, "90 % (n=40)")]).count("width:90.0%")
    1
    """
    if not rows:
        return empty()
    scale = most or max(max(row.value, row.mark or 0) for row in rows) or 1.0
    drawn = []
    for row in rows:
        mark = ""
        if row.mark is not None:
            mark = f'<i class="chart-mark" style="left:{_percent(row.mark / scale)}"></i>'
        said = escape(f"{row.name}: {row.text}" + (f"; {row.note}" if row.note else ""))
        drawn.append(
            f'<li title="{said}"><span class="chart-name">{escape(row.name)}</span><span class="chart-room">'
            f'<i class="chart-fill" style="width:{_percent(row.value / scale)};background:{escape(row.colour)}"></i>{mark}'
            f'</span><span class="chart-number">{escape(row.text)}</span></li>'
        )
    legend = [(mark_name, '<i class="chart-mark"></i>', "")] if mark_name else []
    return _figure(f'<ul class="chart-bars">{"".join(drawn)}</ul>', title, legend)


def stacked_bar(
    parts: Sequence[tuple[str, str, float, str]], total: float, title: str = "", free_text: str = ""
) -> str:
    """One bar from 0 to `total`; its parts are (name, colour, value, the value as a person reads it), the rest is free.

    >>> stacked_bar([("images", "#0072b2", 3, "3 MB")], 4, free_text="1 MB").count("<li>")
    2
    """
    scale = max(total, sum(value for _, _, value, _ in parts)) or 1.0
    drawn = "".join(
        f'<i class="chart-fill" title="{escape(f"{name}: {text}")}"'
        f' style="width:{_percent(value / scale)};background:{escape(colour)}"></i>'
        for name, colour, value, text in parts
    )
    legend = [
        (name, f'<i class="chart-box" style="background:{escape(colour)}"></i>', text)
        for name, colour, _, text in parts
    ]
    if free_text:
        legend.append(("free", '<i class="chart-box"></i>', free_text))
    return _figure(f'<div class="chart-room chart-stack">{drawn}</div>', title, legend)


def empty(sentence: str = "Nothing to draw yet.") -> str:
    """A sentence in the place of a chart: what to do, or what is awaited."""
    return f'<p class="chart-empty">{escape(sentence)}</p>'


def shortened(name: str, most: int = 13) -> str:
    """A name without its middle: names often differ in their ends.

    >>> shortened("a very long name of a class", 10)
    'a ver…lass'
    """
    return name if len(name) <= most else f"{name[: most - 5]}…{name[-4:]}"


def prepare() -> None:
    """Draw a first chart in the background: importing matplotlib takes seconds, and no page should wait for it."""
    first: Any = (Series("", INK, ((0, 0),)),)
    threading.Thread(target=line_chart, args=(first, "", ""), name="matplotlib", daemon=True).start()


@contextmanager
def _axes(height: int, legend_rows: int) -> Iterator[tuple[Any, Any]]:
    """A figure with one pair of axes, while matplotlib has our settings."""
    import matplotlib  # here: the app's start does not wait for it
    from matplotlib.figure import Figure

    warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser has it
    with _DRAWING, matplotlib.rc_context(_SETTINGS):
        total = height + legend_rows * LEGEND_ROW
        figure = Figure(figsize=(WIDTH / 72, total / 72))
        # Fixed margins: with matplotlib's constrained layout a chart takes twice as long.
        bottom = BOTTOM + legend_rows * LEGEND_ROW
        axes = figure.add_axes(
            (LEFT / WIDTH, bottom / total, (WIDTH - LEFT - RIGHT) / WIDTH, (height - TOP - BOTTOM) / total)
        )
        axes.spines[["top", "right"]].set_visible(False)
        yield figure, axes


def _legend(figure: Any, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower left", ncols=columns, frameon=False, labelspacing=0.2, columnspacing=1
    )


def _svg(figure: Any, title: str, description: str) -> str:
    """The figure for a page: as wide as its place, in the page's text colour, and without names that could clash."""
    written = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    text = re.sub(
        r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", written.getvalue(), flags=re.S
    )
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace(INK, "currentColor").replace("xlink:href", "href")
    head = re.search(r'<svg [^>]*(viewBox="[^"]*")[^>]*>', text)
    assert head is not None
    label = f'role="img" aria-label="{escape(title)}" class="chart-svg"'
    return f"<svg {head[1]} {label}><desc>{escape(description)}</desc>{text[head.end() :].strip()}"


def _figure(chart: str, title: str, legend: Sequence[tuple[str, str, str]] = ()) -> str:
    heading = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    entries = "".join(
        f"<li>{swatch}<span>{escape(name)}</span>{f' <b>{escape(text)}</b>' if text else ''}</li>"
        for name, swatch, text in legend
    )
    listed = f'<ul class="chart-legend">{entries}</ul>' if entries else ""
    return f'<figure class="chart">{heading}{chart}{listed}</figure>'


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)) if isfinite(share) else 0.0:.1f}%"
