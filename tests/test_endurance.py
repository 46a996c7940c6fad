"""Endurance in its short form: real kills, a real learner, a real film; and each watcher notices what it is there for."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks import runner
from benchmarks.endurance import __main__ as command
from benchmarks.endurance import faults, latency, soak
from benchmarks.endurance.expected import Expected
from benchmarks.endurance.faults import KINDS, FaultsReport, Round
from benchmarks.endurance.latency import LatencyPlan, LatencyReport
from benchmarks.endurance.pictures import FPS, PLACES, SCENE_SECONDS, Film, tiles
from benchmarks.endurance.restart import RestartPlan, RestartReport
from benchmarks.endurance.soak import SoakReport
from benchmarks.endurance.watcher import Moment, Watched, Watcher
from edge_hpcr.commands.cli import run
from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import EndOfStream
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.layout import Layout

# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_faults_of_every_kind_lose_no_acknowledged_label_and_leave_a_whole_workspace():
    report = faults.measure(15, seed=5)
    assert report.problems == [] and report.passed and not report.failed.total()
    assert faults.tried(report) == 15 and set(report.faults | report.not_possible) == set(KINDS)
    # Faults before anything happened would prove nothing.
    assert report.labels > 30 and report.memories_checked > 5 and report.acknowledged["label"] > 0


def test_a_run_that_was_cut_short_goes_on_and_one_that_is_finished_begins_anew(tmp_path):
    out, report = tmp_path / "faults.json", FaultsReport(seed=3)
    report.count("kill -9", 0, 7)
    runner.keep(out, faults.facts(report))
    assert faults.begun(out, seed=3) == report
    assert faults.begun(out, seed=4) is None
    runner.keep(out, {**faults.facts(report), "hardware": "a machine"})
    assert faults.begun(out, seed=3) is None
    out.write_text("[]")
    with pytest.raises(UserError, match="is no result of this command"):
        faults.begun(out, seed=3)


def test_an_image_that_is_gone_is_noticed_and_one_that_was_set_aside_is_not(labelled):
    layout, _, _ = labelled
    report = FaultsReport(seed=0)
    tried = Round(layout.path.parent, [0], None, report)
    names = {path.name for path in layout.images.rglob("*.png")}
    aside = layout.path / "set-aside"
    aside.mkdir()
    for path in layout.images.rglob("*.png"):
        path.rename(aside / path.name)
    tried.check_images("older journal", layout, names)
    assert report.passed
    next(aside.iterdir()).unlink()
    tried.check_images("older journal", layout, names)
    assert "1 of 3 images are gone" in report.problems[0]


@pytest.fixture
def labelled(tmp_path):
    """A workspace with three labels of two classes, and what was acknowledged in it."""
    with Workspace.open(tmp_path / "workspace") as workspace:
        mug, cup = workspace.journal.create_class("mug"), workspace.journal.create_class("cup")
        images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
        ids = workspace.take_many([Taken(image, f"frame {n}") for n, image in enumerate(images)])
        workspace.journal.label(ids[:2], mug)
        workspace.journal.label(ids[2:], cup)
    told = [
        {"kind": "create_class", "class": mug, "name": "mug"},
        {"kind": "create_class", "class": cup, "name": "cup"},
        {"kind": "take", "ids": ids},
        {"kind": "label", "ids": ids[:2], "class": mug},
        {"kind": "label", "ids": ids[2:], "class": cup},
    ]
    return Layout(tmp_path / "workspace"), told, ids


def complaints(layout: Layout, told: list[dict]) -> str:
    report = Watched(seed=0)
    Watcher(layout, report).check("then", told)
    return "\n".join(report.problems)


def tamper(layout: Layout, *statements: str) -> None:
    with closing(sqlite3.connect(layout.journal)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_a_workspace_that_says_what_was_acknowledged_is_not_complained_about(labelled):
    layout, told, _ = labelled
    assert complaints(layout, told) == ""
    assert complaints(layout, told[:-1]) == ""  # done, and killed before it was told of


def test_a_lost_label_a_wrong_class_and_a_lost_event_are_noticed(labelled):
    layout, told, ids = labelled
    tamper(layout, f"UPDATE samples SET class_id = 2 WHERE id = {ids[0]}")
    assert f"sample {ids[0]} has class 2, acknowledged was 1" in complaints(layout, told)
    tamper(layout, f"UPDATE samples SET class_id = NULL, state = 'queued' WHERE id = {ids[0]}")
    assert f"sample {ids[0]} has class None, acknowledged was 1" in complaints(layout, told)
    tamper(layout, "DELETE FROM actions WHERE seq = 4", "DELETE FROM events WHERE seq = 4")
    assert "acknowledged were" in complaints(layout, told)


def test_more_than_one_action_that_nobody_was_told_of_is_noticed(labelled):
    layout, told, _ = labelled
    assert "the journal has" in complaints(layout, told[:-2])


def test_a_gap_in_the_events_a_sample_twice_and_another_name_are_noticed(labelled):
    layout, told, _ = labelled
    tamper(layout, "UPDATE actions SET seq = 9 WHERE seq = 4", "UPDATE events SET seq = 9 WHERE seq = 4")
    tamper(layout, "UPDATE samples SET origin = 'frame 0'", "UPDATE classes SET name = 'pot' WHERE id = 1")
    said = complaints(layout, told)
    assert "4 events are numbered from 1 to 9" in said
    assert "'frame 0' is 3 samples" in said
    assert "'pot'" in said and "acknowledged were {1: 'mug', 2: 'cup'}" in said


def test_a_process_that_ends_by_itself_or_opens_with_a_complaint_is_noticed(labelled):
    layout, told, _ = labelled
    opened = {"kind": "opened", "problems": ["the journal is damaged"], "applied": 0}
    said = complaints(layout, [opened, *told, {"kind": "ended", "code": 1}])
    assert "at the opening: the journal is damaged" in said and "ended by itself with 1" in said


@pytest.mark.parametrize(
    ("ids", "classes", "complaint"),
    [
        ([1, 2], [5, 6], ""),
        ([1, 1], [5, 5], "sample 1 is in memory 2 times"),
        ([1, 3], [5, 5], "sample 3 is in memory as class 5"),  # held out, or not labelled any more
        (
            [2],
            [5],
            "sample 2 is in memory as class 5, but is 6",
        ),  # a correction that did not reach the memory
    ],
)
def test_a_memory_holds_only_training_samples_once_and_in_their_class(ids, classes, complaint):
    moment = Moment(training={1: 5, 2: 6}, held_out=1, teaches=4)
    said = "\n".join(moment.check(ids, classes, tested=3))
    assert complaint in said and bool(said) == bool(complaint)


@pytest.mark.parametrize("tested", [2, 5])
def test_labels_that_were_left_out_or_learned_twice_are_noticed(tested):
    moment = Moment(training={1: 5, 2: 6}, held_out=1, teaches=4)
    assert f"{tested} labels were learned" in moment.check([1], [5], tested)[0]


def test_a_memory_that_is_ahead_of_the_journal_is_noticed(labelled):
    layout, told, _ = labelled
    ahead = {"kind": "memory", "whole": True, "applied": 7, "ids": [], "classes": []}
    assert "has applied event 7, which is not in the journal" in complaints(layout, [*told, ahead])


def test_what_is_expected_follows_merges_deletions_undo_and_redo():
    expected = Expected()
    for class_id, name in ((1, "mug"), (2, "cup")):
        expected.acknowledge({"kind": "create_class", "class": class_id, "name": name})
    expected.acknowledge({"kind": "label", "ids": [7, 8], "class": 1})
    expected.acknowledge({"kind": "merge_classes", "class": 1, "into": 2})
    assert (expected.labels, expected.names) == ({7: 2, 8: 2}, {2: "cup"})
    expected.acknowledge({"kind": "undo", "lost": []})
    assert (expected.labels, expected.names) == ({7: 1, 8: 1}, {1: "mug", 2: "cup"})
    expected.acknowledge({"kind": "redo", "lost": []})
    expected.acknowledge({"kind": "delete_class", "class": 2})
    assert (expected.labels, expected.names) == ({}, {})
    expected.acknowledge({"kind": "undo", "lost": [8]})
    assert (expected.labels, expected.names) == ({7: 2}, {2: "cup"})


# Latency --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_answers_are_timed_while_it_rests_and_while_it_really_learns(tmp_path):
    report = latency.measure(tmp_path / "workspace", LatencyPlan(rounds=2, answers=6, image_size=16), seed=0)
    assert list(report.milliseconds) == ["idle", "learning", "rehearsing"]
    assert all(times["n"] >= 12 for times in report.milliseconds.values())
    assert report.steps_meanwhile["idle"] == 0
    assert report.steps_meanwhile["learning"] >= 4 and report.steps_meanwhile["rehearsing"] >= 4
    for kind, times in report.milliseconds.items():
        assert 0 < times["p50"] <= times["p95"]
        if kind != "idle":
            ratio = times["p95"] / report.milliseconds["idle"]["p95"]
            assert report.ratios_to_idle[kind]["p95"] == pytest.approx(ratio)


def test_answers_that_take_more_than_three_times_as_long_miss_the_bar():
    ratios = {"learning": {"p50": 1.0, "p95": 2.9}, "rehearsing": {"p50": 1.0, "p95": 3.1}}
    assert not LatencyReport(0, ratios_to_idle=ratios).passed
    ratios["rehearsing"]["p95"] = 3.0
    assert LatencyReport(0, ratios_to_idle=ratios).passed


# Soak -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_soak_goes_through_gate_queue_and_learning_within_all_budgets(tmp_path):
    report = soak.measure(tmp_path / "workspace", 400, seed=0)
    assert report.problems == []
    assert report.verdicts["queue"] > 5 and report.verdicts["duplicate"] > 5
    assert report.labels > 3 and report.steps > 3
    assert report.replay_memory_looks == report.labels and 0 < report.largest_replay_memory <= 200_000
    assert 0 < report.largest_queue <= 60
    assert len(report.resident) == 200 and report.later[0] > 1e7


def test_resident_memory_counts_from_a_tenth_on_and_may_rise_by_less_than_three_percent():
    level = [(number, 1000) for number in range(10, 1001, 10)]
    assert SoakReport(0, 1000, resident=[(5, 10), *level]).passed
    assert SoakReport(0, 1000, resident=[*level[:-2], (990, 1029), (1000, 900)]).growth == pytest.approx(
        0.029
    )
    assert not SoakReport(0, 1000, resident=[*level[:-2], (990, 1031), (1000, 900)]).passed
    assert not SoakReport(0, 1000, resident=level, problems=["the queue holds more"]).passed


def test_the_film_moves_changes_scene_and_is_the_same_from_the_same_seed():
    scene = int(SCENE_SECONDS * FPS)
    with Film(2 * scene, seed=3) as film, Film(2 * scene, seed=3) as again:
        shown = [film.read(0) for _ in range(scene)]
        assert len({frame.image.tobytes() for frame in shown}) == scene
        assert shown[10].at - shown[0].at == pytest.approx(10 / FPS)
        assert film.shown == film.shown_before
        assert (again.read(0).image == shown[0].image).all()
        names = set()
        for _ in range(scene):
            film.read(0)
            names.add(film.shown)
        assert len(names) == 1
        with pytest.raises(EndOfStream, match="ended, frame"):
            film.read(0)


def test_tiles_are_of_every_class_and_tell_where_they_are_from():
    cut = tiles(200, 32, 2 * PLACES, seed=0)
    assert {number for _, number in cut} == set(range(2 * PLACES))
    assert all(tile.shape == (32, 32, 3) and tile.dtype == np.uint8 for tile, _ in cut)


# Restart and the command ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_restart_part_opens_in_a_fresh_process_and_is_kept_beside_the_others(tmp_path, capsys):
    out = tmp_path / "endurance.json"
    out.write_text(json.dumps({"soak": {"passed": True}}))
    code = run(command.commands, "endurance", ["restart", "--quick", "--seed", "4", "--out", str(out)])
    assert f"restart  {'MISSED' if code else 'pass'}" in capsys.readouterr().out
    kept = json.loads(out.read_text())
    assert kept["soak"] == {"passed": True}
    restart = kept["restart"]
    assert (restart["n"], restart["seed"], restart["problems"]) == (1, 4, [])
    assert restart["passed"] is (restart["slowest_opening"] <= 5) is (code == 0)
    assert (restart["labels"], restart["memory_samples"]) == (200, 100)
    assert restart["versions"]["torch"] and restart["hardware"]
    (start,) = restart["starts"]
    assert 0 < start["opening"] < start["whole"] and 0 < start["imports"] < start["whole"]
    # The last five events, of at most ten labels each.
    assert 5 <= restart["replay_of_one_interval"]["labels"] <= 50
    assert restart["replay_of_one_interval"]["steps"] >= 1


def test_an_opening_of_more_than_five_seconds_or_of_less_than_was_asked_misses_the_bar():
    def report(seconds: float, labels: int = 100) -> RestartReport:
        made = RestartReport(0)
        for opening in (0.1, seconds):
            facts = {"imports": 1.0, "opening": opening, "whole": 2.0, "labels": labels, "memory_samples": 50}
            made.add(facts, RestartPlan(labels=100, memory_samples=50))
        return made

    assert report(4.9).passed
    assert not report(5.1).passed
    assert not report(4.9, labels=99).passed


def test_a_missed_bar_is_said_and_ends_with_1(tmp_path, capsys, monkeypatch):
    def measure(folder, plan, seed, progress):
        folder.mkdir()
        report = FaultsReport(seed)
        report.complain(["it waited"])
        return report

    monkeypatch.setattr(soak, "measure", measure)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(command.commands, "endurance", ["soak", "--out", str(tmp_path / "endurance.json")]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("soak     MISSED\n  0 faults")
    assert "\n  problem: it waited\n  bar: " in shown.out
    (kept,) = tmp_path.glob("edge-hpcr-soak-*/workspace")
    assert f"the files of soak are kept in {kept.parent}" in shown.err
    assert json.loads((tmp_path / "endurance.json").read_text())["soak"]["passed"] is False


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["swim"], "unknown part 'swim': choose one of"),
        (["soak", "--frames", "9"], "9 frames: give at least 100"),
        (["--out", "FOLDER/result.txt"], "name a .json file"),
        (["--out", "FOLDER/file/result.json"], "cannot be written"),
        (["--out", "FOLDER/bad.json"], "is no result of this command"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, complaint, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    (tmp_path / "bad.json").write_text("no JSON")
    arguments = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    if "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "endurance.json")]
    assert run(command.commands, "endurance", arguments) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert complaint in message and message.startswith("endurance: ")
    assert not list(tmp_path.glob("edge-hpcr-*"))
