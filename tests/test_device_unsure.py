"""Frames that are worth a label: chosen, kept on the device while the trainer is away, sent once, oldest first."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import cv2
import numpy as np
import pytest
from process_parts import free_port, http_server, send, until

from edge_hpcr.stream import Frame
from export.device import unsure
from export.device.health import Health, Reporter
from export.device.model import Label, Result
from export.device.unsure import Choice, UnsureFrames

TOKEN = "a-token-of-good-length"
UNKNOWN = Result([Label(1, "a/ä", 0.9), Label(2, "b", 0.1)], True, 0.1)
SURE = Result([Label(1, "a", 0.9), Label(2, "b", 0.1)], False, 0.9)
MANY = Choice(per_minute=6000.0)


class Trainer:
    """Keeps the frames and reports of cam-1. `answers` are given to the next frames instead of taking them."""

    def __init__(self) -> None:
        self.url = ""
        self.frames: dict[str, tuple[dict[str, str], bytes]] = {}
        self.asked: list[str] = []  # ids of frames, as they came
        self.reports: list[dict[str, Any]] = []
        self.answers: list[int] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        route, _, frame = handler.path.removeprefix("/devices/cam-1/").partition("/")
        if handler.headers["Authorization"] != f"Bearer {TOKEN}":
            status = 401
        elif route == "report":
            self.reports.append(json.loads(body))
            status = 204
        elif route == "frames":
            status = self.take(frame, dict(handler.headers), body)
        else:
            status = 405
        send(handler, b"", status)

    def take(self, frame: str, headers: dict[str, str], body: bytes) -> int:
        self.asked.append(frame)
        if self.answers:
            return self.answers.pop(0)
        if frame in self.frames:
            return 200
        self.frames[frame] = (headers, body)
        return 201


@contextmanager
def trainer(port: int = 0) -> Iterator[Trainer]:
    made = Trainer()
    with http_server(made.answer, port) as (made.url, _):
        yield made


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def health(said: list[str]) -> Health:
    return Health("cam-1", said.append)


def picture(seed: int, size: int = 64) -> Frame:
    """One that no other looks like: a few large blocks of colour."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return Frame(
        np.kron(blocks, np.ones((size // 4, size // 4, 1), np.uint8)), "x", None, None, 1000.0 + seed
    )


def taken(frames: UnsureFrames, count: int, start: int = 0) -> int:
    return sum(frames.offer(picture(seed), UNKNOWN) for seed in range(start, start + count))


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unsure, "WAIT", 0.05)
    monkeypatch.setattr(unsure, "LONG_WAIT", 0.05)


@pytest.mark.parametrize(
    ("top", "unknown", "reason"),
    [
        ([0.9, 0.1], True, "unknown"),
        ([0.9, 0.1], False, None),
        ([0.59, 0.1], False, "unsure"),  # not confident
        ([0.65, 0.5], False, "unsure"),  # no clear lead
    ],
)
def test_a_frame_is_sent_for_a_reason(top: list[float], unknown: bool, reason: str | None):
    labels = [Label(place, "x", confidence) for place, confidence in enumerate(top)]
    assert Choice().reason(Result(labels, unknown, 0.5)) == reason


def test_a_frame_reaches_the_trainer_with_what_is_known_of_it(tmp_path: Path, health: Health):
    with trainer() as server:
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        assert not frames.offer(picture(1), SURE)
        assert frames.offer(picture(7), UNKNOWN)
        until(lambda: server.frames and not health.unsure_waiting)
        frames.close()
        ((headers, body),) = server.frames.values()
    assert headers["Reason"] == "unknown"
    assert unquote(headers["Answer"]) == "a/ä" and headers["Content-Type"] == "image/jpeg"
    image = cv2.cvtColor(cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert np.abs(image.astype(int) - picture(7).image).mean() < 12
    assert (health.unsure_waiting, health.unsure_dropped) == (0, 0)


def test_frames_wait_on_the_disk_while_the_trainer_is_away_and_none_is_lost_or_sent_twice(
    tmp_path: Path, health: Health, said: list[str]
):
    port = free_port()
    frames = UnsureFrames(f"http://127.0.0.1:{port}", TOKEN, tmp_path, MANY, health)
    wanted = taken(frames, 6)
    assert wanted >= 5, "they differ, and the gate lets them pass"
    until(lambda: health.unsure_waiting == wanted and health.problem)
    assert len([line for line in said if "cannot be reached" in line]) == 1, "told once"
    frames.close()
    # The device starts again, and the trainer is still away; then it comes back.
    again = Health("cam-1", said.append)
    frames = UnsureFrames(f"http://127.0.0.1:{port}", TOKEN, tmp_path, MANY, again)
    assert again.unsure_waiting == wanted
    more = taken(frames, 3, start=100)
    until(lambda: again.problem)
    with trainer(port=port) as server:
        until(lambda: len(server.frames) == wanted + more and not again.unsure_waiting)
        frames.close()
    numbers = [int(frame.partition("-")[0]) for frame in server.frames]
    assert numbers == list(range(1, wanted + more + 1)), "the oldest first"
    assert len(server.asked) == len(set(server.asked)), "none twice"
    assert (again.unsure_waiting, again.unsure_dropped, again.problem) == (0, 0, None)
    assert said[-1] == "frames reach the trainer again"


def test_stored_frames_are_for_the_user_of_the_device_alone(tmp_path: Path, health: Health):
    before = os.umask(0o022)  # as a user has it; other tests may have left a stricter one
    try:
        frames = UnsureFrames("http://127.0.0.1:9", TOKEN, tmp_path, MANY, health)
        assert frames.offer(picture(1), UNKNOWN)
        frames.close()
    finally:
        os.umask(before)
    (stored,) = tmp_path.rglob("*.frame")
    assert (stored.stat().st_mode & 0o777, stored.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_the_trainer_can_never_take_does_not_hold_up_the_rest(tmp_path: Path, health: Health):
    with trainer() as server:
        server.answers = [413]
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        wanted = taken(frames, 3)
        until(lambda: len(server.frames) == wanted - 1 and not health.unsure_waiting)
        frames.close()
    assert (health.unsure_dropped, health.unsure_waiting) == (1, 0)


def test_a_trainer_that_takes_nothing_is_told_once_and_gets_the_frame_later_under_its_id(
    tmp_path: Path, health: Health, said: list[str]
):
    with trainer() as server:
        server.answers = [507] * 2
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        frames.offer(picture(1), UNKNOWN)
        until(lambda: server.frames)
        frames.close()
        assert len(server.asked) == 3 and len(set(server.asked)) == 1
    assert len([line for line in said if "trainer wait" in line]) == 1


def test_look_alikes_and_floods_stay_out(tmp_path: Path, health: Health):
    frames = UnsureFrames("http://127.0.0.1:9", TOKEN, tmp_path, Choice(per_minute=60.0), health)
    assert frames.offer(picture(1), UNKNOWN)
    assert not frames.offer(picture(1), UNKNOWN), "it was taken already"
    begun = time.monotonic()
    passed = taken(frames, 200, start=2)
    frames.close()
    # Two at once, and then one a second.
    assert passed <= 2 + (time.monotonic() - begun)


def test_beyond_the_bound_on_the_disk_frames_are_dropped_and_told_once(
    tmp_path: Path, health: Health, said: list[str]
):
    size = len(unsure.encoded(picture(0).image))
    choice = Choice(per_minute=6000.0, most_bytes=3 * size)
    frames = UnsureFrames("http://127.0.0.1:9", TOKEN, tmp_path, choice, health)
    stored = taken(frames, 8)
    frames.close()
    assert health.unsure_waiting == stored >= 1 and health.unsure_dropped >= 1
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.frame")]
    assert len(sizes) == stored and sum(sizes) <= 3 * size
    assert len([line for line in said if "no more frames" in line]) == 1


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_device_reports_who_it_is_and_how_it_is(health: Health):
    health.answered(17, True)
    health.trouble("x", "something is wrong")
    with trainer() as server:
        reporter = Reporter(server.url, TOKEN, health, every=0.05)
        until(lambda: len(server.reports) >= 2)
        reporter.close()
    facts = server.reports[0]
    counts = {"frames": 1, "unknown": 1, "unsure_waiting": 0, "unsure_dropped": 0}
    assert facts == {"device": "cam-1", "version": 17, **counts, "problem": "something is wrong"}
    assert server.reports[-1]["problem"] == "something is wrong; has ended"
