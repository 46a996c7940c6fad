"""Results to MQTT: paho against a real mosquitto, and against brokers that no package holds, on real sockets."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_parts import add, publish, running_device
from paho.mqtt import client as paho
from process_parts import free_port, until

from app.tls import own_certificate
from edge_hpcr.common.errors import UserError
from export.device import mqtt
from export.device.health import Health
from export.device.mqtt import MqttSender, parse_broker

MOSQUITTO = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
needs_mosquitto = pytest.mark.skipif(
    MOSQUITTO is None, reason="there is no mosquitto: `make broker` installs one"
)


@contextlib.contextmanager
def mosquitto(folder: Path, *settings: str, port: int | None = None) -> Iterator[int]:
    """A real broker; its port."""
    port = port or free_port()
    lines = [f"listener {port} 127.0.0.1", "persistence false", "user root"]
    lines += settings or ["allow_anonymous true"]
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([str(MOSQUITTO), "-c", str(folder / "mosquitto.conf")], **quiet) as process:

        def listens() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        try:
            until(listens)
            yield port
        finally:
            process.kill()


@contextlib.contextmanager
def heard(port: int, topic: str = "#", ca: Path | None = None) -> Iterator[dict[str, list[tuple[str, bool]]]]:
    """What comes under a topic: by topic, the texts and whether each was retained."""
    messages: dict[str, list[tuple[str, bool]]] = {}
    ready = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    if ca is not None:
        client.tls_set(str(ca))
    client.on_connect = lambda *_: client.subscribe(topic)
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda _, __, message: messages.setdefault(message.topic, []).append(
        (message.payload.decode(), bool(message.retain))
    )
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert ready.wait(20)
    try:
        yield messages
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def health(said: list[str]) -> Health:
    return Health("cam.1", said.append)


@contextlib.contextmanager
def sending(health: Health, address: str, *options: Any) -> Iterator[MqttSender]:
    sender = MqttSender(health, address, *options)
    try:
        yield sender
    finally:
        sender.close()


def send(sender: MqttSender, name: str | None = "mug", frame: int = 1) -> bool:
    line = {"frame": frame, "answer": name and {"id": len(name), "name": name}}
    return sender.send(line, json.dumps(line))


@needs_mosquitto
@pytest.mark.slow
def test_the_runtime_sends_its_lines_and_once_it_is_gone_it_is_offline_by_its_last_will(tmp_path: Path):
    publish(tmp_path / "exports", 1)
    (tmp_path / "images").mkdir()
    add(tmp_path / "images", "0.png", "red")
    images = f"watch:{tmp_path / 'images'}"
    places = ("--models", tmp_path / "exports", "--source", images, "--device-id", "cam")
    with (
        mosquitto(tmp_path) as port,
        heard(port) as now,
        running_device(*places, "--mqtt", f"127.0.0.1:{port}/t") as process,
    ):
        until(lambda: ("online", False) in now.get("t/cam/status", []))
        process.stdout.readline()
        add(tmp_path / "images", "1.png", "blue")
        line = process.stdout.readline().rstrip("\n")
        until(lambda: (line, False) in now.get("t", []))
        process.send_signal(signal.SIGKILL)
        until(lambda: ("offline", False) in now["t/cam/status"])


@needs_mosquitto
@pytest.mark.slow
def test_a_broker_that_leaves_is_told_once_its_return_too_and_it_gets_the_answer_that_it_missed(
    tmp_path: Path, health: Health, said: list[str]
):
    """With --on-change no other line may come for hours."""
    port = free_port()
    with sending(health, f"127.0.0.1:{port}") as sender:
        with mosquitto(tmp_path, port=port):
            until(lambda: sender.connected)
        until(lambda: health.problem)
        assert not send(sender, "mug")
        with mosquitto(tmp_path, port=port), heard(port, "edge-hpcr/cam.1/answer") as now:
            until(lambda: now)
            assert json.loads(now["edge-hpcr/cam.1/answer"][0][0])["answer"]["name"] == "mug"
            assert health.problem is None and send(sender)
            assert len([line for line in said if "the connection was lost" in line]) == 1
            assert said[-1] == f"MQTT broker 127.0.0.1:{port}: works again"


@needs_mosquitto
@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # paho leaves the socket of a failed handshake to Python
def test_tls_with_ones_own_authority_and_never_with_a_stranger(tmp_path: Path, health: Health):
    ca = own_certificate(tmp_path / "ca.pem", "127.0.0.1")
    settings = ("allow_anonymous true", f"certfile {ca}", f"keyfile {ca}")
    with mosquitto(tmp_path, *settings) as port:
        with sending(health, f"mqtts://127.0.0.1:{port}/t") as stranger:
            until(lambda: health.problem)
            assert "certificate" in health.problem and not stranger.connected
        with sending(health, f"mqtts://127.0.0.1:{port}/t", ca) as sender:
            until(lambda: sender.connected)
            with heard(port, "t", ca) as now:
                assert send(sender)
                until(lambda: "t" in now)


@needs_mosquitto
@pytest.mark.slow
def test_home_assistant_is_told_of_a_sensor_that_follows_the_answer(tmp_path: Path, health: Health):
    place = "homeassistant/sensor/edge_hpcr_cam_1/answer/config"
    with mosquitto(tmp_path) as port, sending(health, f"127.0.0.1:{port}/shelf", None, True) as sender:
        with heard(port, place) as now:
            until(lambda: now)
        with heard(port) as now:  # Home Assistant may start later
            until(lambda: place in now)
            ((text, retained),) = now[place]
            facts = json.loads(text)
            assert retained and send(sender)
            until(lambda: facts["state_topic"] in now and facts["availability_topic"] in now)
        assert now[facts["availability_topic"]][0][0] == facts["payload_available"]
        assert json.loads(now[facts["state_topic"]][-1][0])["answer"]["name"] == "mug", (
            "what the template takes"
        )
        assert facts["unique_id"] and facts["device"]["identifiers"], "else it is not kept with its device"


def test_a_broker_that_does_not_answer_holds_up_nothing_and_is_told_once(
    health: Health, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mqtt, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with sending(health, f"127.0.0.1:{port}") as sender:
            begun = time.monotonic()
            until(lambda: not send(sender) and health.problem)
            assert [send(sender) for _ in range(1000)] == [False] * 1000
        assert time.monotonic() - begun < 20
    assert len(said) == 1


@pytest.mark.parametrize("address", ["", "host:99999", "u:secret@host", "host/#"])
def test_an_address_that_is_none_is_refused_and_not_repeated(address: str):
    with pytest.raises(UserError) as caught:
        parse_broker(address)
    assert "secret" not in str(caught.value)
