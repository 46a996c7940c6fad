"""Changing the model while frames come: nothing is lost, nothing leaks, and what fails is told once."""

import os
import queue
import threading
import time
import weakref
from pathlib import Path

import pytest
from device_parts import NAMES, frame_of, manifest_of, many_swaps, point_at, publish, tiny_model

from edge_hpcr.common.errors import UserError
from export.device.errors import BadModel, Unavailable
from export.device.hot_swap import FEWEST_COMPARED, REMEMBERED, HotSwap
from export.device.manifest import read_manifest, read_plain_file
from export.device.model import Classifier
from export.device.model_source import Loading, LocalModels

ROOT = Path(__file__).parent.parent
SWAPS = 50  # benchmarks/device.py does a thousand


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    publish(tmp_path / "exports", 1)
    return tmp_path / "exports"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def swap(exports: Path, said: list[str]):
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), said.append, poll=0.02)
    swap.first()
    yield swap
    swap.close()


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.slow
def test_every_frame_is_answered_while_models_change(swap: HotSwap, exports: Path):
    swap.start()
    done = threading.Event()

    def publish_more() -> None:
        for version in range(2, 8):
            publish(exports, version)
            until(lambda v=version: swap.classifier.info.version == v)
        done.set()

    publisher = threading.Thread(target=publish_more)
    publisher.start()
    answers: list[tuple[str, str, int]] = []
    while not done.is_set():
        name = NAMES[len(answers) % 4]
        classifier = swap.classifier
        images = classifier.prepare([frame_of(name)])
        answers.append((name, classifier.predict_prepared(images)[0].top[0].name, classifier.info.version))
        swap.remember(images[0])
    publisher.join()
    assert all(shown == told for shown, told, _ in answers)
    versions = [version for _, _, version in answers]
    assert versions == sorted(versions)
    assert swap.swaps == 6


def test_no_frame_of_a_clock_is_lost_while_models_change(swap: HotSwap, exports: Path):
    """30 frames a second come whether or not anybody is ready for them, and wait in a line."""
    line: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    done = threading.Event()
    sent = 0

    def clock() -> None:
        nonlocal sent
        due = time.monotonic()
        while not done.is_set():
            due += 1 / 30
            done.wait(max(0.0, due - time.monotonic()))
            line.put(sent)
            sent += 1
        line.put(None)

    def publish_more() -> None:
        for version in range(2, 6):
            publish(exports, version)
            until(lambda v=version: swap.classifier.info.version == v)
        done.set()

    threads = [threading.Thread(target=each) for each in (clock, publish_more)]
    swap.start()
    for thread in threads:
        thread.start()
    answered: list[tuple[int, str]] = []
    while (number := line.get(timeout=30)) is not None:
        classifier = swap.classifier
        images = classifier.prepare([frame_of(NAMES[number % 4])])
        answered.append((number, classifier.predict_prepared(images)[0].top[0].name))
        swap.remember(images[0])
    for thread in threads:
        thread.join(30)
    assert swap.swaps == 4
    assert answered == [(number, NAMES[number % 4]) for number in range(sent)]


def test_the_agreement_with_the_old_model_is_told(swap: HotSwap, exports: Path, said: list[str]):
    for name in NAMES:
        swap.remember(frame_of(name, 16, 16))
    publish(exports, 2)
    assert swap.look()
    assert "model v2 is in use instead of v1: same answer on 4 of the last 4 frames" in said[-1]


def test_a_model_that_agrees_too_rarely_is_refused_if_asked(exports: Path, said: list[str]):
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), said.append, min_agreement=0.5)
    swap.first()
    for name in NAMES:
        swap.remember(frame_of(name, 16, 16))
    publish(exports, 2, scale=-0.2)
    assert not swap.look()
    assert "agrees with v1 on 0 of the last 4 frames only" in said[-1]
    assert swap.classifier.info.version == 1


@pytest.mark.parametrize(("seconds", "compared"), [(0.0, FEWEST_COMPARED), (3600.0, REMEMBERED)])
def test_a_comparison_that_takes_long_ends_after_a_few_frames(
    swap: HotSwap,
    exports: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    compared: int,
):
    """A device that answers slowly would otherwise be the last to know what was taught."""
    monkeypatch.setattr("export.device.hot_swap.COMPARE_SECONDS", seconds)
    for number in range(2 * REMEMBERED):
        swap.remember(frame_of(NAMES[number % 4], 16, 16))
    publish(exports, 2)
    assert swap.look()
    assert f"same answer on {compared} of the last {compared} frames" in said[-1]


def test_a_swap_that_takes_long_does_not_put_off_the_next_look(exports: Path):
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), print, poll=5.0)
    assert [swap._pause(took, swapped=True) for took in (1.0, 9.0)] == [4.0, 0.0]
    assert swap._pause(9.0, swapped=False) == 5.0, "a server that hangs is left alone for a while"


def test_a_model_for_another_image_size_and_with_more_classes_is_taken(tmp_path: Path, said: list[str]):
    exports = tmp_path / "exports"
    publish(exports, 1, names=("red", "green"))
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), said.append)
    swap.first()
    swap.remember(frame_of("red", 16, 16))
    publish(exports, 2, size=24)
    assert swap.look()
    assert swap.classifier.predict([frame_of("blue")])[0].top[0].name == "blue"
    assert swap.classifier.info.height == 24


def test_a_rollback_is_followed(swap: HotSwap, exports: Path):
    publish(exports, 2)
    assert swap.look()
    point_at(exports, 1, (exports / "v000001" / "manifest.json").read_bytes())
    assert swap.look()
    assert swap.classifier.info.version == 1


def test_nothing_is_loaded_again_while_nothing_changes(swap: HotSwap, said: list[str]):
    said.clear()
    assert [swap.look() for _ in range(3)] == [False] * 3
    assert said == []


def test_a_folder_that_disappears_is_told_once_and_its_return_too(
    swap: HotSwap, exports: Path, said: list[str], tmp_path: Path
):
    said.clear()
    exports.rename(tmp_path / "away")
    assert not swap.look() and not swap.look()
    assert said == [f"{exports} is not there; v1 goes on"]
    assert swap.classifier.predict([frame_of("red")])[0].top[0].name == "red"
    (tmp_path / "away").rename(exports)
    assert not swap.look()
    assert said[1:] == ["models can be had again"]


def test_what_is_wrong_with_models_is_known_until_it_is_mended(swap: HotSwap, exports: Path, tmp_path: Path):
    assert swap.problem is None
    publish(exports, 2, b"no model", manifest_of(tiny_model(2).SerializeToString(), 2))
    assert not swap.look() and not swap.look()
    assert "model v2 is refused" in (swap.problem or "")
    publish(exports, 3)
    assert swap.look() and swap.problem is None
    exports.rename(tmp_path / "away")
    assert not swap.look() and "is not there" in (swap.problem or "")
    (tmp_path / "away").rename(exports)
    assert not swap.look() and swap.problem is None


def test_threads_of_a_model_do_not_spin(swap: HotSwap):
    """Two models would take each other's cores during a swap, and a frame would wait for the one that spins."""
    options = swap.classifier._session.get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_latest_that_arrives_before_its_version_is_waited_for(swap: HotSwap, exports: Path, tmp_path: Path):
    folder = publish(exports, 2)
    folder.rename(tmp_path / "late")
    assert not swap.look()
    (tmp_path / "late").rename(folder)
    assert swap.look()


def test_without_any_model_the_start_fails_with_a_way_out(tmp_path: Path, said: list[str]):
    swap = HotSwap(LocalModels(tmp_path), Loading("cpu", 1), said.append)
    with pytest.raises(UserError, match=r"holds no published model yet .* \(--wait waits for one\)"):
        swap.first()


def test_a_first_model_can_be_waited_for(tmp_path: Path, said: list[str]):
    exports = tmp_path / "exports"
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), said.append, poll=0.02)
    waiter = threading.Thread(target=swap.first, args=(True,))
    waiter.start()
    until(lambda: len(said) == 1)
    publish(exports, 1)
    waiter.join(20)
    assert swap.classifier.info.version == 1
    assert said[0].startswith("waiting for a first model")


def test_a_first_model_that_is_bad_is_not_loaded_again_and_again_while_waiting(
    tmp_path: Path, said: list[str]
):
    exports = tmp_path / "exports"
    data = tiny_model(1).SerializeToString()
    publish(exports, 1, data[:-3], manifest_of(data))
    loads: list[str] = []

    class Counting(Loading):
        def load(self, offer):
            loads.append(offer.name)
            return super().load(offer)

    swap = HotSwap(LocalModels(exports), Counting("cpu", 1), said.append, poll=0.01)
    waiter = threading.Thread(target=swap.first, args=(True,))
    waiter.start()
    until(lambda: len(said) == 1)
    publish(exports, 2)
    waiter.join(20)
    assert loads == ["v1", "v2"]


def test_a_damaged_newest_model_is_replaced_at_the_start_by_the_one_before(exports: Path, said: list[str]):
    publish(exports, 2)
    folder = publish(exports, 3)
    (folder / "model.onnx").write_bytes(b"")
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), said.append)
    assert swap.first().info.version == 2
    assert "started with v2 instead" in said[-1]
    said.clear()
    assert not swap.look()
    assert said == []


def test_after_a_rollback_no_newer_model_stands_in(exports: Path, said: list[str]):
    publish(exports, 2)
    point_at(exports, 1, (exports / "v000001" / "manifest.json").read_bytes())
    (exports / "v000001" / "model.onnx").unlink()
    with pytest.raises(UserError, match="no model to start with"):
        HotSwap(LocalModels(exports), Loading("cpu", 1), said.append).first()


def test_a_single_file_is_followed_too(tmp_path: Path, said: list[str]):
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_model(1).SerializeToString())
    swap = HotSwap(LocalModels(path), Loading("cpu", 1), said.append)
    swap.first()
    assert not swap.look()
    (tmp_path / "next").write_bytes(tiny_model(2).SerializeToString())
    (tmp_path / "next").replace(path)
    assert swap.look()
    assert swap.classifier.info.version == 2


def test_what_is_not_there_is_unavailable_and_not_bad(tmp_path: Path):
    with pytest.raises(Unavailable, match="is not there"):
        LocalModels(tmp_path / "nowhere").newest()


LONG = "x" * 300  # longer than a name may be: looking it up is an error other than "not there"


def test_a_place_that_cannot_be_looked_up_is_unavailable(tmp_path: Path):
    with pytest.raises(Unavailable, match="cannot be read: File name too long"):
        LocalModels(tmp_path / LONG).newest()
    with pytest.raises(BadModel, match="cannot be read: File name too long"):
        Classifier.load(tmp_path / LONG, "cpu", 1)
    with pytest.raises(BadModel, match="cannot be read: File name too long"):
        read_manifest(tmp_path / LONG)
    with pytest.raises(BadModel, match="cannot be read: File name too long"):
        read_plain_file(tmp_path / LONG, 1)


def test_a_folder_in_place_of_a_file_leaves_nothing_open(swap: HotSwap, exports: Path):
    (exports / "latest.json").unlink()
    (exports / "latest.json").mkdir()
    swap.look()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        assert not swap.look()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_whatever_goes_wrong_while_looking_is_told_once_and_looking_goes_on(
    exports: Path, said: list[str], caplog: pytest.LogCaptureFixture
):
    class Surprising(Loading):
        def load(self, offer):
            if offer.name == "v2":
                raise KeyError("nobody thought of this")
            return super().load(offer)

    swap = HotSwap(LocalModels(exports), Surprising("cpu", 1), said.append, poll=0.01)
    swap.first()
    swap.start()
    try:
        publish(exports, 2)
        until(lambda: "looking for a new model failed (KeyError); v1 goes on" in said)
        publish(exports, 3)
        until(lambda: swap.classifier.info.version == 3)
    finally:
        swap.close()
    assert sum("KeyError" in line for line in said) == 1
    assert len(caplog.records) == 1 and "Traceback" in caplog.text


def test_the_old_model_is_freed(swap: HotSwap, exports: Path):
    old = weakref.ref(swap.classifier)
    publish(exports, 2)
    assert swap.look()
    assert old() is None


@pytest.mark.slow
def test_many_swaps_do_not_fill_the_memory(exports: Path):
    facts = many_swaps(exports, SWAPS)
    assert facts["swaps"] == 20 + SWAPS
    assert facts["after"] < 1.05 * facts["before"], facts


def test_an_offer_is_known_again_without_reading_its_manifest(exports: Path):
    source = LocalModels(exports)
    assert source.newest() is source.newest()
