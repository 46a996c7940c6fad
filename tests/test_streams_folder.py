"""Image folders: order, labels, bad files, links, odd names, and a folder that goes away."""

import hashlib
import os
import shutil
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import as_text, natural_order
from edge_hpcr.stream import EndOfStream, open_stream
from edge_hpcr.stream.folder import Folder


def png(value: int = 0) -> bytes:
    return cv2.imencode(".png", np.full((5, 7, 3), value, np.uint8))[1].tobytes()


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def read_all(stream) -> list:
    frames = []
    while True:
        try:
            frame = stream.read(5)
        except EndOfStream:
            return frames
        assert frame is not None
        frames.append(frame)


@pytest.fixture
def bad():
    """What was reported as bad: the file's name and the reason."""
    return {}


def opened(folder: Path, bad: dict, **options):
    return open_stream(
        str(folder), on_bad_file=lambda path, reason: bad.update({path.name: reason}), **options
    )


def test_images_come_in_natural_order_with_the_classes_of_their_folders(tmp_path, bad):
    for name in ["img10.png", "img9.png", "mug/2.png", "mug/10.png", "mug/deep/1.png", "cup/1.png"]:
        put(tmp_path / name, png())
    with opened(tmp_path, bad, labels="folders") as stream:
        frames = read_all(stream)
        assert not stream.live and stream.state().phase == "ended"
        assert stream.state().message == "ended after 6 images"
    assert [(os.path.relpath(frame.origin, tmp_path), frame.label) for frame in frames] == [
        ("cup/1.png", "cup"),
        ("img9.png", None),
        ("img10.png", None),
        ("mug/2.png", "mug"),
        ("mug/10.png", "mug"),
        ("mug/deep/1.png", "mug"),
    ]
    assert bad == {}


def test_without_labels_no_image_has_a_class(tmp_path, bad):
    put(tmp_path / "mug" / "1.png", png())
    with opened(tmp_path, bad) as stream:
        assert [frame.label for frame in read_all(stream)] == [None]


def test_a_frame_carries_the_picture_and_the_digest_of_the_files_bytes(tmp_path, bad):
    path = put(tmp_path / "1.png", png(90))
    with opened(tmp_path, bad) as stream:
        (frame,) = read_all(stream)
        assert stream.state().size == (7, 5)
    assert frame.image.shape == (5, 7, 3) and (frame.image == 90).all()
    assert frame.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert frame.origin == str(path)


def test_bad_files_are_reported_with_the_reason_and_the_stream_goes_on(tmp_path, bad):
    put(tmp_path / "1.png", png())
    put(tmp_path / "2.txt", b"not an image")
    put(tmp_path / "3.png", png()[:-30])
    put(tmp_path / "4.png", b"")
    os.mkfifo(tmp_path / "5.png")  # reading it would wait for ever
    put(tmp_path / "6.png", png())
    put(tmp_path / ".hidden.png", png())
    put(tmp_path / ".git" / "1.png", png())
    with opened(tmp_path, bad) as stream:
        assert [Path(frame.origin).name for frame in read_all(stream)] == ["1.png", "6.png"]
        assert (stream.state().frames, stream.state().bad) == (2, 4)
    assert set(bad) == {"2.txt", "3.png", "4.png", "5.png"}
    assert all(bad.values())


def test_links_that_lead_out_or_round_are_not_followed_and_reported(tmp_path, bad):
    secret = put(tmp_path / "outside" / "secret.png", png(1))
    inside = put(tmp_path / "in" / "a" / "1.png", png(2)).parents[1]
    (inside / "a" / "alias.png").symlink_to("1.png")
    (inside / "b.png").symlink_to(secret)
    (inside / "c").symlink_to(secret.parent)
    (inside / "a" / "round").symlink_to(inside)
    (inside / "d.png").symlink_to("nowhere.png")
    (inside / "e.png").symlink_to("e.png")
    with opened(inside, bad) as stream:
        assert [Path(frame.origin).name for frame in read_all(stream)] == ["1.png", "alias.png"]
    assert set(bad) == {"b.png", "c", "round", "d.png", "e.png"}
    assert "leads out of the folder" in bad["b.png"] and "not followed" in bad["c"]


def test_a_folder_may_itself_be_reached_by_a_link(tmp_path, bad):
    put(tmp_path / "real" / "1.png", png())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with opened(tmp_path / "link", bad) as stream:
        assert len(read_all(stream)) == 1


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on Linux only")
def test_odd_names_survive_and_can_be_stored_as_text(tmp_path, bad):
    names = ["Übung\u0301 #%.png".encode(), b"line\nbreak.png", b"caf\xe9.png", b"-rf *.png"]
    os.mkdir(os.fsencode(tmp_path) + b"/cl\xffss")  # noqa: PTH102
    for name in names:
        with open(os.fsencode(tmp_path) + b"/cl\xffss/" + name, "wb") as file:  # noqa: PTH123
            file.write(png())
    with opened(tmp_path, bad, labels="folders") as stream:
        frames = read_all(stream)
    assert len(frames) == len(names) and bad == {}
    assert {frame.label for frame in frames} == {r"cl\xffss"}
    assert {Path(frame.origin).name.encode() for frame in frames} == {*names, rb"caf\xe9.png"} - {
        b"caf\xe9.png"
    }


def test_a_folder_that_disappears_ends_the_stream_and_the_state_says_so(tmp_path, bad):
    folder = tmp_path / "stick"
    for number in range(5):
        put(folder / f"{number}.png", png())
    with opened(folder, bad) as stream:
        stream.read(5)
        shutil.rmtree(folder)
        with pytest.raises(EndOfStream, match="has disappeared"):
            stream.read(5)
        state = stream.state()
    assert state.frames == 1
    assert bad == {}  # not a word about each of its files


def test_the_state_after_a_disappearance_names_the_folder(tmp_path, bad):
    folder = tmp_path / "stick"
    put(folder / "sub" / "1.png", png())
    with opened(folder, bad) as stream:
        shutil.rmtree(folder)
        assert read_all(stream) == []
        state = stream.state()
        assert state.phase == "ended" and f"the folder {folder} has disappeared" in state.message


def test_a_single_file_that_disappears_is_reported_and_the_others_come(tmp_path, bad):
    for number in range(3):
        put(tmp_path / f"{number}.png", png())
    with opened(tmp_path, bad) as stream:
        stream.read(5)
        (tmp_path / "1.png").unlink()
        assert [Path(frame.origin).name for frame in read_all(stream)] == ["2.png"]
    assert set(bad) == {"1.png"}


def test_an_empty_folder_ends_at_once(tmp_path, bad):
    with opened(tmp_path, bad) as stream, pytest.raises(EndOfStream, match="ended after 0 images"):
        stream.read(5)


def test_many_bad_files_do_not_hold_a_reader_beyond_its_time(tmp_path, bad):
    for number in range(50):
        put(tmp_path / f"{number}.txt", b"no")
    with opened(tmp_path, bad) as stream:
        assert stream.read(0) is None
        assert len(bad) == 1


def test_a_pace_is_kept(tmp_path, bad):
    for number in range(4):
        put(tmp_path / f"{number}.png", png())
    with opened(tmp_path, bad, fps=20) as stream:
        started = time.monotonic()
        assert len(read_all(stream)) == 4
        assert time.monotonic() - started >= 3 / 20


def test_a_closed_folder_shows_nothing_more(tmp_path, bad):
    put(tmp_path / "1.png", png())
    stream = opened(tmp_path, bad)
    stream.close()
    with pytest.raises(EndOfStream):
        stream.read(5)
    assert stream.state().phase == "closed"


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        Folder(tmp_path / "nothing")


@given(st.lists(st.binary(min_size=1, max_size=6).filter(lambda name: b"\0" not in name), unique=True))
def test_any_names_can_be_ordered_and_shown(names):
    texts = [os.fsdecode(name) for name in names]
    backwards = texts[::-1]
    assert sorted(texts, key=natural_order) == sorted(backwards, key=natural_order)
    for text in texts:
        as_text(text).encode("utf-8")
