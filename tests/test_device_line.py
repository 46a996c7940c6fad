"""One answer out of many frames: steady against single odd ones, and a line only when it changes."""

import json
from pathlib import Path

import pytest
from device_parts import add, run
from hypothesis import given
from hypothesis import strategies as st

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.records import clean_name
from export.device import BadModel
from export.device.identity import device_id
from export.device.manifest import ClassLabel, read
from export.device.model import Label, Result
from export.runtime import Smoother


def result(which: int | None) -> Result:
    return Result([Label(which or 0, f"class {which}", 0.9)], which is None, 0.5)


def answers(frames: int, votes: list[int | None]) -> list[int | None]:
    smoother = Smoother(frames)
    found = [smoother.answer(result(vote)) for vote in votes]
    return [None if label is None else label.id for label in found]


def test_a_single_odd_frame_changes_nothing_and_a_new_class_does_after_most_frames():
    assert answers(5, [1, 1, 1, 1, 2, 1, 1]) == [1] * 7
    assert answers(5, [1, 1, 1, 1, 1, 2, 2, 2, 2]) == [1] * 7 + [2, 2]


@given(st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=40), st.integers(1, 10))
def test_the_answer_is_always_one_that_was_seen_and_follows_a_class_that_stays(
    votes: list[int | None], frames: int
):
    found = answers(frames, votes + [3] * frames)
    assert set(found) <= {*votes, 3}
    assert found[0] == votes[0] and found[-1] == 3


# Names of classes -----------------------------------------------------------------------------------------------------

GOOD = [
    "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}",  # a family is one emoji
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a zero width non-joiner
    "\N{WAVING BLACK FLAG}\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",  # England's
    "x" * 100,
]


def test_a_device_takes_and_refuses_the_names_that_a_workspace_does():
    for name in GOOD:
        assert clean_name(name) == name
        assert read(ClassLabel, {"id": 1, "name": name}, "manifest.json").name == name
    for name in ("", "a\x1b[31mb", "a\ud800b", "x" * 101):
        with pytest.raises(UserError):
            clean_name(name)
        with pytest.raises(BadModel):
            read(ClassLabel, {"id": 1, "name": name}, "manifest.json")


# Who it is ------------------------------------------------------------------------------------------------------------


def test_a_device_keeps_the_name_that_it_was_given_first(tmp_path: Path):
    made = device_id(None, tmp_path / "cache")
    assert device_id(None, tmp_path / "cache") == made != device_id(None, tmp_path / "other")
    assert device_id("shelf-3", tmp_path / "cache") == "shelf-3"
    (tmp_path / "cache" / "device-id").write_bytes(b"\xff not a name")
    assert device_id(None, tmp_path / "cache") != made


# Lines ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_smoothed_lines_change_once_and_show_each_frame_as_it_is(exports: Path, tmp_path: Path):
    (tmp_path / "images").mkdir()
    for place, name in enumerate(["red", "red", "blue", "red", "blue", "blue", "blue", "black"]):
        add(tmp_path / "images", f"{place}.png", name)
    places = ["--models", exports, "--source", tmp_path / "images"]
    done = run(*places, "--smooth", 3, "--top", 1)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["answer"]["name"] for line in lines] == ["red"] * 4 + ["blue"] * 4
    assert [line["top"][0]["name"] for line in lines[:4]] == ["red", "red", "blue", "red"]
    assert all(len(line["top"]) == 1 for line in lines)
    changes = run(*places, "--smooth", 3, "--on-change").stdout.splitlines()
    assert len(changes) == 2
