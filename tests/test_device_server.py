"""A device over HTTP: its newest frame and its health; limits and strangers."""

import base64
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator

import cv2
import fleet_parts
import numpy as np
import pytest
from device_parts import frame_of

from edge_hpcr.common.errors import UserError
from export.device import server as module
from export.device.health import Health
from export.device.server import DeviceServer, Handler


@pytest.fixture
def health() -> Health:
    return Health("cam-1", lambda text: None)


@pytest.fixture
def page(health: Health) -> Iterator[DeviceServer]:
    with contextlib.closing(DeviceServer(("127.0.0.1", 0), health)) as server:
        yield server


def ask(server: DeviceServer, path: str, **headers: str) -> tuple[int, bytes]:
    reply, content = fleet_parts.ask(server.port, path, token=None, **headers)
    return reply.status, content


def test_the_newest_frame_is_shown_once_there_is_one(page: DeviceServer):
    assert ask(page, "/frame.jpg")[0] == 404
    page.newest = frame_of("red")
    status, picture = ask(page, "/frame.jpg")
    image = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert status == 200 and np.abs(image.astype(int) - frame_of("red")).mean() < 5


def test_a_request_that_never_comes_whole_is_not_waited_for(
    page: DeviceServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Handler, "timeout", 0.5)
    with socket.create_connection(("127.0.0.1", page.port)) as client:
        client.settimeout(20)
        client.sendall(b"GET /frame.jpg HTTP/1.1\r\nHost: 127")
        assert client.recv(1000) == b""


@pytest.mark.parametrize("path", ["/frame.jpg", "/healthz"])
def test_a_page_of_another_site_can_neither_read_nor_ask(page: DeviceServer, health: Health, path: str):
    page.newest = frame_of("red")
    health.answered(1, False)
    here = f"127.0.0.1:{page.port}"
    assert ask(page, path, Host=f"evil.example:{page.port}")[0] == 403
    assert ask(page, path, Origin="http://evil.example")[0] == 403
    assert ask(page, path, Host=here)[0] == ask(page, path, Host=f"localhost:{page.port}")[0] == 200
    assert ask(page, path, Host=here, Origin=f"http://{here}")[0] == 200


def test_a_page_of_another_site_can_not_show_the_picture(page: DeviceServer):
    """A browser sends neither Origin nor another Host for an image or a frame: it looks at these headers of the answer."""
    page.newest = frame_of("red")
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/frame.jpg")
        headers = connection.getresponse().headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"


def test_the_network_needs_a_token():
    with pytest.raises(UserError, match="--token"):
        DeviceServer(("0.0.0.0", 0), Health("x", print))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_with_a_token_nothing_is_answered_without_it_but_whether_it_lives(health: Health, host: str):
    bearer = {"Authorization": f"Bearer {fleet_parts.TOKEN}"}
    browser = {"Authorization": "Basic " + base64.b64encode(f"me:{fleet_parts.TOKEN}".encode()).decode()}
    with contextlib.closing(DeviceServer((host, 0), health, fleet_parts.TOKEN)) as guarded:
        guarded.newest = frame_of("red")
        for path in ("/frame.jpg", "/nowhere"):
            for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic ///"}):
                assert ask(guarded, path, **wrong)[0] == 401
        assert ask(guarded, "/frame.jpg", **bearer)[0] == ask(guarded, "/frame.jpg", **browser)[0] == 200
        health.answered(3, False)
        assert json.loads(ask(guarded, "/healthz")[1]) == {"ok": True}
        assert json.loads(ask(guarded, "/healthz", **bearer)[1])["version"] == 3


def test_health_is_that_of_the_frames_and_says_what_is_wrong(page: DeviceServer, health: Health):
    status, body = ask(page, "/healthz")
    assert (status, json.loads(body)["ok"]) == (503, False), "no frame was answered yet"
    health.answered(7, False)
    health.trouble("mqtt", "the broker is away")
    status, body = ask(page, "/healthz")
    facts = json.loads(body)
    assert (status, facts["version"], facts["problem"]) == (200, 7, "the broker is away")
    health.last_sign = time.monotonic() - 100
    assert ask(page, "/healthz")[0] == 503


def test_connections_that_say_nothing_keep_nobody_out(page: DeviceServer):
    with contextlib.ExitStack() as silent:
        for _ in range(2 * module.MOST_CONNECTIONS):
            silent.enter_context(socket.create_connection(("127.0.0.1", page.port), timeout=20))
        assert ask(page, "/healthz")[0] == 503, "answered: there was no frame yet"
