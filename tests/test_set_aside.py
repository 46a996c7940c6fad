"""What the journal does not know is set aside and said, never deleted in bulk, and returns with its journal."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from workspace_parts import SMALL, write_checkpoint

from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.status import gather
from edge_hpcr.workspace import set_aside
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.recover import backup_journal
from edge_hpcr.workspace.verify import verify_workspace

RNG = np.random.default_rng(0)
HANDFUL = set_aside.HANDFUL


def take(workspace: Workspace, count: int) -> list[int]:
    images = RNG.integers(0, 256, (count, 8, 8, 3), np.uint8)
    return workspace.take_many([Taken(image, "camera 0") for image in images])


def label(workspace: Workspace, count: int) -> list[int]:
    ids = take(workspace, count)
    workspace.journal.label_each((i, workspace.journal.class_named("mug")) for i in ids)
    return ids


def save(workspace: Workspace) -> None:
    """A checkpoint of what has learned all there is; its step is the last event."""
    last = workspace.journal.last_seq
    write_checkpoint(workspace.path, last, last, fingerprint=workspace.journal.fingerprint(last))


def pictures(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.glob("*/*.png")}


def away(path: Path) -> dict[str, bytes]:
    return {
        name: content
        for place in path.glob("set-aside/*/images")
        for name, content in pictures(place).items()
    }


def names(workspace: Workspace) -> list[str]:
    return [folder.name for folder in workspace.layout.checkpoint_folders()]


def whole(path: Path) -> bool:
    return not [problem for problem in verify_workspace(path) if problem.serious]


@pytest.fixture
def two_ages(tmp_path) -> tuple[Path, Path, Path]:
    """A workspace, and copies of its journal when it had 12 labels and when it had 52; no backup, as both were replaced."""
    path, older, newer = tmp_path / "w", tmp_path / "older.sqlite", tmp_path / "newer.sqlite"
    with Workspace.open(path) as workspace:
        label(workspace, 12)
        save(workspace)
        backup_journal(workspace.layout.journal, older)
        label(workspace, 40)
        save(workspace)
        backup_journal(workspace.layout.journal, newer)
    return path, older, newer


def test_with_an_older_journal_newer_images_and_checkpoints_are_set_aside_and_said(two_ages):
    path, older, _ = two_ages
    before = pictures(path / "images")
    shutil.copy(older, path / "journal.sqlite")
    assert "is ahead of the journal" in "\n".join(gather(path)["problems"])
    with Workspace.open(path) as workspace:
        assert names(workspace) == ["step-000000013"]
        report = "\n".join(workspace.report)
        known = workspace.journal.image_files()
    assert pictures(path / "images").keys() == known.keys()
    assert len(known) == 12
    assert pictures(path / "images") | away(path) == before
    assert "40 files in images are unknown to the journal: they were set aside" in report
    assert "step-000000053 has learned event 53, and the journal ends with 13" in report
    assert whole(path)
    assert "set-aside" in "\n".join(map(str, verify_workspace(path)))


def test_what_was_set_aside_returns_with_the_journal_that_knows_it(two_ages):
    path, older, newer = two_ages
    before = pictures(path / "images")
    shutil.copy(older, path / "journal.sqlite")
    with Workspace.open(path) as workspace:
        meanwhile = label(workspace, 3)
        save(workspace)
    assert min(meanwhile) > 52, "a new image must not take the name of one that is away"
    shutil.copy(newer, path / "journal.sqlite")
    with Workspace.open(path) as workspace:
        assert names(workspace) == ["step-000000013", "step-000000053"]
        assert "41 images and checkpoints that had been set aside belong to the journal" in "\n".join(
            workspace.report
        )
    assert pictures(path / "images") == before
    assert len(away(path)) == 3
    assert whole(path)
    with Workspace.open(path) as workspace:
        assert workspace.report == []


def test_a_checkpoint_of_other_events_with_the_same_numbers_is_not_used(two_ages):
    path, older, _ = two_ages
    shutil.copy(older, path / "journal.sqlite")
    with Workspace.open(path, learning=False) as beside:  # nobody has put it in order yet
        for number in range(60):
            beside.journal.create_class(f"class {number}")
    assert any("has learned another event 53" in str(problem) for problem in verify_workspace(path))
    with Workspace.open(path) as workspace:
        assert names(workspace) == ["step-000000013"]
        assert "has learned another event 53 than the journal's" in "\n".join(workspace.report)
        assert len(away(path)) == 40


def test_labels_given_after_an_older_journal_was_copied_back_are_not_lost_to_the_backup(two_ages):
    path, older, newer = two_ages
    shutil.copy(older, path / "journal.sqlite")
    shutil.copy(newer, path / "journal.backup.sqlite")
    with Workspace.open(path, learning=False) as beside:
        pen = beside.journal.create_class("pen")
        beside.journal.label([1, 2], pen)
    with Workspace.open(path) as workspace:
        assert workspace.journal.labels_of([1, 2]) == {1: pen, 2: pen}
        assert "the journal's backup holds other events than the journal" in "\n".join(workspace.report)
    assert len(list(path.glob("set-aside/*/journal.backup.sqlite"))) == 1
    assert not (path / "journal.backup.sqlite").exists()


def test_set_aside_is_finished_when_it_was_cut_short(two_ages):
    path, older, _ = two_ages
    before = pictures(path / "images")
    shutil.copy(older, path / "journal.sqlite")
    Workspace.open(path).close()
    (place,) = path.glob("set-aside/*")
    for name in sorted(away(path))[:5]:  # as if it had been killed before the last few
        (place / "images" / name).rename(path / "images" / name)
    Workspace.open(path).close()
    assert pictures(path / "images") | away(path) == before


def test_a_handful_that_a_crash_left_goes_quietly_and_more_is_kept(tmp_path):
    for left, kept in ((HANDFUL, 0), (HANDFUL + 1, HANDFUL + 1)):
        path = tmp_path / str(left)
        with Workspace.open(path) as workspace:
            take(workspace, 3)
            for sample_id in workspace.journal.reserve_ids(left):
                workspace.files.write(sample_id, np.zeros((8, 8, 3), np.uint8))
        with Workspace.open(path) as workspace:
            assert bool(workspace.report) == bool(kept)
            assert len(list(workspace.files.names())) == 3
        assert len(away(path)) == kept


def test_files_that_are_none_of_ours_are_set_aside_and_hidden_ones_stay(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        take(workspace, 3)
    (tmp_path / "w" / "images" / "01" / "notes.txt").write_text("mine")
    (tmp_path / "w" / "images" / "01" / "folder").mkdir()
    (tmp_path / "w" / "images" / "01" / ".DS_Store").write_text("hidden")
    with Workspace.open(tmp_path / "w") as workspace:
        assert "2 files in images are unknown" in "\n".join(workspace.report)
    (note,) = (tmp_path / "w").glob("set-aside/*/images/01/notes.txt")
    assert note.read_text() == "mine"
    assert (tmp_path / "w" / "images" / "01" / ".DS_Store").exists()


# A workspace that has lost its journal ----------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["nothing", "an empty file", "a backup that cannot be read"])
def test_a_workspace_with_a_life_but_no_journal_asks(tmp_path, capsys, left):
    path = tmp_path / "w"
    with Workspace.open(path) as workspace:
        label(workspace, 12)
        save(workspace)
    before = pictures(path / "images")
    (path / "journal.sqlite").unlink()
    if left == "an empty file":
        (path / "journal.sqlite").touch()
    elif left != "nothing":
        (path / "journal.backup.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(
        UserError, match=r"has lost its journal.* but has 12 images and 1 checkpoints.*edge_hpcr recover"
    ):
        Workspace.open(path)
    for command in (["label", str(path), "1", "mug"], ["status", str(path)], ["samples", str(path), "list"]):
        assert main(command) == 2
    assert main(["verify", str(path)]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert pictures(path / "images") == before and len(list((path / "checkpoints").iterdir())) == 1
    assert main(["recover", str(path)]) == 0
    assert "12 images whose entries were lost are in the queue again" in capsys.readouterr().out
    with Workspace.open(path) as workspace:
        assert workspace.journal.counts().queued == 12
        assert workspace.layout.checkpoint_folders() == []
        assert min(take(workspace, 1)) > 12
    assert before.items() <= pictures(path / "images").items()
    assert whole(path)


def test_a_workspace_that_was_only_made_begins_without_asking(tmp_path):
    Workspace.open(tmp_path / "w").close()
    (tmp_path / "w" / "journal.sqlite").unlink()
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.report == []


# Learning ---------------------------------------------------------------------------------------------------------


def learn_all(path: Path) -> tuple[set[int], int]:
    """Let a real learner follow the journal to its end: the samples in its memory, and events applied."""
    with Workspace.open(path) as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, memory_bytes=100_000, held_out_share=0.0)
        live = LiveLearner(workspace)
        live.start()
        try:
            assert live.wait_until_caught_up(60), live.problems
            return set(live.learner.memory.ids().tolist()), live.follower.applied
        finally:
            live.stop()


@pytest.mark.slow
def test_after_an_older_journal_was_copied_back_every_later_label_is_learned(tmp_path):
    path = tmp_path / "w"
    with Workspace.open(path) as workspace:
        first = label(workspace, 4)
    learn_all(path)
    with Workspace.open(path) as workspace:
        backup_journal(workspace.layout.journal, tmp_path / "older.sqlite")
        label(workspace, 30)
    learn_all(path)
    for place in ("journal.sqlite", "journal.backup.sqlite"):
        shutil.copy(tmp_path / "older.sqlite", path / place)
    with Workspace.open(path) as workspace:
        later = label(workspace, 15)
    held, applied = learn_all(path)
    assert applied == 5 + 15
    assert set(later) <= held <= {*first, *later}


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_no_order(tmp_path, monkeypatch):
    path = tmp_path / "w"
    with Workspace.open(path) as workspace:
        first = label(workspace, 4)
    learn_all(path)
    year_ago = time.time() - 365 * 86400
    monkeypatch.setattr(time, "time", lambda: year_ago)
    with Workspace.open(path) as workspace:
        second = label(workspace, 4)
        workspace.journal.undo()
        events = workspace.journal.events_after(0)
        assert [event.seq for event in events] == list(range(1, 11))
        assert events[4].at > events[5].at, "the clock did go back"
    held, applied = learn_all(path)
    assert applied == 10 and held == {*first, *second[:-1]}
    assert whole(path)


def test_images_that_were_dropped_after_an_older_journal_was_copied_are_noted_as_gone(two_ages):
    path, older, _ = two_ages
    with Workspace.open(path) as workspace:
        first, second = list(workspace.journal.all_samples())[:2]
        workspace.forget_images([first.id, second.id])
    shutil.copy(older, path / "journal.sqlite")
    with Workspace.open(path) as workspace:
        assert "2 images that the journal names were dropped after it had been copied" in "\n".join(
            workspace.report
        )
        assert not workspace.journal.sample(first.id).has_image
        assert workspace.journal.counts().labels == 12
    assert whole(path)


@pytest.mark.parametrize("how", ["older", "damaged"])
def test_images_that_are_put_back_after_the_journal_are_not_deleted(tmp_path, how):
    """Somebody puts a workspace together from copies: first the journal, then the images."""
    path, elsewhere = tmp_path / "w", tmp_path / "images"
    with Workspace.open(path) as workspace:
        label(workspace, HANDFUL + 5)
        backup_journal(workspace.layout.journal, tmp_path / "older.sqlite")
        label(workspace, 1)
        save(workspace)
        backup_journal(workspace.layout.journal, workspace.layout.backup)
    before = pictures(path / "images")
    (path / "images").rename(elsewhere)
    if how == "older":
        (path / "journal.backup.sqlite").unlink()
        shutil.copy(tmp_path / "older.sqlite", path / "journal.sqlite")
    else:
        (path / "journal.sqlite").write_bytes(b"garbage" * 1000)
    with Workspace.open(path) as workspace:
        assert workspace.report and not workspace.journal.image_files()
    shutil.copytree(elsewhere, path / "images", dirs_exist_ok=True)
    Workspace.open(path).close()
    assert pictures(path / "images") | away(path) == before


def test_images_that_are_gone_are_noted_although_the_setting_aside_is_cut_short(two_ages, monkeypatch):
    path, older, _ = two_ages
    with Workspace.open(path) as workspace:
        first = next(workspace.journal.all_samples())
        workspace.forget_images([first.id])
    shutil.copy(older, path / "journal.sqlite")
    move = set_aside._move

    def move_and_die(moves) -> None:
        move(moves)
        if moves:
            raise KeyboardInterrupt

    monkeypatch.setattr(set_aside, "_move", move_and_die)
    with pytest.raises(KeyboardInterrupt):
        Workspace.open(path)
    monkeypatch.undo()
    with Workspace.open(path) as workspace:
        assert not workspace.journal.sample(first.id).has_image
    assert whole(path)
