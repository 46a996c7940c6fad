"""Changing the model while frames come: nothing is lost, nothing leaks, and what fails is told once."""

import threading
import weakref
from pathlib import Path

import pytest
from device_parts import LOAD, NAMES, frame_of, manifest_of, point_at, publish, tiny_model
from process_parts import until

from export.device.health import Health
from export.device.hot_swap import HotSwap, LocalModels


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def swap(exports: Path, said: list[str]):
    swap = HotSwap(LocalModels(exports), LOAD, Health("test", said.append), poll=0.02)
    swap.first()
    yield swap
    swap.close()


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
        answer = classifier.predict([frame_of(name)])[0].top[0].name
        answers.append((name, answer, classifier.info.version))
    publisher.join()
    assert all(shown == told for shown, told, _ in answers)
    versions = [version for _, _, version in answers]
    assert versions == sorted(versions)
    assert swap.swaps == 6


def test_a_rollback_is_followed_and_the_old_model_freed(swap: HotSwap, exports: Path):
    old = weakref.ref(swap.classifier)
    publish(exports, 2)
    assert swap.look() and old() is None
    point_at(exports, 1, (exports / "v000001" / "manifest.json").read_bytes())
    assert swap.look()
    assert swap.classifier.info.version == 1


def test_a_first_model_is_waited_for_and_a_bad_one_not_loaded_again_and_again_meanwhile(
    tmp_path: Path, said: list[str]
):
    exports = tmp_path / "exports"
    data = tiny_model(1).SerializeToString()
    publish(exports, 1, data[:-3], manifest_of(data))
    loads: list[str] = []
    looks: list[None] = []

    class Looked(LocalModels):
        def newest(self):
            looks.append(None)
            return super().newest()

    def load(path, manifest):
        loads.append(f"v{manifest.version}")
        return LOAD(path, manifest=manifest)

    swap = HotSwap(Looked(exports), load, Health("test", said.append), poll=0.01)
    waiter = threading.Thread(target=swap.first, args=(True,))
    waiter.start()
    until(lambda: len(looks) > 5)
    assert loads == ["v1"] and len(said) == 1
    publish(exports, 2)
    waiter.join(20)
    assert loads[-1] == "v2" and swap.classifier.info.version == 2
