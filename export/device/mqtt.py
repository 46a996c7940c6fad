"""Results to an MQTT broker: best effort, never in the way of the frames, and honest about whether it works.

TOPIC                   a line a frame, as on stdout
TOPIC/DEVICE/status     online or offline, retained; the broker says offline when the device is gone
TOPIC/DEVICE/answer     the last line whose answer differs from the one before, retained
"""

import importlib
import json
import os
import ssl
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of
from edge_hpcr.common.text import is_host
from export.device.health import Health

DEFAULT_TOPIC = "edge-hpcr"
PORTS = {"mqtt": 1883, "mqtts": 8883}
MOST_UNSENT = 100  # results; when the broker does not take them, later ones are dropped
ANSWER_SECONDS = 10.0  # a broker that has not said welcome by then is in trouble
CLOSE_SECONDS = 2.0
DISCOVERY = "homeassistant"  # the prefix that Home Assistant listens to unless it is told otherwise
USER_VARIABLE, PASSWORD_VARIABLE = "EDGE_HPCR_MQTT_USER", "EDGE_HPCR_MQTT_PASSWORD"


@dataclass(frozen=True)
class Broker:
    """Where results go."""

    host: str
    port: int
    topic: str
    tls: bool
    ca: Path | None = None  # whose certificates to trust, instead of the system's
    discovery: bool = False

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


class MqttSender:
    """Publishes with QoS 0 from paho's own thread, which connects again by itself."""

    def __init__(self, broker: Broker, health: Health) -> None:
        try:
            paho = importlib.import_module("paho.mqtt.client")
        except ModuleNotFoundError:
            raise UserError("--mqtt needs the package paho-mqtt: pip install paho-mqtt") from None
        self._broker = broker
        self._health = health
        self._own = f"{broker.topic}/{health.device}"
        self._client: Any = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._unsent: deque[Any] = deque()
        self._answer: object = self  # of the last line; at first equal to none
        self._retained = b""  # the last line whose answer differed from the one before
        self._is_due = False  # it has not been handed to paho yet
        self._since = time.monotonic()  # without a connection
        self._reason = ""  # why the last attempt failed
        self._set_up()
        self._client.loop_start()

    def _set_up(self) -> None:
        client, broker = self._client, self._broker
        if os.environ.get(USER_VARIABLE):
            client.username_pw_set(os.environ[USER_VARIABLE], os.environ.get(PASSWORD_VARIABLE))
        if broker.tls:
            try:
                client.tls_set(str(broker.ca) if broker.ca else None)
            except (OSError, ValueError) as error:  # of ssl too
                raise UserError(f"--mqtt-ca {broker.ca}: {reason_of(error)}") from None
        client.will_set(f"{self._own}/status", "offline", retain=True)
        client.reconnect_delay_set(min_delay=1, max_delay=30)
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_connect_fail = lambda *_: self._trouble(self._reason or "it cannot be reached")
        # paho keeps to itself why it could not connect.
        connect = client.reconnect

        def reconnect() -> Any:
            try:
                return connect()
            except OSError as error:
                self._reason = _why(error)
                raise

        client.reconnect = reconnect
        client.connect_async(broker.host, broker.port, keepalive=30)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected())

    @property
    def dropped(self) -> int:
        return self._health.mqtt_dropped

    def send(self, line: dict[str, Any], text: str) -> bool:
        """Hand a line over without waiting; False if it was dropped."""
        while self._unsent and _is_gone(self._unsent[0]):
            self._unsent.popleft()
        if line["answer"] != self._answer:
            self._answer, self._retained, self._is_due = line["answer"], text.encode(), True
        if not self.connected:
            if time.monotonic() - self._since > ANSWER_SECONDS and not self._health.has("mqtt"):
                self._trouble("it does not answer")
            self._health.mqtt_dropped += 1
            return False
        if len(self._unsent) >= MOST_UNSENT:
            self._trouble("it does not take what is sent")
            self._health.mqtt_dropped += 1
            return False
        message = self._client.publish(self._broker.topic, text.encode(), qos=0)
        if message.rc:
            self._health.mqtt_dropped += 1  # the connection broke this very moment
            return False
        self._unsent.append(message)
        if self._is_due:
            self._send_answer()
        return True

    def _send_answer(self) -> None:
        self._is_due = False
        self._client.publish(f"{self._own}/answer", self._retained, qos=0, retain=True)

    def close(self) -> None:
        """Say goodbye, and not for long: a broker that does not read must not hold up the end."""

        def leave() -> None:
            if self.connected:
                self._client.publish(f"{self._own}/status", "offline", retain=True)
            self._client.disconnect()
            self._client.loop_stop()

        self._client.on_disconnect = None
        leaving = threading.Thread(target=leave, name="leaving the broker", daemon=True)
        leaving.start()
        leaving.join(CLOSE_SECONDS)

    # paho's thread ------------------------------------------------------------------------------------------------

    def _connected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._trouble(f"it refuses this device: {str(reason).lower()}")
            return
        self._health.trouble("mqtt", None, f"MQTT broker {self._broker.name}: works again")
        client.publish(f"{self._own}/status", "online", retain=True)
        if self._retained:
            # It changed while nobody listened, or the broker has forgotten it; with --on-change no line may come for long.
            self._send_answer()
        if self._broker.discovery:
            place, facts = discovery(self._broker.topic, self._health.device)
            client.publish(place, json.dumps(facts), retain=True)

    def _disconnected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        self._since = time.monotonic()
        if not self._health.has("mqtt"):
            self._trouble(f"the connection was lost ({str(reason).lower()})")

    def _trouble(self, why: str) -> None:
        self._health.trouble(
            "mqtt", f"MQTT broker {self._broker.name}: {why}; results to it are dropped meanwhile"
        )


def discovery(topic: str, device: str) -> tuple[str, dict[str, Any]]:
    """Topic and text by which Home Assistant shows a sensor, without anybody writing its settings."""
    unique = "edge_hpcr_" + "".join(each if each.isalnum() else "_" for each in device)
    own = f"{topic}/{device}"
    facts = {
        "name": "Answer",
        "unique_id": f"{unique}_answer",
        "state_topic": f"{own}/answer",
        "value_template": "{{ value_json.answer.name if value_json.answer else 'unknown' }}",
        "json_attributes_topic": f"{own}/answer",
        "availability_topic": f"{own}/status",
        "payload_available": "online",
        "payload_not_available": "offline",
        "icon": "mdi:eye",
        "device": {
            "identifiers": [unique],
            "name": device,
            "manufacturer": "Edge HPCR",
            "model": "device runtime",
            "sw_version": __version__,
        },
        "origin": {"name": "edge-hpcr", "sw_version": __version__},
    }
    return f"{DISCOVERY}/sensor/{unique}/answer/config", facts


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message} (--mqtt-ca FILE)"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return f"it cannot be reached: {reason_of(error)}"


def _is_gone(message: Any) -> bool:
    """Sent, or lost with its connection, which paho reports by an exception."""
    try:
        return bool(message.is_published())
    except (RuntimeError, ValueError):
        return True


def parse_address(address: str, ca: Path | None = None, discovery: bool = False) -> Broker:
    """The broker of [mqtt://|mqtts://]HOST[:PORT][/TOPIC].

    >>> parse_address("broker.local/shelf/3").topic, parse_address("mqtts://broker.local").port
    ('shelf/3', 8883)
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "mqtt", address
    place, _, topic = rest.partition("/")
    host, colon, port = place.rpartition(":") if place.count(":") == 1 else (place, "", "")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    if not colon:
        number = PORTS.get(scheme, 0)
    topic = topic.rstrip("/") or DEFAULT_TOPIC
    if scheme not in PORTS or not is_host(host) or "@" in host or not 1 <= number <= 65535:
        raise UserError(
            "--mqtt takes [mqtt://|mqtts://]HOST[:PORT][/TOPIC]; "
            f"user and password go into {USER_VARIABLE} and {PASSWORD_VARIABLE}"
        )
    if any(sign in topic for sign in "+#\0") or not topic.isprintable() or len(topic.encode()) > 60_000:
        raise UserError("--mqtt: a topic to publish to has no + and # and no control characters")
    if ca is not None and scheme != "mqtts":
        raise UserError("--mqtt-ca is for a broker with TLS: write its address as mqtts://HOST")
    return Broker(host, number, topic, scheme == "mqtts", ca, discovery)
