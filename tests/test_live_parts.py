"""The live learner's parts: calibration, honest accuracy, following the journal."""

import numpy as np
import pytest

from edge_hpcr.learner.calibration import calibrate
from edge_hpcr.live import accuracy
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain, held_out_ids
from edge_hpcr.live.follower import Close, Follower, Unlearn, operations
from edge_hpcr.workspace import queries
from edge_hpcr.workspace.records import QUEUED, Body, ClassState, Event, SampleRow, SampleState
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def _state(class_id, held_out):
    return QUEUED if class_id is None else SampleState("labelled", class_id, held_out)


def _label(seq, *moves, kind="label", closed=()):
    """Each move is a sample, its class before and after, and whether it is, and was, held out."""
    samples = [(i, _state(was, any(before)), _state(now, held)) for i, was, now, held, *before in moves]
    live = ClassState("mug", None, "live", None)
    classes = [(class_id, live, live._replace(state="merged")) for class_id in closed]
    return Event(seq, 100.0 + seq, kind, Body(samples, classes))


# Calibration ----------------------------------------------------------------------------------------------------------


def test_confidence_after_calibration_is_as_often_right_as_it_says(rng):
    truth_share = rng.uniform(0.35, 0.95, 4000)  # of the better of two classes
    columns = (rng.random(4000) > truth_share).astype(int)
    logits = 4 * np.log(np.stack([truth_share, 1 - truth_share], 1))  # four times too sure
    boasting = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    calibration = calibrate(boasting, np.full(4000, 0.9), columns, 0.05)
    assert calibration.temperature == pytest.approx(4, rel=0.15)
    confident = calibration.confidences(boasting)
    for low, high in ((0.5, 0.65), (0.65, 0.8), (0.8, 0.95)):
        chosen = (confident.max(1) >= low) & (confident.max(1) < high)
        right = (confident.argmax(1) == columns)[chosen].mean()
        assert confident.max(1)[chosen].mean() == pytest.approx(right, abs=0.06)


def test_the_unknown_line_leaves_the_asked_share_of_held_out_samples_below(rng):
    similarity = rng.uniform(0.2, 1, 500)
    scores = np.tile([0.6, 0.4], (500, 1))
    calibration = calibrate(scores, similarity, np.zeros(500, int), 0.1)
    assert calibration.unknown(similarity).mean() == pytest.approx(0.1, abs=0.01)
    assert calibration.unknown(np.array([0.0, 0.99])).tolist() == [True, False]


# Accuracy -------------------------------------------------------------------------------------------------------------


def test_every_label_tests_once_also_the_first_of_a_class():
    record = TestThenTrain()
    for class_id, predicted in ((1, None), (1, 1), (2, 1), (2, 2), (1, 1)):
        record.record(class_id, predicted)
    summary = record.model_dump(mode="json")
    assert (summary["labels"], summary["accuracy"]) == (5, 0.6)
    assert TestThenTrain.model_validate(record.model_dump(mode="json")) == record


def test_the_last_test_counts_every_answer_and_comes_back_from_a_checkpoint():
    held_out = HeldOut()
    held_out.record(10, np.array([1, 1, 2]), np.array([1, 2, 2]))
    truth = np.array([1, 1, 1, 1, 2, 2])
    held_out.record(20, truth, np.array([1, 2, 2, 1, 2, 2]), one_place=True)
    assert held_out.accuracy == pytest.approx(4 / 6) and held_out.samples == 6
    assert (1, 2, 2) in held_out.confusion
    assert HeldOut.model_validate(held_out.model_dump(mode="json")) == held_out


def test_what_is_measured_is_even_over_classes_and_the_newest_and_no_other_sample_is_read(
    tmp_path, rng, monkeypatch
):
    with Workspace.open(tmp_path / "w") as workspace:
        journal, members = workspace.journal, dict[int, list[int]]()
        journal.held_out_share = 0.5
        for name, labels in (("mug", 60), ("cup", 6), ("tin", 30)):
            rows = [SampleRow(bytes=100, hash64=int(code)) for code in rng.integers(1, 2**63, labels)]
            ids, class_id = journal.add_samples(rows), journal.create_class(name)
            journal.label_each((sample, class_id) for sample in ids)
            members[class_id] = [row.id for row in journal.rows_of(ids) if row.held_out][::-1]
        monkeypatch.setattr(accuracy, "HELD_OUT_BYTES", 1500)
        monkeypatch.setattr(queries, "_sample_row", None)  # whoever reads a whole sample fails
        chosen = held_out_ids(workspace)
        oldest = journal.over_classes(held_out=False, newest=False, limit=4)
    own = {name: [i for i in chosen if chosen[i] == name] for name in members}
    mugs, cups, tins = (len(own[name]) for name in members)
    assert mugs + cups + tins == 15 and cups == len(members[2]) and abs(mugs - tins) <= 1
    assert all(own[name] == members[name][: len(own[name])] for name in members)
    assert [class_id for _, class_id, _ in oldest] == [1, 2, 3, 1]


# Following the journal ------------------------------------------------------------------------------------------------


def test_a_merge_moves_labels_without_teaching_the_images_again():
    merged = list(operations(_label(4, (7, 2, 3, False), (8, 2, 3, True, True), kind="merge", closed=[2])))
    assert merged == [
        Unlearn(7, 2, 3, False, 4),
        Unlearn(8, None, 3, False, 4),
        Close(2, 4),
    ]  # 8 was held out


def test_what_no_longer_holds_and_what_holds_instead_come_in_batches():
    follower = Follower(0)
    follower.put([_label(1, *[(i, 2, 3, False) for i in range(1, 6)], kind="correct")])
    for kind in ("Unlearn", "Teach"):
        batch = follower.next(10)
        assert [(type(each).__name__, each.sample_id) for each in batch] == [(kind, i) for i in range(1, 6)]
        follower.done()
    assert follower.applied == 1 and not follower.next(10)


def test_labels_of_several_events_share_a_step_and_count_as_applied_when_it_is_done():
    follower = Follower(0)
    follower.put(
        [_label(1, (1, None, 5, False)), _label(2, (2, None, 5, False)), _label(3, (3, None, 6, False))]
    )
    batch = follower.next(2)
    assert [teach.sample_id for teach in batch] == [1, 2]
    assert follower.applied == 0
    follower.done()
    assert follower.applied == 2 and follower.whole
    assert [teach.sample_id for teach in follower.next(2)] == [3]
    follower.done()
    assert follower.applied == 3 and not follower.next(2)


def test_an_event_that_is_half_learned_is_not_applied():
    follower = Follower(0)
    follower.put([_label(1, *[(i, None, 5, False) for i in range(1, 6)])])
    assert len(follower.next(3)) == 3
    follower.done()
    assert follower.applied == 0 and not follower.whole
    assert len(follower.next(3)) == 2
    follower.done()
    assert follower.applied == 1 and follower.whole and follower.labels_waiting == 0


def test_the_same_sample_is_never_twice_in_a_step():
    follower = Follower(0)
    follower.put([_label(1, (1, None, 5, False)), _label(2, (1, None, 6, False))])
    assert [teach.class_id for teach in follower.next(10)] == [5]
    assert [teach.class_id for teach in follower.next(10)] == [6]
