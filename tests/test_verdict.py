"""The verdict: one sentence that is right in each situation, and honest with few samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tabs import verdict as tab
from edge_hpcr.live.suspicious import contradictions
from edge_hpcr.live.verdict import Contradiction, at_least, health, verdict
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


def test_one_without_mistakes_asks_for_nothing() -> None:
    said = verdict(taught(mug=20, cup=20), [(1, 1, 20), (2, 2, 20)])
    assert said.sentence == (
        "Good: 40 of 40 right on pictures it never learned (at least 92 %). It mixes up nothing so far."
    )


def test_a_weak_class_is_named_first_although_the_whole_is_good() -> None:
    said = verdict(taught(mug=40, cup=40, five=8), [(1, 1, 40), (2, 2, 40), (3, 3, 2), (3, 1, 6)])
    assert said.sentence == (
        "Good but for five: 82 of 88 right on pictures it never learned (at least 86 %). "
        "Weakest: five, taken for mug. Show 5 more of five."
    )


def test_a_weak_one_says_so() -> None:
    said = verdict(taught(mug=20, cup=20), [(1, 1, 11), (1, 2, 9), (2, 2, 10), (2, 1, 10)])
    assert said.level == "weak"
    assert said.sentence.startswith(
        "Weak: 21 of 40 right on pictures it never learned (at least 38 %). Weakest: cup,"
    )


@pytest.mark.parametrize(
    ("labels", "answers", "sentence"),
    [
        ({}, [], "Show something, and give it a name."),
        ({"mug": 7}, [(1, 1, 2)], "Now show something else, and name that too."),
        (
            {"mug": 1, "cup": 1},
            [],
            "Too few to tell: nothing has been measured yet. Show 5 more of each.",
        ),
        (
            {"mug": 9, "cup": 3, "tin": 8},
            [(1, 1, 2), (2, 1, 1)],
            "Too few to tell: 2 of 3 right on pictures it never learned. Show 2 more of cup.",
        ),
        (
            {"mug": 9, "cup": 9},
            [(1, 1, 8)],
            "Too few to tell: 8 of 8 right on pictures it never learned. Show 5 more of cup, from other sides.",
        ),
        (
            {"mug": 9, "cup": 9},
            [(1, 1, 8), (2, 2, 8)],
            "Too few to tell: 16 of 16 right on pictures it never learned. Show 5 more of each.",
        ),
    ],
)
def test_with_few_samples_it_does_not_judge_and_gives_no_number(labels, answers, sentence) -> None:
    said = verdict(taught(**labels), answers)
    assert (said.sentence, said.number) == (sentence, "")
    assert said.level in ("empty", "few")


def test_while_it_measures_itself_no_more_labels_are_asked_for_than_it_needs() -> None:
    answers = [(1, 1, 2), (2, 2, 2)]
    assert verdict(taught(mug=15, cup=15), answers, measuring=True).sentence == (
        "Too few to tell: 4 of 4 right on pictures it never learned. It is measuring itself: wait a moment."
    )
    assert verdict(taught(mug=15, cup=3), answers, measuring=True).advice == "Show 2 more of cup."
    assert verdict(taught(mug=15, cup=15), answers).advice == "Show 5 more of each."


def test_contradictory_labels_are_named() -> None:
    doubt = [Contradiction(1, 2, (7, 9, 12, 30))]
    few = verdict(taught(four=6, five=6), [(1, 1, 2)], doubt)
    assert few.sentence == (
        "Contradictory labels: 4 pictures that look the same are called four and five. Mend them on Review."
    )
    many = verdict(taught(four=50, five=50), [(1, 1, 50), (2, 2, 44), (2, 1, 6)], doubt)
    assert many.sentence == (
        "Contradictory labels: 4 pictures that look the same are called four and five; "
        "94 of 100 right on pictures it never learned (at least 88 %). Mend them on Review."
    )
    assert (many.level, many.number) == ("contradictory", "94 %")


def test_what_concerns_deleted_classes_does_not_count() -> None:
    classes, answers = taught(mug=20, cup=20), [(1, 1, 20), (2, 2, 20)]
    gone = [*answers, (9, 1, 50)]
    assert verdict(classes, gone, [Contradiction(1, 9, (3, 4))]) == verdict(classes, answers)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_at_least_is_below_what_was_seen_and_grows_with_it(counts) -> None:
    right, samples = counts
    least = at_least(right, samples)
    assert 0 <= least <= right / samples
    if right < samples:
        assert least < at_least(right + 1, samples)


def test_at_least_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for share in (0.6, 0.9, 0.97):
        drawn = rng.binomial(30, share, 4000)
        assert np.mean([at_least(int(right), 30) <= share for right in drawn]) >= 0.945


def test_the_table_says_of_each_class_what_to_do() -> None:
    rows = health(
        taught(mug=60, cup=10, tin=3, jar=10), [(1, 1, 6), (2, 2, 1), (2, 1, 2), (2, 3, 1), (3, 3, 1)]
    )
    assert [(row.right, row.samples, row.taken_for, row.advice) for row in rows] == [
        (6, 6, None, "Enough of mug: show the others."),
        (1, 4, 1, "Show 5 more of cup."),
        (1, 1, None, "Show 2 more of tin."),
        (0, 0, None, "Show 5 more of jar, from other sides: it could not be measured yet."),
    ]


def test_pictures_that_look_the_same_and_are_called_differently_contradict() -> None:
    ids, classes = np.arange(1, 7), np.array([1, 2, 1, 2, 1, 2])
    hashes = np.array([0xFF, 0xFE, 0xFF00, 0xFF00FF00, 0, 0], np.uint64)
    features = np.ones((6, 4))
    assert contradictions(ids, classes, features, hashes) == [Contradiction(1, 2, (1, 2))]
    features[1] = [1, -1, 1, -1]  # a hash alone may be equal by chance
    assert contradictions(ids, classes, features, hashes) == []


def test_the_accuracy_tab_shows_the_sentence_and_a_row_for_each_class_as_text() -> None:
    classes = taught(**{"<b>mug</b>": 20, "cup": 20})
    answers = [(1, 1, 20), (2, 2, 15), (2, 1, 5)]
    html = tab.sentence(verdict(classes, answers)) + tab.table(health(classes, answers))
    assert "<b>88 %</b>" in html and "35 of 40 right on pictures it never learned" in html
    assert "<b>mug" not in html and html.count("&lt;b&gt;mug&lt;/b&gt;") == 3
    assert "<td>15 of 20</td>" in html and "Show 5 more of cup." in html
    assert tab.table(health(classes[:1], answers)) == ""
