"""Cameras: reopened by rule whatever they do, behind addresses whose passwords nobody sees.

They are a real motion-JPEG server on a real socket that misbehaves on demand.
"""

import base64
import threading

import numpy as np
import pytest
from process_parts import until
from stream_parts import QUICK, serving

from edge_hpcr.commands import cli
from edge_hpcr.common.text import shown_address
from edge_hpcr.stream import SOURCE_VARIABLE, open_stream
from edge_hpcr.stream.camera import SCHEMES, network_camera
from export import runtime


@pytest.fixture
def server():
    with serving() as running:
        yield running


def phase(camera) -> str:
    return camera.state().phase


# In the network -------------------------------------------------------------------------------------------------------


def test_a_network_camera_delivers_rgb_frames_of_any_size_and_the_newest_first(server):
    with open_stream(server.url) as camera:
        frame = camera.read(20)
        assert frame.image.shape == (48, 64, 3) and frame.image.dtype == np.uint8
        assert (
            frame.image[:, :16, 0].min() > 180 and frame.image[:, 48:, 2].min() > 180
        )  # red left, blue right
        assert (frame.origin, frame.label, frame.digest) == (server.url, None, None)
        assert camera.live and phase(camera) == "live"
        until(lambda: camera.state().frames >= 10)
        assert camera.state().dropped > 0
        server.size = (96, 80)
        until(lambda: camera.state().size == (96, 80))
        camera.read(0)
        assert camera.read(20).image.shape == (80, 96, 3)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["hangs", "refuses", "half", "cut"])
def test_a_camera_in_trouble_is_reopened_until_it_is_well(server, trouble):
    with network_camera(server.url, QUICK) as camera:
        until(lambda: phase(camera) == "live")
        server.mood = trouble
        until(lambda: phase(camera) == "reconnecting")
        assert (camera.state().bad > 0) == (trouble == "half")
        assert camera.state().message.startswith("reconnecting: ")
        server.mood = "well"
        until(lambda: phase(camera) == "live")
        camera.read(0)
        assert camera.read(20).image.shape == (48, 64, 3)


# Passwords ------------------------------------------------------------------------------------------------------------


def test_credentials_reach_the_camera_and_nobody_else(server):
    url = server.url.replace("http://", "http://admin:s3cret@") + "?token=s3cret2"
    server.password = base64.b64encode(b"admin:s3cret")
    with network_camera(url, QUICK) as camera:
        seen = [camera.name, camera.read(20).origin]
        server.mood = "refuses"
        until(lambda: phase(camera) == "reconnecting")
        seen += [camera.state().message, *(thread.name for thread in threading.enumerate())]
    assert not [text for text in seen if "s3cret" in text or "admin" in text]
    assert seen[0] == server.url + "?…"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://u:p@cam.local/live", "rtsp://cam.local/live"),
        ("rtsp://u:p@ss/wo#rd?x@cam/live", "rtsp://cam/live"),  # not escaped as it should be
        ("rtsp://cam/user=a&password=b/1", "rtsp://cam/…/1"),
        ("https://[fe80::1]:8080/x?user=a&pwd=b#c", "https://[fe80::1]:8080/x?…"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url, shown):
    assert shown_address(url, SCHEMES) == shown


def test_an_address_may_come_from_the_environment_which_others_cannot_read(
    tmp_path, monkeypatch, capsys, own_signals
):
    monkeypatch.setenv(SOURCE_VARIABLE, "nowhere/at/all")
    assert cli.main(["learn", "--workspace", str(tmp_path / "w")]) == 2
    assert runtime.main(["--models", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("there is no source 'nowhere/at/all'") == 2


def test_an_address_that_answers_with_a_playlist_is_no_camera_and_nothing_in_it_is_opened(server):
    server.text = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/secret.mp4\n"
    with network_camera(server.url, QUICK) as camera:
        until(lambda: phase(camera) == "reconnecting")
        assert camera.state().frames == 0
    assert set(server.asked) == {"/video"}
