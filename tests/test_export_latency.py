"""The latency benchmark measures what it says; one quick run, and its arithmetic."""

import json
from functools import partial

import numpy as np
import pytest

from benchmarks import latency
from benchmarks.runner import in_turns
from edge_hpcr.commands.cli import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("latency")
    assert run(latency.commands, "latency", ["--quick", "--out", str(folder / "made" / "latency.json")]) == 0
    page = (folder / "made" / "latency.md").read_text()
    assert "| goal " in page and "swap ms" in page
    return json.loads((folder / "made" / "latency.json").read_text())


def test_a_quick_run_keeps_every_measurement(result):
    assert (
        result["hardware"]
        and result["finished"]
        and set(result["versions"]) >= {"torch", "onnx", "onnxruntime"}
    )
    (row,) = result["latency"]
    assert (row["size"], row["batch"], row["threads"]) == (32, 1, 1)
    for name in latency.CONTESTANTS:
        assert 0 < row["wall_ms"][name]["q1"] <= row["wall_ms"][name]["q3"]
    (device,) = result["device"]
    assert device["load_ms"]["median"] > 0 and device["swap_ms"]["median"] > 0
    assert len(device["first_answer_seconds"]) == 2 and min(device["first_answer_seconds"]) > 0.1
    late = device["late_frames"]
    assert late["swaps"] == 4
    for part in ("quiet", "around_swaps"):
        assert (
            late[part]["frames"] > 0 and 0 < late[part]["median"] <= late[part]["p95"] <= late[part]["most"]
        )
    (published,) = result["publishing"]
    assert published["parity_images"] == 64 and published["times_as_fast"]["processor"] > 0
    held = device["memory_bytes"]
    assert 0 < held["imports"] < held["loaded"] <= held["predicting"] < 1e9


def test_the_tables_are_markdown(result):
    blocks = [block.splitlines() for block in latency.tables(result) if block.startswith("|")]
    assert [block[0].split()[1] for block in blocks] == ["network,", "publishing", "device", "goal"]
    for block in blocks:
        assert len({line.count("|") for line in block}) == 1 and set(block[1]) == set("|-:")


def test_goals_are_judged_by_what_was_measured(result):
    assert [goal["goal"] for goal in result["goals"]] == [2.5, 1.0, 10.0, 2.0, 2.0, 2.0]
    network = {"backbone": "reduced_resnet18", "size": 32}
    published = {
        **network,
        "republish_seconds": {"wall": 0.999},
        "times_as_fast": {"wall": 9.99},
    }
    row = {**network, "batch": 1, "threads": 1}
    row["times_as_fast_as_torch"] = {"onnx": {"wall": {"median": 2.5}}}
    device = {
        **network,
        "late_frames": {"around_swaps": {"most": 2.01}},
        "late_frames_all_threads": {"around_swaps": {"most": 1.99}},
        "first_answer_seconds": [1.5, 2.0],
    }
    judged = latency.goals(
        [row, row | {"batch": 16}], [published, published | {"size": 64}], [device, device | {"size": 64}]
    )
    assert [goal["met"] for goal in judged] == [True, True, False, False, True, False, False, True, False]


def test_ratios_are_taken_within_a_round():
    seconds = np.array([[4.0, 4.0], [40.0, 40.0], [4.0, 4.0]])  # a round each: wall, processor
    compared = latency.compared({"torch": seconds, "onnx": seconds / 2, "int8": seconds / 4})
    assert compared["times_as_fast_as_torch"]["onnx"]["wall"] == {"median": 2.0, "q1": 2.0, "q3": 2.0}
    assert compared["wall_ms"]["int8"]["median"] == 1000.0


def test_contestants_take_turns_and_each_begins_a_round():
    calls = []
    contestants = {name: partial(calls.append, name) for name in "abc"}
    times = in_turns(contestants, 3, {"a": 1, "b": 2, "c": 1})
    assert "".join(calls) == "aabbbccbbbccaaccaabbb"  # each once more than counted, to warm up
    assert {name: each.shape for name, each in times.items()} == dict.fromkeys("abc", (3, 2))


@pytest.mark.parametrize(
    ("arguments", "complaint"), [(["--out", "file.txt"], "name a .json file"), (["--size", "225"], "32")]
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, tmp_path, arguments, complaint):
    assert run(latency.commands, "latency", ["--out", str(tmp_path / "made.json"), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("latency: ") and complaint in line


def test_the_goal_for_a_frame_while_models_change_is_set_for_the_default_network_too():
    assert latency.GOALS[1] in latency.Plan().networks and latency.GOALS[1][1] == 224
