"""The server of published models: what it gives out, to whom, and what it never does."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from device_parts import publish
from process_parts import answering, started

from edge_hpcr.common.errors import UserError
from export.publish import serve
from export.publish.serve import ExportsServer, make_server, parse_range

ROOT = Path(__file__).parent.parent
TOKEN = "a-token-of-good-length"
MODEL = "/v000001/model.onnx"


@contextmanager
def running(workspace: Path, token: str | None = None) -> Iterator[ExportsServer]:
    server = make_server(workspace, "127.0.0.1", 0, token)
    with answering(server):
        yield server


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    publish(tmp_path / "exports", 1)
    return tmp_path


@pytest.fixture
def server(workspace: Path):
    with running(workspace) as server:
        yield server


def ask(server: ExportsServer, path: str, method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        # As it is: the library would tidy a path that tries to climb out.
        connection.putrequest(method, path, skip_host=False)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/latest.json", "/v000001/manifest.json", MODEL])
def test_a_published_file_is_given_with_its_hash_as_etag(server, workspace: Path, path: str):
    reply, body = ask(server, path)
    assert reply.status == 200
    assert body == (workspace / "exports" / path[1:]).read_bytes()
    assert reply.getheader("ETag") == f'"{sha256(body).hexdigest()}"'
    assert int(reply.getheader("Content-Length")) == len(body)


def test_who_has_it_gets_no_second_copy(server):
    etag = ask(server, MODEL)[0].getheader("ETag")
    for header in (etag, f'"x", {etag}', f"W/{etag}", "*"):
        reply, body = ask(server, MODEL, If_None_Match=header)
        assert (reply.status, body, reply.getheader("ETag")) == (304, b"", etag)
    assert ask(server, MODEL, If_None_Match='"other"')[0].status == 200


def test_head_tells_the_length_and_sends_nothing(server, workspace: Path):
    reply, body = ask(server, MODEL, "HEAD")
    size = (workspace / "exports" / MODEL[1:]).stat().st_size
    assert (reply.status, body, reply.getheader("Content-Length")) == (200, b"", str(size))


def test_a_part_can_be_asked_for(server, workspace: Path):
    data = (workspace / "exports" / MODEL[1:]).read_bytes()
    size = len(data)
    for asked, start, end in (
        ("0-9", 0, 10),
        ("100-", 100, size),
        ("-7", size - 7, size),
        (f"5-{size + 9}", 5, size),
    ):
        reply, body = ask(server, MODEL, Range=f"bytes={asked}")
        assert (reply.status, body) == (206, data[start:end])
        assert reply.getheader("Content-Range") == f"bytes {start}-{end - 1}/{size}"


def test_a_part_beyond_the_end_is_refused_with_the_size(server, workspace: Path):
    size = (workspace / "exports" / MODEL[1:]).stat().st_size
    reply, body = ask(server, MODEL, Range=f"bytes={size}-")
    assert (reply.status, body, reply.getheader("Content-Range")) == (416, b"", f"bytes */{size}")


@pytest.mark.parametrize("header", ["bytes=1-2,4-5", "lines=1-2", "bytes=-", "bytes=9-1", "bytes=a-b"])
def test_a_range_that_is_not_understood_gives_all_of_it(server, header: str):
    assert ask(server, MODEL, Range=header)[0].status == 200


def test_a_part_of_a_file_that_has_changed_is_all_of_the_new_one(server):
    etag = ask(server, MODEL)[0].getheader("ETag")
    assert ask(server, MODEL, Range="bytes=3-", If_Range=etag)[0].status == 206
    assert ask(server, MODEL, Range="bytes=3-", If_Range='"older"')[0].status == 200


def test_the_parts_of_a_file_make_the_file():
    for size in (1, 2, 10):
        for first in range(size):
            left, right = parse_range(f"bytes=0-{first}", size), parse_range(f"bytes={first + 1}-", size)
            assert left == (0, first + 1)
            assert right == ((first + 1, size) if first + 1 < size else None)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v000001",
        "/v000001/",
        "/../settings.json",
        "/v000001/../../settings.json",
        "/v000001/%2e%2e/%2e%2e/settings.json",
        "//etc/passwd",
        "/etc/passwd",
        "/v000001/notes.txt",
        "/v000001/.hidden",
        "/v000009/model.onnx",
        "/template/graph.onnx",
        "/history.json",
        "/latest.json?x=1",
        "/v000001/model.onnx%00",
        "http://127.0.0.1/settings.json",
    ],
)
def test_nothing_else_is_given(server, workspace: Path, path: str):
    (workspace / "settings.json").write_text("{}")
    (workspace / "exports" / "history.json").write_text("{}")
    (workspace / "exports" / "template").mkdir()
    (workspace / "exports" / "template" / "graph.onnx").write_text("x")
    (workspace / "exports" / "v000001" / "notes.txt").write_text("private")
    (workspace / "exports" / "v000001" / ".hidden").write_text("private")
    assert ask(server, path)[0].status == 404


def test_links_are_not_followed(server, workspace: Path):
    secret = workspace / "secret"
    secret.write_text("private")
    folder = workspace / "exports" / "v000001"
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(secret)
    assert ask(server, MODEL)[0].status == 404
    folder.rename(workspace / "moved")
    folder.symlink_to(workspace / "moved")
    assert ask(server, "/v000001/manifest.json")[0].status == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(server, workspace: Path, method: str):
    assert ask(server, MODEL, method)[0].status == 501
    assert (workspace / "exports" / MODEL[1:]).exists()


def test_a_changed_file_has_another_etag(server, workspace: Path):
    before = ask(server, MODEL)[0].getheader("ETag")
    (workspace / "exports" / MODEL[1:]).write_bytes(b"repaired")
    assert ask(server, MODEL)[0].getheader("ETag") == f'"{sha256(b"repaired").hexdigest()}"' != before


def test_with_a_token_only_who_sends_it_gets_anything(workspace: Path):
    with running(workspace, TOKEN) as server:
        for given in (None, "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", "Bearer \xff"):
            headers = {} if given is None else {"Authorization": given}
            reply, body = ask(server, "/latest.json", **headers)
            assert (reply.status, body, reply.getheader("WWW-Authenticate")) == (401, b"", "Bearer")
            assert ask(server, "/nothing", **headers)[0].status == 401, "not even what there is"
        assert ask(server, "/latest.json", Authorization=f"Bearer {TOKEN}")[0].status == 200


def test_an_address_of_the_network_needs_a_token(workspace: Path):
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UserError, match="open to the network: give a token"):
            make_server(workspace, host, 0)
    make_server(workspace, "0.0.0.0", 0, TOKEN).server_close()


def test_a_workspace_without_exports_is_served_once_there_is_one(tmp_path: Path):
    with running(tmp_path) as server:
        assert ask(server, "/latest.json")[0].status == 404
        publish(tmp_path / "exports", 1)
        assert ask(server, "/latest.json")[0].status == 200


def test_wrong_places_are_named(tmp_path: Path):
    with pytest.raises(UserError, match="there is no such workspace"):
        make_server(tmp_path / "no", "127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="cannot listen"):
        make_server(tmp_path, "127.0.0.1", taken.getsockname()[1])


def slow_connection(server: ExportsServer, source: str = "127.0.0.1") -> socket.socket:
    """A request that does not come to its end."""
    connection = socket.create_connection(("127.0.0.1", server.server_address[1]), 10, (source, 0))
    connection.sendall(b"GET /latest.json HTTP/1.1\r\nX: ")
    return connection


def test_slow_connections_do_not_shut_devices_out(server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve.ExportsServer, "most_connections", 64)
    with ExitStack() as slow:
        for number in range(2 * serve.ExportsServer.most_connections):
            slow.enter_context(slow_connection(server))
            if number % 16 == 15:
                assert ask(server, "/latest.json")[0].status == 200
        assert len(server._connections) <= serve.ExportsServer.most_connections
        assert ask(server, MODEL)[0].status == 200


def test_a_request_must_come_whole_within_a_time_however_it_trickles(server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve.ExportsServer, "longest_wait", 0.3)
    with slow_connection(server) as slow, suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(400):
            slow.sendall(b"x")
            time.sleep(0.05)
        pytest.fail("it was not closed")


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has one address of its own")
def test_one_address_cannot_take_all_places_with_downloads_that_it_does_not_read(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(serve.ExportsServer, "most_of_an_address", 2)
    with (workspace / "exports" / MODEL[1:]).open("ab") as file:
        file.truncate(30_000_000)  # more than the sockets hold
    with running(workspace) as server, ExitStack() as busy:
        for _ in range(2):
            download = busy.enter_context(
                socket.create_connection(("127.0.0.1", server.server_address[1]), 10, ("127.0.0.2", 0))
            )
            download.sendall(f"GET {MODEL} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert download.recv(12) == b"HTTP/1.1 200"
        with slow_connection(server, "127.0.0.2") as refused, suppress(ConnectionResetError):
            assert refused.recv(1) == b""
        assert ask(server, "/latest.json")[0].status == 200, "another address"


def serve_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "export", "serve", *arguments]


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(workspace: Path):
    token = workspace / "token"
    token.write_text(TOKEN + "\n")
    command = ("-m", "export", "serve", "--workspace", workspace, "--port", "0", "--token", token)
    with started(*command) as process:
        line = process.stderr.readline()
        port = int(line.rstrip().rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/latest.json", headers={"Authorization": f"Bearer {TOKEN}"})
        assert json.loads(connection.getresponse().read())["version"] == 1
        connection.close()
        process.send_signal(2)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--host", "0.0.0.0"], "open to the network"),
        (["--token", "missing"], "cannot read the token file missing"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(workspace: Path, arguments: list[str], complaint: str):
    environment = {key: value for key, value in os.environ.items() if key != "EDGE_HPCR_TOKEN"}
    done = subprocess.run(
        serve_command("--workspace", str(workspace), *arguments),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert complaint in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "short", "two words of enough length", "häßlich-und-lang-genug"])
def test_a_token_that_is_none_is_refused(workspace: Path, text: str):
    (workspace / "token").write_text(text)
    done = subprocess.run(
        serve_command("--workspace", str(workspace), "--token", str(workspace / "token")),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, "a token" in done.stderr) == (2, True)
