"""Passwords of cameras: out of the list of processes, and told when they are wrong, by a real RTSP server."""

import base64
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_parts import PIPE
from test_streams_network import QUICK, serving, wait_for

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import open_stream
from edge_hpcr.stream.camera import network_camera
from edge_hpcr.stream.passwords import VARIABLE, refusal, with_password

# Debian's gir1.2-gst-rtsp-server-1.0, python3-gi and gstreamer1.0-plugins-good, in the system's own Python.
SYSTEM_PYTHON = "/usr/bin/python3"
RTSP_SERVER = """
import sys
import gi
gi.require_version("Gst", "1.0"); gi.require_version("GstRtsp", "1.0"); gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer as Rtsp
Gst.init(None)
if sys.argv[1] == "try":
    sys.exit(0 if Gst.ElementFactory.find("jpegenc") and Gst.ElementFactory.find("rtpjpegpay") else 1)
server, factory, auth, token = Rtsp.RTSPServer(), Rtsp.RTSPMediaFactory(), Rtsp.RTSPAuth(), Rtsp.RTSPToken()
server.set_address("127.0.0.1")
server.set_service("0")
factory.set_launch(
    "( videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=10/1,format=I420 ! jpegenc"
    " ! rtpjpegpay name=pay0 pt=96 )"
)
token.set_string("media.factory.role", "user")
if sys.argv[1] == "digest":
    auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
    auth.add_digest("admin", "p@ss:w/rd", token)
else:
    auth.add_basic(Rtsp.RTSPAuth.make_basic("admin", "p@ss:w/rd"), token)
server.set_auth(auth)
permissions = Rtsp.RTSPPermissions()
permissions.add_role("user")
for name in ("access", "construct"):
    permissions.add_permission_for_role("user", f"media.factory.{name}", True)
factory.set_permissions(permissions)
server.get_mount_points().add_factory("/live", factory)
server.attach(None)
print(server.get_bound_port(), flush=True)
GLib.MainLoop().run()
"""


def _has_rtsp_server() -> bool:
    if not Path(SYSTEM_PYTHON).exists():
        return False
    tried = subprocess.run([SYSTEM_PYTHON, "-c", RTSP_SERVER, "try"], capture_output=True, timeout=60)
    return tried.returncode == 0


@contextmanager
def rtsp_camera(kind: str) -> Iterator[str]:
    """HOST:PORT/PATH of a camera that asks for admin and p@ss:w/rd."""
    with subprocess.Popen(
        [SYSTEM_PYTHON, "-c", RTSP_SERVER, kind], stdout=PIPE, stderr=subprocess.DEVNULL
    ) as server:
        try:
            assert server.stdout is not None
            yield f"127.0.0.1:{int(server.stdout.readline())}/live"
        finally:
            server.kill()


@pytest.fixture(params=["basic", "digest"])
def rtsp(request: pytest.FixtureRequest) -> Iterator[str]:
    if not _has_rtsp_server():
        pytest.skip("there is no GStreamer RTSP server: `make rtsp` installs one")
    with rtsp_camera(request.param) as place:
        yield place


@pytest.mark.slow
def test_a_wrong_password_is_said_by_the_camera_and_the_right_one_from_a_file_opens_it(
    rtsp: str, tmp_path: Path
):
    (tmp_path / "password").write_text("admin:p@ss:w/rd\n")
    good = with_password(f"rtsp://{rtsp}", tmp_path / "password")
    with network_camera(good) as camera:
        frame = camera.read(60)
        assert frame is not None and frame.image.shape == (48, 64, 3)
        assert camera.name == frame.origin == f"rtsp://{rtsp}"
    for url, why in (
        (f"rtsp://admin:wr0ng@{rtsp}", "the camera refuses the user name or the password"),
        (f"rtsp://{rtsp}", "the camera wants a user name and a password"),
    ):
        with network_camera(url, QUICK) as camera:
            wait_for(lambda camera=camera: camera.state().phase == "reconnecting")
            assert why in camera.state().message and "wr0ng" not in camera.state().message
    assert refusal(good, 10) is None, "what is wrong then is not the password"


def test_a_wrong_password_of_an_http_camera_is_said_too():
    with serving() as server:
        server.password = base64.b64encode(b"admin:s3cret")
        place = server.url.removeprefix("http://")
        assert refusal(f"http://admin:s3cret@{place}", 10) is None
        assert "refuses" in (refusal(f"http://admin:wrong@{place}", 10) or "")
        assert "wants" in (refusal(f"http://{place}", 10) or "")
        with network_camera(f"http://admin:wrong@{place}", QUICK) as camera:
            wait_for(lambda: "refuses the user name or the password" in camera.state().message)


def test_a_camera_that_is_not_there_has_no_trouble_with_its_password():
    assert refusal("rtsp://u:p@127.0.0.1:9/live", 5) is None


@pytest.mark.parametrize(
    ("source", "secret", "joined"),
    [
        ("rtsp://cam/1", "admin:s3cret", "rtsp://admin:s3cret@cam/1"),
        ("rtsp://cam/1", "admin:p@ss:w/rd", "rtsp://admin:p%40ss%3Aw%2Frd@cam/1"),
        ("rtsp://admin@cam:554/1?x=a@b", "s3:cret", "rtsp://admin:s3%3Acret@cam:554/1?x=a@b"),
        ("http://cam", "a:b", "http://a:b@cam"),
    ],
)
def test_a_password_from_a_file_or_a_variable_is_put_into_the_address(
    source: str, secret: str, joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text(secret + "\n")
    assert with_password(source, tmp_path / "file") == joined
    assert with_password(source, None) == source
    monkeypatch.setenv(VARIABLE, secret)
    assert with_password(source, None) == joined
    assert with_password("workbench", None) == "workbench", "the variable may be for other starts"


@pytest.mark.parametrize(
    ("source", "secret", "why"),
    [
        ("rtsp://cam/1", "onlyapassword", "write user:password into it"),
        ("rtsp://cam/1", "", "write user:password into it"),
        ("rtsp://u:p@cam/1", "s3cret", "holds a password already"),
        ("0", "a:b", "for the address of a camera"),
    ],
)
def test_a_password_that_fits_no_address_is_refused_and_not_repeated(
    source: str, secret: str, why: str, tmp_path: Path
):
    (tmp_path / "file").write_text(secret)
    with pytest.raises(UserError, match=why) as caught:
        with_password(source, tmp_path / "file")
    assert not secret or secret not in str(caught.value).replace(str(tmp_path), "")


def test_a_password_file_that_is_not_there_is_one_line(tmp_path: Path):
    with pytest.raises(UserError, match=r"--camera-password .*No such file"):
        with_password("rtsp://cam/1", tmp_path / "nowhere")


@pytest.mark.parametrize("path", ["/dev/video97", "/dev/v4l/by-id/usb-Some_Camera-video-index0"])
def test_a_camera_by_its_file_is_waited_for_by_its_name(path: str):
    with open_stream(path) as camera:
        assert camera.name == path and camera.live
        wait_for(lambda: camera.state().phase == "reconnecting")
        assert re.search("cannot open|there is no camera", camera.state().message)


def test_another_file_of_dev_is_no_camera():
    with pytest.raises(UserError):
        open_stream("/dev/video1/../null").read(1)
