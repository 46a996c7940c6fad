"""A damaged journal: what the backup and the damaged file still give, and an honest report of the rest."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.database import JournalDamaged
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.recover import backup_journal
from edge_hpcr.workspace.verify import verify_workspace

RNG = np.random.default_rng(0)


def take(workspace: Workspace, count: int = 1) -> list[int]:
    images = RNG.integers(0, 256, (count, 8, 8, 3), np.uint8)
    return workspace.take_many([Taken(image, "camera 0") for image in images])


def back_up(workspace: Workspace) -> None:
    backup_journal(workspace.journal.path, workspace.layout.backup)


def labels(workspace: Workspace) -> dict[int, int]:
    return {row.id: row.class_id for row in workspace.journal.samples(state="labelled", limit=10_000)}


def fill(path: Path, before: int, behind: int, backup: bool = True) -> dict[int, int]:
    """A workspace with so many labels before and behind its backup, and a queue; returns its labels."""
    with Workspace.open(path) as workspace:
        workspace.journal._db.execute("PRAGMA synchronous = OFF")  # quicker; nothing here is about power cuts
        mug = workspace.journal.create_class("mug")
        for sample in take(workspace, before):
            workspace.journal.label([sample], mug)
        if backup:
            back_up(workspace)
        cup = workspace.journal.create_class("cup")
        for sample in take(workspace, behind):
            workspace.journal.label([sample], cup)
        workspace.journal.undo()
        take(workspace, 3)
        return labels(workspace)


def pages_of(path: Path, table: str) -> list[int]:
    """Numbers of the pages that hold a table's rows, found by its rows' own text; page 1 is the first."""
    content, size = path.read_bytes(), 4096
    mark = {"events": b'{"samples":', "samples": b"camera 0"}[table]
    return [i // size + 1 for i in range(0, len(content), size) if mark in content[i : i + size]]


def destroy(path: Path, pages: list[int]) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * 4096)
            file.write(b"\xa5" * 4096)


def damaged_folder(path: Path) -> Path:
    (folder,) = path.glob("damaged-*")
    return folder


def check_whole(path: Path) -> None:
    assert [str(p) for p in verify_workspace(path) if p.serious] == []


def test_a_journal_that_is_no_database_any_more_goes_back_to_its_backup(tmp_path):
    expected = fill(tmp_path, before=20, behind=0)
    (tmp_path / "journal.sqlite").write_bytes(b"garbage" * 5000)
    with Workspace.open(tmp_path) as workspace:
        assert labels(workspace) == expected
        report = "\n".join(workspace.report)
        assert workspace.journal.create_class("pen") > 1000  # ids of lost events are not given again
        assert min(take(workspace)) > 1000
    assert "restored from the backup with 21 events" in report
    assert "as far as can be told, no event was lost" in report
    assert "3 images whose entries were lost are in the queue again" in report
    assert (damaged_folder(tmp_path) / "journal.sqlite").read_bytes() == b"garbage" * 5000
    check_whole(tmp_path)


def test_events_behind_the_backup_are_read_from_the_damaged_file(tmp_path):
    expected = fill(tmp_path, before=120, behind=20)
    path = tmp_path / "journal.sqlite"
    destroy(path, pages_of(path, "events")[:2])  # the backup has these
    with Workspace.open(tmp_path) as workspace:
        assert labels(workspace) == expected
        assert len(workspace.journal.queued()) == 4
        report = "\n".join(workspace.report)
        assert workspace.journal.redo().of == 142  # what was undone can still be done again
        assert workspace.journal.create_class("pen") == 3
    assert "restored from the backup with 121 events; 22 more were read from the damaged file" in report
    assert "no event was lost" in report and "as far as" not in report
    check_whole(tmp_path)


def test_events_behind_a_damaged_page_are_reported_lost_and_their_images_are_queued(tmp_path):
    expected = fill(tmp_path, before=20, behind=100)
    path = tmp_path / "journal.sqlite"
    destroy(path, pages_of(path, "events")[-1:])
    with Workspace.open(tmp_path) as workspace:
        found = labels(workspace)
        report = workspace.report
        lost = 123 - workspace.journal.last_seq
        assert 0 < lost < 60
        assert set(found.items()) < set(expected.items())
        queued = {row.id for row in workspace.journal.queued()}
        assert queued >= set(expected) - set(found)
    assert f"{lost} events after event {123 - lost} were lost: labels or changes of classes" in report
    check_whole(tmp_path)


def test_rows_of_samples_that_cannot_be_read_are_made_again_from_their_files(tmp_path):
    expected = fill(tmp_path, before=5, behind=60)
    path = tmp_path / "journal.sqlite"
    destroy(path, pages_of(path, "samples"))
    with Workspace.open(tmp_path) as workspace:
        assert labels(workspace) == expected
        assert workspace.image(max(expected)).shape == (8, 8, 3)
        assert workspace.journal.sample(max(expected)).origin == "recovered"
    check_whole(tmp_path)


def test_without_a_backup_everything_readable_is_read(tmp_path):
    expected = fill(tmp_path, before=120, behind=20, backup=False)
    path = tmp_path / "journal.sqlite"
    destroy(path, pages_of(path, "events")[-1:])
    with Workspace.open(tmp_path) as workspace:
        found = labels(workspace)
        assert 50 < len(found) < len(expected)
        assert "there is no backup that can be read: a new journal was begun with 0 events" in "\n".join(
            workspace.report
        )
    check_whole(tmp_path)


def test_when_nothing_can_be_read_a_new_journal_is_begun_the_images_stay_and_the_report_is_loud(tmp_path):
    expected = fill(tmp_path, before=10, behind=0)
    for name in ("journal.sqlite", "journal.backup.sqlite"):
        (tmp_path / name).write_bytes(b"garbage" * 5000)
    with Workspace.open(tmp_path) as workspace:
        assert workspace.journal.last_seq == 0
        assert {row.id for row in workspace.journal.queued()} >= set(expected)
        report = "\n".join(workspace.report)
    assert "the journal is damaged" in report
    assert "a new journal was begun with 0 events" in report
    assert "13 images whose entries were lost are in the queue again" in report
    check_whole(tmp_path)


def test_a_missing_journal_is_restored_from_its_backup(tmp_path):
    expected = fill(tmp_path, before=10, behind=0)
    (tmp_path / "journal.sqlite").unlink()
    with Workspace.open(tmp_path) as workspace:
        assert "the journal is damaged: the file is missing" in workspace.report
        assert labels(workspace) == expected
    check_whole(tmp_path)


def test_an_emptied_journal_and_one_older_than_its_backup_are_found_out(tmp_path):
    expected = fill(tmp_path / "w", before=10, behind=0)
    (tmp_path / "w" / "journal.sqlite").write_bytes(b"")
    with Workspace.open(tmp_path / "w") as workspace:
        assert "it holds no tables" in workspace.report[0]
        assert labels(workspace) == expected
        workspace.journal.create_class("pen")
        shutil.copy(tmp_path / "w" / "journal.backup.sqlite", tmp_path / "old.sqlite")
        back_up(workspace)
    shutil.copy(tmp_path / "old.sqlite", tmp_path / "w" / "journal.sqlite")
    with Workspace.open(tmp_path / "w") as workspace:
        assert "it ends with event 11, but its backup with event" in workspace.report[0]
        assert workspace.journal.class_id("pen") is not None
    check_whole(tmp_path / "w")


def test_a_backup_does_not_bring_back_samples_whose_images_have_left_since(tmp_path):
    with Workspace.open(tmp_path) as workspace:
        mug = workspace.journal.create_class("mug")
        queued, undone, labelled = take(workspace, 3)
        workspace.journal.label([undone], mug)
        workspace.journal.undo()
        workspace.journal.label([labelled], mug)
        workspace.journal.create_class("cup")
        back_up(workspace)
        workspace.drop_queued([queued, undone])
        workspace.forget_images([labelled])
    (tmp_path / "journal.sqlite").write_bytes(b"garbage" * 5000)
    with Workspace.open(tmp_path) as workspace:
        assert labels(workspace) == {labelled: mug}
        assert workspace.journal.queued() == []
        assert workspace.journal.counts().images == 0


def test_a_damaged_backup_beside_a_whole_journal_changes_nothing(tmp_path):
    expected = fill(tmp_path, before=10, behind=5)
    (tmp_path / "journal.backup.sqlite").write_bytes(b"garbage" * 5000)
    with Workspace.open(tmp_path) as workspace:
        assert workspace.report == []
        assert labels(workspace) == expected
        back_up(workspace)
    (tmp_path / "journal.sqlite").unlink()
    with Workspace.open(tmp_path) as workspace:
        assert labels(workspace) == expected


def test_a_damaged_journal_never_replaces_its_good_backup(tmp_path):
    fill(tmp_path, before=120, behind=0)
    with Workspace.open(tmp_path) as workspace:
        good = workspace.layout.backup.read_bytes()
        destroy(workspace.layout.journal, pages_of(workspace.layout.journal, "events")[:1])
        with pytest.raises(JournalDamaged, match="damaged"):
            back_up(workspace)
        assert workspace.layout.backup.read_bytes() == good


def test_a_backup_is_one_whole_file(tmp_path):
    fill(tmp_path, before=5, behind=0)
    assert sorted(path.name for path in tmp_path.glob("journal*")) == [
        "journal.backup.sqlite",
        "journal.sqlite",
    ]
    with closing(sqlite3.connect(f"file:{tmp_path}/journal.backup.sqlite?immutable=1", uri=True)) as db:
        assert db.execute("SELECT max(seq) FROM events").fetchone() == (6,)


def test_a_checkpoint_that_knows_of_lost_events_is_set_aside_and_others_stay(tmp_path):
    fill(tmp_path, before=10, behind=10)
    for step, applied in ((100, 11), (200, 22)):
        folder = tmp_path / "checkpoints" / f"step-{step:09d}"
        checkpoint.write(folder, {"x": {"y": np.zeros(1)}}, {"notes": {"applied": applied}})
    (tmp_path / "journal.sqlite").write_bytes(b"garbage" * 5000)
    with Workspace.open(tmp_path) as workspace:
        assert [folder.name for folder in workspace.layout.checkpoint_folders()] == ["step-000000100"]
        assert "checkpoint step-000000200 has learned event 22, and the journal ends with 11" in "\n".join(
            workspace.report
        )
        assert any("at least 11 events after event 11 were lost" in line for line in workspace.report)
    assert len(list(tmp_path.glob("set-aside/*/checkpoints/step-000000200"))) == 1


@pytest.mark.parametrize("moment", ["restoring", "restored", "moved"])
def test_a_recovery_that_was_cut_short_is_done_again_or_finished(tmp_path, moment):
    expected = fill(tmp_path, before=10, behind=5)
    path = tmp_path / "journal.sqlite"
    if moment == "moved":
        path.rename(tmp_path / "journal.restored.sqlite")
    else:
        (tmp_path / f"journal.{moment}.sqlite").write_bytes(b"half of a journal")
        destroy(path, pages_of(path, "events")[:1])
    with Workspace.open(tmp_path) as workspace:
        assert labels(workspace) == expected or moment != "moved"
        assert len(workspace.report) >= 1
    names = sorted(p.name for p in tmp_path.glob("journal*"))
    assert names == ["journal.backup.sqlite", "journal.sqlite"]
    check_whole(tmp_path)


def test_a_whole_journal_opens_without_a_report(tmp_path):
    fill(tmp_path, before=10, behind=5)
    with Workspace.open(tmp_path) as workspace:
        assert workspace.report == []
    assert list(tmp_path.glob("damaged-*")) == []
