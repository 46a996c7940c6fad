"""Files that are replaced as a whole, and locks that the system frees."""

import fcntl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from process_parts import PIPE, started

from edge_hpcr.common.files import Locked, is_locked, locked, sha256, write_atomically

HOLDER = """
import sys
import threading
from pathlib import Path
from edge_hpcr.common.files import locked
with locked(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_as_a_whole_and_a_failed_writing_leaves_the_old_one(tmp_path, durable):
    path = tmp_path / "a.json"
    write_atomically(path, "old", durable=durable)
    write_atomically(path, "é".encode(), durable=durable)
    assert path.read_text(encoding="utf-8") == "é"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "folder", b"new", durable=durable)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", "folder"]


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == sha256(b"abc")


@pytest.mark.slow
def test_a_lock_names_its_holder_and_is_free_after_kill_9(tmp_path):
    path = tmp_path / "lock"
    assert is_locked(path) is False
    with started("-c", HOLDER, path, stdin=PIPE) as holder:
        assert holder.stdout.readline() == "held\n"
        assert is_locked(path) is True
        with pytest.raises(Locked, match=f"in use by {holder.pid}"), locked(path, "in use by {owner}"):
            pass
        holder.kill()
    assert is_locked(path) is False
    with locked(path, "busy"):
        assert is_locked(path) is True


def test_who_waits_for_a_lock_gets_it_also_when_its_holder_removes_the_file(tmp_path):
    path = tmp_path / "lock"
    got = threading.Event()

    def wait() -> None:
        with locked(path, "busy", wait_seconds=60):
            got.set()

    with locked(path, "busy", remove=True):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not got.is_set()
    waiting.join(60)
    assert got.is_set() and path.exists()


AS_NOBODY = """
import os, sys
from pathlib import Path
from edge_hpcr.common.files import is_locked
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(is_locked(Path(sys.argv[1])))
"""


def test_a_lock_that_cannot_be_read_is_neither_held_nor_free():
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        path = Path(name) / "lock"
        path.touch(mode=0)
        Path(name).chmod(0o755)
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, str(path)], capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


def test_asking_who_holds_a_lock_keeps_nobody_from_taking_it(tmp_path: Path):
    """`status` asks every second; a learner that starts at that moment must not be refused."""
    path = tmp_path / "lock"
    path.touch()
    with path.open("rb") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)  # as `is_locked` does
        end = threading.Timer(0.1, fcntl.flock, (asked, fcntl.LOCK_UN))
        end.start()
        with locked(path, "refused"):
            assert is_locked(path) is True
        end.join()
