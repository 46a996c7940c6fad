"""The verdict: one sentence that is right in each situation, and honest with few samples."""

import numpy as np
import pytest

from app.tabs import accuracy as tab
from edge_hpcr.live.accuracy import at_least, health, verdict
from edge_hpcr.workspace.records import ClassRow


def taught(**labels: int) -> list[ClassRow]:
    return [ClassRow(number, name, None, count, 0) for number, (name, count) in enumerate(labels.items(), 1)]


def test_a_good_one_says_how_good_at_least_and_what_is_weakest() -> None:
    said = verdict(taught(four=50, five=50), [(1, 1, 50), (2, 2, 44), (2, 1, 6)])
    assert said.sentence == (
        "Good: 94 of 100 right on pictures it never learned (at least 88 %). "
        "Weakest: five, taken for four. Show 5 more of five."
    )
    assert (said.level, said.number, said.advice) == ("good", "94 %", "Show 5 more of five.")


@pytest.mark.parametrize(
    ("labels", "answers", "so_far", "advice"),
    [
        ({}, [], "", "Show something"),
        (
            {"mug": 9, "cup": 3, "tin": 8},
            [(1, 1, 2), (2, 1, 1)],
            "Too few to tell: 2 of 3 right",
            "2 more of cup",
        ),
        ({"mug": 9, "cup": 9}, [(1, 1, 8), (2, 2, 8)], "Too few to tell: 16 of 16 right", "5 more of each"),
    ],
)
def test_with_few_samples_it_does_not_judge_and_gives_no_number(labels, answers, so_far, advice) -> None:
    said = verdict(taught(**labels), answers)
    assert so_far in said.sentence and advice in said.advice and not said.number
    assert said.level == ("few" if labels else "empty")


def test_while_copies_are_asked_it_says_how_long_that_takes() -> None:
    classes, said = taught(mug=9, cup=9), [(1, 1, 8), (2, 2, 8)]
    assert verdict(classes, said, measuring=True).advice == "Checking accuracy."
    left = verdict(classes, said, measuring=True, seconds_left=17.2)
    assert left.advice == "Checking accuracy, about 20 s left."
    assert verdict(taught(mug=9, cup=3), said, measuring=True).advice == "Show 2 more of cup."


def test_at_least_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for share in (0.6, 0.9, 0.97):
        drawn = rng.binomial(30, share, 4000)
        assert np.mean([at_least(int(right), 30) <= share for right in drawn]) >= 0.945


def test_the_accuracy_tab_shows_the_sentence_and_a_row_for_each_class_as_text() -> None:
    classes = taught(**{"<b>mug</b>": 20, "cup": 20})
    answers = [(1, 1, 20), (2, 2, 15), (2, 1, 5)]
    html = tab.verdict_html(verdict(classes, answers)) + tab.health_table(health(classes, answers))
    assert "<b>88 %</b>" in html and "35 of 40 right on pictures it never learned" in html
    assert "<b>mug" not in html and html.count("&lt;b&gt;mug&lt;/b&gt;") == 3
    assert "<td>15 of 20</td>" in html and "Show 5 more of cup." in html
    assert tab.health_table(health(classes[:1], answers)) == ""
