"""Results to MQTT: paho against a small broker on a real socket."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from edge_hpcr.common.errors import UserError
from export.device import mqtt
from export.device.mqtt import MqttSender, parse_address

CONNECT, PUBLISH, DISCONNECT = 1, 3, 14


class Broker:
    """As much of MQTT 3.1.1 as a publisher with QoS 0 needs; can be told to hang up."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.messages: list[tuple[str, bytes]] = []
        self.connections = 0
        self._current: socket.socket | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._current, _ = self._listening.accept()
            except OSError:
                return
            with self._current, self._current.makefile("rb") as stream:
                try:
                    while (packet := self._packet(stream)) is not None:
                        self._handle(*packet)
                except OSError:
                    continue

    @staticmethod
    def _packet(stream) -> tuple[int, bytes] | None:
        head = stream.read(1)
        if not head:
            return None
        length = shift = 0
        while True:
            (byte,) = stream.read(1)
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return head[0] >> 4, stream.read(length)

    def _handle(self, kind: int, body: bytes) -> None:
        if kind == CONNECT and self._current is not None:
            self.connections += 1
            self._current.sendall(b"\x20\x02\x00\x00")
        elif kind == PUBLISH:
            length = int.from_bytes(body[:2])
            self.messages.append((body[2 : 2 + length].decode(), body[2 + length :]))

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # it may have left by itself
            if self._current is not None:
                self._current.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed before
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up()
        self._thread.join(10)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.close()


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.slow
def test_results_arrive_under_their_topic_and_again_after_the_broker_hung_up(broker: Broker):
    sender = MqttSender(f"127.0.0.1:{broker.port}/shelf/3")
    try:
        until(lambda: sender.connected)
        assert sender.send('{"frame": 1}')
        until(lambda: broker.messages == [("shelf/3", b'{"frame": 1}')])
        broker.hang_up()
        until(lambda: broker.connections == 2 and sender.connected)
        assert sender.send('{"frame": 2}')
        until(lambda: len(broker.messages) == 2)
        assert json.loads(broker.messages[1][1]) == {"frame": 2}
    finally:
        sender.close()


def test_results_that_are_lost_with_their_connection_stop_nothing(broker: Broker):
    sender = MqttSender(f"127.0.0.1:{broker.port}")
    try:
        until(lambda: sender.connected)
        # The moment in which paho has closed the socket and not yet said so.
        socket_of, sender._client._sock = sender._client._sock, None
        assert sender.connected and not sender.send("{}")
        sender._client._sock = socket_of
        assert sender.dropped == 1
        # What was handed over and is marked as lost when paho connects again.
        assert sender.send("{}")
        sender._unsent[-1].rc = 7
        assert sender.send("{}")
    finally:
        sender.close()


def test_without_a_broker_results_are_dropped_at_once_and_counted():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sender = MqttSender(f"127.0.0.1:{port}")
    started = time.monotonic()
    assert [sender.send("{}") for _ in range(1000)] == [False] * 1000
    assert time.monotonic() - started < 20
    assert sender.dropped == 1000
    sender.close()


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("broker", ("broker", 1883, "edge-hpcr")),
        ("broker:99/a/b", ("broker", 99, "a/b")),
        ("10.0.0.1/", ("10.0.0.1", 1883, "edge-hpcr")),
    ],
)
def test_an_address_names_host_port_and_topic(address: str, parsed: tuple[str, int, str]):
    assert parse_address(address) == parsed


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/topic",
        "host..name",
        "x" * 64,
        "host:0",
        "host:x",
        "host:99999",
        "u:secret@host",
        "host/a+b",
        "host/#",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(address: str):
    with pytest.raises(UserError) as caught:
        parse_address(address)
    assert "secret" not in str(caught.value)


def test_without_paho_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(mqtt.importlib, "import_module", absent)
    with pytest.raises(UserError, match="pip install paho-mqtt"):
        MqttSender("host")
