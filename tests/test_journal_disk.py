"""The journal under a full disk, several processes and threads, kill -9, and a file that is no database."""

import json
import sqlite3
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from process_parts import started

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace import database
from edge_hpcr.workspace.database import JournalDamaged, open_read_only
from edge_hpcr.workspace.fold import differences, fold_events
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.queries import Queries
from edge_hpcr.workspace.records import NewSample

ROOT = Path(__file__).parents[1]


def answer(code: str, *arguments: object) -> str:
    with started("-c", code, *arguments) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def check_whole(path: Path) -> None:
    with closing(open_read_only(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        whole = Queries(db, path)
        assert differences(fold_events(whole), whole) == []


FILL_THE_DISK = """
import json, resource, sys
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.records import NewSample
journal = Journal(sys.argv[1])
mug = journal.create_class("mug")
ids = journal.add_samples([NewSample(1, "", "x" * 100)] * 3000)
# Whatever file grows beyond this is refused by the kernel, as on a disk without room.
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
acknowledged, message = [], None
for start in range(0, 3000, 50):
    try:
        journal.label(ids[start : start + 50], mug)
    except UserError as error:
        message = str(error)
        break
    acknowledged += ids[start : start + 50]
during = [row.id for row in journal.samples(class_id=mug, limit=5000)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.label(ids[-1:], mug)
after = [row.id for row in journal.samples(class_id=mug, limit=5000)]
print(json.dumps([acknowledged, message, during, after, ids[-1]]))
"""


def test_when_the_disk_is_full_nothing_is_acknowledged_and_later_all_goes_on(tmp_path):
    path = tmp_path / "journal.sqlite"
    acknowledged, message, during, after, last = json.loads(answer(FILL_THE_DISK, path))
    assert message is not None and "full" in message and "\n" not in message
    assert 0 < len(acknowledged) < 3000
    assert during == acknowledged
    assert after == [*acknowledged, last]
    check_whole(path)


def test_a_database_without_room_refuses_one_action_and_takes_the_next_when_there_is_room(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    mug = journal.create_class("mug")
    ids = journal.add_samples([NewSample(1, "", "")] * 2000)
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UserError, match="the disk is full; nothing was written: make room") as caught:
        journal.label(ids, mug)
    assert "\n" not in str(caught.value)
    assert journal.counts().labels == 0
    assert journal.last_seq == 1
    journal._db.execute("PRAGMA max_page_count = 1000000")
    assert len(journal.label(ids, mug).moves) == 2000
    journal.close()
    check_whole(tmp_path / "journal.sqlite")


def test_every_commit_is_flushed_to_the_disk(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: a power cut loses no commit
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.close()


WRITE = """
import sys
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.records import NewSample
journal = Journal(sys.argv[1])
mine = journal.create_class("class of " + sys.argv[2])
for _ in range(20):
    journal.label(journal.add_samples([NewSample(1, "", sys.argv[2])] * 2), mine)
print(mine)
"""


def test_several_processes_open_a_new_journal_at_once_and_write_to_it(tmp_path):
    path = tmp_path / "journal.sqlite"
    with ThreadPoolExecutor() as pool:
        ids = {int(said) for said in pool.map(partial(answer, WRITE, path), "abcd")}
    assert len(ids) == 4
    journal = Journal(path)
    assert {row.id: row.labels for row in journal.classes()} == dict.fromkeys(ids, 40)
    assert journal.last_seq == 4 * 21
    for row in journal.classes():
        origins = {sample.origin for sample in journal.samples(class_id=row.id)}
        assert origins == {row.name.removeprefix("class of ")}
    journal.close()
    check_whole(path)


def test_many_threads_share_one_journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    mug = journal.create_class("mug")
    failures = []

    def work() -> None:
        try:
            for _ in range(15):
                journal.label(journal.add_samples([NewSample(1, "", "")]), mug)
                journal.counts(), journal.queued(), journal.events_after(0)
        except Exception as error:  # a thread's error would otherwise pass unseen
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert journal.counts().labels == 90
    assert [event.seq for event in journal.events_after(0)] == list(range(1, 92))
    journal.close()


LABEL_FOR_EVER = """
import sys
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.records import NewSample
journal = Journal(sys.argv[1])
name = "class of " + sys.argv[2]
mine = journal.create_class(name)
print("class", mine, flush=True)
while True:
    ids = journal.add_samples([NewSample(1, "", "")] * 2)
    journal.label(ids, mine)
    print("label", *ids, flush=True)
"""


@pytest.mark.slow
def test_whatever_was_acknowledged_is_there_after_kill_9(tmp_path):
    path = tmp_path / "journal.sqlite"
    acknowledged: dict[int, list[int]] = {}
    for number in range(6):
        with started("-c", LABEL_FOR_EVER, path, number) as process:
            mine = int(process.stdout.readline().split()[1])
            acknowledged[mine] = []
            for _ in range(3 + 7 * number % 5):
                acknowledged[mine] += map(int, process.stdout.readline().split()[1:])
            process.kill()
            rest, _ = process.communicate()
        for line in rest.splitlines(keepends=True):
            if line.endswith("\n"):
                acknowledged[mine] += map(int, line.split()[1:])
        check_whole(path)
    journal = Journal(path)
    for class_id, expected in acknowledged.items():
        found = [row.id for row in journal.samples(class_id=class_id)]
        assert set(found) >= set(expected)
        assert len(found) - len(expected) in (0, 2)  # at most the one that was not yet printed
    labelled = [m.sample_id for event in journal.events_after(0) for m in event.moves]
    assert len(labelled) == len(set(labelled))
    journal.close()


def test_a_journal_that_another_process_keeps_locked_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    journal = Journal(tmp_path / "journal.sqlite")
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match="another process kept it locked"):
            journal.create_class("mug")
        other.execute("ROLLBACK")
    assert journal.create_class("mug") == 1
    journal.close()


def test_a_file_that_is_no_database_is_called_damaged(tmp_path):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"not a database, " * 300)
    with pytest.raises(JournalDamaged, match="the file is damaged: start `learn`"):
        Journal(path)
    with pytest.raises(JournalDamaged):
        open_read_only(path)


def test_a_journal_in_a_folder_that_is_missing_or_of_a_newer_version_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be opened"):
        Journal(tmp_path / "missing" / "journal.sqlite")
    journal = Journal(tmp_path / "journal.sqlite")
    journal.close()
    with closing(sqlite3.connect(journal.path)) as db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
        db.commit()
    with pytest.raises(UserError, match=r"format 99, this version .* use the version that wrote it"):
        Journal(journal.path)


def test_the_journal_is_read_beside_a_process_that_writes_it_and_sees_one_moment(tmp_path):
    with started("-c", LABEL_FOR_EVER, tmp_path / "journal.sqlite", 1) as process:
        process.stdout.readline(), process.stdout.readline()
        with closing(open_read_only(tmp_path / "journal.sqlite")) as db:
            db.execute("BEGIN")
            first = db.execute("SELECT max(seq) FROM events").fetchone()
            process.stdout.readline(), process.stdout.readline()
            assert db.execute("SELECT max(seq) FROM events").fetchone() == first
            whole = Queries(db, tmp_path)
            assert differences(fold_events(whole), whole) == []
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                db.execute("DELETE FROM events")


AS_NOBODY = """
import os, sys
from pathlib import Path
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.database import open_read_only
from edge_hpcr.workspace.journal import Journal
if os.getuid() == 0:  # who may write everywhere
    os.setgid(65534), os.setuid(65534)
print(open_read_only(Path(sys.argv[1])).execute("SELECT count(*) FROM classes").fetchone())
try:
    Journal(sys.argv[1]).create_class("cup")
except UserError as error:
    print(error)
"""


def test_a_journal_that_cannot_be_written_can_be_read_and_says_why_it_refuses():
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        journal = Journal(folder / "journal.sqlite")
        journal.create_class("mug")
        journal.close()
        journal.path.chmod(0o444)
        folder.chmod(0o555)
        count, message = answer(AS_NOBODY, journal.path).splitlines()
        folder.chmod(0o755)
    assert count == "(1,)"
    assert "make the workspace writable" in message
