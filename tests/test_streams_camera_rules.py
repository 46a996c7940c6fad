"""The rules by which every camera is reopened, with captures that misbehave as no real camera does on demand."""

import threading
import time

import numpy as np
import pytest

from edge_hpcr.stream import EndOfStream
from edge_hpcr.stream.camera import MISSES_IN_A_ROW, MOST_ABANDONED, Camera, Patience

QUICK = Patience(waits=(0.02, 0.04, 0.08))
HASTY = Patience(stall_seconds=0.1, give_up_seconds=0.3, waits=(0.02,))


def picture(value: int = 7, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


class Scripted:
    """A capture that gives what it was told to, a step at a time; an Event is a hang until it is set, an exception is raised."""

    def __init__(self, *steps, opens: bool = True):
        self.steps, self.opens, self.released = list(steps), opens, threading.Event()

    def is_open(self):
        return self.opens

    def read(self):
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, threading.Event):
            step.wait(20)
            return self.read()
        if isinstance(step, Exception):
            raise step
        return (False, None) if step is None else (True, step)

    def release(self):
        self.released.set()


class Cameras:
    """Opens the given captures one after the other, then closed ones for ever, and notes when."""

    def __init__(self, *captures):
        self.captures, self.opened_at = list(captures), []

    def __call__(self):
        self.opened_at.append(time.monotonic())
        return self.captures.pop(0) if self.captures else Scripted(opens=False)


def wait_for(condition, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


@pytest.fixture
def hang():
    event = threading.Event()
    yield event
    event.set()  # lets abandoned readers end with the test


def test_frames_nobody_looked_at_are_dropped_and_counted(hang):
    opens = Cameras(Scripted(*(picture(value) for value in range(10)), hang, picture(10)))
    with Camera("test", opens, QUICK) as camera:
        wait_for(lambda: camera.state().frames == 10)
        assert camera.read(1).image[0, 0, 0] == 9
        assert camera.state().dropped == 9
        assert camera.state().size == (6, 4)
        assert camera.read(0) is None
        hang.set()
        assert camera.read(20).image[0, 0, 0] == 10 and camera.state().dropped == 9


def test_closing_wakes_the_reader_that_waits(hang):
    camera = Camera("test", Cameras(Scripted(hang)), QUICK)
    threading.Timer(0.05, camera.close).start()
    with pytest.raises(EndOfStream):
        camera.read(20)


@pytest.mark.slow
def test_waits_grow_to_the_longest_one_while_a_camera_cannot_be_opened():
    opens = Cameras()
    with Camera("test", opens, Patience(waits=(0.05, 0.1, 1.0))) as camera:
        wait_for(lambda: len(opens.opened_at) == 5)
        assert camera.state().phase == "reconnecting"
    gaps = np.diff(opens.opened_at)
    assert all(gap >= least for gap, least in zip(gaps, (0.05, 0.1, 1.0, 1.0), strict=True))
    assert gaps[0] < 1.0  # and the first wait is a short one


def test_the_state_says_why_and_when_the_next_try_is():
    with Camera("test", Cameras(), Patience(waits=(8,))) as camera:
        wait_for(lambda: camera.state().phase == "reconnecting")
        assert camera.state().message == "reconnecting: cannot open, next try in 8 s"


def test_waits_start_again_from_the_shortest_after_frames_have_flowed():
    closed = [Scripted(opens=False) for _ in range(3)]
    opens = Cameras(*closed, Scripted(picture()), Scripted(picture()))
    with Camera("test", opens, Patience(waits=(0.01, 0.02, 0.03, 30))):
        wait_for(lambda: len(opens.opened_at) == 5)  # without the reset the wait before it would be 30 s
    assert opens.opened_at[4] - opens.opened_at[3] < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "garbage",
    [
        np.zeros((0, 0, 3), np.uint8),  # empty
        np.zeros((4, 6), np.uint8),  # without channels
        np.zeros((4, 6, 4), np.uint8),  # with one too many
        np.zeros((4, 6, 3), np.float32),
        "not an array",
    ],
)
def test_a_camera_that_sends_garbage_is_reopened_and_the_garbage_counted(garbage, hang):
    first = Scripted(*[garbage] * MISSES_IN_A_ROW, picture(1))
    with Camera("test", Cameras(first, Scripted(picture(2), hang)), QUICK) as camera:
        assert camera.read(10).image[0, 0, 0] == 2
        assert camera.state().bad == MISSES_IN_A_ROW
        assert first.released.is_set()


@pytest.mark.slow
def test_one_damaged_frame_is_counted_and_no_reason_to_reopen(hang):
    opens = Cameras(Scripted(picture(1), None, np.zeros((0,)), picture(2), hang))
    with Camera("test", opens, QUICK) as camera:
        wait_for(lambda: camera.state().frames == 2)
        assert camera.state().bad == 1
        assert len(opens.opened_at) == 1


@pytest.mark.slow
def test_a_camera_may_come_back_with_another_frame_size(hang):
    opens = Cameras(Scripted(picture(1)), Scripted(picture(2, height=30, width=40), hang))
    with Camera("test", opens, QUICK) as camera:
        wait_for(lambda: camera.state().frames == 2)
        assert camera.state().size == (40, 30)
        assert camera.read(1).image.shape == (30, 40, 3)


@pytest.mark.slow
def test_a_camera_that_hangs_is_stalled_then_given_up_then_live_again(hang):
    late = threading.Event()
    opens = Cameras(Scripted(picture(1), late, picture(99)), Scripted(picture(2), hang))
    patience = Patience(stall_seconds=0.1, give_up_seconds=0.6, waits=(0.02,))
    with Camera("test", opens, patience) as camera:
        wait_for(lambda: camera.state().phase == "stalled")
        assert camera.state().message.startswith("stalled for ")
        assert len(opens.opened_at) == 1  # stalled is not yet given up
        wait_for(lambda: camera.state().frames == 2)
        assert camera.read(1).image[0, 0, 0] == 2


@pytest.mark.slow
def test_a_late_frame_of_a_reader_that_was_given_up_is_ignored(hang):
    late = threading.Event()
    given_up = Scripted(picture(1), late, picture(99))
    with Camera("test", Cameras(given_up, Scripted(picture(2), hang)), HASTY) as camera:
        wait_for(lambda: camera.state().frames == 2)
        late.set()
        assert given_up.released.wait(10)
        assert camera.state().frames == 2
        assert camera.read(1).image[0, 0, 0] == 2


def test_readers_that_hang_for_ever_do_not_become_more_and_more(hang):
    opens = Cameras(*(Scripted(hang) for _ in range(20)))
    patience = Patience(stall_seconds=0.02, give_up_seconds=0.03, waits=(0.01,))
    with Camera("test", opens, patience) as camera:
        wait_for(lambda: "still hang" in camera.state().message)
        assert len(opens.opened_at) == MOST_ABANDONED
        hang.set()  # the driver lets go: now the camera is tried again
        wait_for(lambda: len(opens.opened_at) > MOST_ABANDONED)


@pytest.mark.slow
def test_an_unexpected_exception_in_the_reader_is_told_without_its_text_and_the_camera_reopened(hang):
    opens = Cameras(Scripted(picture(1), KeyError("s3cret")), Scripted(picture(2), hang))
    with Camera("test", opens, Patience(waits=(0.5,))) as camera:
        wait_for(lambda: camera.state().phase == "reconnecting")
        message = camera.state().message
        assert message.startswith(
            "reconnecting: its reader broke down (KeyError, test_streams_camera_rules.py:"
        )
        assert "s3cret" not in message
        wait_for(lambda: camera.state().frames == 2)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["while it opens", "while it reads", "while it waits"])
def test_close_is_prompt_whatever_the_camera_does(where, hang):
    def opener():
        if where == "while it opens":
            hang.wait(20)
        return Scripted(hang, opens=where != "while it waits")

    camera = Camera("test", opener, Patience())
    phase = "reconnecting" if where == "while it waits" else "opening"
    wait_for(lambda: camera.state().phase == phase)
    started = time.monotonic()
    camera.close()
    assert time.monotonic() - started < 8
    assert camera.state().phase == "closed"
    with pytest.raises(EndOfStream):
        camera.read(20)


def test_closing_lets_go_of_a_healthy_camera():
    class Endless(Scripted):
        def read(self):
            time.sleep(0.005)  # the pace of the camera
            return True, picture()

    capture = Endless()
    camera = Camera("test", Cameras(capture), QUICK)
    assert camera.read(10) is not None
    camera.close()
    assert capture.released.is_set()


def test_a_camera_says_how_many_frames_a_second_it_sends():
    class Steady(Scripted):
        def read(self):
            time.sleep(0.01)
            return True, picture()

    with Camera("test", Cameras(Steady()), QUICK) as camera:
        wait_for(lambda: camera.state().frames > 5)
        message = camera.state().message
    assert message.startswith("live, ") and message.endswith(" frames/s")
    assert 5 < float(message.split()[1]) <= 100
