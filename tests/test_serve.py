"""The server of published models: what it gives out and takes in, from whom, and what it never does."""

import json
import socket
import time
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import psutil
import pytest
from device_parts import publish
from fleet_parts import TOKEN, ask, make_workspace, picture, report_of, running, send_frame
from process_parts import free_port, started

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.devices import devices
from edge_hpcr.workspace.selection import UNKNOWN
from edge_hpcr.workspace.workspace import Workspace
from export.device.manifest import Latest
from export.publish import serve
from export.publish.serve import ModelServer
from export.publish.versions import pin

MODEL, LATEST = "/v000001/model.onnx", "/latest.json"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = make_workspace(tmp_path / "w")
    publish(path / "exports", 1)
    return path


@pytest.fixture
def server(workspace: Path):
    with running(workspace) as server:
        yield server


def queued(workspace: Path) -> list:
    with Workspace.open(workspace, learning=False) as opened:
        return opened.journal.queued()


# What is given out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [LATEST, "/v000001/manifest.json", MODEL])
def test_a_published_file_is_given_with_its_hash_as_etag_and_once(server, workspace: Path, path: str):
    reply, body = ask(server, path)
    etag = f'"{sha256(body).hexdigest()}"'
    assert (reply.status, body) == (200, (workspace / "exports" / path[1:]).read_bytes())
    assert (reply.getheader("ETag"), int(reply.getheader("Content-Length"))) == (etag, len(body))
    for has in (etag, f'"x", {etag}', f"W/{etag}"):
        again, nothing = ask(server, path, If_None_Match=has)
        assert (again.status, nothing, again.getheader("ETag")) == (304, b"", etag)
    assert ask(server, path, If_None_Match='"other"')[0].status == 200
    head, nothing = ask(server, path, "HEAD")
    assert (head.status, nothing, int(head.getheader("Content-Length"))) == (200, b"", len(body))


@pytest.mark.parametrize(
    "path",
    [
        "/v000001/",
        "/../settings.json",
        "/v000001/%2e%2e/%2e%2e/settings.json",
        "/v000001/..%2f..%2fsettings.json",
        "/v000001/notes.txt",
        "/template/graph.onnx",
        "/history.json",
    ],
)
def test_nothing_else_is_given(server, workspace: Path, path: str):
    (workspace / "exports" / "template").mkdir()
    for private in ("history.json", "template/graph.onnx", "v000001/notes.txt"):
        (workspace / "exports" / private).write_text("private")
    with socket.create_connection(("127.0.0.1", server.port), 20) as raw:  # a library would tidy the path
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 404")


def test_links_are_not_followed(server, workspace: Path):
    folder = workspace / "exports" / "v000001"
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(workspace / "settings.json")
    assert ask(server, MODEL)[0].status == 404
    folder.rename(workspace / "moved")
    folder.symlink_to(workspace / "moved")
    assert ask(server, "/v000001/manifest.json")[0].status == 404


def test_a_device_that_is_kept_on_a_version_is_given_that_one(server, workspace: Path):
    exports = workspace / "exports"
    for version in (3, 2):
        publish(exports, version)
    etag = ask(server, LATEST)[0].getheader("ETag")
    pin(exports, 3, ["cam-1"])

    def offered(**headers: str) -> int:
        reply, body = ask(server, LATEST, **headers)
        assert reply.status == 200 and "Device-Id" in reply.getheader("Vary")
        return Latest.parse(body, "").version

    assert (offered(), offered(Device_Id="cam-2"), offered(Device_Id="cam-1")) == (2, 2, 3)
    assert ask(server, LATEST, Device_Id="cam-1", If_None_Match=etag)[0].status == 200
    pin(exports, 3, ["cam-2"])
    assert (offered(Device_Id="cam-1"), offered(Device_Id="cam-2")) == (2, 3)
    (exports / "staged.json").write_text(json.dumps({"format": 1, "version": 3}))
    assert offered(Device_Id="cam-2") == 2, "a damaged file keeps nobody"


def test_a_request_that_does_not_come_is_not_waited_for(server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "REQUEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), 20) as slow:
        slow.sendall(b"GET /latest.json HTTP/1.1\r\nX: ")
        assert slow.recv(100) == b""


@pytest.mark.slow
def test_more_silent_connections_than_file_handles_keep_no_device_out(workspace: Path):
    token, port = workspace / "token", free_port()
    token.write_text(TOKEN)
    command = ("-m", "export", "serve", "--workspace", workspace, "--port", port, "--token", token)
    with started(*command) as process, ExitStack() as silent:
        assert "serving" in process.stderr.readline()
        handles = psutil.Process(process.pid)
        handles.rlimit(psutil.RLIMIT_NOFILE, (handles.num_fds() + 150,) * 2)
        for _ in range(300):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        assert ask(port, LATEST)[0].status == 200
        assert ask(port, "/devices/cam-1/report", "POST", report_of("cam-1"))[0].status == 204


# Who may ask ----------------------------------------------------------------------------------------------------------


def test_with_a_token_only_who_sends_it_gets_anything(server):
    wrong = (None, "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", "Bearer \xff")
    assert ask(server, LATEST, Device_Id="no/id")[0].status == 400
    for path in (LATEST, MODEL, "/v000009/model.onnx"):
        for given in wrong:
            headers = {} if given is None else {"Authorization": given}
            reply, _ = ask(server, path, token=None, **headers)
            assert (reply.status, reply.getheader("WWW-Authenticate")) == (401, "Bearer")
    assert ask(server, "/healthz", token=None)[0].status == 200


def test_without_a_token_no_page_in_a_browser_can_ask_or_speak_for_a_device(workspace: Path):
    with running(workspace, None) as server:
        for host in (f"127.0.0.1:{server.port}", "localhost", "[::1]:8081"):
            assert ask(server, LATEST, token=None, Host=host)[0].status == 200
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example"):
            assert ask(server, LATEST, token=None, Host=host)[0].status == 400, "its name was led here"
        assert ask(server, "/devices/a/report", "POST", report_of("a"), token=None)[0].status == 204
        reply, _ = ask(
            server, "/devices/b/report", "POST", report_of("b"), None, Origin="http://evil.example"
        )
        assert reply.status == 403
        assert send_frame(server, "a", "1", picture(), token=None)[0].status == 403, "frames need a token"
    assert [each.id for each in devices(workspace / "devices.json")] == ["a"]


def test_an_address_of_the_network_needs_a_token_and_wrong_places_are_named(tmp_path: Path):
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UserError):
            ModelServer(tmp_path, host, 0, None)
    with pytest.raises(UserError):
        ModelServer(tmp_path / "no", "127.0.0.1", 0, None)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError):
        ModelServer(tmp_path, "127.0.0.1", taken.getsockname()[1], None)


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_report_is_kept_with_the_trainers_time(server, workspace: Path):
    before = time.time()
    reply, body = ask(server, "/devices/cam-1/report", "POST", report_of("cam-1"))
    assert (reply.status, body) == (204, b"")
    (device,) = devices(workspace / "devices.json")
    assert (device.id, device.version, device.frames, device.unknown_share) == ("cam-1", 1, 200, 0.05)
    assert before <= device.since == device.last_seen <= time.time() and not device.is_silent(time.time())
    ask(server, "/devices/cam-1/report", "POST", report_of("cam-1"))
    (again,) = devices(workspace / "devices.json")
    assert device.since == again.since < again.last_seen, "the version is the same"


@pytest.mark.parametrize(
    "body",
    [
        b'{"device": "cam-1"}',
        report_of("cam-2"),
        report_of("cam-1", frames=-1),
        report_of("cam-1").replace(b"200", b"NaN"),
        b"[" * 9000,
    ],
)
def test_a_report_that_is_wrong_is_refused_in_a_line(server, workspace: Path, body: bytes):
    reply, said = ask(server, "/devices/cam-1/report", "POST", body)
    assert reply.status == 400 and said and b"\n" not in said
    assert devices(workspace / "devices.json") == []


# Frames ---------------------------------------------------------------------------------------------------------------


def test_a_frame_goes_into_the_queue_once_with_its_device_as_the_source(server, workspace: Path):
    data = picture()
    assert send_frame(server, "cam-1", "17", data, Answer="blue%20m%C3%BCg")[0].status == 201
    assert send_frame(server, "cam-1", "17", data)[0].status == 200
    assert send_frame(server, "cam-2", "17", picture(1), Reason="unsure")[0].status == 201
    first, second = sorted(queued(workspace), key=lambda row: row.id)
    assert (first.origin, first.priority) == ("device cam-1, unknown: blue müg", UNKNOWN)
    assert (second.origin, second.priority) == ("device cam-2, unsure", 1.0)
    with Workspace.open(workspace) as learning:
        assert learning.report == [] and learning.image(first.id).shape == (48, 48, 3)
        learning.journal.dismiss([first.id])
        assert send_frame(server, "cam-1", "17", data)[0].status == 200, "nor once it was dismissed"
        assert send_frame(server, "cam-1", "18", picture(2))[0].status == 201, "beside a learner"
        assert learning.journal.counts().queued == 2


@pytest.mark.parametrize("data", [b"", picture()[:300], picture(kind=".bmp")])
def test_what_is_no_picture_is_refused(server, workspace: Path, data: bytes):
    assert send_frame(server, "cam-1", "1", data)[0].status == 415
    assert queued(workspace) == []


def test_what_is_too_large_or_wrongly_described_is_refused_and_the_answer_arrives(server, workspace: Path):
    too_large = b"\xff" * (serve.LARGEST_FRAME + 1)
    assert send_frame(server, "cam-1", "1", too_large)[0].status == 413
    assert send_frame(server, "a", "1", picture(side=400), token="wrong-" + TOKEN)[0].status == 401
    assert ask(server, "/devices/cam-1/report", "POST", b" " * 10_001)[0].status == 413
    assert send_frame(server, "cam-1", "1", picture(), Reason="bored")[0].status == 400
    assert queued(workspace) == []


def test_half_a_frame_is_no_frame(server, workspace: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "BODY_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), 20) as raw:
        raw.sendall(
            f"POST /devices/a/frames/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Length: 1000\r\n\r\nhalf".encode()
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 408")
    assert queued(workspace) == []


def test_frames_of_devices_fill_a_share_of_the_queue_and_not_all_of_it(tmp_path: Path):
    workspace = make_workspace(tmp_path / "w", queue_samples=8)
    with running(workspace) as server:
        codes = [send_frame(server, f"cam-{n}", 1, picture(n))[0].status for n in range(5)]
        assert codes == [201, 201, 201, 201, 507], "half of it"
        with Workspace.open(workspace) as opened:
            opened.journal.dismiss([row.id for row in opened.journal.queued()][:3])
        assert send_frame(server, "cam-2", "9", picture(99))[0].status == 201, "there is room again"


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted_and_needs_no_torch(workspace: Path):
    token = workspace / "token"
    token.write_text(TOKEN + "\n")
    command = ("-m", "export", "serve", "--workspace", workspace, "--port", "0", "--token", token)
    with started("-X", "importtime", *command) as process:
        imported = []
        while not (line := process.stderr.readline()).startswith("serving "):
            imported.append(line.rpartition("|")[2].strip())
        assert {"torch", "gradio", "onnx", "onnxruntime"}.isdisjoint(imported) and "starlette" in imported
        _, body = ask(int(line.rpartition(":")[2]), LATEST)
        assert Latest.parse(body, "").version == 1
        process.send_signal(2)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()
