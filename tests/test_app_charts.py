"""Charts are well-formed, carry their numbers as text, and show no name as markup."""

import math
import re
from xml.etree import ElementTree

import pytest

from app.charts import SHAPES, Bar, Group, Series, bars, line_chart, scatter, stacked_bar
from app.palette import COLOURS

NASTY = "<script>alert('1')</script> & \"${value} {{value}}"


def parsed(text):
    return ElementTree.fromstring(text)


def texts(text):
    return [each.text for each in parsed(text).iter("text")]


def widths(text):
    return [float(width) for width in re.findall(r'class="chart-fill"[^>]*width:([\d.]+)%', text)]


@pytest.mark.parametrize(
    "chart",
    [
        line_chart((Series(NASTY, "#0072b2", ((0, 0.1), (9, 0.9))),) * 2, NASTY, NASTY, title=NASTY),
        bars([Bar(NASTY, "#0072b2", 0.5, NASTY, 0.7, NASTY)], title=NASTY, mark_name=NASTY),
        stacked_bar([(NASTY, "#0072b2", 1, NASTY)], 2, NASTY, NASTY),
        scatter([Group(NASTY, "#0072b2", [(0, 1)], [(1, 1)], (1, 0))], *[NASTY] * 5),
    ],
    ids=["line", "bars", "stacked", "scatter"],
)
def test_a_name_that_looks_like_markup_stays_text(chart):
    assert "<script" not in chart
    assert NASTY in "".join(parsed(chart).itertext())


def test_a_colour_cannot_break_out_of_its_attribute():
    assert parsed(bars([Bar("a", '"><script/>', 1.0, "x")])).find(".//script") is None


def test_an_accuracy_axis_goes_from_0_to_100_percent_whatever_the_values():
    shown = texts(line_chart((Series("a", "red", ((0, 0.48), (200, 0.52))),), "steps", "right answers"))
    assert {"0 %", "50 %", "100 %", "0", "200", "steps", "right answers"} <= set(shown)


def test_the_last_value_of_each_of_several_lines_stands_in_the_legend():
    lines = (Series("a", "red", ((0, 0.2), (5, 0.914))), Series("b", "blue", ((0, 0.5),)))
    assert {"a  91 %", "b  50 %"} <= set(texts(line_chart(lines, "x", "y")))
    assert {"a", "b"} <= set(texts(line_chart(lines, "x", "y", last_values=False)))


def test_lines_differ_in_their_dashes_and_not_in_colour_alone():
    chart = parsed(line_chart(tuple(Series(name, "red", ((0, 0), (1, 1))) for name in "abcd"), "x", "y"))
    lines = [each.get("style") for each in chart.iter("path") if "stroke: #ff0000" in each.get("style", "")]
    dashes = {re.search(r"stroke-dasharray: ([^;]*)|$", style)[1] for style in lines if "fill: none" in style}
    assert len(dashes) == 4


def test_text_is_text_in_the_colour_of_the_page_and_a_screen_reader_hears_the_numbers():
    chart = parsed(line_chart((Series("a", "red", ((0, 0.5),)),), "steps", "right"))
    assert all("fill: currentColor" in each.get("style") for each in chart.iter("text"))
    (svg,) = chart.iter("svg")
    assert svg.get("role") == "img" and svg.get("aria-label") == "right by steps"
    assert svg.find("desc").text == "a: 50 % at the end"


def test_a_chart_is_drawn_once_for_all_pages_and_shares_no_name_with_another():
    first = line_chart((Series("a", "red", ((0, 0.5), (1, 0.6))),), "steps", "right")
    assert line_chart((Series("a", "red", ((0, 0.5), (1, 0.6))),), "steps", "right") is first
    other = line_chart((Series("a", "red", ((0, 0.5), (1, 0.7))),), "steps", "right")
    ids = [set(re.findall(r' id="([^"]+)"', chart)) for chart in (first, other)]
    assert ids[0] and not ids[0] & ids[1]
    assert "<style" not in first  # which would hold for the whole page


@pytest.mark.parametrize(
    "chart", [line_chart((Series("a", "red", ()),), "x", "y"), bars([]), scatter([], "x", "y", "")]
)
def test_without_values_there_is_a_sentence_and_no_empty_axes(chart):
    assert "<svg" not in chart and chart.startswith("<p")


def test_values_that_are_no_numbers_are_left_out():
    points = ((0, 0.5), (1, math.nan), (2, math.inf), (3, 0.7))
    chart = line_chart((Series("a", "red", points),), "x", "y")
    assert not re.search(r"\b(nan|inf)\b", chart) and "a: 70 % at the end" in chart


def test_names_in_any_writing_are_drawn(recwarn):
    assert "工具" in texts(line_chart((Series("工具", "red", ((0, 1),)),) * 2, "x", "y", last_values=False))
    assert not recwarn


def test_a_bar_is_as_long_as_its_share_and_never_longer_than_its_room():
    assert widths(bars([Bar("a", "red", v, "") for v in (0.25, 1.0, 7.0, math.nan)])) == [25, 100, 100, 0]


def test_without_a_most_the_largest_bar_fills_the_room():
    assert widths(bars([Bar("a", "red", 3, ""), Bar("b", "red", 12, "")], most=None)) == [25, 100]
    assert widths(bars([Bar("a", "red", 0, "0")], most=None)) == [0]


def test_the_parts_of_a_stacked_bar_keep_their_shares():
    assert widths(stacked_bar([("a", "red", 3, "3"), ("b", "blue", 1, "1")], 8)) == [37.5, 12.5]


def test_a_map_has_a_shape_a_group_a_named_star_and_hollow_points():
    groups = [Group("a", "red", [(0, 0)], star=(0, 1)), Group("b", "blue", [(1, 1)], [(0, 1), (1, 0)])]
    text = scatter(groups, "x", "y", "A map", "held out", "proxy")
    assert {"a: 1", "b: 3", "a", "held out", "proxy"} <= set(texts(text))
    assert len(re.findall(r"fill: none; stroke: #0000ff", text)) == 2
    assert len(re.findall(r"fill: #ff0000; stroke: currentColor", text)) == 1
    outlines = dict(re.findall(r'<path id="(\w+)" d="([^"]*)"', text))
    shapes = dict(re.findall(r'href="#(\w+)"[^>]*style="fill: (#\w+); stroke: #', text)[:2])
    red, blue = (outlines[name] for name in shapes)
    assert list(shapes.values()) == ["#ff0000", "#0000ff"]
    assert "C" in red and "C" not in blue  # the curves of a circle, and a square


def test_colours_and_shapes_together_tell_70_classes_apart():
    pairs = {(COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)]) for i in range(70)}
    assert len(pairs) == 70
