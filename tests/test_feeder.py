"""From a stream into the workspace: the gate, the queue, labels that a source brings along."""

import hashlib
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from workspace_parts import SMALL

from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import EndOfStream, Frame, Stream
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.records import NewSample


@pytest.fixture
def feeder(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, gate_per_second=1000.0, gate_distance=0)
        live = LiveLearner(workspace)
        live.start()
        feeder = Feeder(workspace, live)
        yield feeder
        live.stop()


def _frame(image, label=None, digest=None, at=None):
    return Frame(image, "test", label, digest, time.time() if at is None else at)


class Shelf(Stream):
    """Frames that a test has put there."""

    name = "shelf"

    def __init__(self, frames=(), live=False):
        self.live = live
        self._left = list(frames)

    def read(self, timeout):
        if not self._left:
            if self.live:
                return None
            raise EndOfStream
        return self._counted(self._left.pop(0))

    def _doing(self):
        return "live", ""

    def close(self):
        pass


def _digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


def test_a_frame_goes_to_the_queue_and_one_that_looks_the_same_does_not(feeder, digits):
    first = feeder.take(_frame(digits.train_images[0]))
    assert first.verdict == "queue" and first.answer.unknown
    assert feeder.take(_frame(digits.train_images[0])).verdict == "duplicate"
    assert [row.id for row in feeder.workspace.journal.queued()] == [first.sample_id]
    np.testing.assert_array_equal(feeder.workspace.image(first.sample_id), digits.train_images[0])


def test_what_was_skipped_is_counted_by_reason_and_kept(feeder, digits):
    for _ in range(4):
        feeder.take(_frame(digits.train_images[0]))
    feeder.finish()
    assert feeder.workspace.journal.counters() == {"queued": 1, "skipped_duplicate": 3}


@pytest.mark.slow
def test_labels_that_a_source_brings_are_journalled_and_learned_and_a_second_showing_is_recognised(
    feeder, digits
):
    for showing in range(2):
        for image, label in zip(digits.train_images[:25], digits.train_labels[:25], strict=True):
            seen = feeder.take(_frame(image, f"digit {label}", _digest(image)))
            assert seen.verdict == ("label" if showing == 0 else "known")
        feeder.flush()
    assert feeder.live.wait_until_caught_up(60)
    journal = feeder.workspace.journal
    assert journal.counts().labels == 25
    assert {row.name for row in journal.classes()} == {
        f"digit {d}" for d in set(digits.train_labels[:25].tolist())
    }
    tested = feeder.live.self_test.test_then_train.summary()["labels"]
    assert tested == 25 - len(journal.classes()), "the first of a class is no test"


def test_a_queued_file_is_not_queued_again_after_a_restart(feeder, digits):
    frame = _frame(digits.train_images[0], digest=_digest(digits.train_images[0]))
    assert feeder.take(frame).verdict == "queue"
    assert Feeder(feeder.workspace, feeder.live).take(frame).verdict == "known"
    assert Feeder(feeder.workspace, feeder.live).take(_frame(frame.image)).verdict == "duplicate"


def test_no_frame_enters_the_queue_beyond_the_disk_budget(feeder, digits):
    feeder.workspace.change_settings(disk_bytes=400)
    verdicts = [feeder.take(_frame(image)).verdict for image in digits.train_images[:12]]
    assert "disk" in verdicts and verdicts[0] == "queue"
    feeder.store_counts()
    assert feeder.workspace.journal.counters()["skipped_disk"] == verdicts.count("disk")


@pytest.mark.slow
def test_the_queue_stays_within_its_bound_while_frames_keep_coming(feeder, digits):
    feeder.workspace.change_settings(queue_samples=30)
    for image in digits.train_images[:200]:
        feeder.take(_frame(image))
        assert feeder.workspace.journal.counts().queued <= 30
    assert feeder.workspace.journal.counts().queued >= 25


def test_a_class_name_that_cannot_be_puts_its_file_into_quarantine_and_the_stream_goes_on(feeder, digits):
    assert feeder.take(_frame(digits.train_images[0], "x" * 200)).verdict == "bad"
    assert feeder.take(_frame(digits.train_images[1], "fine")).verdict == "label"
    feeder.finish()
    assert feeder.workspace.journal.counts().labels == 1
    assert feeder.workspace.journal.counters()["skipped_bad"] == 1
    assert "at most 100" in (feeder.workspace.layout.quarantine / "quarantine.jsonl").read_text()


def test_a_file_that_waits_in_the_queue_gets_the_label_that_its_source_brings_later(feeder, digits):
    image = digits.train_images[0]
    queued = feeder.take(_frame(image, digest=_digest(image))).sample_id
    assert feeder.take(_frame(image, "nought", _digest(image))).sample_id == queued
    feeder.flush()
    assert feeder.workspace.journal.sample(queued).state == "labelled"
    assert feeder.take(_frame(image, "nought", _digest(image))).verdict == "known"


def test_files_are_not_skipped_for_coming_fast_but_a_camera_s_frames_are(feeder, digits):
    feeder.workspace.change_settings(gate_per_second=1.0)
    for waits, expected in ((True, 20), (False, 2)):
        feeder.use(Shelf(live=not waits))
        start = 100 if waits else 500
        verdicts = [
            feeder.take(_frame(image, at=1000.0)).verdict for image in digits.train_images[start : start + 20]
        ]
        assert verdicts.count("rate") == (0 if waits else 20 - verdicts.count("duplicate") - expected)


def test_a_frame_refused_for_a_full_disk_is_taken_when_there_is_room_again(feeder, digits):
    feeder.take(_frame(digits.train_images[1]))
    feeder.workspace.change_settings(disk_bytes=1)
    assert feeder.take(_frame(digits.train_images[0])).verdict == "disk"
    feeder.workspace.change_settings(disk_bytes=1_000_000)
    assert feeder.take(_frame(digits.train_images[0])).verdict == "queue"
    feeder.store_counts()
    assert feeder.workspace.journal.counters() == {"queued": 2, "skipped_disk": 1}


def test_the_same_file_in_two_folders_is_one_sample(feeder, digits):
    image = digits.train_images[0]
    assert feeder.take(_frame(image, "a", _digest(image))).verdict == "label"
    assert feeder.take(_frame(image, "b", _digest(image))).verdict == "known"
    feeder.finish()
    assert feeder.workspace.journal.counts().labels == 1


def test_ordinary_photos_of_a_source_are_held_out_one_by_one(feeder, digits):
    for image in digits.train_images[digits.train_labels == 3][:20]:
        feeder.take(_frame(image, "three", _digest(image)))
    feeder.finish()
    assert feeder.workspace.journal.counts().held_out == 2


@pytest.mark.slow
def test_with_a_single_class_nothing_is_skipped_as_sure(feeder, digits):
    feeder.take(_frame(digits.train_images[0], "only", _digest(digits.train_images[0])))
    feeder.flush()
    assert feeder.live.wait_until_caught_up(60)
    assert "sure" not in {feeder.take(_frame(image)).verdict for image in digits.train_images[1:30]}


def test_frames_that_a_camera_dropped_are_counted(feeder):
    camera = Shelf(live=True)
    feeder.use(camera)
    for camera._dropped in (3, 3, 10):
        feeder.turn(0)
    feeder.finish()
    assert feeder.workspace.journal.counters() == {"dropped": 10}


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


def test_only_the_newest_hashes_are_read_at_a_change_of_source(feeder, digits):
    journal = feeder.workspace.journal
    ids = journal.add_samples(NewSample(1, "", "test", hash64=2**64 - 1 - number) for number in range(8))
    journal.dismiss([ids[6]])
    assert journal.newest_hashes(3) == [2**64 - 1 - number for number in (4, 5, 7)]


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


def test_a_file_that_is_fed_and_imported_at_the_same_time_is_one_sample(feeder, digits):
    frames = _labelled_files(digits, 6)
    for frame in frames:
        feeder.take(frame)
    workspace = feeder.workspace
    taken = [Taken(frame.image, "import", frame.digest) for frame in frames[:4]]
    with workspace.taking(taken) as ids:  # as an import does, after the feeder has looked
        workspace.journal.label(ids, workspace.journal.class_named("trois"))
    feeder.flush()
    assert {row.name: row.labels for row in workspace.journal.classes()} == {"trois": 4, "three": 2}
    assert len(list(workspace.files.names())) == 6


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
    assert not (workspace.layout.quarantine / "quarantine.jsonl").exists()


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


def test_an_unlabelled_file_that_could_not_be_stored_is_tried_again(feeder, digits):
    frames = [_frame(image, digest=_digest(image)) for image in digits.train_images[:40]]
    feeder.use(Shelf(frames))
    journal = feeder.workspace.journal
    with _full(journal):
        verdicts = [seen.verdict for _ in range(40) if (seen := feeder.turn(0))]
        assert "disk" in verdicts
    while not feeder.ended:
        feeder.turn(0)
    counters = journal.counters()
    assert journal.counts().queued == counters["queued"]
    assert counters["queued"] + counters.get("skipped_duplicate", 0) == 40
