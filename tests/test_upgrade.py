"""A workspace of the first edition opens with this version: upgraded once, with a copy of the old journal, nothing lost.

`data/workspace-1.tar.xz` was made by commit 81ed249: 46 labels in 12 classes, a class renamed, a merge undone, two files
taken twice (samples 65 and 66, both labelled; 67 and 68, one queued), a checkpoint of a small network, a published model.
"""

import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import locked
from edge_hpcr.common.formats import JOURNAL, Format
from edge_hpcr.live.status import gather
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.records import SampleRow
from edge_hpcr.workspace.recover import verify_workspace
from edge_hpcr.workspace.workspace import Workspace

MADE = Path(__file__).parent / "data" / "workspace-1.tar.xz"
KEPT = "journal.format-1.sqlite"


@pytest.fixture
def path(tmp_path):
    with tarfile.open(MADE) as packed:
        packed.extractall(tmp_path / "w", filter="data")
    return tmp_path / "w"


def rows(path: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


TOLD = {  # what must not change, whatever the format
    "events": "SELECT * FROM events ORDER BY seq",
    "actions": "SELECT * FROM actions ORDER BY seq",
    "classes": "SELECT * FROM classes ORDER BY id",
    "samples": "SELECT id, file, digest, state, class_id, held_out, has_image, ever_trained FROM samples ORDER BY id",
}


def told(path: Path) -> dict[str, list[tuple]]:
    return {name: rows(path, query) for name, query in TOLD.items()}


def format_of(path: Path) -> int:
    return rows(path, "SELECT value FROM meta WHERE key = 'format'")[0][0]


def test_it_is_upgraded_once_with_a_copy_and_nothing_is_lost(path):
    before = told(path / "journal.sqlite")
    with Workspace.open(path) as workspace:
        assert told(workspace.layout.journal) == before
        assert workspace.journal.counts().labels == 46
        names = {row.name: row.labels for row in workspace.journal.classes()}
        assert names["coffee cup"] == 1 and names["mug"] == 3 and len(names) == 12
        report = " ".join(workspace.report)
    assert "from format 1 to 2" in report and str(path / KEPT) in report
    assert "samples 65, 66" in report and "samples 67, 68" in report
    assert format_of(path / "journal.sqlite") == JOURNAL.current == 2
    assert format_of(path / KEPT) == 1 and told(path / KEPT) == before
    with Workspace.open(path) as again:
        assert again.report == []


def test_of_a_file_taken_twice_one_sample_keeps_the_digest_and_no_other_can_have_it(path):
    with Workspace.open(path) as workspace:
        journal = workspace.journal
        assert journal.known_source("c" * 64) == 65 and journal.sample(66).source_digest is None
        assert journal.known_source("d" * 64) == 67, "the labelled one"
        assert journal.add_samples([SampleRow(bytes=1, origin="again", source_digest="d" * 64)]) == [67]
    with closing(sqlite3.connect(path / "journal.sqlite")) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE samples SET source_digest = ? WHERE id = 68", ("d" * 64,))


def test_who_only_looks_needs_no_upgrade(path):
    assert verify_workspace(path) == []
    status = gather(path)
    assert (status["labels"], status["classes"], status["events"]) == (46, 12, 61)
    assert format_of(path / "journal.sqlite") == 1 and not (path / KEPT).exists()


@pytest.mark.slow
def test_a_journal_in_use_by_a_learner_is_not_upgraded_under_it(path):
    with locked(path / "lock", "busy"), pytest.raises(UserError):
        Workspace.open(path, learning=False)
    assert format_of(path / "journal.sqlite") == 1


KILLED = """
import os, signal, sys
from edge_hpcr.common import formats
from edge_hpcr.workspace import database
from edge_hpcr.workspace.workspace import Workspace
def die(db):
    formats._take_each_file_once(db)
    os.kill(os.getpid(), signal.SIGKILL)
database.JOURNAL = formats.Format("journal", (die,))
Workspace.open(sys.argv[1])
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_is_the_old_one_and_the_next_opening_upgrades_it(path):
    before = told(path / "journal.sqlite")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert format_of(path / "journal.sqlite") == 1 and told(path / "journal.sqlite") == before
    with Workspace.open(path) as workspace:
        assert told(workspace.layout.journal) == before
    assert format_of(path / "journal.sqlite") == 2


def test_a_journal_of_a_newer_version_is_refused_by_everybody_and_names_that_version(path):
    Workspace.open(path).close()
    with closing(sqlite3.connect(path / "journal.sqlite")) as db, db:
        db.execute("UPDATE meta SET value = 3 WHERE key = 'format'")
        db.execute("UPDATE meta SET value = '9.1.0' WHERE key = 'version'")
    for look in (Workspace.open, gather, lambda path: Journal(path / "journal.sqlite")):
        with pytest.raises(UserError):
            look(path)
    assert any("format 3" in problem.what for problem in verify_workspace(path))


def test_upgrades_run_in_order_from_the_format_that_was_written():
    two, three = (lambda thing: thing.append(2) or ["two"]), (lambda thing: thing.append(3) or ["three"])
    form = Format[list]("list", (two, three))
    thing: list[int] = []
    assert form.upgrade(thing, 2) == ["three"] and thing == [3]
    assert form.upgrade(thing, 1) == ["two", "three"] and thing == [3, 2, 3]
    assert form.is_old(2, "x") and not form.is_old(3, "x")
