"""What a person may write as a source: folders, watched folders and videos. Cameras have a file of their own."""

import os
import time
from pathlib import Path

import pytest
from process_parts import until
from stream_parts import FRAMES, packets, png, put, write_video

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import EndOfStream, open_stream
from edge_hpcr.stream.camera import Camera
from edge_hpcr.stream.captures import Video, open_ffmpeg
from edge_hpcr.stream.image_folder import Folder, WatchedFolder
from edge_hpcr.stream.workbench import Workbench


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "film.avi"
    write_video(path)
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def bad():
    """What was reported as bad: names of files, as often as they were."""
    return []


def opened(spec: object, bad: list[str], **options):
    return open_stream(str(spec), on_bad_file=lambda path, reason: bad.append(path.name), **options)


def read_all(stream) -> list:
    frames = []
    while True:
        try:
            frame = stream.read(5)
        except EndOfStream:
            return frames
        assert frame is not None
        frames.append(frame)


def names(frames: list) -> list[str]:
    return [Path(frame.origin).name for frame in frames]


# What may be written ------------------------------------------------------------------------------------------------


def test_each_kind_of_source_is_recognised(tmp_path, video):
    kinds = [
        ("97", Camera, "camera 97"),
        ("/dev/video97", Camera, "/dev/video97"),
        ("rtsp://127.0.0.1:9/x", Camera, "rtsp://127.0.0.1:9/x"),
        ("https://u:p@127.0.0.1:9/x", Camera, "https://127.0.0.1:9/x"),
        (str(video), Video, str(video)),
        (str(tmp_path), Folder, str(tmp_path)),
        (f"watch:{tmp_path}", WatchedFolder, str(tmp_path)),
        ("workbench", Workbench, "workbench"),
    ]
    for spec, kind, name in kinds:
        with open_stream(spec) as stream:
            assert type(stream) is kind and stream.name == name
            assert stream.live == (kind in (Camera, Workbench))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "rtsp://"),  # all kinds are listed
        ("watch:", "rtsp://"),
        ("nothing", "rtsp://"),
        ("x\0y", "rtsp://"),
        ("watch:rtsp://u:s3cret@host/", "rtsp://"),
        ("ftp://u:s3cret@host/", "rtsp://"),
        ("http://u:s3cret@host:port/", "address"),
        ("http://u:s3cret\n@host/", "address"),
    ],
)
def test_what_cannot_be_a_source_is_refused_in_one_line_without_its_secrets(
    spec, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        open_stream(spec)
    assert "\n" not in str(caught.value) and "s3cret" not in str(caught.value)


# Folders --------------------------------------------------------------------------------------------------------------


def test_images_come_in_natural_order_with_the_classes_of_their_folders(tmp_path, bad):
    for name in ["img10.png", "img9.png", "mug/2.png", "mug/10.png", "mug/deep/1.png", "cup/1.png"]:
        put(tmp_path / name, png(90))
    with opened(tmp_path, bad, labels="folders") as stream:
        frames = read_all(stream)
        assert stream.state().phase == "ended" and stream.state().size == (7, 5)
    assert [(os.path.relpath(frame.origin, tmp_path), frame.label) for frame in frames] == [
        ("cup/1.png", "cup"),
        ("img9.png", None),
        ("img10.png", None),
        ("mug/2.png", "mug"),
        ("mug/10.png", "mug"),
        ("mug/deep/1.png", "mug"),
    ]
    assert (frames[0].image == 90).all() and len(frames[0].digest) == 64 and bad == []
    with opened(tmp_path, bad) as stream:
        assert {frame.label for frame in read_all(stream)} == {None}


def test_bad_files_and_links_that_lead_out_are_reported_and_the_stream_goes_on(tmp_path, bad):
    folder, secret = tmp_path / "in", put(tmp_path / "outside" / "secret.png", png())
    put(folder / "1.png", png())
    put(folder / "2.txt", b"not an image")
    put(folder / "3.png", png()[:-30])
    os.mkfifo(folder / "4.png")  # reading it would wait for ever
    (folder / "5.png").symlink_to(secret)
    (folder / "6").symlink_to(secret.parent)
    (folder / "7.png").symlink_to("7.png")
    (folder / "8.png").symlink_to("1.png")
    put(folder / ".git" / "1.png", png())
    with opened(folder, bad) as stream:
        assert names(read_all(stream)) == ["1.png", "8.png"]
        assert (stream.state().frames, stream.state().bad) == (2, 6)
    assert bad == ["2.txt", "3.png", "4.png", "5.png", "6", "7.png"]


# Watched folders ------------------------------------------------------------------------------------------------------


def silent(stream) -> bool:
    """Whether nothing comes although it looks again, and after a file would have settled."""
    return stream.read(2.5) is None


@pytest.mark.slow
def test_a_watched_folder_shows_what_is_there_and_then_each_new_version_once(folder, bad):
    for number in (10, 9):
        put(folder / f"{number}.png", png(number))
    with opened(f"watch:{folder}", bad) as stream:
        assert names([stream.read(20), stream.read(20)]) == ["9.png", "10.png"]
        put(folder / "9.png", png(1))
        put(folder / "new" / "1.png", png(2))
        assert sorted(names([stream.read(20), stream.read(20)])) == ["1.png", "9.png"]
        assert silent(stream) and not stream.live
        assert (stream.state().phase, stream.state().frames, bad) == ("live", 4, [])


@pytest.mark.slow
def test_a_file_that_is_being_written_is_taken_when_it_has_settled(folder, bad):
    data = png(5)
    with opened(f"watch:{folder}", bad) as stream, (folder / "1.png").open("wb") as file:
        for place in range(0, len(data), 1 + len(data) // 10):
            file.write(data[place : place + 1 + len(data) // 10])
            file.flush()
            assert stream.read(0.2) is None
        assert stream.read(20).image[0, 0, 0] == 5
    assert bad == []


@pytest.mark.slow
def test_a_watched_folder_that_disappears_is_watched_again_when_it_comes_back(folder, tmp_path, bad):
    put(folder / "1.png", png(1))
    with opened(f"watch:{folder}", bad) as stream:
        assert stream.read(20) is not None
        folder.rename(tmp_path / "away")
        until(lambda: stream.read(0.1) is None and stream.state().phase == "reconnecting")
        assert f"{folder} has disappeared" in stream.state().message
        (tmp_path / "away").rename(folder)
        assert silent(stream), "nothing comes twice"
        put(folder / "2.png", png(2))
        assert names([stream.read(20)]) == ["2.png"]
    assert bad == []


# Videos ---------------------------------------------------------------------------------------------------------------


def reds(stream) -> list[int]:
    """The red of each frame, in the numbering of `write_video`."""
    return [round(float(frame.image[..., 0].mean()) / 20) for frame in read_all(stream)]


@pytest.mark.parametrize(("name", "code"), [("film.avi", "MJPG"), ("film.mp4", "mp4v")])
def test_every_frame_of_a_video_is_delivered_in_order_and_then_it_ends(tmp_path, name, code):
    write_video(tmp_path / name, code)
    with open_stream(str(tmp_path / name)) as stream:
        assert stream.read(5) is not None
        time.sleep(0.3)  # longer than the film's own pace: a slow reader misses nothing
        assert reds(stream) == list(range(1, FRAMES))
        state = stream.state()
        assert (state.phase, state.frames, state.dropped, state.bad) == ("ended", FRAMES, 0, 0)
        assert state.size == (64, 48)


def test_of_a_damaged_or_cut_video_the_rest_is_delivered_and_the_loss_is_said(video):
    data = bytearray(video.read_bytes())
    places = packets(bytes(data))
    data[places[5] + 8 : places[6]] = b"\x55" * (places[6] - places[5] - 8)
    video.write_bytes(data)
    with Video(video) as stream:
        assert reds(stream) == [number for number in range(FRAMES) if number != 5]
        assert stream.state().bad == 1
    video.write_bytes(data[: places[4]])
    with Video(video) as stream:
        assert reds(stream) == list(range(4))
        assert stream.state().message == "ended after 4 of 12 frames"


@pytest.mark.parametrize(
    "contents",
    [
        b"root:x:0:0:root:/root:/bin/bash\n" * 15,  # FFmpeg would draw it, letter by letter
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/passwd\n",
    ],
    ids=["text", "playlist"],
)
def test_a_file_that_is_no_video_is_refused_when_it_is_opened(tmp_path, contents):
    path = put(tmp_path / "film.avi", contents)
    with pytest.raises(UserError, match="cannot be read as a video"):
        open_stream(str(path))
    assert not open_ffmpeg(str(path)).is_open()
