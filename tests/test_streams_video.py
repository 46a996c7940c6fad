"""Video files, written by OpenCV and then damaged, cut or turned by hand."""

import os
import struct
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import EndOfStream, open_stream
from edge_hpcr.stream.captures import open_ffmpeg
from edge_hpcr.stream.video import Video

FRAMES = 12


def write_video(path, code: str = "MJPG") -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*code), 10, (64, 48))
    assert writer.isOpened()
    for number in range(FRAMES):
        image = np.zeros((48, 64, 3), np.uint8)
        image[..., 2] = 20 * number  # red, in OpenCV's order
        writer.write(image)
    writer.release()


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "film.avi"
    write_video(path)
    return path


def packets(data: bytes) -> list[int]:
    """Where the frames of the AVI file begin (its header and its index name them too)."""
    places, place = [], data.find(b"00dc", data.find(b"movi"))
    while 0 <= place < data.find(b"idx1"):
        places.append(place)
        place = data.find(b"00dc", place + 1)
    assert len(places) == FRAMES
    return places


def read_all(stream) -> list[int]:
    """The red of each frame, in the numbering of `write_video`."""
    reds = []
    while True:
        try:
            frame = stream.read(5)
        except EndOfStream:
            return reds
        assert frame.image.dtype == np.uint8 and frame.image[..., 1:].mean() < 10
        reds.append(round(float(frame.image[..., 0].mean()) / 20))


@pytest.mark.parametrize(("name", "code"), [("film.avi", "MJPG"), ("film.mp4", "mp4v")])
def test_every_frame_of_a_video_is_delivered_in_order_and_then_it_ends(tmp_path, name, code):
    path = tmp_path / name
    write_video(path, code)
    with open_stream(str(path)) as stream:
        assert not stream.live
        assert read_all(stream) == list(range(FRAMES))
        state = stream.state()
        assert (state.phase, state.frames, state.dropped, state.bad) == ("ended", FRAMES, 0, 0)
        assert state.size == (64, 48) and stream.name == str(path)
        with pytest.raises(EndOfStream, match="ended after 12 frames"):
            stream.read(0)


def test_a_damaged_frame_is_counted_and_the_others_are_delivered(video):
    data = bytearray(video.read_bytes())
    places = packets(bytes(data))
    data[places[5] + 8 : places[6]] = b"\x55" * (places[6] - places[5] - 8)
    video.write_bytes(data)
    with Video(video) as stream:
        assert read_all(stream) == [number for number in range(FRAMES) if number != 5]
        assert stream.state().bad == 1


def test_of_a_video_that_was_cut_short_the_rest_is_delivered_and_the_loss_is_said(video):
    data = video.read_bytes()
    video.write_bytes(data[: packets(data)[7]])
    with Video(video) as stream:
        assert read_all(stream) == list(range(7))
        assert stream.state().message == "ended after 7 of 12 frames"


def test_a_video_that_was_filmed_on_its_side_is_turned_upright(tmp_path):
    path = tmp_path / "film.mp4"
    write_video(path, "mp4v")
    data = bytearray(path.read_bytes())
    matrix = data.find(b"tkhd") + 44
    assert struct.unpack(">9i", data[matrix : matrix + 36])[:5] == (65536, 0, 0, 0, 65536)
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    with Video(path) as stream:
        assert stream.read(5).image.shape == (64, 48, 3)


def test_a_slow_consumer_misses_nothing(video):
    with Video(video) as stream:
        first = stream.read(5)
        time.sleep(0.3)  # longer than the film's own pace of ten frames a second
        assert len(read_all(stream)) == FRAMES - 1 and first is not None


@pytest.mark.slow
def test_a_pace_is_kept_without_losing_frames(video):
    with open_stream(str(video), fps=20) as stream:
        started = time.monotonic()
        assert len(read_all(stream)) == FRAMES
        assert time.monotonic() - started >= (FRAMES - 1) / 20


def test_close_ends_a_read_that_waits_for_its_pace(video):
    stream = open_stream(str(video), fps=0.01)
    stream.read(5)
    threading.Timer(0.05, stream.close).start()
    started = time.monotonic()
    with pytest.raises(EndOfStream):
        stream.read(100)
    assert time.monotonic() - started < 30 and stream.state().phase == "closed"


@pytest.mark.parametrize("contents", [b"", b"this is no film" * 500])
def test_a_file_that_is_no_video_is_refused_when_it_is_opened(tmp_path, contents):
    path = tmp_path / "film.avi"
    path.write_bytes(contents)
    with pytest.raises(UserError, match=r"film\.avi: cannot be read as a video"):
        open_stream(str(path))


@pytest.mark.parametrize(
    "contents",
    [
        b"root:x:0:0:root:/root:/bin/bash\n" * 15,  # FFmpeg would draw it, letter by letter
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"I'm free of any film, " * 30,  # its fifth letter begins the name of a part of MP4
        b"Good, but no transport stream. " * 30,
    ],
)
def test_a_text_is_no_video(tmp_path, contents):
    path = tmp_path / "notes.mp4"
    path.write_bytes(contents)
    with pytest.raises(UserError, match="cannot be read as a video"):
        open_stream(str(path))
    # Nor does FFmpeg take it, if its beginning had deceived us.
    assert not open_ffmpeg(str(path)).is_open()


@pytest.mark.parametrize(
    ("name", "code"),
    [("a.mkv", "MJPG"), ("a.mov", "mp4v"), ("a.ts", "mp4v"), ("a.flv", "FLV1"), ("a.wmv", "WMV2")],
)
def test_the_usual_containers_are_read(tmp_path, name, code):
    write_video(tmp_path / name, code)
    with open_stream(str(tmp_path / name)) as stream:
        assert stream.read(5).image.shape == (48, 64, 3)


def test_a_missing_video_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such video file"):
        Video(tmp_path / "film.avi")


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on Linux only")
def test_a_name_that_opencv_cannot_open_is_refused_instead_of_a_crash(video):
    # In a process of its own, because OpenCV ends the whole process.
    renamed = os.fsencode(video.parent) + b"/caf\xe9.avi"
    os.rename(video, renamed)  # noqa: PTH104
    program = "import sys; from edge_hpcr.stream import open_stream; open_stream(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, renamed], capture_output=True, timeout=60)
    assert done.returncode == 1 and b"not valid UTF-8" in done.stderr
