"""Frames that are worth a label: chosen, kept on the device while the trainer is away, sent once, oldest first."""

import json
import signal
import time
from pathlib import Path
from urllib.parse import unquote

import cv2
import numpy as np
import pytest
from device_parts import publish
from test_device_runtime import add, running_device
from test_device_swap import until
from trainer_parts import TOKEN, trainer

from edge_hpcr.stream import Frame
from export.device import unsure
from export.device.health import Health
from export.device.model import Label, Result
from export.device.reports import Reporter
from export.device.unsure import Choice, UnsureFrames

UNKNOWN = Result([Label(1, "a/ä", 0.9), Label(2, "b", 0.1)], True, 0.1)
SURE = Result([Label(1, "a", 0.9), Label(2, "b", 0.1)], False, 0.9)
MANY = Choice(per_minute=6000.0)


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
    monkeypatch.setattr(unsure, "WAITS", (0.05,))
    monkeypatch.setattr(unsure, "LONG_WAIT", 0.05)


@pytest.mark.parametrize(
    ("top", "unknown", "reason"),
    [
        ([0.9, 0.1], True, "unknown"),
        ([0.9, 0.1], False, None),
        ([0.59, 0.1], False, "unsure"),  # not confident
        ([0.65, 0.5], False, "unsure"),  # no clear lead
        ([1.0], False, None),  # a model with one class
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
        until(lambda: health.unsure_sent == 1)
        frames.close()
        ((headers, body),) = server.frames.values()
    assert (headers["Reason"], float(headers["Captured-At"])) == ("unknown", 1007.0)
    assert unquote(headers["Answer"]) == "a/ä" and headers["Content-Type"] == "image/jpeg"
    image = cv2.cvtColor(cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert np.abs(image.astype(int) - picture(7).image).mean() < 12
    assert (health.unsure_waiting, health.unsure_dropped) == (0, 0)


def test_a_large_frame_is_sent_small_enough(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (2160, 3840, 3), np.uint8)
    assert len(unsure.encoded(noise)) < 5_000_000


def test_frames_wait_on_the_disk_while_the_trainer_is_away_and_none_is_lost_or_sent_twice(
    tmp_path: Path, health: Health, said: list[str]
):
    with trainer() as server:
        port = server.server_address[1]
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
        until(lambda: again.unsure_sent == wanted + more)
        frames.close()
    times = [float(headers["Captured-At"]) for headers, _ in server.frames.values()]
    assert len(times) == wanted + more and times == sorted(times), "the oldest first"
    assert len(server.asked) == len(set(server.asked)), "none twice"
    assert (again.unsure_waiting, again.unsure_dropped, again.problem) == (0, 0, None)
    assert said[-1] == "frames reach the trainer again"


def test_a_frame_whose_answer_was_lost_is_sent_again_under_its_id(tmp_path: Path, health: Health):
    with trainer() as server:
        server.answers = [(500, {}), (500, {})]
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        frames.offer(picture(1), UNKNOWN)
        until(lambda: health.unsure_sent == 1)
        frames.close()
        assert len(server.asked) == 3 and len(set(server.asked)) == 1


def test_a_trainer_that_is_busy_is_asked_again_when_it_said(tmp_path: Path, health: Health):
    with trainer() as server:
        server.answers = [(429, {"Retry-After": "1"})]
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        begun = time.monotonic()
        frames.offer(picture(1), UNKNOWN)
        until(lambda: health.unsure_sent == 1)
        assert time.monotonic() - begun >= 1
        frames.close()


@pytest.mark.parametrize("status", [413, 415])
def test_what_the_trainer_can_never_take_does_not_hold_up_the_rest(
    tmp_path: Path, health: Health, status: int
):
    with trainer() as server:
        server.answers = [(status, {})]
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        wanted = taken(frames, 3)
        until(lambda: health.unsure_sent == wanted - 1)
        frames.close()
    assert (health.unsure_dropped, health.unsure_waiting) == (1, 0)


@pytest.mark.parametrize(
    ("status", "why"), [(507, "it has no room for them"), (404, "it takes none"), (500, "it answers 500")]
)
def test_a_trainer_that_takes_nothing_is_told_once_and_keeps_nothing_from_coming_later(
    tmp_path: Path, health: Health, said: list[str], status: int, why: str
):
    with trainer() as server:
        server.answers = [(status, {})] * 3
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        frames.offer(picture(1), UNKNOWN)
        until(lambda: health.unsure_sent == 1)
        frames.close()
    assert [line for line in said if why in line] == [f"frames for the trainer wait: {why}"]


def test_a_token_that_was_revoked_is_told_and_the_frames_wait(
    tmp_path: Path, health: Health, said: list[str]
):
    with trainer() as server:
        server.token = "another-token-of-good-length"
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, health)
        frames.offer(picture(1), UNKNOWN)
        until(lambda: health.problem)
        assert "refuses the token" in health.problem and health.unsure_waiting == 1
        server.token = TOKEN
        until(lambda: health.unsure_sent == 1)
        frames.close()


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
    wanted = taken(frames, 8)
    frames.close()
    assert health.unsure_waiting >= 1 and health.unsure_waiting + health.unsure_dropped == wanted
    stored = [path.stat().st_size for path in tmp_path.rglob("*.frame")]
    assert len(stored) == health.unsure_waiting and sum(stored) <= 3 * size
    assert len([line for line in said if "--unsure-disk" in line]) == 1


def test_a_stored_frame_that_was_damaged_is_dropped_and_the_others_are_sent(tmp_path: Path, health: Health):
    frames = UnsureFrames("http://127.0.0.1:9", TOKEN, tmp_path, MANY, health)
    wanted = taken(frames, 3)
    frames.close()
    folder = next(tmp_path.rglob("*.frame")).parent
    sorted(folder.glob("*.frame"))[0].write_bytes(b"no frame")
    with trainer() as server:
        # Under the trainer's own address: the folder's name holds it.
        again = Health("cam-1", print)
        frames = UnsureFrames(server.url, TOKEN, tmp_path, MANY, again)
        frames._folder = folder
        until(lambda: again.unsure_sent == wanted - 1)
        frames.close()


# Reports --------------------------------------------------------------------------------------------------------------


def test_a_device_reports_who_it_is_and_how_it_is(health: Health):
    health.answered(17, True, 3.0)
    health.trouble("x", "something is wrong")
    with trainer() as server:
        reporter = Reporter(server.url, TOKEN, health, every=0.05)
        until(lambda: len(server.reports) >= 2)
        reporter.close()
    facts = server.reports[0]
    assert set(facts) == {
        "device", "version", "since", "started", "now", "frames", "unknown", "unsure_waiting", "unsure_dropped",
        "problem", "software",
    }  # fmt: skip
    assert (facts["device"], facts["version"], facts["frames"], facts["unknown"]) == ("cam-1", 17, 1, 1)
    assert facts["problem"] == "something is wrong" and facts["software"].startswith("edge-hpcr ")
    assert abs(facts["now"] - time.time()) < 60


def test_a_plain_file_server_gets_one_report_and_nobody_is_bothered(health: Health, said: list[str]):
    with trainer() as server:
        server.takes_reports = False
        asked = []
        handle = server.RequestHandlerClass.do_POST
        server.RequestHandlerClass = type(
            "Counting",
            (server.RequestHandlerClass,),
            {"do_POST": lambda self: (asked.append(self.path), handle(self))},
        )
        reporter = Reporter(server.url, TOKEN, health, every=0.01)
        until(lambda: asked)
        time.sleep(0.3)
        reporter.close()
    assert (len(asked), said, health.problem) == (1, [], None)


@pytest.mark.slow
def test_a_device_whose_camera_is_away_reports_so_and_which_version_it_has(tmp_path: Path):
    publish(tmp_path / "exports", 1)
    with trainer(tmp_path / "exports") as server:
        (tmp_path / "token").write_text(TOKEN)
        places = ("--models", server.url, "--token", tmp_path / "token", "--cache", tmp_path / "cache")
        with running_device(*places, "--source", "/dev/video97", "--report", 0.1, "--poll", 0.1):
            until(lambda: server.reports and server.reports[-1]["problem"])
            assert "/dev/video97" in server.reports[-1]["problem"]
            assert (server.reports[-1]["version"], server.reports[-1]["frames"]) == (1, 0)
            publish(tmp_path / "exports", 2)
            until(lambda: server.reports[-1]["version"] == 2)


@pytest.mark.slow
def test_the_runtime_says_who_it_is_sends_reports_and_unknown_frames(tmp_path: Path):
    publish(tmp_path / "exports", 1)
    (tmp_path / "images").mkdir()
    add(tmp_path / "images", "0.png", "red")
    add(tmp_path / "images", "1.png", "black")  # as far from every class as can be
    (tmp_path / "token").write_text(TOKEN)
    with trainer(tmp_path / "exports") as server:
        places = ("--models", server.url, "--send-unsure", server.url, "--source", tmp_path / "images")
        keys = ("--token", tmp_path / "token", "--cache", tmp_path / "cache", "--device-id", "shelf-3")
        bounds = ("--unsure-below", 0, "--unsure-margin", 0, "--report", 0.1)
        with running_device(*places, *keys, *bounds, "--watch") as process:
            lines = [json.loads(process.stdout.readline()) for _ in range(2)]
            until(lambda: server.frames and server.reports and server.reports[-1]["frames"] == 2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    assert [line["device"] for line in lines] == ["shelf-3"] * 2
    assert set(server.devices) == {"shelf-3"}
    assert (server.reports[-1]["device"], server.reports[-1]["version"]) == ("shelf-3", 1)
    ((headers, _),) = server.frames.values()
    assert (headers["Reason"], float(headers["Captured-At"])) == ("unknown", lines[1]["at"])
