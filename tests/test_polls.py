"""Devices that ask whether there is something new: the short way of the usual case, and that it lets in nobody else."""

import socket
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from device_parts import publish
from fleet_parts import TOKEN, ask, make_workspace, running

from benchmarks import simulated_devices
from export.publish.polls import LARGEST, LARGEST_ANSWER, parse_poll
from export.publish.serve import ExportsServer
from export.publish.versions import stage

OTHER = "another-token-of-good-length"
LATEST = "/latest.json"
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere each connection is answered by a thread"
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = make_workspace(tmp_path / "w")
    for version in (2, 1):
        publish(path / "exports", version)
    return path


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every connection that is answered by a thread of its own."""
    started: list[object] = []
    process = ExportsServer.process_request_thread

    def counted(server: ExportsServer, request: object, address: object) -> None:
        started.append(address)
        process(server, request, address)

    monkeypatch.setattr(ExportsServer, "process_request_thread", counted)
    return started


def say(server: ExportsServer, request: bytes) -> bytes:
    """All that the server says until it hangs up."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), 20) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@on_linux
def test_a_device_is_told_the_version_and_that_it_has_it_without_a_thread(
    workspace: Path, threads: list[object]
):
    with running(workspace) as server:
        reply, body = ask(server, LATEST, Device_Id="cam-1")
        etag = reply.getheader("ETag")
        assert (reply.status, body) == (200, (workspace / "exports" / "latest.json").read_bytes())
        for _ in range(3):
            reply, body = ask(server, LATEST, Device_Id="cam-1", If_None_Match=etag)
            assert (reply.status, body, reply.getheader("ETag")) == (304, b"", etag)
        assert threads == []


@on_linux
@pytest.mark.parametrize("has", [{}, {"If_None_Match": "*"}])
def test_both_ways_say_the_same(workspace: Path, threads: list[object], has: dict[str, str]):
    with running(workspace) as server:
        short, body = ask(server, LATEST, **has)
        # A range that is none gives all of it, by the handler.
        long, same = ask(server, LATEST, **has, Range="all")
        assert (short.status, body, len(threads)) == (long.status, same, 1)
        one, other = (
            {name: value.strip() for name, value in each.getheaders() if name != "Date"}
            for each in (short, long)
        )
        assert one == {**other, "Connection": "close"}
        assert short.getheader("Date") and long.getheader("Date")


@on_linux
def test_a_large_latest_is_left_to_a_thread_and_comes_whole(workspace: Path, threads: list[object]):
    latest = workspace / "exports" / "latest.json"
    latest.write_bytes(latest.read_bytes() + b" " * LARGEST_ANSWER)
    with running(workspace) as server:
        assert ask(server, LATEST)[1] == latest.read_bytes()
        assert len(threads) == 1


def test_a_version_that_becomes_current_is_seen_by_the_next_poll(workspace: Path):
    with running(workspace) as server:
        for version in (3, 4):
            etag = ask(server, LATEST)[0].getheader("ETag")
            assert ask(server, LATEST, If_None_Match=etag)[0].status == 304
            publish(workspace / "exports", version)
            assert ask(server, LATEST, If_None_Match=etag)[0].status == 200


def test_a_version_on_trial_is_seen_by_its_devices_alone(workspace: Path):
    with running(workspace) as server:
        etag = ask(server, LATEST)[0].getheader("ETag")
        stage(workspace / "exports", 2, ["cam-1"])
        for device, status in (("cam-1", 200), ("cam-2", 304)):
            assert ask(server, LATEST, Device_Id=device, If_None_Match=etag)[0].status == status


def test_who_may_not_ask_is_not_even_told_that_nothing_has_changed(workspace: Path, tmp_path: Path):
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\ncam-1: {OTHER}\n")
    with running(workspace, file) as server:
        etag = ask(server, LATEST)[0].getheader("ETag")

        def status(token: str | None, device: str = "cam-1", has: str = etag) -> int:
            return ask(server, LATEST, token=token, Device_Id=device, If_None_Match=has)[0].status

        for has in (etag, "*"):
            assert (status(TOKEN, has=has), status(OTHER, has=has)) == (304, 304)
            assert (status("wrong-" + TOKEN, has=has), status(None, has=has)) == (401, 401)
            assert (status(OTHER, "cam-2", has), status(TOKEN, "no/id", has)) == (403, 400)
        file.write_text(f"{TOKEN}\n")
        assert (status(TOKEN), status(OTHER)) == (304, 401), "revoked with the next request"


def test_before_the_first_version_there_is_nothing_to_have(tmp_path: Path):
    with running(make_workspace(tmp_path / "empty")) as server:
        assert ask(server, LATEST, If_None_Match="*")[0].status == 404


def test_a_request_that_comes_in_pieces_is_answered_too(workspace: Path):
    with running(workspace) as server:
        etag = ask(server, LATEST)[0].getheader("ETag")
        whole = simulated_devices.request(LATEST, TOKEN, **{"If-None-Match": etag})
        with socket.create_connection(("127.0.0.1", server.server_address[1]), 20) as connection:
            connection.sendall(whole[:40])
            while not server._connections:  # the first piece has been looked at
                time.sleep(0.005)
            connection.sendall(whole[40:])
            assert connection.recv(100).startswith(b"HTTP/1.1 304")


def test_connections_on_which_nothing_is_said_keep_no_device_out(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ExportsServer, "most_connections", 64)
    with running(workspace) as server, ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(socket.create_connection(("127.0.0.1", server.server_address[1]), 20))
        etag = ask(server, LATEST)[0].getheader("ETag")
        assert ask(server, LATEST, If_None_Match=etag)[0].status == 304


def test_two_requests_at_once_have_two_answers(workspace: Path):
    with running(workspace) as server:
        etag = ask(server, LATEST)[0].getheader("ETag")
        last = simulated_devices.request(LATEST, TOKEN, **{"If-None-Match": etag})
        first = last.replace(b"Connection: close\r\n", b"")
        assert say(server, first + last).count(b"HTTP/1.1 304") == 2


GOOD = b'GET /latest.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nIf-None-Match: "e"\r\n'


@pytest.mark.parametrize(
    "request_",
    [
        GOOD,  # not at its end
        GOOD + b"\r\n" + GOOD + b"\r\n",
        GOOD + b"\r\nbody",
        GOOD + b"Content-Length: 4\r\n\r\n",
        GOOD + b"Transfer-Encoding: chunked\r\n\r\n",
        GOOD + b"Range: bytes=0-3\r\n\r\n",
        GOOD + b"authorization: Bearer other\r\n\r\n",
        GOOD + b" continued\r\n\r\n",
        GOOD + b"Device-Id : cam-1\r\n\r\n",
        GOOD + b"no colon here\r\n\r\n",
        GOOD.replace(b"\r\n", b"\n") + b"\n",
        GOOD.replace(b"1.1", b"1.0") + b"\r\n",
        GOOD.replace(b"GET", b"HEAD") + b"\r\n",
        GOOD.replace(b"/latest", b"//latest") + b"\r\n",
        GOOD + b"X: " + b"x" * LARGEST,
        b"",
        b"\x16\x03\x01\x00",
    ],
)
def test_what_is_not_plainly_a_poll_is_left_to_the_handler(request_: bytes):
    assert parse_poll(GOOD + b"\r\n") == ("Bearer t", None, '"e"')
    assert parse_poll(request_[:LARGEST]) is None


def test_simulated_devices_ask_as_real_ones_do(workspace: Path):
    with running(workspace) as server:
        polling = simulated_devices.Polling(server.server_address[1], TOKEN, 5)
        polling.run(2)
        statuses, seconds = zip(*polling.answers, strict=True)
        assert Counter(statuses) == {"200": 5, "304": 5, "204": 1}
        assert min(seconds) > 0 and polling.processor_seconds > 0
