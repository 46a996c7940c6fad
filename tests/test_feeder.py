"""From a stream into the workspace: the gate, the queue, labels that a source brings along."""

import hashlib
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from live_parts import learning
from stream_parts import Shelf
from workspace_parts import SMALL

from edge_hpcr.live.feeder import Feeder
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def feeder(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, gate_per_second=1000.0, gate_distance=0)
        with learning(workspace) as live:
            yield Feeder(workspace, live)


def _frame(image, label=None, digest=None, at=None):
    return Frame(image, "test", label, digest, time.time() if at is None else at)


def _digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


def test_a_queued_file_is_not_queued_again_after_a_restart(feeder, digits):
    frame = _frame(digits.train_images[0], digest=_digest(digits.train_images[0]))
    assert feeder.take(frame).verdict == "queue"
    assert Feeder(feeder.workspace, feeder.live).take(frame).verdict == "known"
    assert Feeder(feeder.workspace, feeder.live).take(_frame(frame.image)).verdict == "duplicate"


def test_a_class_name_that_cannot_be_is_said_and_the_stream_goes_on(feeder, digits, caplog):
    assert feeder.take(_frame(digits.train_images[0], "x" * 200)).verdict == "bad"
    assert feeder.take(_frame(digits.train_images[1], "fine")).verdict == "label"
    feeder.finish()
    assert feeder.workspace.journal.counts().labels == 1
    assert "at most 100" in caplog.text


def test_a_file_that_waits_in_the_queue_gets_the_label_that_its_source_brings_later(feeder, digits):
    image = digits.train_images[0]
    queued = feeder.take(_frame(image, digest=_digest(image))).sample_id
    assert feeder.take(_frame(image, "nought", _digest(image))).sample_id == queued
    feeder.flush()
    assert feeder.workspace.journal.sample(queued).state == "labelled"
    assert feeder.take(_frame(image, "nought", _digest(image))).verdict == "known"


def test_a_frame_refused_for_a_full_disk_is_taken_when_there_is_room_again(feeder, digits):
    feeder.take(_frame(digits.train_images[1]))
    feeder.workspace.change_settings(disk_bytes=1)
    assert feeder.take(_frame(digits.train_images[0])).verdict == "disk"
    feeder.workspace.change_settings(disk_bytes=1_000_000)
    assert feeder.take(_frame(digits.train_images[0])).verdict == "queue"


# The gate before the network ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_duplicate_and_a_labelled_file_cost_no_forward_pass(feeder, digits, monkeypatch):
    for digit in (0, 1):
        image = digits.train_images[digits.train_labels == digit][0]
        feeder.take(_frame(image, f"digit {digit}", _digest(image)))
    feeder.flush()
    assert feeder.live.wait_until_caught_up(60)
    passes, predict, here = [], feeder.live.predictor.predict, threading.get_ident()

    def counted(images):
        if threading.get_ident() == here:  # the learner tests itself beside
            passes.append(len(images))
        return predict(images)

    monkeypatch.setattr(feeder.live.predictor, "predict", counted)
    fresh = digits.train_images[digits.train_labels == 7][:2]
    verdicts = [feeder.take(_frame(image)).verdict for image in (fresh[0],) * 10]
    assert verdicts == ["queue"] + ["duplicate"] * 9 and len(passes) == 1
    seen = feeder.take(_frame(fresh[1], "seven", _digest(fresh[1])))
    assert seen.verdict == "label" and seen.answer is None and len(passes) == 1


# Nothing lost -------------------------------------------------------------------------------------------------------


def _labelled_files(digits, count):
    images = digits.train_images[digits.train_labels == 3][:count]
    return [_frame(image, "three", _digest(image)) for image in images]


def test_two_flushes_at_once_store_each_file_once(feeder, digits):
    frames = _labelled_files(digits, 9)
    for frame in frames:
        feeder.take(frame)
    together = threading.Barrier(2)

    def flush():
        together.wait()
        feeder.flush()

    threads = [threading.Thread(target=flush) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = feeder.workspace.journal.counts()
    assert (counts.labels, counts.images) == (9, 9)
    assert len(list(feeder.workspace.files.names())) == 9


@contextmanager
def _full(journal):
    """The journal's own disk is full: SQLite itself refuses to grow the file."""
    journal._rows(f"PRAGMA max_page_count = {journal._rows('PRAGMA page_count')[0][0]}")
    try:
        yield
    finally:
        journal._rows("PRAGMA max_page_count = 1000000")


@pytest.mark.slow
def test_labels_that_a_full_disk_refuses_stay_and_are_stored_once_there_is_room(feeder, digits):
    workspace, journal = feeder.workspace, feeder.workspace.journal
    frames = [replace(frame, label="x" * 90 + str(n)) for n, frame in enumerate(_labelled_files(digits, 60))]
    source = Shelf(frames)
    feeder.use(source, brings_labels=True)
    with _full(journal):
        for _ in range(100):
            feeder.turn(0)
            if any("disk is full" in problem for problem in feeder.live.problems):
                break
        # A sample, its class and its label are stored together, and nothing is left of what failed.
        stored = journal.counts()
        assert stored.labels == stored.images == len(list(workspace.files.names())) < 60
        assert stored.queued == 0
        left = feeder.finish()
        assert left > 0 and source.state().frames == stored.labels + left
    while not feeder.ended:
        feeder.turn(1)
    assert feeder.finish() == 0
    assert not any("disk is full" in problem for problem in feeder.live.problems)
    assert journal.counts().labels == 60
    assert sorted(row.source_digest for row in journal.all_samples()) == sorted(f.digest for f in frames)


def test_labels_that_could_not_be_stored_outlive_their_source(feeder, digits):
    journal = feeder.workspace.journal
    feeder.use(Shelf(_labelled_files(digits, 3)), brings_labels=True)
    for _ in range(3):
        feeder.turn(0)
    images = feeder.workspace.files.folder
    images.rename(images.with_name("away"))
    images.write_text("a file where the folder was: nothing can be stored in it")
    feeder.use(Shelf(live=True))
    assert journal.counts().labels == 0 and feeder.live.problems
    images.unlink()
    images.with_name("away").rename(images)
    feeder.turn(0)
    assert journal.counts().labels == 3
