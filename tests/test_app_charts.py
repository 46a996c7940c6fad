"""Charts are well-formed, carry their numbers as text, and show no name as markup."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.charts import (
    SHAPES,
    WIDTH,
    Bar,
    Group,
    Part,
    Series,
    Star,
    _ticks,
    bars,
    line_chart,
    scatter,
    stacked_bar,
)
from app.palette import COLOURS

NASTY = "<script>alert('1')</script> & \"${value} {{value}}"
numbers = st.floats(-1e9, 1e9)


def parsed(text):
    return ElementTree.fromstring(text)


def texts(text):
    return [each.text for each in parsed(text).iter("text")]


def rects(text):
    return [
        (float(r.get("x")), float(r.get("width")))
        for r in parsed(text).iter("rect")
        if r.get("class") == "chart-fill"
    ]


@pytest.mark.parametrize(
    "chart",
    [
        line_chart([Series(NASTY, "#0072b2", [(0, 0.1), (9, 0.9)])] * 2, NASTY, NASTY, title=NASTY),
        bars([Bar(NASTY, "#0072b2", 0.5, NASTY, 0.7, NASTY)], title=NASTY, mark_name=NASTY),
        stacked_bar([Part(NASTY, "#0072b2", 1, NASTY)], 2, NASTY, NASTY),
        scatter(
            [Group(NASTY, "#0072b2", [(0, 1)], [(1, 1)])],
            [Star(NASTY, "#0072b2", (1, 0))],
            NASTY,
            NASTY,
            NASTY,
            NASTY,
            NASTY,
        ),
    ],
    ids=["line", "bars", "stacked", "scatter"],
)
def test_a_name_that_looks_like_markup_stays_text(chart):
    assert "<script" not in chart
    assert NASTY in "".join(parsed(chart).itertext())


def test_a_colour_cannot_break_out_of_its_attribute():
    assert parsed(bars([Bar("a", '"><script/>', 1.0, "x")])).find(".//script") is None


def test_an_accuracy_axis_goes_from_0_to_100_percent_whatever_the_values():
    shown = texts(line_chart([Series("a", "red", [(0, 0.48), (200, 0.52)])], "steps", "right answers"))
    assert {"0 %", "50 %", "100 %", "steps", "right answers"} <= set(shown)


def test_the_last_value_of_each_of_several_lines_stands_in_the_legend():
    chart = parsed(
        line_chart([Series("a", "red", [(0, 0.2), (5, 0.914)]), Series("b", "blue", [(0, 0.5)])], "x", "y")
    )
    assert ["".join(each.itertext()) for each in chart.iter("li")] == ["a 91 %", "b 50 %"]


def test_lines_differ_in_their_dashes_and_not_in_colour_alone():
    chart = parsed(line_chart([Series(name, "red", [(0, 0), (1, 1)]) for name in "abc"], "x", "y"))
    dashes = [
        each.get("stroke-dasharray")
        for each in chart.findall("svg/path")
        if each.get("class") == "chart-line"
    ]
    assert len(dashes) == len(set(dashes)) == 3


@pytest.mark.parametrize("chart", [line_chart([Series("a", "red", [])], "x", "y"), bars([]), scatter([], [])])
def test_without_values_there_is_a_sentence_and_no_empty_axes(chart):
    assert "<svg" not in chart and chart.startswith("<p")


def test_values_that_are_no_numbers_are_left_out():
    chart = line_chart([Series("a", "red", [(0, 0.5), (1, math.nan), (2, math.inf), (3, 0.7)])], "x", "y")
    assert "nan" not in chart and "inf" not in chart


def test_a_bar_is_as_long_as_its_share_and_never_longer_than_its_room():
    (_, quarter), (_, whole), (_, beyond) = rects(bars([Bar("a", "red", v, "") for v in (0.25, 1.0, 7.0)]))
    assert quarter == pytest.approx(whole / 4, abs=0.1) and beyond == whole


def test_without_a_most_the_largest_bar_fills_the_room():
    (_, small), (_, large) = rects(bars([Bar("a", "red", 3, ""), Bar("b", "red", 12, "")], most=None))
    assert small == pytest.approx(large / 4, abs=0.1)


def test_bars_of_nothing_at_all_have_no_length():
    assert rects(bars([Bar("a", "red", 0, "0")], most=None))[0][1] == 0


def test_the_parts_of_a_stacked_bar_lie_side_by_side_and_keep_their_shares():
    (a, wide), (b, narrow) = rects(stacked_bar([Part("a", "red", 3, "3"), Part("b", "blue", 1, "1")], 8))
    assert b == pytest.approx(a + wide, abs=0.01) and wide == pytest.approx(3 * narrow, abs=0.05)
    assert wide == pytest.approx((WIDTH - 2) * 3 / 8, abs=0.05)


def test_a_map_has_a_shape_a_group_and_a_named_star():
    chart = parsed(
        scatter([Group("a", "red", [(0, 0)]), Group("b", "red", [(1, 1)])], [Star("mug", "red", (0, 1))])
    )
    first, second = (each.get("d") for each in chart.findall("svg/path") if each.get("class") == "chart-dot")
    assert ("a" in first) != ("a" in second)  # an arc of a circle, and a square
    assert [each.text for each in chart.iter("text") if each.get("class") == "chart-name"] == ["mug"]


def test_held_out_points_are_hollow():
    chart = parsed(scatter([Group("a", "red", [], [(0, 0)])], [], hollow_name="held out"))
    (ring,) = (each for each in chart.findall("svg/path") if each.get("class") == "chart-ring")
    assert ring.get("fill") is None and ring.get("stroke") == "red"


def test_colours_and_shapes_together_tell_70_classes_apart():
    pairs = {(COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)]) for i in range(70)}
    assert len(pairs) == 70


@given(numbers, numbers, st.booleans())
def test_ticks_are_few_and_reach_over_all_values(a, b, whole):
    low, high = min(a, b), max(a, b)
    ticks = _ticks(low, high, 5, whole)
    room = 1e-6 * (abs(low) + abs(high) + 1e-6)
    assert 2 <= len(ticks) <= 12 and ticks[0] <= low + room and high - room <= ticks[-1]
    assert all(first < second for first, second in pairwise(ticks))
    assert not whole or all(tick == round(tick) for tick in ticks)
