"""The Accuracy tab: honest numbers, every class, and what is mixed up."""

import re

from app.tabs import accuracy as tab
from edge_hpcr.live.accuracy import ClassHealth
from edge_hpcr.workspace.records import ClassRow

NASTY = "<b>mug</b> & ${value}"
CLASSES = [ClassRow(1, "stapler", None, 40, 4), ClassRow(2, NASTY, None, 5, 0)]


def test_the_confusion_table_counts_every_answer_of_the_classes_that_are_left():
    table = tab.confusion_table([(1, 1, 30), (1, 2, 10), (2, 2, 5)], CLASSES)
    cells = re.findall(r'class="(right|wrong)" style="--share:([\d.]+)".*?>(\d+)</td>', table)
    assert cells == [("right", "0.75", "30"), ("wrong", "0.25", "10"), ("right", "1.00", "5")]
    assert "<td>40</td>" in table and "<td>5</td>" in table
    assert "<b>mug" not in table and "&lt;b&gt;mug" in table
    gone = tab.confusion_table([(9, 9, 3)], CLASSES)
    assert "<table" not in gone, "a class that was deleted since the test"


def test_what_was_measured_on_labels_that_were_taken_back_is_no_longer_told():
    told = tab.health_table(
        [ClassHealth(1, "guava", 2, 3, 3, None, 0), ClassHealth(2, "plum", 4, 1, 3, 1, 2)]
    )
    assert "3 of 3" not in told and "1 of 3" in told
