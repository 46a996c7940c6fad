"""Cameras by address, against a real motion-JPEG server on a real socket that misbehaves on demand."""

import base64
import contextlib
import http.server
import os
import socket
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest
from process_parts import PIPE, started

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import shown_address
from edge_hpcr.stream import open_stream, rules
from edge_hpcr.stream.camera import SCHEMES, Patience, network_camera

QUICK = Patience(stall_seconds=0.5, give_up_seconds=2.0, waits=(0.05,))


def jpeg(value: int, width: int, height: int) -> bytes:
    """Red on the left, blue on the right."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, : width // 2, 2] = value  # in OpenCV's order of colours
    image[:, width // 2 :, 0] = value
    return cv2.imencode(".jpg", image)[1].tobytes()


def assert_colours_are_right(image: np.ndarray):
    half = image.shape[1] // 2
    for part, colour in ((image[:, : half - 16], 0), (image[:, half + 16 :], 2)):
        assert part[..., colour].min() > 180
        assert np.delete(part, colour, axis=2).max() < 20


class MotionJpeg(http.server.ThreadingHTTPServer):
    """Sends frames of `size` for ever; `mood` is what it does next, to every connection."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Connection)
        self.mood, self.size, self.connections = "well", (64, 48), 0
        self.password: bytes | None = None  # asked for, if there is one
        self.first_frames: int | None = None  # after so many, the first connection sends nothing more
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/video"


class _Connection(http.server.BaseHTTPRequestHandler):
    server: MotionJpeg

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        server.connections += 1
        self.left = server.first_frames if server.connections == 1 else None
        if server.password and self.headers.get("Authorization") != f"Basic {server.password.decode()}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            self.end_headers()
            return
        if server.mood == "refuses":
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=edge")
        self.end_headers()
        try:
            while not server.stopping.wait(0.02) and server.mood not in ("cut", "refuses"):
                self._send_one()
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _send_one(self):
        if self.server.mood == "hangs" or self.left == 0:
            return
        self.left = None if self.left is None else self.left - 1
        data = jpeg(200, *self.server.size)
        if self.server.mood == "garbage":
            data = b"this is no picture" * 50
        if self.server.mood == "half":
            data = data[: len(data) // 2]
        head = f"--edge\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
        self.wfile.write(head.encode() + data + b"\r\n")


@contextlib.contextmanager
def serving():
    with MotionJpeg() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.stopping.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def server():
    with serving() as running:
        yield running


def wait_for(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def is_live(camera) -> bool:
    return camera.state().phase == "live"


def test_a_network_camera_delivers_rgb_frames(server):
    with open_stream(server.url) as camera:
        frame = camera.read(20)
        assert frame.image.shape == (48, 64, 3) and frame.image.dtype == np.uint8
        assert_colours_are_right(frame.image)
        assert (frame.origin, frame.label, frame.digest) == (server.url, None, None)
        assert abs(frame.at - time.time()) < 30
        assert camera.live and is_live(camera) and camera.state().size == (64, 48)


@pytest.mark.slow
def test_a_camera_that_hangs_is_stalled_and_comes_back(server):
    with network_camera(server.url, QUICK) as camera:
        wait_for(lambda: is_live(camera))
        server.mood = "hangs"
        wait_for(lambda: camera.state().phase == "stalled")
        assert camera.state().message.startswith("stalled for ")
        wait_for(lambda: camera.state().phase == "reconnecting")
        server.mood = "well"
        wait_for(lambda: is_live(camera))
        assert server.connections > 1


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["cut", "refuses", "garbage", "half"])
def test_a_camera_in_trouble_is_reopened_until_it_is_well(server, trouble):
    with network_camera(server.url, QUICK) as camera:
        wait_for(lambda: is_live(camera))
        server.mood = trouble
        wait_for(lambda: camera.state().phase == "reconnecting")
        bad = camera.state().bad
        assert bad > 0 if trouble in ("garbage", "half") else bad == 0
        server.mood = "well"
        wait_for(lambda: is_live(camera))
        camera.read(0)
        assert camera.read(20).image.shape == (48, 64, 3)


def test_a_change_of_the_frame_size_is_seen_at_once_and_not_scaled_away(server):
    with network_camera(server.url, QUICK) as camera:
        wait_for(lambda: camera.state().size == (64, 48))
        server.size = (96, 80)
        wait_for(lambda: camera.state().size == (96, 80))
        camera.read(0)
        assert camera.read(20).image.shape == (80, 96, 3)


def test_a_slow_consumer_gets_the_newest_frame_and_the_rest_is_counted(server):
    with network_camera(server.url, QUICK) as camera:
        wait_for(lambda: camera.state().frames >= 10)
        assert camera.read(20) is not None
        state = camera.state()
        assert 9 <= state.dropped <= state.frames - 1


def test_a_camera_that_is_not_there_yet_is_live_once_it_is(server):
    server.mood = "refuses"
    with network_camera(server.url, QUICK) as camera:
        wait_for(lambda: camera.state().phase == "reconnecting")
        assert camera.read(0.01) is None
        server.mood = "well"
        assert camera.read(20) is not None


@pytest.mark.slow
def test_closing_a_camera_that_hangs_is_prompt(server):
    camera = network_camera(server.url)
    wait_for(lambda: is_live(camera))
    server.mood = "hangs"
    camera.read(1)
    started = time.monotonic()
    camera.close()
    assert time.monotonic() - started < 8


def test_credentials_reach_the_camera_and_nobody_else(server):
    url = server.url.replace("http://", "http://admin:s3cret@") + "?token=s3cret2"
    server.password = base64.b64encode(b"admin:s3cret")
    with network_camera(url, QUICK) as camera:
        seen = [camera.name, camera.read(20).origin]
        server.mood = "refuses"
        wait_for(lambda: camera.state().phase == "reconnecting")
        seen += [camera.state().message, *(thread.name for thread in threading.enumerate())]
    assert not [text for text in seen if "s3cret" in text or "admin" in text]
    assert seen[0] == server.url + "?…"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://u:p@cam.local/live", "rtsp://cam.local/live"),
        ("RTSP://cam.local:554/live/2", "rtsp://cam.local:554/live/2"),
        ("rtsp://u:p@ss/wo#rd?x@cam/live", "rtsp://cam/live"),  # not escaped as it should be
        ("rtsp://cam/user=a&password=b/1", "rtsp://cam/…/1"),
        ("https://[fe80::1]:8080/x?user=a&pwd=b#c", "https://[fe80::1]:8080/x?…"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url, shown):
    assert shown_address(url, SCHEMES) == shown


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://u:s3cret@",
        "http://admin:s3cret",
        "http://u:s3cret@host:port/",
        "rtsp://u:s3cret@host..name/",
        "http://u:s3cret@ho st/",
        "http://u:s3cret\n@host/",
        "ftp://u:s3cret@host/",
        "http://u:s3cret@host/\udce9",  # a byte of the command line that is not UTF-8: OpenCV would crash
    ],
)
def test_a_wrong_address_is_refused_in_one_line_without_its_secrets(url):
    with pytest.raises(UserError) as caught:
        open_stream(url)
    assert "s3cret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_camera_that_does_not_exist_reconnects_quietly_and_the_process_ends_well():
    program = """
import sys, time
from edge_hpcr.stream import open_stream, rules
for spec in ("97", "http://admin:s3cret@127.0.0.1:9/x"):
    stream = open_stream(spec)
    deadline = time.monotonic() + 30
    while stream.state().phase != "reconnecting" and time.monotonic() < deadline:
        stream.read(0.01)
    print(stream.name, "|", stream.state().message.split(",")[0])
    started = time.monotonic()
    stream.close()
    assert time.monotonic() - started < 8
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "camera 97 | reconnecting: cannot open",
        "http://127.0.0.1:9/x | reconnecting: cannot open",
    ]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("mood", ["well", "hangs"])
def test_a_process_that_forgets_to_close_its_camera_ends_well(server, mood):
    program = """
import sys
from edge_hpcr.stream import open_stream, rules
stream = open_stream(sys.argv[1])
assert stream.read(30) is not None
print("live", flush=True)
sys.stdin.readline()
"""
    with started("-c", program, server.url, stdin=PIPE) as child:
        assert child.stdout.readline() == "live\n"
        server.mood = mood
        child.stdin.close()
        assert child.wait(60) == 0


# Where an address may lead ------------------------------------------------------------------------------------------


class _Answers(http.server.BaseHTTPRequestHandler):
    """Says `server.answer` to everybody: a text, or (with a colon in front) another address to go to."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.answer
        self.send_response(302 if answer.startswith(":") else 200)
        if answer.startswith(":"):
            self.send_header("Location", answer[1:])
        self.end_headers()
        self.wfile.write(answer.encode())


@pytest.fixture
def teller():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as serving:
        serving.answer, serving.asked = "", []
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        serving.shutdown()


@pytest.mark.parametrize(
    "answer",
    [
        "a secret, line by line\n" * 30,
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/secret.mp4\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 26\n",
    ],
    ids=["text", "playlist", "session description"],
)
def test_an_address_that_answers_with_text_is_no_camera(teller, answer):
    teller.answer = answer
    with network_camera(f"http://127.0.0.1:{teller.server_port}/x", QUICK) as camera:
        wait_for(lambda: camera.state().phase == "reconnecting")
        assert camera.state().message.startswith("reconnecting: cannot open") and camera.state().frames == 0
    assert set(teller.asked) == {"/x"}


REDIRECTED = """
import sys
from edge_hpcr.stream.camera import Patience, network_camera
from edge_hpcr.stream.captures import refuse_redirects
if sys.argv[2] == "refused":
    refuse_redirects()
with network_camera(sys.argv[1], Patience(0.5, 2.0, (0.05,))) as camera:
    print(camera.read(float(sys.argv[3])) is not None)
"""


@pytest.mark.slow
def test_a_redirection_is_followed_only_where_every_address_is_allowed(teller, server):
    teller.answer = f":{server.url}"
    for rule, seconds, seen in (("followed", 30, "True\n"), ("refused", 1, "False\n")):
        address = f"http://127.0.0.1:{teller.server_port}/x"
        done = subprocess.run(
            [sys.executable, "-c", REDIRECTED, address, rule, str(seconds)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (seen, "")
    assert len(teller.asked) >= 2


def test_an_rtsp_camera_is_spoken_to():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        with network_camera(f"rtsp://127.0.0.1:{listening.getsockname()[1]}/live", QUICK):
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(30)
                assert connection.recv(100).startswith(b"OPTIONS rtsp://127.0.0.1:")


def test_a_name_that_leads_elsewhere_later_is_refused_when_it_is_opened_again(server, monkeypatch):
    """The name is looked up for every opening: at first it may have been a public one."""
    addresses = iter(["8.8.8.8"])

    def look_up(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(addresses, "127.0.0.1"), 0))]

    monkeypatch.setattr(rules.socket, "getaddrinfo", look_up)
    options = "OPENCV_FFMPEG_CAPTURE_OPTIONS"  # which such a camera changes for the whole process
    monkeypatch.setenv(options, os.environ[options])
    with network_camera(server.url, QUICK, rules.Rules(private=False)) as camera:
        wait_for(lambda: camera.state().phase == "reconnecting")
        assert "is an address of this machine or its network" in camera.state().message
    assert server.connections == 0
