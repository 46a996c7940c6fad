"""A learner that publishes itself while it learns."""

import time

import pytest
from export_parts import Teaching
from torch import nn

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.methods import method_class
from export.device.manifest import read_latest
from export.device.model import Classifier
from export.publish.policy import Policy, Refused
from export.publish.publish import publish
from export.publish.publisher import REPLAY_SECONDS, Publisher, publisher_of
from export.publish.snapshot import snapshot_of
from export.publish.versions import release, rollback, rollforward, versions


@pytest.fixture
def teaching(tmp_path):
    made, publishers = [], []

    def make(policy=None, every_steps=None, every_seconds=None, clock=time.monotonic, **settings):
        one = Teaching(tmp_path / "w", **settings)
        made.append(one)
        publishers.append(Publisher(one.live, policy, every_steps, every_seconds, clock=clock))
        return one, publishers[-1]

    yield make
    for publisher in publishers:
        publisher.stop()
    for one in made:
        one.close()


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
def test_what_has_been_learned_is_published_by_itself_and_again_when_there_is_more(teaching):
    one, publisher = teaching(every_seconds=0.05)
    publisher.start()
    one.teach(0)
    one.until(lambda: numbers(one))
    class_id = one.teach(1)
    one.until(lambda: class_id in [c.id for c in Classifier.load(one.exports, "cpu", 1).info.classes])
    status = publisher.status()
    assert status.problem is None
    one.until(lambda: publisher.status().published is not None)


@pytest.mark.slow
def test_nothing_is_published_before_there_is_a_class_nor_when_nothing_is_new(teaching):
    one, publisher = teaching(every_seconds=0.05)
    publisher.start()
    assert attempt(one, publisher).problem is None and numbers(one) == []
    one.teach(0)
    one.until(lambda: numbers(one))
    one.until(lambda: one.live.phase == "idle")
    attempt(one, publisher)
    before = numbers(one)
    attempt(one, publisher)
    assert numbers(one) == before


@pytest.mark.slow
def test_a_new_name_alone_is_news(teaching):
    one, publisher = teaching(every_seconds=0.05)
    publisher.start()
    zero = one.teach(0)
    one.until(lambda: numbers(one))
    one.journal.rename_class(zero, "nought")
    one.until(lambda: versions(one.exports)[-1].classes[0].name == "nought")


@pytest.mark.slow
def test_it_waits_for_the_number_of_steps(teaching):
    one, publisher = teaching(every_steps=6)
    publisher.start()
    one.teach(0, 1)
    steps = one.live.learner.step
    assert 0 < steps < 6
    time.sleep(0.7)  # longer than its look at the learner
    assert numbers(one) == []
    while one.live.learner.step < 6:
        one.teach(0, 2)
    one.until(lambda: numbers(one))
    assert versions(one.exports)[0].step >= 6


@pytest.mark.slow
def test_learning_goes_on_while_a_version_is_made(teaching, monkeypatch):
    monkeypatch.setattr("export.publish.publisher.REPLAY_SECONDS", 0.05)
    one, publisher = teaching(every_seconds=0.05, idle_steps=100_000, idle_share=1.0)
    one.teach(0)
    one.teach(1)
    steps = []

    def publishing():
        return publisher.status().phase == "publishing"

    publisher.start()
    for _ in range(3):
        one.until(publishing)
        begun = one.live.learner.step
        one.until(lambda: not publishing())
        steps.append(one.live.learner.step - begun)
    assert max(steps) >= 2, "more than the step that the copy waited for"
    assert publisher.status().problem is None


@pytest.mark.slow
def test_after_a_rollback_it_waits_for_a_person(teaching):
    one, publisher = teaching(every_seconds=0.05)
    publisher.start()
    for digit in (0, 1):
        one.teach(digit)
        one.until(lambda: versions(one.exports) and len(versions(one.exports)[-1].classes) == digit + 1)  # noqa: B023
    rollback(one.exports)
    before = numbers(one)
    one.teach(2)
    one.until(lambda: "rolled back from version" in (publisher.status().problem or ""))
    assert numbers(one) == before and read_latest(one.exports).version == before[-2]
    with pytest.raises(Refused, match="rolled back from version"):
        publish(one.exports, snapshot_of(one.live), variants=(), by_hand=False)
    rollforward(one.exports)
    one.until(lambda: numbers(one)[-1] > before[-1])
    one.until(lambda: publisher.status().problem is None)


def test_a_learner_that_cannot_be_copied_is_reported_once_and_tried_again_after_as_many_steps(
    teaching, monkeypatch, caplog
):
    one, publisher = teaching(every_steps=1, idle_steps=0)
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


@pytest.mark.slow
def test_a_refusal_is_kept_for_the_status(teaching):
    one, publisher = teaching(Policy(tolerance=1e-12), every_seconds=0.05)
    one.teach(0)
    one.teach(1)
    publisher.start()
    one.until(lambda: publisher.status().problem)
    assert "differs from the network" in publisher.status().problem
    assert publisher.status().published is None and numbers(one) == []


def test_a_learner_that_has_stopped_is_a_problem_and_no_crash(teaching):
    one, publisher = teaching(every_seconds=0.05)
    one.live.stop()
    publisher.start()
    deadline = time.monotonic() + 60
    while publisher.status().problem is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "stopped" in publisher.status().problem
    publisher.stop()
    assert publisher.status().phase == "stopped"


@pytest.mark.parametrize(
    "how_often", [{}, {"every_steps": 0}, {"every_seconds": -1.0}, {"every_seconds": float("nan")}]
)
def test_how_often_must_make_sense(teaching, how_often):
    with pytest.raises(UserError, match=r"how often|positive"):
        teaching(**how_often)


class Clock:
    """A time that passes when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_what_replay_alone_changes_waits_until_it_is_over(teaching):
    clock = Clock()
    one, publisher = teaching(every_seconds=5.0, clock=clock)
    one.teach(0)
    publisher._try()
    one.live.stop()  # what it does is said here from now on
    clock.now += 5.0
    one.live.phase = "rehearsing"
    assert not publisher._is_due(), "a version of every few steps would push out the kept ones"
    one.live.phase = "idle"
    assert publisher._is_due()
    one.live.phase = "rehearsing"
    clock.now += REPLAY_SECONDS - 5.0
    assert publisher._is_due()


@pytest.mark.slow
def test_a_label_does_not_wait_because_replay_was_published_a_moment_ago(teaching):
    clock = Clock()
    one, publisher = teaching(every_seconds=5.0, clock=clock, idle_steps=0)
    one.teach(0)
    publisher._try()
    one.live.call(one.live.learner.rehearse).result()
    one.until(lambda: one.live.phase == "idle")
    clock.now += 5.0
    assert publisher._is_due(), "what replay has made of it"
    publisher._try()
    clock.now += 0.1
    assert not publisher._is_due()
    one.teach(1)
    assert publisher._is_due()
    publisher._try()
    one.teach(2)
    clock.now += 4.9
    assert not publisher._is_due(), "labels one after the other do wait"
    clock.now += 0.1
    assert publisher._is_due()


@pytest.mark.slow
def test_a_label_whose_version_is_refused_is_tried_again_after_the_usual_time(teaching):
    clock = Clock()
    one, publisher = teaching(Policy(tolerance=1e-12), every_seconds=5.0, clock=clock)
    one.teach(0)
    one.teach(1)
    publisher._try()
    assert "differs from the network" in publisher.status().problem
    one.live.stop()
    one.live.phase = "rehearsing"
    clock.now += 4.9
    assert not publisher._is_due()
    clock.now += 0.1
    assert publisher._is_due(), "replay may have mended it: not a minute later"


@pytest.mark.slow
def test_nothing_is_copied_when_nothing_has_changed(teaching, monkeypatch):
    one, publisher = teaching(every_seconds=0.05)
    one.teach(0)
    one.until(lambda: one.live.phase == "idle")
    publisher._try()
    assert publisher.status().published is not None
    monkeypatch.setattr("export.publish.publisher.snapshot_of", None)
    publisher._try()
    assert publisher.status().problem is None


@pytest.mark.slow
def test_the_end_brings_a_last_version_if_it_is_asked_for(teaching):
    said = []
    one, publisher = teaching(every_seconds=3600.0)
    publisher._say = said.append
    publisher.start()
    one.teach(0)
    publisher.stop(publish=True)
    assert numbers(one) == [1] and publisher.status().phase == "stopped"
    assert said[0].startswith("published version 1: step") and "1 classes" in said[0]


@pytest.mark.slow
def test_a_trial_on_some_devices_is_left_alone(teaching):
    one, publisher = teaching(every_seconds=0.05)
    one.teach(0)
    publisher._try()
    one.teach(1)
    publish(one.exports, snapshot_of(one.live), variants=(), devices=["cam-1"])
    one.teach(2)
    publisher._try()
    assert "version 2 is on trial on 1 device" in publisher.status().problem
    release(one.exports)
    publisher._try()
    assert publisher.status().problem is None and numbers(one) == [1, 2, 3]


@pytest.mark.slow
def test_the_settings_of_a_workspace_say_how_often_and_what(teaching, tmp_path):
    one, _ = teaching(every_seconds=1.0)
    assert publisher_of(one.live) is None
    assert publisher_of(one.live, default_seconds=5.0)._every_seconds == 5.0
    one.workspace.change_settings(publish_steps=200, publish_keep=3, publish_most_drop=0.5, publish_int8=True)
    asked = publisher_of(one.live, default_seconds=5.0)
    assert (asked._every_steps, asked._every_seconds, asked._variants) == (200, None, ("int8",))
    assert (asked._policy.keep, asked._policy.most_drop) == (3, 0.5)
    one.teach(0)
    asked._try()
    (version,) = versions(one.exports)
    assert "int8" in version.missing_variants, "with so few held-out samples, and it says so"
