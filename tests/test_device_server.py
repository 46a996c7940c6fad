"""A device over HTTP: pictures in, answers out, health, metrics and the picture that moves; limits and strangers."""

import base64
import concurrent.futures
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import jsonschema
import numpy as np
import pytest
from device_parts import frame_of, publish
from test_device_runtime import add, line_of, running_device

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import Frame
from export.device import server as module
from export.device.display import draw
from export.device.health import Health
from export.device.limited_server import LimitedServer
from export.device.line import SCHEMA
from export.device.model import Classifier, Label, Result
from export.device.server import DeviceServer, parse_place

TOKEN = "a-token-of-good-length"
RESULT = Result([Label(1, "Größe 漢字", 0.5), Label(2, "b", 0.25)], True, 0.1)
Answer = tuple[int, bytes]


@pytest.fixture
def health() -> Health:
    return Health("cam-1", lambda text: None)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    exports = tmp_path_factory.mktemp("models") / "exports"
    publish(exports, 1)
    return Classifier.load(exports, "cpu", 1)


@pytest.fixture
def page(health: Health, classifier: Classifier) -> Iterator[DeviceServer]:
    server = DeviceServer(("127.0.0.1", 0), health)
    server.classifier = lambda: classifier
    yield server
    server.close()


@pytest.fixture
def guarded(health: Health, classifier: Classifier) -> Iterator[DeviceServer]:
    """As on an address of the network."""
    server = DeviceServer(("0.0.0.0", 0), health, TOKEN)
    server.classifier = lambda: classifier
    yield server
    server.close()


def ask(
    server: DeviceServer, path: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, body, named)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def png(name: str) -> bytes:
    return cv2.imencode(".png", cv2.cvtColor(frame_of(name), cv2.COLOR_RGB2BGR))[1].tobytes()


@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_a_picture_is_answered_as_a_frame_is(page: DeviceServer, kind: str):
    image = cv2.cvtColor(frame_of("green"), cv2.COLOR_RGB2BGR)
    status, body = ask(page, "/classify", cv2.imencode(kind, image)[1].tobytes())
    line = json.loads(body)
    assert (status, line["top"][0]["name"], line["answer"]["name"]) == (200, "green", "green")
    assert (line["device"], line["version"], line["origin"]) == ("cam-1", 1, "request")
    jsonschema.validate(line, json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        (b"no picture", 415, "picture"),
        (b"", 415, "picture"),
        (png("red")[:60], 415, "picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "picture"),
    ],
    ids=["text", "nothing", "half a picture", "another kind"],
)
def test_what_is_no_picture_is_refused_with_the_reason(
    page: DeviceServer, body: bytes, status: int, complaint: str
):
    found, answer = ask(page, "/classify", body)
    assert (found, complaint in json.loads(answer)["error"]) == (status, True)


def test_a_body_that_is_too_large_or_has_no_length_is_refused_before_it_is_read(page: DeviceServer):
    length = str(module.LARGEST_PICTURE + 1)
    assert ask(page, "/classify", b"x", Content_Length=length)[0] == 413
    with socket.create_connection(("127.0.0.1", page.port)) as client:
        client.settimeout(20)
        client.sendall(b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
        assert b" 411 " in client.recv(1000)


def test_a_body_that_never_comes_whole_is_not_waited_for(page: DeviceServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LimitedServer, "longest_wait", 0.5)
    with socket.create_connection(("127.0.0.1", page.port)) as client:
        client.settimeout(20)
        client.sendall(b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 1000\r\n\r\nhalf")
        assert client.recv(1000) == b""


def test_many_pictures_at_once_are_answered_or_told_to_come_again(page: DeviceServer):
    picture = png("blue")
    with concurrent.futures.ThreadPoolExecutor(24) as crowd:
        answers = list(crowd.map(lambda _: ask(page, "/classify", picture)[0], range(48)))
    assert set(answers) <= {200, 503} and answers.count(200) >= 1
    assert ask(page, "/classify", picture)[0] == 200


def test_before_there_is_a_model_pictures_are_turned_away(page: DeviceServer):
    page.classifier = None
    assert ask(page, "/classify", png("red"))[0] == 503


def test_a_page_of_another_site_can_neither_read_nor_ask(page: DeviceServer):
    here = f"127.0.0.1:{page.port}"
    for path in ("/", "/frame.jpg", "/stream", "/metrics"):
        assert ask(page, path, Host=f"evil.example:{page.port}")[0] == 403
    assert ask(page, "/", Host=here)[0] == ask(page, "/", Host=f"localhost:{page.port}")[0] == 200
    assert ask(page, "/x", Host=here)[0] == 404
    assert ask(page, "/classify", png("red"), Origin="http://evil.example")[0] == 403


def test_the_network_needs_a_token():
    with pytest.raises(UserError, match="open to the network: give a token"):
        DeviceServer(("0.0.0.0", 0), Health("x", print))


def test_with_a_token_nothing_is_answered_without_it_but_whether_it_lives(guarded: DeviceServer):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    browser = {"Authorization": "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()}
    for path in ("/", "/metrics", "/nowhere"):
        assert ask(guarded, path)[0] == 401
        assert ask(guarded, path, Authorization="Bearer wrong")[0] == 401
        assert ask(guarded, path, Authorization="Basic ///")[0] == 401
    assert ask(guarded, "/classify", png("red"))[0] == 401
    assert ask(guarded, "/metrics", **bearer)[0] == ask(guarded, "/metrics", **browser)[0] == 200
    assert ask(guarded, "/classify", png("red"), **bearer)[0] == 200
    guarded.health.answered(3, False, 1.0)
    assert json.loads(ask(guarded, "/healthz")[1]) == {"ok": True}
    assert json.loads(ask(guarded, "/healthz", **bearer)[1])["version"] == 3


def test_health_is_that_of_the_frames_and_says_what_is_wrong(page: DeviceServer, health: Health):
    status, body = ask(page, "/healthz")
    assert (status, json.loads(body)["ok"]) == (503, False), "no frame was answered yet"
    health.answered(7, False, 2.0)
    health.trouble("mqtt", "the broker is away")
    status, body = ask(page, "/healthz")
    facts = json.loads(body)
    assert (status, facts["version"], facts["problem"]) == (200, 7, "the broker is away")
    health.last_answer = time.monotonic() - 100
    assert ask(page, "/healthz")[0] == 503


def test_metrics_are_as_prometheus_reads_them(page: DeviceServer, health: Health):
    health.answered(7, True, 2.0)
    status, body = ask(page, "/metrics")
    lines = body.decode().splitlines()
    assert status == 200
    values = dict(re.fullmatch(r'(edge_hpcr_device_\w+)\{device="cam-1"\} (\S+)', line).groups()
                  for line in lines if not line.startswith("#"))  # fmt: skip
    assert values["edge_hpcr_device_frames_total"] == values["edge_hpcr_device_unknown_total"] == "1"
    assert values["edge_hpcr_device_model_version"] == "7"
    assert float(values["edge_hpcr_device_latency_seconds"]) == 0.002
    for name in values:
        kinds = [line for line in lines if line.startswith(f"# TYPE {name} ")]
        assert len(kinds) == 1 and kinds[0].endswith("counter") == name.endswith("_total")


def test_the_current_frame_comes_with_its_answer(page: DeviceServer):
    assert ask(page, "/frame.jpg")[0] == 404
    page.show(Frame(frame_of("red", 200, 300), "x", None, None, 0.0), RESULT, 1)
    status, body = ask(page, "/frame.jpg")
    picture = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
    assert status == 200 and picture[50, 50, 2] > 150 > 100 > picture[50, 50, 0]
    assert picture[-60:].max() > 100, "a bar with text"


@pytest.mark.slow
def test_a_viewer_who_does_not_read_holds_up_nobody(page: DeviceServer):
    with socket.create_connection(("127.0.0.1", page.port)) as viewer:
        viewer.sendall(f"GET /stream HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode())
        noise = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8)
        started_at = time.monotonic()
        for _ in range(200):
            page.show(Frame(noise, "x", None, None, 0.0), RESULT, 1)
        assert time.monotonic() - started_at < 20


@pytest.mark.slow
def test_a_ninth_viewer_is_turned_away(page: DeviceServer):
    viewers = []
    for _ in range(8):
        viewer = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
        viewer.request("GET", "/stream")
        viewers.append((viewer, viewer.getresponse()))
    assert ask(page, "/stream")[0] == 503
    for viewer, reply in viewers:
        reply.close()
        viewer.close()


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (480, 640), (3000, 4000), (2, 5000)])
def test_a_frame_of_any_size_is_drawn_with_names_in_any_script(size: tuple[int, int]):
    picture = draw(Frame(np.zeros((*size, 3), np.uint8), "x", None, None, 0.0), RESULT, 17)
    assert 480 <= picture.shape[1] <= 1280
    assert picture.max() == 255


def test_a_port_that_is_taken_is_told(health: Health):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match="choose another port"),
    ):
        DeviceServer(("127.0.0.1", taken.getsockname()[1]), health)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("8090", ("127.0.0.1", 8090)),
        (":8090", ("0.0.0.0", 8090)),
        ("cam.local:1", ("cam.local", 1)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_a_place_to_listen_is_a_port_or_a_host_with_a_port(text: str, place: tuple[str, int]):
    assert parse_place(text, "--http") == place


@pytest.mark.parametrize("text", ["", ":", "host:", "host:70000", "host:-1", "::1:80", "a:b:1", "host:8x"])
def test_what_is_no_place_to_listen_is_refused(text: str):
    with pytest.raises(UserError, match="--http"):
        parse_place(text, "--http")


@pytest.mark.slow
def test_the_runtime_answers_pictures_beside_its_frames(tmp_path: Path):
    publish(tmp_path / "exports", 1)
    (tmp_path / "images").mkdir()
    add(tmp_path / "images", "0.png", "red")
    places = ("--models", tmp_path / "exports", "--source", tmp_path / "images", "--watch", "--http", "0")
    with running_device(*places, "--device-id", "shelf-3") as process:
        port = int(re.search(r"127.0.0.1:(\d+)/", line_of(process.stderr, "the picture is at"))[1])
        process.stdout.readline()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/classify", png("blue"))
        line = json.loads(connection.getresponse().read())
        assert (line["answer"]["name"], line["device"]) == ("blue", "shelf-3")
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
