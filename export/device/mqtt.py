"""Results to an MQTT broker (paho-mqtt, optional): best effort, and never in the way of the frames."""

import importlib
import os
from collections import deque
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import is_host

DEFAULT_TOPIC = "edge-hpcr"
DEFAULT_PORT = 1883
MOST_UNSENT = 100  # results; when the broker does not take them, later ones are dropped
USER_VARIABLE, PASSWORD_VARIABLE = "EDGE_HPCR_MQTT_USER", "EDGE_HPCR_MQTT_PASSWORD"


class MqttSender:
    """Publishes with QoS 0 from paho's own thread, which connects again by itself."""

    def __init__(self, address: str) -> None:
        host, port, self.topic = parse_address(address)
        try:
            paho = importlib.import_module("paho.mqtt.client")
        except ModuleNotFoundError:
            raise UserError("--mqtt needs the package paho-mqtt: pip install paho-mqtt") from None
        self.name = f"{host}:{port}/{self.topic}"
        self._client: Any = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._unsent: deque[Any] = deque()
        if os.environ.get(USER_VARIABLE):
            self._client.username_pw_set(os.environ[USER_VARIABLE], os.environ.get(PASSWORD_VARIABLE))
        self._client.reconnect_delay_set(min_delay=1, max_delay=30)
        self._client.connect_async(host, port, keepalive=30)
        self._client.loop_start()
        self.dropped = 0

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected())

    def send(self, text: str) -> bool:
        """Hand it over without waiting; False if it was dropped."""
        while self._unsent and _is_gone(self._unsent[0]):
            self._unsent.popleft()
        if not self.connected or len(self._unsent) >= MOST_UNSENT:
            self.dropped += 1
            return False
        message = self._client.publish(self.topic, text.encode(), qos=0)
        if message.rc:
            self.dropped += 1  # the connection broke this very moment
            return False
        self._unsent.append(message)
        return True

    def close(self) -> None:
        connected = self.connected
        self._client.disconnect()
        if connected:
            # What was handed over goes out. A thread that is still trying to connect ends by itself.
            self._client.loop_stop()


def _is_gone(message: Any) -> bool:
    """Sent, or lost with its connection, which paho reports by an exception."""
    try:
        return bool(message.is_published())
    except (RuntimeError, ValueError):
        return True


def parse_address(address: str) -> tuple[str, int, str]:
    """Host, port and topic of HOST[:PORT][/TOPIC].

    >>> parse_address("broker.local/shelf/3")
    ('broker.local', 1883, 'shelf/3')
    """
    place, _, topic = address.partition("/")
    host, colon, port = place.rpartition(":") if place.count(":") == 1 else (place, "", "")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    if not colon:
        number = DEFAULT_PORT
    topic = topic or DEFAULT_TOPIC
    if not is_host(host) or "@" in host or not 1 <= number <= 65535:
        raise UserError(
            f"--mqtt takes HOST[:PORT][/TOPIC]; user and password go into {USER_VARIABLE} and {PASSWORD_VARIABLE}"
        )
    if any(sign in topic for sign in "+#\0") or not topic.isprintable() or len(topic.encode()) > 60_000:
        raise UserError("--mqtt: a topic to publish to has no + and # and no control characters")
    return host, number, topic
