"""A workspace by commands: one that an earlier version made, a backup of it, labels, classes, imports, and taking back."""

import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from journeys.parts import (
    QUICK,
    digit_folders,
    edge,
    edge_json,
    labels_of,
    old_workspace,
    taught_workspace,
)

pytestmark = pytest.mark.slow
OLD_LABELS = {"6": 3, "3": 7, "4": 2, "7": 7, "8": 4, "0": 5, "2": 4, "9": 2, "5": 4, "1": 4}
OLD_LABELS |= {"coffee cup": 1, "mug": 3}


def samples(workspace: Path) -> dict[int, tuple]:
    """What was said of each sample, and the picture's own digest."""
    fields = ("state", "class_id", "held_out", "digest", "origin", "has_image")
    return {row["id"]: tuple(row[each] for each in fields) for row in edge_json("samples", workspace, "list")}


def said(workspace: Path) -> list[tuple]:
    """The journal's actions, read as any program may."""
    with closing(sqlite3.connect(f"file:{workspace / 'journal.sqlite'}?mode=ro", uri=True)) as journal:
        return journal.execute("SELECT * FROM actions ORDER BY seq").fetchall()


@pytest.fixture
def old(tmp_path) -> Path:
    return old_workspace(tmp_path / "old")


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Path:
    return taught_workspace(tmp_path_factory.mktemp("taught"))


def test_a_workspace_of_an_earlier_version_opens_with_everything_that_it_held(old):
    before = said(old)
    assert labels_of(old) == OLD_LABELS
    assert edge_json("verify", old) == {"whole": True, "problems": []}
    status = edge_json("status", old)
    facts = {name: status[name] for name in ("doing", "running", "step", "labels", "classes", "events")}
    assert facts == {
        "doing": "not running",
        "running": False,
        "step": 89,
        "labels": 46,
        "classes": 12,
        "events": 61,
    }
    assert status["memory"] == {"samples": 42, "budget": 2_000_000, "bytes": 10_920}
    assert (status["checkpoint"]["step"], status["checkpoint"]["applied"]) == (89, 60)
    assert status["queue"]["samples"] == 1
    held = samples(old)
    assert len(held) == 47 and held[68][0] == "queued" and held[69][4] == "camera 0"
    assert said(old) == before


def test_it_can_be_labelled_undone_learned_in_and_published_from(old, tmp_path):
    edge("label", old, 68, "MUG")
    assert labels_of(old) == {**OLD_LABELS, "mug": 4}
    edge("undo", old)
    assert labels_of(old) == OLD_LABELS
    edge("redo", old)
    pictures = digit_folders(tmp_path / "pictures", classes=1, each=3)
    edge("learn", "--workspace", old, "--source", pictures, "--labels", "folders", "--no-rehearsal")
    assert labels_of(old) == {**OLD_LABELS, "mug": 4, "digit 0": 3}
    status = edge_json("status", old)
    assert status["step"] > 89 and status["events_waiting"] == 0
    assert edge_json("verify", old)["whole"]


def test_a_backup_of_it_restored_is_the_same_workspace(old, tmp_path):
    edge("backup", old, tmp_path / "monday.zip")
    edge("restore", tmp_path / "monday.zip", tmp_path / "again")
    again = tmp_path / "again"
    assert labels_of(again) == OLD_LABELS and samples(again) == samples(old)
    assert edge_json("verify", again)["whole"]
    assert {path.name: path.read_bytes() for path in (again / "images").rglob("*.png")} == {
        path.name: path.read_bytes() for path in (old / "images").rglob("*.png")
    }
    assert (again / "exports" / "latest.json").read_bytes() == (old / "exports" / "latest.json").read_bytes()
    for status in (edge_json("status", again), edge_json("status", old)):
        assert (status["step"], status["labels"], status["events"]) == (89, 46, 61)


def test_a_backup_that_is_cut_is_refused_and_leaves_nothing(old, tmp_path):
    edge("backup", old, tmp_path / "whole.zip")
    (tmp_path / "cut.zip").write_bytes((tmp_path / "whole.zip").read_bytes()[:-2000])
    edge("restore", tmp_path / "cut.zip", tmp_path / "new", status=2)
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())
    edge("restore", tmp_path / "whole.zip", old, status=2)
    assert labels_of(old) == OLD_LABELS, "one that holds a life is not written over"


def test_a_new_workspace_learns_from_folders_and_the_same_pictures_only_once(taught):
    assert labels_of(taught) == {"digit 0": 15, "digit 1": 15, "digit 2": 15}
    status = edge_json("status", taught)
    assert (status["labels"], status["classes"], status["events_waiting"]) == (45, 3, 0)
    assert status["held_out_labels"] > 0
    assert status["memory"]["samples"] + status["held_out_labels"] == 45
    assert status["memory"]["bytes"] == 204 * status["memory"]["samples"]  # 8x8 pixels, label and bookkeeping
    pictures = taught.parent / "pictures"
    edge("learn", "--workspace", taught, "--source", pictures, "--labels", "folders", *QUICK[2:])
    assert edge_json("status", taught)["labels"] == 45
    assert edge_json("verify", taught)["whole"]


def test_classes_are_added_renamed_merged_deleted_and_all_of_it_is_taken_back(taught):
    before = labels_of(taught)
    edge("classes", taught, "add", "mug")
    edge("classes", taught, "rename", "mug", "cup")
    edge("classes", taught, "merge", "digit 0", "digit 1")
    assert labels_of(taught) == {"digit 1": 30, "digit 2": 15, "cup": 0}
    edge("classes", taught, "delete", "digit 2")
    assert labels_of(taught) == {"digit 1": 30, "cup": 0}
    for _ in range(4):
        edge("undo", taught)
    assert labels_of(taught) == before
    edge("redo", taught)
    assert labels_of(taught) == {**before, "mug": 0}
    edge("undo", taught)


def test_what_was_labelled_goes_out_as_a_zip_comes_in_elsewhere_and_is_taken_back(taught, tmp_path):
    edge("samples", taught, "export", tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        pictures = [name for name in archive.namelist() if name.endswith(".png")]
    assert len(pictures) == 45 and {name.split("/")[0] for name in pictures} == set(labels_of(taught))
    new = tmp_path / "new"
    edge("samples", new, "import", tmp_path / "out.zip", "--look")
    assert not new.exists()
    for _ in range(2):  # the second finds them all there
        edge("samples", new, "import", tmp_path / "out.zip")
        assert labels_of(new) == {"digit 0": 15, "digit 1": 15, "digit 2": 15}
    edge("undo", new)
    assert sum(labels_of(new).values()) == 0


def test_damage_is_found_and_said(taught, tmp_path):
    edge("backup", taught, tmp_path / "whole.zip")
    edge("restore", tmp_path / "whole.zip", tmp_path / "w")
    picture = next((tmp_path / "w" / "images").rglob("*.png"))
    picture.write_bytes(picture.read_bytes()[:-20])
    found = edge_json("verify", tmp_path / "w", status=1)
    assert not found["whole"]
    assert all(set(each) == {"where", "what", "what_to_do"} for each in found["problems"])
