"""A damaged, missing or older journal: the last good backup or a refusal, and nothing is deleted."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from workspace_parts import label, take, write_checkpoint

from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.database import JournalDamaged
from edge_hpcr.workspace.recover import backup_journal, verify_workspace
from edge_hpcr.workspace.workspace import Workspace


def back_up(workspace: Workspace) -> None:
    backup_journal(workspace.journal.path, workspace.layout.backup)


def save(workspace: Workspace) -> None:
    """A checkpoint of what has learned all there is; its step is the last event."""
    last = workspace.journal.last_seq
    write_checkpoint(workspace.path, last, last, fingerprint=workspace.journal.fingerprint(last))


def labels(workspace: Workspace) -> dict[int, int]:
    return {row.id: row.class_id for row in workspace.journal.samples(state="labelled", limit=10_000)}


def pictures(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.glob("*/*.png")}


def away(path: Path) -> dict[str, bytes]:
    places = path.glob("set-aside/*/images")
    return {name: content for place in places for name, content in pictures(place).items()}


def names(workspace: Workspace) -> list[str]:
    return [folder.name for folder in workspace.layout.checkpoint_folders()]


def check_whole(path: Path) -> None:
    assert [str(problem) for problem in verify_workspace(path)] == []


def ruin(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)


@pytest.fixture
def filled(tmp_path) -> tuple[Path, dict[int, int]]:
    """A workspace with 12 labels and a backup, and 6 labels since; and the labels of the backup."""
    with Workspace.open(tmp_path / "w") as workspace:
        label(workspace, 12)
        expected = labels(workspace)
        save(workspace)
        back_up(workspace)
        label(workspace, 6)
        take(workspace, 3)
    return tmp_path / "w", expected


# Back to the backup -----------------------------------------------------------------------------------------------


def test_a_damaged_journal_goes_back_to_its_backup_and_nothing_is_deleted(filled):
    path, expected = filled
    before = pictures(path / "images")
    write_checkpoint(path, 19, 19)
    ruin(path / "journal.sqlite")
    with Workspace.open(path) as workspace:
        assert labels(workspace) == expected
        assert names(workspace) == ["step-000000013"]
        report = "\n".join(workspace.report)
        assert "at least 6 events after it were lost" in report
        assert "the journal does not know 9 files in images" in report
    assert before.items() <= (pictures(path / "images") | away(path)).items()
    (kept,) = path.glob("set-aside/*/journal.sqlite")
    assert kept.read_bytes() == b"garbage" * 1000
    check_whole(path)
    with Workspace.open(path) as workspace:
        assert workspace.report == []


def test_a_recovery_that_was_killed_is_done_again(filled):
    path, expected = filled
    (path / "journal.sqlite").unlink()  # as if it had been put away already
    (path / "journal.restored.sqlite").write_bytes(b"half of a journal")
    with Workspace.open(path) as workspace:
        assert labels(workspace) == expected
    assert {file.name for file in path.glob("journal*")} == {"journal.sqlite", "journal.backup.sqlite"}
    check_whole(path)


def test_a_damaged_backup_changes_nothing_and_a_damaged_journal_replaces_no_good_one(filled):
    path, _ = filled
    good = (path / "journal.backup.sqlite").read_bytes()
    ruin(path / "journal.backup.sqlite")
    with Workspace.open(path) as workspace:
        assert workspace.report == [] and len(labels(workspace)) == 18
        workspace.layout.backup.write_bytes(good)
        with workspace.layout.journal.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * 8192)
        with pytest.raises(JournalDamaged):
            back_up(workspace)
        assert workspace.layout.backup.read_bytes() == good
    with closing(sqlite3.connect(f"file:{path}/journal.backup.sqlite?immutable=1", uri=True)) as db:
        assert db.execute("SELECT max(seq) FROM events").fetchone() == (13,), "one whole file"


@pytest.mark.parametrize("left", ["nothing", "an empty file", "damaged files"])
def test_without_a_good_backup_every_door_refuses(filled, capsys, left):
    path, _ = filled
    before = pictures(path / "images")
    for name in ("journal.sqlite", "journal.backup.sqlite"):
        (path / name).unlink()
    if left == "an empty file":
        (path / "journal.sqlite").touch()
    elif left == "damaged files":
        ruin(path / "journal.sqlite")
        ruin(path / "journal.backup.sqlite")
    with pytest.raises(UserError) as refused:
        Workspace.open(path)
    assert refused.value.code == "no-journal"
    for command in (["label", str(path), "1", "mug"], ["status", str(path)], ["samples", str(path), "list"]):
        assert main(command) == 2
    assert main(["verify", str(path)]) == 1
    assert pictures(path / "images") == before and len(list((path / "checkpoints").iterdir())) == 1


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("template") / "w"
    with Workspace.open(path) as workspace:
        label(workspace, 4)
        save(workspace)
        back_up(workspace)
        label(workspace, 2)
    return path


HARMS = st.tuples(st.sampled_from(["flip", "cut", "page"]), st.floats(0, 1, exclude_max=True))


def harm(path: Path, how: str, where: float) -> None:
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    if how == "cut":
        del data[at:]
    elif how == "page":
        data[at : at + 512] = b"\xa5" * len(data[at : at + 512])
    elif data:
        data[at] ^= 1 << at % 8
    path.write_bytes(data)


@settings(max_examples=40, deadline=None)
@example(journal=[("flip", 0.2246059904059581)], backup=[])  # the kind of an event is no text any more
@example(journal=[("flip", 0.0)], backup=[("flip", 0.05078125)])  # the backup names a column otherwise
@given(journal=st.lists(HARMS, min_size=1, max_size=3), backup=st.lists(HARMS, max_size=1))
def test_however_a_journal_and_its_backup_are_damaged_it_is_one_sentence_and_no_image_is_lost(
    template, journal, backup
):
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copytree(template, Path(folder) / "w")
        before = pictures(path / "images")
        for name, harms in (("journal.sqlite", journal), ("journal.backup.sqlite", backup)):
            for how, where in harms:
                harm(path / name, how, where)
        hurt = (path / "journal.sqlite").read_bytes()
        said = []
        try:
            with Workspace.open(path) as workspace:
                said = workspace.report
                if any("journal is damaged" in sentence for sentence in said):
                    assert hurt in [file.read_bytes() for file in path.glob("set-aside/*/journal.sqlite")]
                labels(workspace)
                workspace.journal.events_after(0)
        except UserError as error:
            said = [*said, str(error)]
        assert all(len(sentence.splitlines()) == 1 for sentence in [*said, *map(str, verify_workspace(path))])
        assert pictures(path / "images") | away(path) == before


# An older journal, and what it does not know ------------------------------------------------------------------------


@pytest.fixture
def two_ages(tmp_path) -> tuple[Path, Path, Path]:
    """A workspace, and copies of its journal when it had 12 labels and when it had 52; no backup."""
    path, older, newer = tmp_path / "w", tmp_path / "older.sqlite", tmp_path / "newer.sqlite"
    with Workspace.open(path) as workspace:
        label(workspace, 12)
        save(workspace)
        backup_journal(workspace.layout.journal, older)
        label(workspace, 40)
        save(workspace)
        backup_journal(workspace.layout.journal, newer)
    return path, older, newer


def test_what_an_older_journal_does_not_know_is_set_aside(two_ages):
    path, older, _ = two_ages
    before = pictures(path / "images")
    shutil.copy(older, path / "journal.sqlite")
    with Workspace.open(path) as workspace:
        assert names(workspace) == ["step-000000013"]
        assert len(workspace.report) == 3
        assert pictures(path / "images").keys() == workspace.journal.image_files().keys()
    assert len(away(path)) == 40 and pictures(path / "images") | away(path) == before
    check_whole(path)
    (place,) = path.glob("set-aside/*")
    for name in sorted(away(path))[:5]:  # as if it had been killed before the last few
        (place / "images" / name).rename(path / "images" / name)
    with Workspace.open(path) as workspace:
        assert len(workspace.report) == 2
    assert pictures(path / "images") | away(path) == before
    with Workspace.open(path) as workspace:
        assert workspace.report == []


def test_neither_a_checkpoint_nor_a_backup_of_other_events_with_the_same_numbers_is_used(two_ages):
    path, older, newer = two_ages
    shutil.copy(older, path / "journal.sqlite")
    shutil.copy(newer, path / "journal.backup.sqlite")
    with Workspace.open(path, learning=False) as beside:  # nobody has put it in order yet
        pen = beside.journal.create_class("pen")
        beside.journal.label([1, 2], pen)
        for number in range(60):
            beside.journal.create_class(f"class {number}")
    assert any("has learned another event 53" in str(problem) for problem in verify_workspace(path))
    with Workspace.open(path) as workspace:
        assert names(workspace) == ["step-000000013"] and len(away(path)) == 40
        assert workspace.journal.labels_of([1, 2]) == {1: pen, 2: pen}
    assert len(list(path.glob("set-aside/*/journal.backup.sqlite"))) == 1, "its labels are not lost"
