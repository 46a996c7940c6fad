"""Opening a workspace: who may, what is made, what is refused; and taking images in."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from process_parts import PIPE, started

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.settings import Settings

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(0)


def image() -> np.ndarray:
    return RNG.integers(0, 256, (16, 16, 3), np.uint8)


def answer_of(code: str, *arguments: object) -> tuple[str, str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    return ended.stdout, ended.stderr


def test_a_new_workspace_is_made_and_opened_again(tmp_path):
    path = tmp_path / "deep" / "w"
    with Workspace.open(path) as workspace:
        assert workspace.settings == Settings()
        assert workspace.report == []
        workspace.journal.create_class("mug")
        workspace.change_settings(queue_samples=9, held_out_share=0.2)
        assert workspace.journal.held_out_share == 0.2
    with Workspace.open(path, create=False) as workspace:
        assert workspace.settings.queue_samples == 9
        assert [row.name for row in workspace.journal.classes()] == ["mug"]


def test_an_image_is_on_disk_before_its_row_and_comes_back(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        picture = image()
        sample = workspace.take(picture, "camera 0", "source", 2**63, 0.5)
        assert np.array_equal(workspace.image(sample), picture)
        row = workspace.journal.sample(sample)
        assert (row.origin, row.source_digest, row.hash64, row.priority) == ("camera 0", "source", 2**63, 0.5)
        assert (row.width, row.height, row.state) == (16, 16, "queued")
        assert row.bytes == (workspace.layout.images / row.file).stat().st_size
        ids = workspace.take_many([Taken(image(), "folder") for _ in range(150)])
        assert len({*ids, sample}) == 151
        assert workspace.journal.counts().images == len(list(workspace.files.names())) == 151
        assert workspace.take_many([]) == []


def test_files_leave_with_their_samples(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        first, second, third = workspace.take_many([Taken(image(), "") for _ in range(3)])
        workspace.journal.label([second], workspace.journal.create_class("mug"))
        assert [row.id for row in workspace.drop_queued([first, second])] == [first]
        assert [row.id for row in workspace.forget_images([second, third])] == [second]
        assert list(workspace.files.names()) == [workspace.journal.sample(third).file]


def test_orphans_of_a_crash_are_removed_by_the_next_who_learns_and_by_nobody_else(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        kept = workspace.take(image(), "")
        dropped = workspace.take(image(), "")
        workspace.journal.label([dropped], workspace.journal.create_class("mug"))
        workspace.files.write(999, image())
        workspace.journal.forget_images([dropped])  # killed before the file was removed
        (workspace.layout.images / "99" / "000099.png.writing").write_bytes(b"half")
        expected = workspace.journal.sample(kept).file
    with Workspace.open(tmp_path / "w", learning=False) as other:
        assert len(list(other.files.names())) == 4
    with Workspace.open(tmp_path / "w") as workspace:
        assert list(workspace.files.names()) == [expected]


OPEN_AND_WAIT = """
import os, sys
from edge_hpcr.workspace.folder import Workspace
workspace = Workspace.open(sys.argv[1])
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_second_learner_is_refused_with_the_process_id_of_the_first_and_kill_9_frees_the_lock(tmp_path):
    with started("-c", OPEN_AND_WAIT, tmp_path / "w", stdin=PIPE) as first:
        pid = first.stdout.readline().strip()
        with pytest.raises(UserError, match=f"is in use by process {pid}: end that first"):
            Workspace.open(tmp_path / "w")
        with Workspace.open(tmp_path / "w", learning=False) as beside:
            beside.journal.create_class("mug")
            taken = beside.take(image(), "device cam-1")
        first.kill()
    with Workspace.open(tmp_path / "w") as workspace:
        assert [row.name for row in workspace.journal.classes()] == ["mug"]
        assert workspace.image(taken).shape == image().shape, (
            "another process than the learner's may store one"
        )
        assert workspace.layout.lock.read_text() == f"{os.getpid()}\n"
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            Workspace.open(tmp_path / "w")
    Workspace.open(tmp_path / "w").close()


def test_a_learner_that_starts_does_not_take_another_process_image_on_its_way_for_a_leftover(tmp_path):
    Workspace.open(tmp_path / "w").close()
    opened: list[Workspace] = []
    learner = Thread(target=lambda: opened.append(Workspace.open(tmp_path / "w")))
    with Workspace.open(tmp_path / "w", learning=False) as beside:
        with beside.taking([Taken(image(), "device cam-1")]) as (sample_id,):
            learner.start()
            learner.join(0.5)
            assert not opened, "it waits: the file is there, and the row is not"
        learner.join(60)
    with opened[0] as workspace:
        assert workspace.report == [] and workspace.image(sample_id).shape == image().shape


def test_a_failed_opening_gives_the_lock_back(tmp_path):
    Workspace.open(tmp_path / "w").close()
    good = (tmp_path / "w" / "settings.json").read_text()
    (tmp_path / "w" / "settings.json").write_text("{")
    with pytest.raises(UserError, match="are damaged"):
        Workspace.open(tmp_path / "w")
    (tmp_path / "w" / "settings.json").write_text(good)
    Workspace.open(tmp_path / "w").close()


def test_a_folder_that_holds_something_else_is_not_littered(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds something else than a workspace \(holiday.jpg\)"):
        Workspace.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(UserError, match="is a file"):
        Workspace.open(tmp_path / "holiday.jpg")


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "images", "settings.json.writing"], [".DS_Store"]])
def test_a_workspace_whose_making_was_cut_short_is_made_again(tmp_path, left):
    for name in left:
        (tmp_path / name).mkdir() if name == "images" else (tmp_path / name).touch()
    with Workspace.open(tmp_path) as workspace:
        assert workspace.report == []


def test_no_workspace_is_made_where_none_was_asked_for(tmp_path):
    for options in ({"create": False}, {"learning": False}):
        with pytest.raises(UserError, match="no workspace at"):
            Workspace.open(tmp_path / "w", **options)
    assert list(tmp_path.iterdir()) == []


def test_labelling_needs_a_journal_that_is_there(tmp_path):
    Workspace.open(tmp_path).close()
    (tmp_path / "journal.sqlite").unlink()
    with pytest.raises(UserError, match=r"journal\.sqlite is missing: start `learn`"):
        Workspace.open(tmp_path, learning=False)
    assert not (tmp_path / "journal.sqlite").exists()


def test_a_workspace_of_a_newer_version_is_refused(tmp_path):
    Workspace.open(tmp_path).close()
    (tmp_path / "settings.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="use a newer version"):
        Workspace.open(tmp_path)


AS_NOBODY = """
import os, sys
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.folder import Workspace
if os.getuid() == 0:  # who may write everywhere
    os.setgid(65534), os.setuid(65534)
for path in sys.argv[1:]:
    try:
        Workspace.open(path)
    except UserError as error:
        print(error)
"""


def test_a_folder_that_cannot_be_written_is_refused_in_one_line():
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        Workspace.open(folder / "w").close()
        (folder / "w").chmod(0o555)
        (folder / "w" / "lock").chmod(0o444)
        folder.chmod(0o555)
        out, err = answer_of(AS_NOBODY, folder / "w", folder / "new")
        folder.chmod(0o755)
    assert err == ""
    existing, new = out.splitlines()
    assert "cannot be written: Permission denied; learning needs a writable folder" in existing
    assert "Permission denied; name a folder that can be written" in new


def test_a_bad_file_is_noted_and_a_small_one_copied_but_never_through_a_link(tmp_path):
    bad, large, odd = tmp_path / "bad.png", tmp_path / "large.png", tmp_path / "a\nb\udcff.png"
    half = b"\xff\xd8\xff, and then no image"
    bad.write_bytes(half)
    odd.write_bytes(half)
    with large.open("wb") as file:
        file.truncate(5_000_001)
    link = tmp_path / "link.png"
    link.symlink_to("/etc/hostname")
    with Workspace.open(tmp_path / "w") as workspace:
        for path in (bad, large, odd, link, tmp_path / "gone.png"):
            workspace.quarantine(path, "it is no image")
        folder = workspace.layout.quarantine
    notes = [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]
    assert [Path(note["path"]).name for note in notes] == [
        "bad.png", "large.png", "a\nb\udcff.png", "link.png", "gone.png",
    ]  # fmt: skip
    assert all(note["reason"] == "it is no image" and note["at"] > 1e9 for note in notes)
    copies = [note["copy"] for note in notes]
    assert copies == [copies[0], None, copies[0], None, None]
    assert (folder / copies[0]).read_bytes() == half
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"root:x:0:0:root:/root:/bin/bash\n", False),
        (b"BMW is a car", False),
        (b"P6 is what we call it", False),
        (b"RIFF1234WAVEfmt ", False),
        (b"", False),
        (b"\x89PNG\r\n\x1a\n cut", True),
        (b"RIFF1234WEBPVP8 ", True),
        (b"P6\n# a comment\n9 9 255\n", True),
        (b"BM\x36\x10\x0e\0\0\0\0\0\x36", True),
        (b"II*\0", True),
    ],
)
def test_only_what_starts_like_a_picture_is_copied_into_the_quarantine(tmp_path, content, kept):
    bad = tmp_path / "secret"
    bad.write_bytes(content)
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.quarantine(bad, "it is no image")
        names = [path.name for path in workspace.layout.quarantine.iterdir()]
    assert "quarantine.jsonl" in names and len(names) == 1 + kept


def test_a_workspace_is_readable_for_its_user_alone(tmp_path):
    program = """
import os, sys, numpy as np
from pathlib import Path
from threading import Thread
from edge_hpcr.workspace.folder import Workspace
os.umask(0o022)
Path("bad.png").write_bytes(b"\\x89PNG")
for place in ("new", "old"):
    with Workspace.open(place) as workspace:
        workspace.take(np.zeros((9, 9, 3), np.uint8), "test")
        workspace.change_settings(source="rtsp://user:secret@camera/")
        workspace.quarantine(Path("bad.png"), "a test")
        for path in [workspace.path, *workspace.path.rglob("*")]:
            if path.stat().st_mode & 0o077 and (place == "new" or path.name == "settings.json"):
                print(oct(path.stat().st_mode), path)
"""
    old = tmp_path / "old"  # as the first edition made it
    Workspace.open(old).close()
    old.chmod(0o755)
    (old / "settings.json").chmod(0o644)
    (tmp_path / "new").mkdir(mode=0o755)  # by the user
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_the_quarantine_is_bounded_too(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        for number in range(12):
            path = tmp_path / f"{number}.bin"
            path.write_bytes(b"GIF89a" + bytes([number]) * 4_900_000)
            workspace.quarantine(path, "too many")
            path.unlink()
        held = sum(path.stat().st_size for path in workspace.layout.quarantine.iterdir())
        assert 45_000_000 < held <= 50_000_000


@pytest.mark.slow
def test_labelling_and_looking_do_not_load_pytorch(tmp_path):
    code = "import sys, edge_hpcr.workspace.folder, edge_hpcr.workspace.verify; print('torch' in sys.modules)"
    out, err = answer_of(code)
    assert out == "False\n", err
