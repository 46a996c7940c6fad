"""Frames for a device: folders, videos and cameras, good ones and bad ones."""

import os
import struct
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest
from device_parts import frame_of

from edge_hpcr.common.errors import UserError
from export.device.frames import EndOfFrames, Frame, Frames, LiveCamera, open_frames, shown_address

ROOT = Path(__file__).parent.parent


def write(path: Path, name: str = "red") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), cv2.cvtColor(frame_of(name), cv2.COLOR_RGB2BGR))


def all_of(frames: Frames) -> list[Frame]:
    shown = []
    try:
        while True:
            frame = frames.read(1.0)
            if frame is not None:
                shown.append(frame)
    except EndOfFrames:
        return shown
    finally:
        frames.close()


def next_of(frames: Frames, seconds: float = 20.0) -> Frame:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (frame := frames.read(0.2)) is not None:
            return frame
    raise AssertionError("no frame came in time")


def test_a_folder_is_shown_in_natural_order_and_in_its_colours(tmp_path: Path):
    for name in ("img10.png", "img9.png", "sub/img1.JPG"):
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_text("no image")
    said: list[str] = []
    shown = all_of(open_frames(str(tmp_path), said.append))
    assert [Path(frame.origin).name for frame in shown] == ["img9.png", "img10.png", "img1.JPG"]
    assert shown[0].image.dtype == np.uint8
    assert (shown[0].image == frame_of("red")).all()
    assert said == []


def test_bad_images_are_told_and_left_out(tmp_path: Path):
    write(tmp_path / "good.png")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "half.png").write_bytes((tmp_path / "good.png").read_bytes()[:20])
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    said: list[str] = []
    assert len(all_of(open_frames(str(tmp_path), said.append))) == 1
    assert sorted(line.partition(":")[0].rpartition("/")[2] for line in said) == [
        "empty.png",
        "half.png",
        "pipe.png",
        "text.jpg",
    ]


def test_a_folder_without_images_is_the_wrong_one_unless_it_is_watched(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(UserError, match="there is no image in it"):
        open_frames(str(tmp_path), print)
    watched = open_frames(str(tmp_path), print, watch=True)
    assert watched.read(0.01) is None
    watched.close()


def test_a_file_name_that_is_not_utf8_is_shown_readably(tmp_path: Path):
    write(tmp_path / "a.png")
    os.rename(bytes(tmp_path / "a.png"), bytes(tmp_path) + b"/\xff.png")  # noqa: PTH104
    (frame,) = all_of(open_frames(str(tmp_path), print))
    assert frame.origin.endswith("/\\xff.png")


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path):
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()
    said: list[str] = []
    frames = open_frames(str(tmp_path), said.append, watch=True)
    with (tmp_path / "growing.png").open("wb", buffering=0) as file:
        deadline = time.monotonic() + 1.5  # several looks at the folder
        while time.monotonic() < deadline:
            if file.tell() < len(data) // 2:
                file.write(data[file.tell() : file.tell() + 10])
            else:
                os.utime(tmp_path / "growing.png")
            assert frames.read(0.01) is None
        file.write(data[file.tell() :])
    assert (next_of(frames).image == image).all()
    frames.close()
    assert said == []


def test_a_watched_folder_shows_what_comes(tmp_path: Path):
    write(tmp_path / "a.png", "red")
    os.utime(tmp_path / "a.png", (1, 1))
    said: list[str] = []
    frames = open_frames(str(tmp_path), said.append, watch=True)
    assert next_of(frames).origin.endswith("a.png")
    assert frames.read(0.01) is None
    write(tmp_path / "b.png", "blue")
    assert (next_of(frames).image == frame_of("blue")).all()
    write(tmp_path / "a.png", "green")
    assert (next_of(frames).image == frame_of("green")).all()
    frames.close()
    assert frames.read(5.0) is None
    assert said == []


def test_a_watched_folder_may_be_away_for_a_while(tmp_path: Path):
    folder = tmp_path / "images"
    write(folder / "a.png")
    os.utime(folder / "a.png", (1, 1))
    frames = open_frames(str(folder), print, watch=True)
    next_of(frames)
    folder.rename(tmp_path / "away")
    assert frames.read(0.4) is None
    (tmp_path / "away").rename(folder)
    write(folder / "b.png", "blue")
    shown = {next_of(frames).origin[-5:], next_of(frames).origin[-5:]}
    assert shown == {"a.png", "b.png"}
    frames.close()


def test_an_image_with_a_billion_pixels_is_refused_before_it_is_decoded(tmp_path: Path):
    # A PNG of a few bytes whose header promises 30,000 x 30,000 pixels.
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + body)
    program = (
        "import re, sys; from pathlib import Path; import export.device.runtime; from export.device.frames import *\n"
        "frames = open_frames(sys.argv[1], print)\n"
        "try: frames.read(1)\n"
        "except EndOfFrames: pass\n"
        # Not ru_maxrss: that begins with what the process held that started this one.
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    complaint, peak = done.stdout.splitlines()
    assert "bomb.png" in complaint
    assert int(peak) < 1_000_000, "kilobytes; its pixels alone would take 2.7 GB"


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "video.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, (64, 48))
    for name in ("red", "green", "blue"):
        writer.write(cv2.cvtColor(frame_of(name), cv2.COLOR_RGB2BGR))
    writer.release()
    return path


def test_every_frame_of_a_video_is_shown(video: Path):
    shown = all_of(open_frames(str(video), print))
    assert [int(frame.image.mean(axis=(0, 1)).argmax()) for frame in shown] == [0, 1, 2]


@pytest.mark.parametrize(
    "spec", ["nowhere", "x" * 300, "", "camera", "-1", "99999999", "ftp://host/x", "rtsp://", "http://a b"]
)
def test_a_source_that_is_none_is_refused(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        open_frames(spec, print)


def test_a_file_that_is_no_video_is_refused(tmp_path: Path):
    (tmp_path / "x.mp4").write_text("hello")
    with pytest.raises(UserError, match="not a video"):
        open_frames(str(tmp_path / "x.mp4"), print)


def test_only_a_folder_can_be_watched(video: Path):
    for spec in (str(video), "0", "rtsp://host/x"):
        with pytest.raises(UserError, match="--watch is for a folder"):
            open_frames(spec, print, watch=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://admin:secret@10.0.0.7:554/cam", "rtsp://10.0.0.7:554/cam"),
        ("rtsp://admin:p@ss/secret@host/cam?key=secret", "rtsp://host/cam?…"),
        ("HTTP://host/user=a&password=secret/x.mjpg", "http://host/…/x.mjpg"),
    ],
)
def test_nothing_secret_of_an_address_is_shown(url: str, shown: str):
    assert shown_address(url) == shown


def test_a_camera_that_cannot_be_opened_is_told_once_and_tried_again():
    said: list[str] = []
    tries = threading.Semaphore(0)

    def open_nothing() -> cv2.VideoCapture:
        tries.release()
        return cv2.VideoCapture()

    camera = LiveCamera("camera 7", open_nothing, said.append, waits=(0.01, 0.02))
    for _ in range(5):
        assert tries.acquire(timeout=20)
    assert camera.read(0.01) is None
    camera.close()
    assert said == ["camera 7: cannot be opened; tried again until it works, next in 0.01 s"]


def test_a_camera_that_comes_back_is_told_and_shows_its_newest_frame(video: Path):
    said: list[str] = []
    places = iter(["/nowhere", str(video), str(video)])
    camera = LiveCamera(
        "camera 0", lambda: cv2.VideoCapture(next(places, "/nowhere")), said.append, waits=(0.01,)
    )
    frame = next_of(camera)
    assert frame.image.shape == (48, 64, 3) and frame.origin == "camera 0"
    while len(said) < 3:
        camera.read(0.05)
    camera.close()
    assert "cannot be opened" in said[0]
    assert said[1] == "camera 0: works again"
    assert "sends no more frames" in said[2]


def test_closing_does_not_wait_for_a_camera_that_hangs():
    hangs = threading.Event()

    def hang() -> cv2.VideoCapture:
        hangs.wait(30)
        return cv2.VideoCapture()

    camera = LiveCamera("camera 0", hang, print)
    started = time.monotonic()
    camera.close()
    assert time.monotonic() - started < 5
    hangs.set()


def test_a_network_camera_is_read_over_a_real_socket_without_showing_its_password():
    jpeg = cv2.imencode(".jpg", cv2.cvtColor(frame_of("green"), cv2.COLOR_RGB2BGR))[1].tobytes()
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n".encode()
            try:
                while not stop.wait(0.02):
                    self.wfile.write(head + jpeg + b"\r\n")
            except OSError:
                return

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        said: list[str] = []
        frames = open_frames(
            f"http://user:secret@127.0.0.1:{server.server_address[1]}/cam?k=secret", said.append
        )
        frame = next_of(frames)
        stop.set()
        frames.close()
        server.shutdown()
    assert int(frame.image.mean(axis=(0, 1)).argmax()) == 1
    assert "secret" not in frame.origin + "".join(said)
