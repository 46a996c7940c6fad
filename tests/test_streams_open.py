"""What a person may write as a source, and the digits that are always there."""

import subprocess
import sys
import threading
import time
from itertools import islice

import cv2
import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import EndOfStream, Rules, open_stream
from edge_hpcr.stream.camera import Camera
from edge_hpcr.stream.digits import Digits
from edge_hpcr.stream.folder import Folder
from edge_hpcr.stream.video import Video
from edge_hpcr.stream.watched import WatchedFolder
from edge_hpcr.stream.workbench import Workbench


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    writer.write(np.zeros((48, 64, 3), np.uint8))
    writer.release()
    return path


def test_each_kind_of_source_is_recognised(tmp_path, video):
    kinds = [
        ("97", Camera, "camera 97"),
        ("rtsp://127.0.0.1:9/x", Camera, "rtsp://127.0.0.1:9/x"),
        ("https://u:p@127.0.0.1:9/x", Camera, "https://127.0.0.1:9/x"),
        (str(video), Video, str(video)),
        (str(tmp_path), Folder, str(tmp_path)),
        (f"watch:{tmp_path}", WatchedFolder, str(tmp_path)),
        ("digits", Digits, "digits"),
        ("workbench", Workbench, "workbench"),
    ]
    for spec, kind, name in kinds:
        with open_stream(spec) as stream:
            assert type(stream) is kind and stream.name == name
            assert stream.live == (kind in (Camera, Digits, Workbench))


@pytest.mark.parametrize(
    "spec", ["", "watch:", "nothing", "-1", "1.5", "²", "workbench:x", "no/such/film.avi", "x\0y", "n" * 5000]
)
def test_an_unknown_source_is_refused_in_one_line_that_lists_the_kinds(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        open_stream(spec)
    message = str(caught.value)
    assert "\n" not in message
    for kind in ("camera's number", "rtsp://", "video file", "folder", "watch:FOLDER", "workbench", "digits"):
        assert kind in message


@pytest.mark.parametrize(
    ("spec", "options", "complaint"),
    [
        ("digits", {"labels": "names"}, "unknown labels 'names'"),
        ("digits", {"fps": 0}, "fps must be"),
        ("digits", {"fps": float("nan")}, "fps must be"),
        ("0", {"fps": 5}, "fps is for"),
        ("0", {"labels": "folders"}, "labels from folders need a folder"),
        ("12345", {}, "no camera with the number 12345"),
        ("watch:0", {}, "no such folder"),
        ("watch:rtsp://u:s3cret@host/", {}, "^only a folder can be watched, and not an address$"),
        ("watch:" + "n" * 5000, {}, "cannot be read: File name too long"),
        ("ftp://u:s3cret@host/", {}, "unknown kind of source ftp://: give"),
    ],
)
def test_what_makes_no_sense_is_refused(spec, options, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=complaint):
        open_stream(spec, **options)


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path, video):
    """A folder that is allowed, with a link out of it, and one that is not."""
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    (allowed / "photos").mkdir(parents=True)
    other.mkdir()
    (allowed / "link").symlink_to(other)
    (allowed / "film.avi").write_bytes(video.read_bytes())
    return allowed


@pytest.mark.parametrize("spec", ["{}", "{}/photos", "watch:{}/photos", "{}/film.avi", "{}/photos/../photos"])
def test_a_source_below_an_allowed_folder_is_opened(places, spec):
    open_stream(spec.format(places), rules=Rules((places.parent / "none", places))).close()


@pytest.mark.parametrize(
    "spec",
    [
        "{}/../other",
        "watch:{}/../other",
        "{}/link",
        "watch:{}/link",
        "{}/../film.avi",
        "{}/../nothing",
        "/etc/passwd",
    ],
)
def test_a_source_elsewhere_is_refused_whether_or_not_it_exists(places, spec):
    with pytest.raises(
        UserError, match=r"is not below .*allowed: other places are not allowed as a source here"
    ):
        open_stream(spec.format(places), rules=Rules((places,)))


def test_what_is_no_file_is_not_below_a_folder_and_yet_allowed(tmp_path):
    for spec in ("digits", "workbench", "97"):
        open_stream(spec, rules=Rules((tmp_path,))).close()


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "10.1.2.3", "192.168.0.7:8080", "172.16.5.5", "169.254.169.254"),
        *(
            "0.0.0.0",
            "[::ffff:127.0.0.1]",
            "127.1",
            "2130706433",
            "0x7f.1",
            "[fe80::1]",
            "100.64.0.1",
            "224.0.0.1",
        ),
        *("8.8.8.8@127.0.0.1", "u:p@ss@127.0.0.1", "127.0.0.1/x@8.8.8.8"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "rtsp"])
def test_an_address_of_this_network_is_refused_where_only_public_ones_are_allowed(scheme, host):
    with pytest.raises(UserError) as caught:
        open_stream(f"{scheme}://{host}/x", rules=Rules(private=False))
    message = str(caught.value)
    assert "--allow-private-sources" in message and "\n" not in message and "p@ss" not in message


def test_a_public_rtsp_camera_is_refused_there_too_because_it_may_redirect_anywhere():
    with pytest.raises(UserError, match="RTSP camera may send its reader on"):
        open_stream("RTSP://8.8.8.8/x", rules=Rules(private=False))


def test_a_public_address_passes_and_a_private_one_where_it_is_allowed():
    Rules(private=False).check_address("http://user:secret@8.8.8.8:554/stream")
    Rules(private=False).check_address("http://[2001:4860:4860::8888]/stream")
    Rules().check_address("rtsp://192.168.0.7/stream")


def shown(stream, count: int) -> list:
    with stream:
        return list(islice(iter(lambda: stream.read(5), None), count))


def test_digits_come_in_a_seeded_order_with_or_without_their_names(digits):
    first = shown(Digits("folders", fps=1000), 20)
    assert {frame.label for frame in first} <= {str(digit) for digit in range(10)}
    assert len({frame.label for frame in first}) > 3  # shuffled, not one class after the other
    assert [frame.label for frame in shown(Digits(fps=1000), 2)] == [None, None]
    for frame in first:
        matches = (digits.train_images == frame.image).all(axis=(1, 2, 3))
        assert frame.label in {digits.class_names[label] for label in digits.train_labels[matches]}


def numbered(seed: int, count: int) -> list[np.ndarray]:
    stream = Digits(seed=seed)
    return [stream._frame(number).image for number in range(count)]


def test_the_order_of_the_digits_depends_on_the_seed_and_on_the_round(digits):
    size = len(digits.train_images)
    assert np.array_equal(numbered(1, 30), numbered(1, 30))
    assert not np.array_equal(numbered(1, 30), numbered(2, 30))
    two_rounds = np.stack(numbered(1, 2 * size))
    assert not np.array_equal(two_rounds[:size], two_rounds[size:])
    for turn in (two_rounds[:size], two_rounds[size:]):  # every digit once a round
        assert np.array_equal(turn.sum(axis=0, dtype=int), digits.train_images.sum(axis=0, dtype=int))


@pytest.mark.slow
def test_digits_keep_their_pace_and_pass_by_unseen():
    with Digits(fps=2) as stream:
        started = time.monotonic()
        assert stream.read(0) is not None  # the first one is there at once
        assert stream.read(0) is None
        assert stream.read(5) is not None
        assert time.monotonic() - started >= 1 / 2
    with Digits(fps=100) as stream:
        assert stream.read(0) is not None
        time.sleep(0.1)  # nobody looks
        assert stream.read(0) is not None
        state = stream.state()
        assert state.dropped >= 7 and state.frames == state.dropped + 2
        assert state.message == "live, 100.0 frames/s" and state.size == (8, 8)


def test_digits_come_twice_a_second_unless_told_otherwise():
    with open_stream("digits") as stream:
        assert stream.state().message == "live, 2.0 frames/s"


def test_a_caller_may_change_a_digit_without_changing_the_next_rounds():
    with Digits(fps=1000) as stream:
        stream._frame(0).image[:] = 255
        assert stream._frame(0).image.min() == 0


def test_close_wakes_a_reader_of_digits():
    stream = Digits(fps=0.01)
    stream.read(5)
    threading.Timer(0.05, stream.close).start()
    started = time.monotonic()
    with pytest.raises(EndOfStream):
        stream.read(60)
    assert time.monotonic() - started < 30 and stream.state().phase == "closed"


@pytest.mark.slow
def test_neither_the_streams_nor_the_device_load_what_only_a_trainer_has():
    program = (
        "import sys, edge_hpcr.stream, export.device.runtime\n"
        "heavy = {'torch', 'gradio', 'pandas', 'scipy', 'sklearn', 'sqlite3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
