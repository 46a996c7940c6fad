"""From a stream into the workspace: the gate, the queue, labels that a source brings along."""

import hashlib
import time

import numpy as np
import pytest

from edge_hpcr.live.intake import Intake
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.folder import Workspace


@pytest.fixture
def intake(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(
            image_size=8, idle_steps=0, threads=1, gate_per_second=1000.0, gate_distance=0
        )
        live = LiveLearner(workspace)
        live.start()
        yield Intake(workspace, live)
        live.stop()


def _frame(image, label=None, digest=None, at=None):
    return Frame(image, "test", label, digest, time.time() if at is None else at)


def _digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


def test_a_frame_goes_to_the_queue_and_one_that_looks_the_same_does_not(intake, digits):
    first = intake.take(_frame(digits.train_images[0]))
    assert first.verdict == "queue" and first.answer.unknown
    assert intake.take(_frame(digits.train_images[0])).verdict == "duplicate"
    assert [row.id for row in intake.workspace.journal.queued()] == [first.sample_id]
    np.testing.assert_array_equal(intake.workspace.image(first.sample_id), digits.train_images[0])


def test_what_was_skipped_is_counted_by_reason_and_kept(intake, digits):
    for _ in range(4):
        intake.take(_frame(digits.train_images[0]))
    intake.close()
    assert intake.workspace.journal.counters() == {"queued": 1, "skipped_duplicate": 3}


def test_labels_that_a_source_brings_are_journalled_and_learned_and_a_second_showing_is_recognised(
    intake, digits
):
    for showing in range(2):
        for image, label in zip(digits.train_images[:25], digits.train_labels[:25], strict=True):
            seen = intake.take(_frame(image, f"digit {label}", _digest(image)))
            assert seen.verdict == ("label" if showing == 0 else "known")
        intake.flush()
    assert intake.live.wait_until_caught_up(60)
    journal = intake.workspace.journal
    assert journal.counts().labels == 25
    assert {row.name for row in journal.classes()} == {
        f"digit {d}" for d in set(digits.train_labels[:25].tolist())
    }
    assert intake.live.test_then_train.summary()["labels"] == 25


def test_a_queued_file_is_not_queued_again_after_a_restart(intake, digits):
    frame = _frame(digits.train_images[0], digest=_digest(digits.train_images[0]))
    assert intake.take(frame).verdict == "queue"
    assert Intake(intake.workspace, intake.live).take(frame).verdict == "known"
    assert Intake(intake.workspace, intake.live).take(_frame(frame.image)).verdict == "duplicate"


def test_no_frame_enters_the_queue_beyond_the_disk_budget(intake, digits):
    intake.workspace.change_settings(disk_bytes=400)
    verdicts = [intake.take(_frame(image)).verdict for image in digits.train_images[:12]]
    assert "disk" in verdicts and verdicts[0] == "queue"
    intake.keep_counts()
    assert intake.workspace.journal.counters()["skipped_disk"] == verdicts.count("disk")


def test_the_queue_stays_within_its_bound_while_frames_keep_coming(intake, digits):
    intake.workspace.change_settings(queue_samples=30)
    for image in digits.train_images[:200]:
        intake.take(_frame(image))
        assert intake.workspace.journal.counts().queued <= 30
    assert intake.workspace.journal.counts().queued >= 25


def test_a_class_name_that_cannot_be_puts_its_file_into_quarantine_and_the_stream_goes_on(intake, digits):
    assert intake.take(_frame(digits.train_images[0], "x" * 200)).verdict == "bad"
    assert intake.take(_frame(digits.train_images[1], "fine")).verdict == "label"
    intake.close()
    assert intake.workspace.journal.counts().labels == 1
    assert intake.workspace.journal.counters()["skipped_bad"] == 1
    assert "at most 100" in (intake.workspace.layout.quarantine / "quarantine.jsonl").read_text()


def test_a_file_that_waits_in_the_queue_gets_the_label_that_its_source_brings_later(intake, digits):
    image = digits.train_images[0]
    queued = intake.take(_frame(image, digest=_digest(image))).sample_id
    assert intake.take(_frame(image, "nought", _digest(image))).sample_id == queued
    assert intake.workspace.journal.sample(queued).state == "labelled"
    assert intake.take(_frame(image, "nought", _digest(image))).verdict == "known"


def test_files_are_not_skipped_for_coming_fast_but_a_camera_s_frames_are(intake, digits):
    intake.workspace.change_settings(gate_per_second=1.0)
    for waits, expected in ((True, 20), (False, 2)):
        one = Intake(intake.workspace, intake.live, source_waits=waits)
        start = 100 if waits else 500
        verdicts = [
            one.take(_frame(image, at=1000.0)).verdict for image in digits.train_images[start : start + 20]
        ]
        assert verdicts.count("rate") == (0 if waits else 20 - verdicts.count("duplicate") - expected)


def test_a_frame_refused_for_a_full_disk_is_taken_when_there_is_room_again(intake, digits):
    intake.take(_frame(digits.train_images[1]))
    intake.workspace.change_settings(disk_bytes=1)
    assert intake.take(_frame(digits.train_images[0])).verdict == "disk"
    intake.workspace.change_settings(disk_bytes=1_000_000)
    assert intake.take(_frame(digits.train_images[0])).verdict == "queue"
    intake.keep_counts()
    assert intake.workspace.journal.counters() == {"queued": 2, "skipped_disk": 1}


def test_the_same_file_in_two_folders_is_one_sample(intake, digits):
    image = digits.train_images[0]
    assert intake.take(_frame(image, "a", _digest(image))).verdict == "label"
    assert intake.take(_frame(image, "b", _digest(image))).verdict == "known"
    intake.close()
    assert intake.workspace.journal.counts().labels == 1


def test_ordinary_photos_of_a_source_are_held_out_one_by_one(intake, digits):
    for image in digits.train_images[digits.train_labels == 3][:20]:
        intake.take(_frame(image, "three", _digest(image)))
    intake.close()
    assert intake.workspace.journal.counts().held_out == 2


def test_with_a_single_class_nothing_is_skipped_as_sure(intake, digits):
    intake.take(_frame(digits.train_images[0], "only", _digest(digits.train_images[0])))
    intake.flush()
    assert intake.live.wait_until_caught_up(60)
    assert "sure" not in {intake.take(_frame(image)).verdict for image in digits.train_images[1:30]}


def test_frames_that_a_camera_dropped_are_counted(intake):
    for dropped in (3, 3, 10):
        intake.count_dropped(dropped)
    intake.keep_counts()
    assert intake.workspace.journal.counters() == {"dropped": 10}
