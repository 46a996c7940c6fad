"""`bench teach`: the same pictures for every contestant, one file a run, tables and plots of them."""

import copy
import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_hpcr.bench import pictures as sources
from edge_hpcr.bench import teach_report
from edge_hpcr.bench.pictures import Pictures
from edge_hpcr.bench.teach import CONTESTANTS, FROM_SCRATCH, ORDERS, Draw, TeachConfig, label_counts
from edge_hpcr.commands.cli import main
from edge_hpcr.learner.learner import LearnerConfig

FIELDS = {
    *("benchmark", "source", "contestant", "order", "draw", "seed", "classes", "accuracy", "test_pictures"),
    *("bytes", "label_ms", "prediction_ms", "config", "versions", "finished"),
}
COLOURS = {"blue": (0, 0, 200), "green": (0, 160, 0), "red": (220, 0, 0)}
QUICK = ["--labels", "1,2", "--draws", "2", "--methods", "ours", "--steps", "1", "--classes", "2"]
QUICK += ["--set", "backbone=reduced_resnet18", "--set", "image_size=8"]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Pictures of three classes, of several sizes."""
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (tmp_path / "photographs" / name).mkdir(parents=True)
        for i in range(6):
            image = np.clip(rng.normal(colour, 30, (12 + i, 20 - i, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "photographs" / name / f"{i}.png"), image[..., ::-1])
    return tmp_path / "photographs"


def a_config(**options) -> TeachConfig:
    usual = {
        **{"source": "s", "pictures": "p", "contestant": "ours", "order": ORDERS[0], "draw": 0, "seed": 0},
        **{"classes": 3, "labels": (1, 4), "test": 5, "steps": 0, "averaged": True},
    }
    return TeachConfig(**{**usual, "learner": LearnerConfig(), **options})


def some_pictures(per_class: int = 10, classes: int = 5) -> Pictures:
    labels = np.repeat(np.arange(classes), per_class)
    return Pictures(
        "s", "p", lambda i: np.full((2, 2, 3), i, np.uint8), labels, tuple(map(str, range(classes)))
    )


def taught(folder: Path, out: Path, *options: str) -> int:
    return main(["bench", "teach", "--source", str(folder), "--out", str(out), *QUICK, *options])


# What is taught


@pytest.mark.parametrize("draw", range(3))
def test_no_picture_is_both_taught_and_tested(draw):
    made = Draw.of(some_pictures(), a_config(draw=draw))
    assert not set(made.taught.ravel()) & set(made.tested)
    assert len(set(made.tested)) == len(made.tested) == 3 * 5
    assert set(some_pictures().labels[made.tested]) == set(made.classes)


def test_a_draw_is_the_same_for_every_contestant_and_differs_from_other_draws():
    first, *others = [Draw.of(some_pictures(), a_config(contestant=each)) for each in CONTESTANTS]
    for other in others:
        assert (first.rounds == other.rounds).all() and (first.tested == other.tested).all()
    assert not np.array_equal(first.taught, Draw.of(some_pictures(), a_config(draw=1)).taught)
    assert not np.array_equal(first.taught, Draw.of(some_pictures(), a_config(seed=1)).taught)


def test_classes_come_one_after_the_other_or_in_rounds():
    made = Draw.of(some_pictures(), a_config())
    labels = some_pictures().labels
    assert labels[made.lesson("one_after_the_other", 2)].tolist() == np.repeat(made.classes, 2).tolist()
    for shown in labels[made.lesson("shuffled", 4)].reshape(4, 3):
        assert set(shown) == set(made.classes)
    assert set(made.lesson("shuffled", 4)) == set(made.lesson("one_after_the_other", 4))
    # More labels are the same ones and some more.
    for order in ORDERS:
        assert set(made.lesson(order, 2)) < set(made.lesson(order, 3))


def test_label_counts_leave_a_quarter_of_the_smallest_class_to_test_on():
    assert label_counts([50, 1, 7, 8, 7], some_pictures(per_class=10)) == (1, 7)


# Sources


def test_a_folders_sub_folders_are_the_classes_and_what_is_no_picture_is_named(folder, capsys):
    (folder / "red" / "notes.txt").write_text("not a picture")
    (folder / "cover.png").write_bytes((folder / "red" / "0.png").read_bytes())  # belongs to no class
    found = sources.of_folder(folder)
    assert found.class_names == ("blue", "green", "red")
    assert np.bincount(found.labels).tolist() == [6, 6, 6]
    assert "red/notes.txt cannot be used as an image" in capsys.readouterr().err
    for i in (0, 17):
        colour = list(COLOURS.values())[found.labels[i]]
        seen = found.prepared(np.array([i]), 8)
        assert seen.shape == (1, 8, 8, 3)
        assert np.argmax(seen.mean((0, 1, 2))) == np.argmax(colour)


def test_the_identity_of_a_source_follows_its_pictures(folder):
    before = sources.of_folder(folder).identity
    assert sources.of_folder(folder).identity == before
    (folder / "red" / "0.png").unlink()
    assert sources.of_folder(folder).identity != before


@pytest.mark.slow
def test_the_workbench_draws_its_pictures_when_they_are_asked_for():
    found = sources.of_dataset("workbench")
    gear = found.class_names.index("gear")
    chosen = np.flatnonzero(found.labels == gear)[:1]
    assert found.prepared(chosen, 32).shape == (1, 32, 32, 3)
    others = sources.of_dataset("workbench", validation=True)
    assert not np.array_equal(others.prepared(chosen, 32), found.prepared(chosen, 32))
    assert others.identity != found.identity


# The command


@pytest.mark.slow
def test_one_file_a_run_and_a_table_of_all(folder, tmp_path, capsys):
    assert taught(folder, tmp_path / "out", "--order", "shuffled,one_after_the_other") == 0
    said = capsys.readouterr().out
    for order in ("one after the other", "shuffled"):
        assert f"## photographs: 2 classes a draw, {order}" in said
    assert re.search(r"\| ours .*\| +2 \|.* ± .* ± ", said)
    assert len(list((tmp_path / "out" / "plots").glob("*.png"))) == 2
    paths = [path for path in (tmp_path / "out").iterdir() if path.name != "plots"]
    assert len(paths) == 4  # two draws, two orders, and nothing else is left
    for path in paths:
        result = json.loads(path.read_text())
        assert set(result) >= FIELDS
        assert list(result["accuracy"]) == ["1", "2"]
        assert result["test_pictures"] == 2 * 4
        assert set(result["classes"]) < set(COLOURS)
        assert result["bytes"]["total"] > 0
        assert result["prediction_ms"]["p50"] > 0
        # Of one life: each of the second labels was a question first.
        one_life = result["order"] == "shuffled"
        assert [2 * share in (0, 1, 2) for share in result["test_then_train"].values()] == [True] * one_life
    assert said.count("Test-then-train") == 1


@pytest.mark.slow
def test_only_what_is_missing_is_run_again(folder, tmp_path, capsys):
    assert taught(folder, tmp_path) == 0
    first, second = sorted(tmp_path.glob("*.json"))
    before, accuracy = second.stat().st_mtime_ns, json.loads(first.read_text())["accuracy"]
    first.unlink()
    assert taught(folder, tmp_path) == 0
    assert second.stat().st_mtime_ns == before
    assert json.loads(first.read_text())["accuracy"] == accuracy
    assert capsys.readouterr().err.count("finished earlier") == 1
    assert taught(folder, tmp_path, "--test", "2") == 2
    assert "other settings" in capsys.readouterr().err
    assert taught(folder, tmp_path, "--test", "2", "--fresh") == 0


@pytest.mark.slow
def test_a_run_that_is_older_than_a_setting_stands_beside_those_that_have_its_default(folder, tmp_path):
    assert taught(folder, tmp_path / "out") == 0
    run = json.loads(next((tmp_path / "out").glob("*ours*.json")).read_text())
    older = copy.deepcopy(run)
    del older["config"]["learner"]["compute"]  # which came later, and was float32 before
    assert teach_report.lesson_key(older) == teach_report.lesson_key(run)


@pytest.mark.slow
def test_a_report_has_its_table_and_its_plot_and_leaves_out_what_is_damaged(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert taught(folder, out) == 0
    good, bad = sorted(out.glob("*.json"))
    spoilt = json.loads(bad.read_text())
    spoilt["accuracy"]["2"] = 1.5
    bad.write_text(json.dumps(spoilt))
    assert main(["report", str(out), "--out", str(tmp_path / "page.md")]) == 0
    said = capsys.readouterr()
    assert f"left out: {bad}: damaged" in said.err
    assert re.search(r"\| ours .*\| +1 \|", said.out)
    page = (tmp_path / "page.md").read_text()
    (image,) = re.findall(r"!\[.*\]\((.*)\)", page)
    assert cv2.imread(str(tmp_path / image)).std() > 0
    assert good.name in page and bad.name not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--source FOLDER.*--dataset"),
        (["--source", "a", "--dataset", "digits"], "--dataset is not allowed with --source"),
        (["--source", "nowhere"], "nowhere: there is no such folder"),
        (["--source", "."], "pictures of 0 classes.*two sub-folders"),
        (["--dataset", "cats"], "unknown dataset 'cats'.*digits"),
        (["--dataset", "digits", "--methods", "ours,svm"], "unknown method 'svm'.*ncm"),
        (["--dataset", "digits", "--methods", ","], "at least one method"),
        (["--dataset", "digits", "--order", "sorted"], "unknown order 'sorted'.*shuffled"),
        (["--dataset", "digits", "--labels", "few"], "--labels 'few'.*1,2,5"),
        (["--dataset", "digits", "--labels", "0,1"], "--labels '0,1'"),
        (["--dataset", "digits", "--labels", "500"], "--labels 500: class .* of digits has .* pictures"),
        (["--dataset", "digits", "--classes", "11"], "--classes 11: digits has 10 classes"),
        (["--dataset", "digits", "--set", "size=8"], "unknown setting 'size'"),
        (["--source", ".", "--validation"], "--validation goes with --dataset"),
    ],
)
def test_wrong_input_is_said_in_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "teach", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(message, line)


@pytest.mark.slow
def test_confidence_and_unknown_are_measured_on_known_and_on_novel_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for name in ("red", "green", "never taught"):
        (tmp_path / "photographs" / name).mkdir(parents=True)
        for i in range(16):
            image = rng.integers(0, 256, (4 if name == "red" else 12, 8, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "photographs" / name / f"{i}.png"), image)
    small = ["--labels", "1,12", "--draws", "1", "--classes", "2", "--methods", "ours,ncm", "--steps", "1"]
    small += ["--set", "image_size=32", "--out", str(tmp_path / "out")]
    assert main(["bench", "teach", "--source", str(tmp_path / "photographs"), *small]) == 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")]
    honesty = {result["contestant"]: result["honesty"] for result in results}
    assert honesty["ncm"] == {} and list(honesty["ours"]) == ["12"]  # two labels are too few to say anything
    assert set(honesty["ours"]["12"]) == {"calibration_error", "known_called_unknown", "novel_called_unknown"}
    assert all(0 <= share <= 1 for share in honesty["ours"]["12"].values())
    assert "novel called unknown" in capsys.readouterr().out


@pytest.mark.slow
def test_contestants_on_a_trunk_are_taught_and_keep_what_they_say(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path / "cache"))
    contestants = ",".join(name for name in CONTESTANTS if name not in FROM_SCRATCH)
    small = ["--labels", "1", "--draws", "1", "--methods", contestants, "--steps", "1"]
    small += ["--set", "image_size=32"]
    assert main(["bench", "teach", "--source", str(folder), "--out", str(tmp_path / "out"), *small]) == 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")]
    found = {result["contestant"]: result for result in results}
    backbones = {name: result["config"]["learner"]["backbone"] for name, result in found.items()}
    assert backbones.pop("ours") == "efficientnet_lite0"
    assert set(backbones.values()) == {"efficientnet_lite0_pooled"}  # the rivals: what everybody else has
    assert all(result["bytes"]["total"] > 0 for result in results)
    assert found["dense"]["bytes"]["total"] == 3 * 1280 * 4  # a feature of each label
    assert found["slda"]["config"]["learner"]["method"] == "slda"


def test_options_of_bench_before_teach_are_refused(capsys):
    assert main(["bench", "--seeds", "3", "teach", "--dataset", "digits"]) == 2
    assert "--seeds" in capsys.readouterr().err
