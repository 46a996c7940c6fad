"""One answer out of many frames: steady against single odd ones, and a line only when it changes."""

import json
from pathlib import Path

import jsonschema
import pytest
from device_parts import publish
from hypothesis import given
from hypothesis import strategies as st
from test_device_runtime import add, run

from edge_hpcr.common.errors import UserError
from export.device.identity import device_id
from export.device.line import SCHEMA
from export.device.model import Label, Result
from export.device.smoothing import Smoother, Window

SCHEMA_OF_A_LINE = json.loads(SCHEMA.read_text())


def result(which: int | None) -> Result:
    return Result([Label(which or 0, f"class {which}", 0.9)], which is None, 0.5)


def answers(window: Window, votes: list[int | None], gap: float = 0.1) -> list[int | None]:
    smoother = Smoother(window)
    found = [smoother.answer(result(vote), place * gap) for place, vote in enumerate(votes)]
    return [None if label is None else label.id for label in found]


def test_a_single_odd_frame_changes_nothing_and_a_new_class_does_after_most_frames():
    assert answers(Window(frames=5), [1, 1, 1, 1, 2, 1, 1]) == [1] * 7
    assert answers(Window(frames=5), [1, 1, 1, 1, 1, 2, 2, 2, 2]) == [1] * 7 + [2, 2]


def test_two_answers_that_take_turns_do_not_flicker():
    assert set(answers(Window(frames=6), [1, 2] * 20)) == {1}


def test_unknown_is_an_answer_like_any_other():
    assert answers(Window(frames=3), [1, 1, 1, None, None, None, 1]) == [1, 1, 1, 1, None, None, None]


def test_a_window_in_seconds_forgets_what_is_older():
    assert answers(Window(seconds=0.35), [1, 1, 1, 1, 2, 2, 2], gap=0.1)[-1] == 2
    assert answers(Window(seconds=0.05), [1, 2, 3], gap=0.1) == [1, 2, 3]


@given(st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=40), st.integers(1, 10))
def test_the_answer_is_always_one_that_was_seen_and_follows_a_class_that_stays(
    votes: list[int | None], frames: int
):
    found = answers(Window(frames=frames), votes + [3] * frames)
    assert set(found) <= {*votes, 3}
    assert found[0] == votes[0] and found[-1] == 3


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "s", "0s", "1m", "99999s", "1e3", "nan"])
def test_a_window_that_is_none_is_refused(text: str):
    with pytest.raises(UserError, match="--smooth"):
        Window.parse(text)


# Who it is ------------------------------------------------------------------------------------------------------------


def test_a_device_keeps_the_name_that_it_was_given_first(tmp_path: Path):
    made = device_id(None, tmp_path / "cache")
    assert device_id(None, tmp_path / "cache") == made != device_id(None, tmp_path / "other")
    assert device_id("shelf-3", tmp_path / "cache") == "shelf-3"
    (tmp_path / "cache" / "device-id").write_bytes(b"\xff not a name")
    assert device_id(None, tmp_path / "cache") != made


def test_where_nothing_can_be_kept_the_hosts_name_is_used(tmp_path: Path):
    (tmp_path / "file").touch()
    assert device_id(None, tmp_path / "file") == device_id(None, None)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 65, "a\n"])
def test_a_name_that_no_address_can_hold_is_refused(name: str):
    with pytest.raises(UserError, match="--device-id"):
        device_id(name, None)


# Lines ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path) -> list[object]:
    publish(tmp_path / "exports", 1)
    (tmp_path / "images").mkdir()
    for place, name in enumerate(["red", "red", "blue", "red", "blue", "blue", "blue", "black"]):
        add(tmp_path / "images", f"{place}.png", name)
    return ["--models", tmp_path / "exports", "--source", tmp_path / "images", "--device-id", "cam"]


@pytest.mark.slow
def test_every_line_fits_the_schema_and_with_on_change_only_changes_are_printed(places: list[object]):
    every, some = run(*places), run(*places, "--on-change")
    lines, changes = ([json.loads(line) for line in done.stdout.splitlines()] for done in (every, some))
    assert len(lines) == 8
    for line in lines:
        jsonschema.validate(line, SCHEMA_OF_A_LINE)
    assert [line["answer"] and line["answer"]["name"] for line in changes] == [
        "red",
        "blue",
        "red",
        "blue",
        None,
    ]
    assert [line["frame"] for line in changes] == [1, 3, 4, 5, 8]


@pytest.mark.slow
def test_smoothed_lines_change_once_and_show_each_frame_as_it_is(places: list[object]):
    done = run(*places, "--smooth", 3, "--top", 1)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["answer"]["name"] for line in lines] == ["red"] * 4 + ["blue"] * 4
    assert [line["top"][0]["name"] for line in lines[:4]] == ["red", "red", "blue", "red"]
    assert all(len(line["top"]) == 1 for line in lines)
    changes = run(*places, "--smooth", 3, "--on-change").stdout.splitlines()
    assert len(changes) == 2


@pytest.mark.slow
def test_the_schema_is_printed_and_refuses_a_line_without_its_fields(places: list[object]):
    printed = json.loads(run("--schema").stdout)
    jsonschema.Draft202012Validator.check_schema(printed)
    line = json.loads(run(*places, "--count", 1).stdout)
    for name in line:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({key: value for key, value in line.items() if key != name}, printed)
