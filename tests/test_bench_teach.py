"""`bench teach`: the same pictures for every contestant, one file a run, tables and plots of them."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_hpcr.bench import inputs as sources
from edge_hpcr.bench import teach
from edge_hpcr.bench.inputs import Pictures
from edge_hpcr.bench.run import plain, versions
from edge_hpcr.bench.teach import CONTESTANTS, Draw, TeachConfig
from edge_hpcr.commands.cli import main
from edge_hpcr.learner.learner import LearnerConfig

FIELDS = {
    *("benchmark", "source", "contestant", "order", "draw", "seed", "classes", "accuracy", "test_pictures"),
    *("bytes", "label_ms", "prediction_ms", "config", "versions", "finished"),
}
COLOURS = {"blue": (0, 0, 200), "green": (0, 160, 0), "red": (220, 0, 0)}
QUICK = ["--labels", "1,2", "--draws", "2", "--methods", "ours", "--classes", "2"]
QUICK += ["--set", "idle_steps=1", "--set", "backbone=reduced_resnet18", "--set", "image_size=8"]


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
        **{"source": "s", "pictures": "p", "contestant": "ours", "draw": 0, "seed": 0},
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
        assert (first.taught == other.taught).all() and (first.tested == other.tested).all()
    assert not np.array_equal(first.taught, Draw.of(some_pictures(), a_config(draw=1)).taught)
    assert not np.array_equal(first.taught, Draw.of(some_pictures(), a_config(seed=1)).taught)


def test_classes_come_one_after_the_other_and_more_labels_are_the_same_ones_and_some_more():
    made = Draw.of(some_pictures(), a_config())
    labels = some_pictures().labels
    assert labels[made.lesson(2)].tolist() == np.repeat(made.classes, 2).tolist()
    assert set(made.lesson(2)) < set(made.lesson(3))


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


# The command


@pytest.mark.slow
def test_one_file_a_run_and_a_table_of_all(folder, tmp_path, capsys):
    assert taught(folder, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "## photographs: 2 classes per draw, one after the other" in said
    assert re.search(r"\| ours .*\| +2 \|.* ± .* ± ", said)
    paths = list((tmp_path / "out").iterdir())
    assert len(paths) == 2  # two draws, and nothing else is left
    for path in paths:
        result = json.loads(path.read_text())
        assert set(result) >= FIELDS
        assert list(result["accuracy"]) == ["1", "2"]
        assert result["test_pictures"] == 2 * 4
        assert set(result["classes"]) < set(COLOURS)
        assert result["bytes"]["total"] > 0
        assert result["prediction_ms"]["p50"] > 0


@pytest.mark.slow
def test_a_report_has_its_table_and_its_plot_and_leaves_out_what_is_damaged(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert taught(folder, out) == 0
    _, bad = sorted(out.glob("*.json"))
    spoilt = json.loads(bad.read_text())
    del spoilt["accuracy"]["2"]
    bad.write_text(json.dumps(spoilt))
    assert main(["report", str(out), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert f"left out: {bad}: damaged" in said.err
    assert re.search(r"\| ours .*\| +1 \|", said.out)
    page = (tmp_path / "results.md").read_text()
    (image,) = re.findall(r"!\[.*\]\((.*)\)", page)
    assert cv2.imread(str(tmp_path / image)).std() > 0
    assert re.search(r"\| ours .*\| +1 \|", page)


def test_the_table_says_which_differences_are_larger_than_their_paired_interval():
    def run(contestant: str, draw: int, accuracy: float) -> dict:
        found = {"config": plain(asdict(a_config(contestant=contestant, draw=draw))), "draw": draw, "seed": 0}
        found |= {"accuracy": dict.fromkeys(("1", "4"), accuracy), "test_pictures": 9, "bytes": {"total": 1}}
        found |= {"versions": versions(1, "cpu")}
        return found | {key: {"p50": 1.0, "p95": 1.0} for key in ("label_ms", "prediction_ms")}

    draws = (0.5, 0.7, 0.9)  # the draws differ more than the contestants do
    runs = [run("ours", draw, share) for draw, share in enumerate(draws)]
    runs += [run("ncm", draw, share - 0.1) for draw, share in enumerate(draws)]
    runs += [
        run("slda", draw, share + gain)
        for draw, share, gain in zip(range(3), draws, (-0.1, 0.0, 0.1), strict=True)
    ]
    runs.append(run("ranpac", 2, 0.8))
    text = teach.table(runs)
    assert re.search(r"ours +\| ncm +\| +\*\*\+10.0 ± 0.0\*\*", text)
    assert re.search(r"ours +\| slda +\| +\+?-?0.0 ± 24.8 \|", text)
    assert re.search(r"ours +\| ranpac +\| +\+10.0 \|", text)  # one draw says nothing of chance


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--source FOLDER"),
        (["--source", "nowhere"], "nowhere"),
        (["--dataset", "digits", "--labels", "500"], "--labels 500"),
    ],
)
def test_wrong_input_is_said_in_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "teach", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
