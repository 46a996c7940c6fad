"""A learner that publishes itself while it learns."""

import time
from contextlib import ExitStack, closing

import pytest
from export_parts import Teaching
from torch import nn

from edge_hpcr.learner.methods import method_class
from export.device.manifest import read_latest
from export.device.model import Classifier
from export.publish import publish as module
from export.publish.publish import REPLAY_SECONDS, Publisher, publish
from export.publish.snapshot import snapshot_of
from export.publish.versions import Refused, rollback, rollforward, versions


@pytest.fixture
def teaching(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    with ExitStack() as at_the_end:

        def make(clock=lambda: 20 * time.monotonic(), **settings):
            one = at_the_end.enter_context(closing(Teaching(tmp_path / "w", **settings)))
            publisher = Publisher(one.live, clock=clock)
            at_the_end.callback(publisher.stop)
            return one, publisher

        yield make


def numbers(one):
    return [manifest.version for manifest in versions(one.exports)]


def attempt(one, publisher):
    """Wait for the next one that begins after now."""
    asked = time.time()
    one.until(lambda: (publisher.status().at or 0) > asked and publisher.status().phase == "waiting")
    asked = time.time()
    one.until(lambda: (publisher.status().at or 0) > asked)
    return publisher.status()


@pytest.mark.slow
def test_what_has_been_learned_is_published_by_itself_and_again_only_when_there_is_more(teaching):
    one, publisher = teaching(publish_seconds=1)
    publisher.start()
    assert attempt(one, publisher).problem is None and numbers(one) == [], "there is no class yet"
    one.teach(0)
    one.until(lambda: numbers(one))
    class_id = one.teach(1)
    one.until(lambda: class_id in [c.id for c in Classifier.load(one.exports, "cpu", 1).info.classes])
    one.until(lambda: one.live.phase == "idle")
    attempt(one, publisher)
    before = numbers(one)
    assert attempt(one, publisher).problem is None and numbers(one) == before


@pytest.mark.slow
def test_after_a_rollback_it_waits_for_a_person(teaching):
    one, publisher = teaching(publish_seconds=1)
    publisher.start()
    for digit in (0, 1):
        one.teach(digit)
        one.until(lambda: versions(one.exports) and len(versions(one.exports)[-1].classes) == digit + 1)  # noqa: B023
    rollback(one.exports)
    before = numbers(one)
    one.teach(2)
    one.until(lambda: "rolled back from version" in (publisher.status().problem or ""))
    assert numbers(one) == before and read_latest(one.exports).version == before[-2]
    with pytest.raises(Refused):
        publish(one.exports, snapshot_of(one.live), by_hand=False)
    rollforward(one.exports)
    one.until(lambda: numbers(one)[-1] > before[-1])
    one.until(lambda: publisher.status().problem is None)


def test_a_learner_that_cannot_be_copied_is_reported_once_and_tried_again_after_as_many_steps(
    teaching, monkeypatch, caplog
):
    one, publisher = teaching(publish_steps=1, idle_steps=0)
    one.teach(0)
    one.until(lambda: one.live.phase == "idle")
    hpcr = method_class(one.live.learner.config.method)
    monkeypatch.setattr(hpcr, "classifier", lambda *arguments: nn.Identity())
    assert publisher._is_due()
    for _ in range(2):
        publisher._try()
        assert "cannot be exported" in publisher.status().problem
        assert not publisher._is_due()
    assert caplog.text.count("cannot be exported") == 1


def test_how_often_follows_the_settings_at_any_moment(teaching):
    one, publisher = teaching()
    one.teach(0)
    assert not publisher._is_due()
    one.workspace.change_settings(publish_steps=1)
    assert publisher._is_due()
    one.workspace.change_settings(publish_steps=0, publish_seconds=3600)
    assert not publisher._is_due()


def test_what_replay_alone_changes_waits_until_it_is_over(teaching):
    now = 1000.0
    one, publisher = teaching(clock=lambda: now, publish_seconds=5)
    one.teach(0)
    publisher._try()
    one.live.stop()  # what it does is said here from now on
    now += 5.0
    one.live.phase = "rehearsing"
    assert not publisher._is_due(), "a version of every few steps would push out the kept ones"
    one.live.phase = "idle"
    assert publisher._is_due()
    one.live.phase = "rehearsing"
    now += REPLAY_SECONDS - 5.0
    assert publisher._is_due()
