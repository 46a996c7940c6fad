"""Results to an MQTT broker: best effort, never in the way of the frames, and honest about whether it works.

TOPIC                   a line per frame, as on stdout
TOPIC/DEVICE/status     online or offline, retained; the broker says offline when the device is gone
TOPIC/DEVICE/answer     the last line whose answer differs from the one before, retained
"""

import json
import os
import ssl
import threading
import time
from pathlib import Path
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of
from edge_hpcr.common.text import split_address
from export.device.health import Health

DEFAULT_TOPIC = "edge-hpcr"
PORTS = {"mqtt": 1883, "mqtts": 8883}
ANSWER_SECONDS = 10.0  # a broker that has not said welcome by then is in trouble
CLOSE_SECONDS = 2.0
USER_VARIABLE, PASSWORD_VARIABLE = "EDGE_HPCR_MQTT_USER", "EDGE_HPCR_MQTT_PASSWORD"


def parse_broker(address: str) -> tuple[str, int, str, bool]:
    """Host, port, topic and whether with TLS of [mqtt://|mqtts://]HOST[:PORT][/TOPIC].

    >>> parse_broker("broker.local/shelf/3"), parse_broker("mqtts://broker.local")
    (('broker.local', 1883, 'shelf/3', False), ('broker.local', 8883, 'edge-hpcr', True))
    """
    parts = split_address(address if "://" in address else f"mqtt://{address}", PORTS)
    if parts is None or parts.username is not None:
        raise UserError(
            "--mqtt takes [mqtt://|mqtts://]HOST[:PORT][/TOPIC]; "
            f"user and password go into {USER_VARIABLE} and {PASSWORD_VARIABLE}"
        )
    topic = parts.path.strip("/") or DEFAULT_TOPIC
    if "+" in topic or "#" in address or parts.query or len(topic) > 1000:
        raise UserError("--mqtt: a topic to publish to has no +, # and ?, and at most 1000 characters")
    return parts.hostname or "", parts.port or PORTS[parts.scheme], topic, parts.scheme == "mqtts"


class _Client(paho.Client):
    """paho's, which keeps to itself why it could not connect."""

    why = ""

    def reconnect(self) -> Any:
        try:
            return super().reconnect()
        except OSError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                self.why = f"its certificate is not trusted: {error.verify_message} (--mqtt-ca FILE)"
            else:
                self.why = f"it cannot be reached: {reason_of(error)}"
            raise


class MqttSender:
    """Publishes with QoS 0 from paho's own thread, which connects again by itself.

    `ca` are the certificates to trust instead of the system's; with `discovery` it appears in Home Assistant.
    """

    def __init__(self, health: Health, address: str, ca: Path | None = None, discovery: bool = False) -> None:
        host, port, self._topic, tls = parse_broker(address)
        if ca is not None and not tls:
            raise UserError("--mqtt-ca is for a broker with TLS: write its address as mqtts://HOST")
        self._health = health
        self._discovery = discovery
        self._name = f"MQTT broker {host}:{port}"
        self._own = f"{self._topic}/{health.device}"
        self._answer: object = self  # of the last line; at first equal to none
        self._retained = b""  # the last line whose answer differed from the one before
        self._since = time.monotonic()  # without a connection
        client = self._client = _Client(CallbackAPIVersion.VERSION2)
        if os.environ.get(USER_VARIABLE):
            client.username_pw_set(os.environ[USER_VARIABLE], os.environ.get(PASSWORD_VARIABLE))
        if tls:
            try:
                client.tls_set(str(ca) if ca else None)
            except (OSError, ValueError) as error:  # of ssl too
                raise UserError(f"--mqtt-ca {ca}: {reason_of(error)}") from None
        client.will_set(f"{self._own}/status", "offline", retain=True)
        client.reconnect_delay_set(min_delay=1, max_delay=30)
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_connect_fail = lambda *_: self._trouble(client.why)
        client.connect_async(host, port, keepalive=30)
        client.loop_start()

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected())

    def send(self, line: dict[str, Any], text: str) -> bool:
        """Hand a line over without waiting; False if it was dropped."""
        if line["answer"] != self._answer:
            self._answer, self._retained = line["answer"], text.encode()
            self._send_answer()  # without a connection it is sent with the next one
        # What a broker does not take, paho keeps until a ping stays without an answer: for about a minute.
        if not self.connected or self._client.publish(self._topic, text.encode()).rc != 0:
            if time.monotonic() - self._since > ANSWER_SECONDS and not self._health.has("mqtt"):
                self._trouble("it does not answer")
            return False
        return True

    def _send_answer(self) -> None:
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
        self._health.trouble("mqtt", None, f"{self._name}: works again")
        client.publish(f"{self._own}/status", "online", retain=True)
        if self._retained:
            # It changed while nobody listened, or the broker has forgotten it; with --on-change no line may come for long.
            self._send_answer()
        if self._discovery:
            place, facts = discovery(self._topic, self._health.device)
            client.publish(place, json.dumps(facts), retain=True)

    def _disconnected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        self._since = time.monotonic()
        if not self._health.has("mqtt"):
            self._trouble(f"the connection was lost ({str(reason).lower()})")

    def _trouble(self, why: str) -> None:
        self._health.trouble("mqtt", f"{self._name}: {why}; results to it are dropped meanwhile")


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
    # Home Assistant listens below this prefix unless it is told otherwise.
    return f"homeassistant/sensor/{unique}/answer/config", facts
