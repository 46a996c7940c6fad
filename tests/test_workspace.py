"""Opening a workspace: who may, what is made, what is refused; and taking images in."""

import os
from threading import Thread

import numpy as np
import pytest
from process_parts import PIPE, started

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace

RNG = np.random.default_rng(0)


def image() -> np.ndarray:
    return RNG.integers(0, 256, (16, 16, 3), np.uint8)


def test_what_a_crash_left_is_set_aside_by_the_next_who_learns_and_dropped_images_go(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        kept = workspace.take(image(), "")
        dropped = workspace.take(image(), "")
        workspace.journal.label([dropped], workspace.journal.create_class("mug"))
        workspace.files.write([(50, image())])
        workspace.journal.label([reused := workspace.take(image(), "")], 1)
        workspace.journal.forget_images([dropped, reused])  # killed before the files were removed
        foreign = workspace.layout.images / workspace.journal.sample(reused).file
        foreign.write_bytes(b"the picture of another journal that was here")
        (workspace.layout.images / "50" / "000050.png.writing").write_bytes(b"half")
        expected = workspace.journal.sample(kept).file
    with Workspace.open(tmp_path / "w", learning=False) as other:
        assert len(list(other.files.names())) == 5
    with Workspace.open(tmp_path / "w") as workspace:
        assert list(workspace.files.names()) == [expected]
        assert "does not know 3 files in images" in workspace.report[0]
    away = tmp_path.glob("w/set-aside/*/images/*/*")
    assert {path.name for path in away} == {"000050.png", "000050.png.writing", foreign.name}


OPEN_AND_WAIT = """
import os, sys
from edge_hpcr.workspace.workspace import Workspace
workspace = Workspace.open(sys.argv[1])
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_second_learner_is_refused_with_the_process_id_of_the_first_and_kill_9_frees_the_lock(tmp_path):
    with started("-c", OPEN_AND_WAIT, tmp_path / "w", stdin=PIPE) as first:
        pid = first.stdout.readline().strip()
        with pytest.raises(UserError, match=f"in use by process {pid}"):
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
        with pytest.raises(UserError):
            Workspace.open(tmp_path / "w")
    Workspace.open(tmp_path / "w").close()


def test_a_learner_that_starts_does_not_take_another_process_image_on_its_way_for_a_leftover(tmp_path):
    Workspace.open(tmp_path / "w").close()
    opened: list[Workspace] = []
    learner = Thread(target=lambda: opened.append(Workspace.open(tmp_path / "w")))
    with Workspace.open(tmp_path / "w", learning=False) as beside:
        with beside.taking([Frame(image(), "device cam-1")]) as (sample_id,):
            learner.start()
            learner.join(0.5)
            assert not opened, "it waits: the file is there, and the row is not"
        learner.join(60)
    with opened[0] as workspace:
        assert workspace.report == [] and workspace.image(sample_id).shape == image().shape


def test_the_least_informative_and_of_those_the_oldest_leave_a_full_queue(workspace):
    frames = [Frame(image(), "", priority=priority) for priority in (0.5, 0.1, 0.9, 0.5, 0.5)]
    ids = workspace.take_many(frames)
    workspace.change_settings(queue_samples=4)
    workspace.make_room()
    assert sorted(row.id for row in workspace.journal.queued()) == [ids[2], ids[3], ids[4]]
    assert len(list(workspace.files.names())) == 3


def test_a_folder_that_holds_something_else_is_not_littered(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(UserError):
        Workspace.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(UserError):
        Workspace.open(tmp_path / "holiday.jpg")


def test_no_workspace_is_made_where_none_was_asked_for(tmp_path):
    for options in ({"create": False}, {"learning": False}):
        with pytest.raises(UserError):
            Workspace.open(tmp_path / "w", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("place", ["made by the user", "made by the first edition"])
def test_a_workspace_is_readable_for_its_user_alone(tmp_path, place, usual_umask):
    path = tmp_path / "w"
    path.mkdir(mode=0o755)
    if place == "made by the first edition":
        Workspace.open(path).close()
        path.chmod(0o755)
        (path / "settings.json").chmod(0o644)
    with Workspace.open(path) as workspace:
        workspace.take(image(), "test")
        workspace.change_settings(source="rtsp://user:secret@camera/")
        assert [each for each in [path, *path.rglob("*")] if each.stat().st_mode & 0o077] == []
