"""Watched folders: complete files only, each version once, and a folder that comes and goes."""

import os
import shutil
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import EndOfStream, open_stream
from edge_hpcr.stream import watched as watched_module
from edge_hpcr.stream.watched import WatchedFolder

NEVER = 1000.0  # seconds: what a test must not wait for


def png(value: int = 0) -> bytes:
    return cv2.imencode(".png", np.full((5, 7, 3), value, np.uint8))[1].tobytes()


def age(path: Path) -> Path:
    """Make the file look as if it had been written long ago."""
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "in"
    path.mkdir()
    return path


@pytest.fixture
def bad():
    return []


@pytest.fixture
def watch(folder, bad):
    """A function that watches the folder; keywords as of WatchedFolder."""
    streams = []

    def start(**options) -> WatchedFolder:
        options = {"settle_seconds": NEVER, "scan_seconds": NEVER, **options}
        streams.append(
            WatchedFolder(folder, on_bad_file=lambda path, reason: bad.append((path.name, reason)), **options)
        )
        return streams[-1]

    yield start
    for stream in streams:
        stream.close()


def value(stream) -> int | None:
    """The grey value of the next image that arrives."""
    frame = stream.read(20)
    return None if frame is None else int(frame.image[0, 0, 0])


def silent(stream) -> bool:
    return stream.read(0.3) is None


def test_files_that_are_there_come_first_and_new_ones_when_they_are_closed(folder, watch):
    for number in (10, 9):
        (folder / f"{number}.png").write_bytes(png(number))
        age(folder / f"{number}.png")
    stream = watch()
    assert [value(stream), value(stream)] == [9, 10]
    assert silent(stream)
    (folder / "1.png").write_bytes(png(1))
    frame = stream.read(20)
    assert frame.image[0, 0, 0] == 1 and frame.origin == str(folder / "1.png") and len(frame.digest) == 64
    assert not stream.live and stream.state().phase == "live"
    assert (stream.state().frames, stream.state().size) == (3, (7, 5))


@pytest.mark.slow
def test_a_file_that_is_being_written_is_taken_only_when_it_is_closed(folder, watch, bad):
    stream = watch()
    assert silent(stream)
    data = png(5)
    with (folder / "1.png").open("wb") as file:
        file.write(data[:40])
        file.flush()
        assert silent(stream)
        file.write(data[40:])
        file.flush()
        assert silent(stream)
    assert value(stream) == 5
    assert bad == []


@pytest.mark.slow
def test_a_file_found_half_written_at_the_start_is_taken_when_it_has_settled(folder, watch, bad):
    file = (folder / "1.png").open("wb")
    file.write(png(5)[:40])
    file.flush()
    stream = watch(settle_seconds=1.0)
    assert stream.read(0.1) is None
    file.write(png(5)[40:])
    file.flush()
    written = time.monotonic()
    assert value(stream) == 5  # although it is never closed
    assert time.monotonic() - written > 0.8
    assert bad == []
    file.close()
    assert silent(stream)


def test_an_empty_file_is_not_taken_for_a_complete_one(folder, watch, bad):
    stream = watch()
    (folder / "1.png").touch()
    assert silent(stream)
    (folder / "1.png").write_bytes(png(3))
    assert value(stream) == 3 and bad == []


def test_a_rename_into_the_folder_delivers_the_file(folder, tmp_path, watch):
    stream = watch()
    assert silent(stream)
    (tmp_path / "a.png").write_bytes(png(4))
    age(tmp_path / "a.png").rename(folder / "a.png")
    assert value(stream) == 4


@pytest.mark.slow
def test_a_hidden_temporary_name_is_not_delivered_but_its_final_name_is(folder, watch):
    stream = watch()
    hidden = folder / ".a.png.k3x"
    hidden.write_bytes(png(4))
    assert silent(stream)
    hidden.rename(folder / "a.png")
    assert value(stream) == 4
    assert silent(stream)


@pytest.mark.slow
def test_no_version_comes_twice_but_a_new_one_does(folder, watch):
    path = folder / "1.png"
    path.write_bytes(png(1))
    age(path)
    stream = watch(scan_seconds=0.05, settle_seconds=0.1)
    assert value(stream) == 1
    assert silent(stream)  # many scans later
    path.touch()  # another time, the same contents
    assert silent(stream)
    path.rename(folder / "2.png")
    assert silent(stream)
    (folder / "2.png").write_bytes(png(2))
    assert value(stream) == 2
    assert silent(stream)


def test_a_file_that_moves_to_another_class_comes_again_with_its_new_label(folder, watch):
    (folder / "mug").mkdir()
    (folder / "cup").mkdir()
    (folder / "mug" / "1.png").write_bytes(png(1))
    age(folder / "mug" / "1.png")
    stream = watch(labels="folders")
    assert stream.read(20).label == "mug"
    assert silent(stream)
    (folder / "mug" / "1.png").rename(folder / "cup" / "1.png")
    assert stream.read(20).label == "cup"


@pytest.mark.slow
def test_a_new_sub_folder_is_watched_too(folder, tmp_path, watch):
    stream = watch(labels="folders", settle_seconds=0.2)
    assert silent(stream)
    outside = tmp_path / "mug"
    outside.mkdir()
    (outside / "1.png").write_bytes(png(1))
    outside.rename(folder / "mug")
    frame = stream.read(20)
    assert (frame.label, frame.image[0, 0, 0]) == ("mug", 1)
    (folder / "mug" / "2.png").write_bytes(png(2))
    assert value(stream) == 2


@pytest.mark.slow
def test_bad_files_and_links_out_are_reported_once_and_the_stream_goes_on(folder, tmp_path, watch, bad):
    (tmp_path / "secret.png").write_bytes(png(9))
    stream = watch(scan_seconds=0.05, settle_seconds=0.1)
    assert silent(stream)
    (folder / "1.txt").write_bytes(b"not an image")
    (folder / "2.png").symlink_to(tmp_path / "secret.png")
    (folder / "3").symlink_to(tmp_path)
    (folder / "4.png").symlink_to("nowhere")
    deadline = time.monotonic() + 20
    while len(bad) < 4 and time.monotonic() < deadline:
        assert stream.read(0.1) is None
    assert silent(stream)
    assert sorted(name for name, _ in bad) == ["1.txt", "2.png", "3", "4.png"]
    assert stream.state().bad == 4
    (folder / "5.png").write_bytes(png(5))
    assert value(stream) == 5


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", ["the same", "another one"])
def test_a_folder_that_disappears_and_comes_back_is_watched_again(folder, tmp_path, watch, comes_back):
    (folder / "1.png").write_bytes(png(1))
    age(folder / "1.png")
    stream = watch()
    assert value(stream) == 1
    folder.rename(tmp_path / "away")
    assert silent(stream)
    state = stream.state()
    assert state.phase == "reconnecting" and f"the folder {folder} has disappeared" in state.message
    if comes_back == "the same":
        (tmp_path / "away").rename(folder)
    else:
        shutil.copytree(tmp_path / "away", folder)  # with the files' times
    assert silent(stream)  # nothing comes twice
    assert stream.state().phase == "live"
    (folder / "2.png").write_bytes(png(2))
    assert value(stream) == 2


@pytest.mark.slow
def test_a_scan_finds_what_the_system_did_not_report(folder, watch, monkeypatch):
    class Deaf(watched_module.Observer):
        def schedule(self, *_, **__):
            raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(watched_module, "Observer", Deaf)
    stream = watch(scan_seconds=0.1, settle_seconds=0.1)
    assert silent(stream)
    (folder / "1.png").write_bytes(png(1))
    assert value(stream) == 1
    assert "inotify watch limit reached" in stream.state().message


def test_files_that_are_gone_are_forgotten_beyond_a_number(folder, watch, monkeypatch):
    monkeypatch.setattr(watched_module, "MOST_REMEMBERED", 3)
    stream = watch(scan_seconds=0.02)
    assert stream.read(0) is None  # from here on it watches
    for number in range(8):
        (folder / f"{number}.png").write_bytes(png(number))
        assert value(stream) == number
        (folder / f"{number}.png").unlink()
    assert silent(stream)
    assert len(stream._taken) <= 3


def test_close_wakes_a_reader(folder, watch):
    stream = watch()
    threading.Timer(0.1, stream.close).start()
    started = time.monotonic()
    with pytest.raises(EndOfStream):
        stream.read(60)
    assert time.monotonic() - started < 30 and stream.state().phase == "closed"


@pytest.mark.slow
def test_the_work_for_a_file_does_not_grow_with_the_files_that_wait(tmp_path):
    original = age(_written(tmp_path / "original.png"))

    def seconds_for_100(waiting: int) -> float:
        folder = tmp_path / str(waiting)
        folder.mkdir()
        for number in range(waiting):
            (folder / f"{number}.png").hardlink_to(original)
        with WatchedFolder(folder, settle_seconds=NEVER, scan_seconds=NEVER) as stream:
            assert stream.read(60) is not None  # from here on the folder is listed
            started = time.thread_time()  # of this thread alone, on however busy a machine
            for _ in range(100):
                assert stream.read(60) is not None
            return time.thread_time() - started

    assert seconds_for_100(10_000) < 5 * seconds_for_100(200)


def _written(path: Path) -> Path:
    path.write_bytes(png(1))
    return path


def test_a_file_that_is_written_bit_by_bit_is_looked_at_once_in_a_while(folder, watch):
    stream = watch()
    assert silent(stream)
    with (folder / "1.png").open("wb") as file:
        for _ in range(200):
            file.write(b"x")
            file.flush()
        assert silent(stream)
        assert len(stream._looks) <= 2


@pytest.mark.parametrize("place", ["/", "/proc", "/sys/class", "/dev", "/proc/self/task"])
@pytest.mark.parametrize("kind", ["watch:", ""])
def test_a_folder_of_the_system_is_no_source(kind, place):
    with pytest.raises(UserError, match="is a folder of the system's"):
        open_stream(kind + place)


def test_a_folder_with_too_many_folders_is_not_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_module, "MOST_FOLDERS", 3)
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(UserError, match=r"holds more than 3 folders or .* files: watch a smaller folder"):
        open_stream(f"watch:{tmp_path}")


def test_state_and_close_do_not_wait_for_an_observer_that_takes_long_to_start(folder, watch, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    class Slow(watched_module.Observer):
        def start(self):
            begun.set()
            assert go_on.wait(60)
            super().start()

    monkeypatch.setattr(watched_module, "Observer", Slow)
    stream = watch()
    ended = []

    def read():
        try:
            stream.read(60)
        except EndOfStream:
            ended.append(True)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    # In threads, which would stay away if they waited for the lock.
    for call in (stream.state, stream.close):
        asking = threading.Thread(target=call, daemon=True)
        asking.start()
        asking.join(30)
        assert not asking.is_alive()
    go_on.set()
    reader.join(60)
    assert ended == [True] and stream._observer is None


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        open_stream(f"watch:{tmp_path / 'nothing'}")
