"""Many devices in one process, each with connections of its own, on this machine only."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

TIMEOUT = 30.0


class Answer:
    """What a server says to one request over a connection of its own, and how long that took."""

    def __init__(self, head: bytes, body: int, took: float) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
        }
        self.body, self.took = body, took  # bytes and seconds


async def ask(
    port: int, path: str, token: str, method: str = "GET", data: bytes = b"", **headers: str
) -> Answer:
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        sent = {"Host": "trainer", "Authorization": f"Bearer {token}", "Connection": "close", **headers}
        if data or method == "POST":
            sent["Content-Length"] = str(len(data))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + data)
        head = await reader.readuntil(b"\r\n\r\n")
        received = 0
        while block := await reader.read(1 << 20):
            received += len(block)
        return Answer(head, received, time.perf_counter() - begun)
    finally:
        writer.close()


class Polling:
    """Devices that each ask for latest.json every `period` seconds, and report every tenth time."""

    def __init__(self, port: int, token: str, count: int, period: float = 1.0) -> None:
        self._port, self._token, self._count, self._period = port, token, count, period
        self.took: list[float] = []
        self.statuses: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        await asyncio.gather(*(self._device(number, seconds) for number in range(self._count)))

    async def _device(self, number: int, seconds: float) -> None:
        name, etag = f"sim-{number}", ""
        end = time.monotonic() + seconds
        at = time.monotonic() + self._period * number / self._count  # spread, as devices are
        turn = number
        while at < end:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            answer = await self._count_answer(
                lambda: ask(
                    *(self._port, "/latest.json", self._token),
                    **{"Device-Id": name, **({"If-None-Match": etag} if etag else {})},  # noqa: B023
                )
            )
            etag = answer.headers.get("etag", etag) if answer else etag
            if turn % 10 == 0:
                data = json.dumps(report(name)).encode()
                await self._count_answer(
                    lambda: ask(self._port, f"/devices/{name}/report", self._token, "POST", data)  # noqa: B023
                )
            turn += 1
            at = max(at + self._period, time.monotonic())

    async def _count_answer(self, request: Callable[[], Awaitable[Answer]]) -> Answer | None:
        try:
            answer = await asyncio.wait_for(request(), TIMEOUT)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.statuses[type(error).__name__] += 1
            return None
        self.statuses[str(answer.status)] += 1
        self.took.append(answer.took)
        return answer


def report(name: str) -> dict[str, Any]:
    now = time.time()
    counts = {"frames": 100, "unknown": 3, "unsure_waiting": 0, "unsure_dropped": 0}
    times = {"since": now - 60, "started": now - 90, "now": now}
    return {"device": name, "version": 1, **times, **counts, "problem": None, "software": "simulated"}


async def download(port: int, token: str, path: str, count: int) -> list[Answer]:
    """All devices fetch a file at the same moment."""
    return await asyncio.gather(*(ask(port, path, token) for _ in range(count)))
