"""Files that are replaced as a whole. (Of the lock, the workspace's tests tell.)"""

import pytest

from edge_hpcr.common.files import WRITING, write_atomically


def test_a_file_is_replaced_as_a_whole_and_a_failed_writing_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    write_atomically(path, "é".encode())
    assert path.read_text(encoding="utf-8") == "é"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "folder", b"new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", "folder"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_link_where_a_file_is_being_written_is_not_followed(tmp_path, durable):
    (tmp_path / "private").write_text("mine")
    (tmp_path / f"a.json{WRITING}").symlink_to(tmp_path / "private")
    write_atomically(tmp_path / "a.json", "new", durable=durable)
    assert (tmp_path / "a.json").read_text() == "new" and (tmp_path / "private").read_text() == "mine"
