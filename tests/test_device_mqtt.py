"""Results to MQTT: paho against a real mosquitto, and against brokers that no package holds, on real sockets."""

import contextlib
import datetime
import gc
import ipaddress
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from device_parts import publish
from paho.mqtt import client as paho
from test_device_runtime import add, running_device

from edge_hpcr.common.errors import UserError
from export.device import mqtt
from export.device.health import Health
from export.device.mqtt import MqttSender, discovery, parse_address

MOSQUITTO = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
needs_mosquitto = pytest.mark.skipif(
    MOSQUITTO is None, reason="there is no mosquitto: `make broker` installs one"
)


class Mosquitto:
    """A real broker on a free port, and everything that it was sent."""

    def __init__(self, folder: Path, settings: str = "", port: int | None = None, tls: bool = False) -> None:
        if port is None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
        self.port, self._tls = port, tls
        lines = [f"listener {port} 127.0.0.1", "persistence false", settings or "allow_anonymous true"]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self._folder = folder
        self.process = subprocess.Popen(
            [str(MOSQUITTO), "-c", str(folder / "mosquitto.conf")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._listens)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    @contextlib.contextmanager
    def heard(self, topic: str = "#", **login: str) -> Iterator[dict[str, list[tuple[str, bool]]]]:
        """What comes under a topic: by topic, the texts and whether each was retained."""
        messages: dict[str, list[tuple[str, bool]]] = {}
        ready = threading.Event()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        if login:
            client.username_pw_set(**login)
        if self._tls:
            client.tls_set(str(self._folder / "ca.pem"))
        client.on_connect = lambda *_: client.subscribe(topic)
        client.on_subscribe = lambda *_: ready.set()
        client.on_message = lambda _, __, message: messages.setdefault(message.topic, []).append(
            (message.payload.decode(), bool(message.retain))
        )
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        assert ready.wait(20)
        try:
            yield messages
        finally:
            client.disconnect()
            client.loop_stop()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    yield broker
    broker.close()


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def health(said: list[str]) -> Health:
    return Health("cam.1", said.append)


@contextlib.contextmanager
def sending(health: Health, address: str, *options: Any) -> Iterator[MqttSender]:
    sender = MqttSender(parse_address(address, *options), health)
    try:
        yield sender
    finally:
        sender.close()


def send(sender: MqttSender, name: str | None = "mug", frame: int = 1) -> bool:
    line = {"frame": frame, "answer": name and {"id": len(name), "name": name}}
    return sender.send(line, json.dumps(line))


@needs_mosquitto
@pytest.mark.slow
def test_lines_arrive_and_state_and_last_answer_stay_for_who_comes_later(
    mosquitto: Mosquitto, health: Health
):
    with sending(health, f"127.0.0.1:{mosquitto.port}/shelf") as sender:
        until(lambda: sender.connected)
        with mosquitto.heard() as heard:
            for frame, name in enumerate(["mug", "mug", None]):
                assert send(sender, name, frame)
            until(lambda: len(heard.get("shelf", [])) == 3 and len(heard.get("shelf/cam.1/answer", [])) == 2)
            assert not any(retained for _, retained in heard["shelf"])
        with mosquitto.heard() as later:
            until(lambda: len(later) == 2)
            assert later["shelf/cam.1/status"] == [("online", True)]
            ((text, retained),) = later["shelf/cam.1/answer"]
            assert retained and json.loads(text)["answer"] is None
    with mosquitto.heard("shelf/cam.1/status") as last:
        until(lambda: last)
        assert last["shelf/cam.1/status"] == [("offline", True)], "it said goodbye"


@needs_mosquitto
@pytest.mark.slow
def test_the_runtime_sends_its_lines_and_once_it_is_gone_it_is_offline_by_its_last_will(
    mosquitto: Mosquitto, tmp_path: Path
):
    publish(tmp_path / "exports", 1)
    (tmp_path / "images").mkdir()
    add(tmp_path / "images", "0.png", "red")
    places = (
        "--models",
        tmp_path / "exports",
        "--source",
        tmp_path / "images",
        "--watch",
        "--device-id",
        "cam",
    )
    with (
        mosquitto.heard() as heard,
        running_device(*places, "--mqtt", f"127.0.0.1:{mosquitto.port}/t") as process,
    ):
        until(lambda: ("online", False) in heard.get("t/cam/status", []))
        process.stdout.readline()
        add(tmp_path / "images", "1.png", "blue")
        line = process.stdout.readline().rstrip("\n")
        until(lambda: (line, False) in heard.get("t", []))
        process.send_signal(signal.SIGKILL)
        until(lambda: ("offline", False) in heard["t/cam/status"])


@needs_mosquitto
@pytest.mark.slow
def test_a_broker_that_leaves_is_told_once_and_its_return_too(
    mosquitto: Mosquitto, health: Health, said: list[str], tmp_path: Path
):
    with sending(health, f"127.0.0.1:{mosquitto.port}") as sender:
        until(lambda: sender.connected)
        mosquitto.close()
        until(lambda: health.problem)
        assert not send(sender) and sender.dropped >= 1
        again = Mosquitto(tmp_path, port=mosquitto.port)
        try:
            until(lambda: sender.connected and health.problem is None)
            assert send(sender)
            assert len([line for line in said if "the connection was lost" in line]) == 1
            assert said[-1] == f"MQTT broker 127.0.0.1:{mosquitto.port}: works again"
        finally:
            again.close()


@needs_mosquitto
@pytest.mark.slow
def test_an_answer_from_before_the_connection_is_there_once_there_is_one(tmp_path: Path, health: Health):
    """With --on-change no other line may come for hours."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with sending(health, f"127.0.0.1:{port}/t") as sender:
        assert not send(sender, "mug")
        broker = Mosquitto(tmp_path, port=port)
        try:
            with broker.heard("t/cam.1/answer") as heard:
                until(lambda: "t/cam.1/answer" in heard)
                assert json.loads(heard["t/cam.1/answer"][0][0])["answer"]["name"] == "mug"
        finally:
            broker.close()


@needs_mosquitto
@pytest.mark.slow
def test_results_that_are_lost_with_their_connection_stop_nothing(mosquitto: Mosquitto, health: Health):
    with sending(health, f"127.0.0.1:{mosquitto.port}") as sender:
        until(lambda: sender.connected)
        # The moment in which paho has closed the socket and not yet said so.
        socket_of, sender._client._sock = sender._client._sock, None
        assert sender.connected and not send(sender)
        sender._client._sock = socket_of
        assert sender.dropped == 1
        # What was handed over and is marked as lost when paho connects again.
        assert send(sender)
        sender._unsent[-1].rc = 7
        assert send(sender)


@needs_mosquitto
@pytest.mark.slow
def test_a_wrong_password_is_told_and_the_right_one_let_in(
    tmp_path: Path, health: Health, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    passwords = tmp_path / "passwords"
    passwords.write_text("me:secret\n")
    subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)
    passwords.chmod(0o644)
    broker = Mosquitto(tmp_path, f"allow_anonymous false\npassword_file {passwords}\nuser root")
    monkeypatch.setenv(mqtt.USER_VARIABLE, "me")
    try:
        for password, good in (("wrong", False), ("secret", True)):
            monkeypatch.setenv(mqtt.PASSWORD_VARIABLE, password)
            with sending(health, f"127.0.0.1:{broker.port}") as sender:
                until(lambda sender=sender, good=good: sender.connected if good else health.problem)
    finally:
        broker.close()
    assert "it refuses this device: not authorized" in said[0]
    assert not [line for line in said if "wrong" in line or "secret" in line]


@needs_mosquitto
@pytest.mark.slow
def test_tls_with_ones_own_authority_and_never_with_a_stranger(
    tmp_path: Path, health: Health, said: list[str]
):
    make_certificate(tmp_path)
    settings = (
        f"allow_anonymous true\ncertfile {tmp_path}/server.pem\nkeyfile {tmp_path}/server.key\nuser root"
    )
    broker = Mosquitto(tmp_path, settings, tls=True)
    try:
        with not_closing_sockets(), sending(health, f"mqtts://127.0.0.1:{broker.port}/t") as stranger:
            until(lambda: health.problem)
            assert "its certificate is not trusted" in health.problem and not stranger.connected
        with sending(health, f"mqtts://127.0.0.1:{broker.port}/t", tmp_path / "ca.pem") as sender:
            until(lambda: sender.connected)
            with broker.heard("t") as heard:
                assert send(sender)
                until(lambda: "t" in heard)
    finally:
        broker.close()


@contextlib.contextmanager
def not_closing_sockets() -> Iterator[None]:
    """paho leaves the socket of a failed handshake to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def make_certificate(folder: Path) -> None:
    """An authority of one's own, here the server's certificate itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    for file in ("ca.pem", "server.pem"):
        (folder / file).write_bytes(pem)
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


@needs_mosquitto
@pytest.mark.slow
def test_home_assistant_is_told_of_a_sensor_that_follows_the_answer(mosquitto: Mosquitto, health: Health):
    with sending(health, f"127.0.0.1:{mosquitto.port}/shelf", None, True) as sender:
        until(lambda: sender.connected)
        with mosquitto.heard() as heard:
            until(lambda: "homeassistant/sensor/edge_hpcr_cam_1/answer/config" in heard)
        with mosquitto.heard() as heard:  # Home Assistant may start later
            until(lambda: "homeassistant/sensor/edge_hpcr_cam_1/answer/config" in heard)
            ((text, retained),) = heard["homeassistant/sensor/edge_hpcr_cam_1/answer/config"]
            facts = json.loads(text)
            assert retained and send(sender)
            until(lambda: facts["state_topic"] in heard and facts["availability_topic"] in heard)
        state = heard[facts["state_topic"]][-1][0]
    assert heard[facts["availability_topic"]][0][0] == facts["payload_available"]
    assert json.loads(state)["answer"]["name"] == "mug", "what the template takes"


def test_the_sensor_has_what_home_assistant_asks_for():
    topic, facts = discovery("shelf", "cam.1")
    prefix, component, node, object_id, end = topic.split("/")
    assert (prefix, component, end) == ("homeassistant", "sensor", "config")
    assert all(each.isalnum() or each in "_-" for each in node + object_id)
    assert facts["unique_id"] and facts["device"]["identifiers"], (
        "without them it cannot be kept with its device"
    )
    assert "value_json.answer" in facts["value_template"]


class Silent:
    """A broker that accepts, reads everything, and never says a word."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(self._listening.accept()[0])

    def close(self) -> None:
        self._listening.close()
        for each in self._taken:
            each.close()


def test_a_broker_that_accepts_and_never_answers_holds_up_nothing_and_is_told(
    health: Health, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mqtt, "ANSWER_SECONDS", 0.2)
    broker = Silent()
    sender = MqttSender(parse_address(f"127.0.0.1:{broker.port}"), health)
    begun = time.monotonic()
    until(lambda: not send(sender) and health.problem)
    assert [send(sender) for _ in range(1000)] == [False] * 1000
    sender.close()
    assert time.monotonic() - begun < 20
    broker.close()
    assert [line for line in said if "it does not answer" in line] == said[:1] and len(said) == 1


def test_without_a_broker_results_are_dropped_at_once_told_once_and_counted(health: Health, said: list[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sender = MqttSender(parse_address(f"127.0.0.1:{port}"), health)
    started = time.monotonic()
    assert [send(sender) for _ in range(1000)] == [False] * 1000
    assert time.monotonic() - started < 20
    assert sender.dropped == 1000
    until(lambda: said)
    assert "it cannot be reached: Connection refused" in said[0]
    sender.close()


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("broker", ("broker", 1883, "edge-hpcr", False)),
        ("broker:99/a/b", ("broker", 99, "a/b", False)),
        ("10.0.0.1/", ("10.0.0.1", 1883, "edge-hpcr", False)),
        ("mqtt://broker/a", ("broker", 1883, "a", False)),
        ("mqtts://broker", ("broker", 8883, "edge-hpcr", True)),
        ("mqtts://broker:99", ("broker", 99, "edge-hpcr", True)),
    ],
)
def test_an_address_names_host_port_and_topic(address: str, parsed: tuple[str, int, str, bool]):
    broker = parse_address(address)
    assert (broker.host, broker.port, broker.topic, broker.tls) == parsed


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
        "http://host",
        "mqtts://u:secret@host",
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
        MqttSender(parse_address("host"), Health("x", print))


def test_certificates_that_are_none_are_refused_before_anything_starts(tmp_path: Path, health: Health):
    (tmp_path / "ca.pem").write_text("no certificate")
    for ca in (tmp_path / "ca.pem", tmp_path / "nowhere"):
        with pytest.raises(UserError, match="--mqtt-ca"):
            MqttSender(parse_address("mqtts://host", ca), health)
    with pytest.raises(UserError, match="write its address as mqtts"):
        parse_address("host", tmp_path / "ca.pem")
