"""Many devices in one process, each with connections of its own, on this machine only."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

TIMEOUT = 30.0
THREADS = 4
REPORT_SECONDS = 30  # as a device does by default


class Answer:
    """What a server says to one request over a connection of its own, and how long that took."""

    def __init__(self, head: bytes, body: int, took: float) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
        }
        self.body, self.took = body, took  # bytes and seconds


def request(path: str, token: str, method: str = "GET", data: bytes = b"", **headers: str) -> bytes:
    """With which a connection's first request is its last."""
    sent = {"Host": "trainer", "Authorization": f"Bearer {token}", "Connection": "close", **headers}
    if data or method == "POST":
        sent["Content-Length"] = str(len(data))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
    return "\r\n".join(lines).encode() + data


async def ask(
    port: int, path: str, token: str, method: str = "GET", data: bytes = b"", **headers: str
) -> Answer:
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(path, token, method, data, **headers))
        head = await reader.readuntil(b"\r\n\r\n")
        received = 0
        while block := await reader.read(1 << 20):
            received += len(block)
        return Answer(head, received, time.perf_counter() - begun)
    finally:
        writer.close()


class Polling:
    """Devices that each ask for latest.json every second, and report as often as a real one.

    A few threads with plain sockets ask for all, because they share the processors with the trainer that is measured:
    this costs them least. An answer's time counts from when its device was to ask: a wait behind others is in it.
    """

    def __init__(self, port: int, token: str, count: int) -> None:
        self._place = ("127.0.0.1", port)
        self._token = token
        self._names = [f"sim-{number}" for number in range(count)]
        self._polls = {name: request("/latest.json", token, **{"Device-Id": name}) for name in self._names}
        self.answers: list[tuple[str, float]] = []  # status, or what went wrong, and seconds
        self.processor_seconds = 0.0  # of the simulation itself

    def run(self, seconds: int) -> None:
        begun, processor = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(partial(self._ask_for_some, begun, seconds), range(THREADS)))
        self.processor_seconds += time.process_time() - processor

    def _ask_for_some(self, begun: float, seconds: int, thread: int) -> None:
        for second in range(seconds):
            for number in range(thread, len(self._names), THREADS):
                device = self._names[number]
                due = begun + second + number / len(self._names)  # spread, as devices are
                time.sleep(max(0.0, due - time.monotonic()))
                self._poll(device, due)
                if (second + number) % REPORT_SECONDS == 0:
                    data = json.dumps(report(device)).encode()
                    asked = request(f"/devices/{device}/report", self._token, "POST", data)
                    self._answer(asked, time.monotonic())

    def _poll(self, device: str, due: float) -> None:
        head = self._answer(self._polls[device], due)
        if head.startswith(b"HTTP/1.1 200"):
            headers = {"Device-Id": device, "If-None-Match": Answer(head, 0, 0.0).headers["etag"]}
            self._polls[device] = request("/latest.json", self._token, **headers)

    def _answer(self, asked: bytes, due: float) -> bytes:
        """The head of what the server says; nothing if it does not."""
        try:
            with socket.socket() as connection:
                connection.settimeout(TIMEOUT)
                connection.connect(self._place)
                connection.sendall(asked)
                said = connection.recv(65_536)
                status = said[9:12].decode()
        except OSError as error:
            said, status = b"", type(error).__name__
        self.answers.append((status, time.monotonic() - due))
        return said.partition(b"\r\n\r\n")[0]


def report(name: str) -> dict[str, Any]:
    now = time.time()
    counts = {"frames": 100, "unknown": 3, "unsure_waiting": 0, "unsure_dropped": 0}
    times = {"since": now - 60, "started": now - 90, "now": now}
    return {"device": name, "version": 1, **times, **counts, "problem": None, "software": "simulated"}


async def download(port: int, token: str, path: str, count: int) -> list[Answer]:
    """All devices fetch a file at the same moment."""
    return await asyncio.gather(*(ask(port, path, token) for _ in range(count)))
