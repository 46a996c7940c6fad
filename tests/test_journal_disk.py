"""The journal under a full disk, several processes and threads, kill -9, and a file that is no database."""

import json
from contextlib import closing
from pathlib import Path

from process_parts import started

from edge_hpcr.workspace.database import open_read_only
from edge_hpcr.workspace.journal import Journal


def answer(code: str, *arguments: object) -> str:
    with started("-c", code, *arguments) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def check_whole(path: Path) -> None:
    with closing(open_read_only(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


FILL_THE_DISK = """
import json, resource, sys
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.journal import Journal
from edge_hpcr.workspace.records import SampleRow
journal = Journal(sys.argv[1])
mug = journal.create_class("mug")
ids = journal.add_samples([SampleRow(bytes=1, origin="x" * 100)] * 3000)
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


def test_every_commit_is_flushed_to_the_disk(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: a power cut loses no commit
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.close()
