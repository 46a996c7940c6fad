"""The live learner's parts: calibration, honest accuracy, following the journal, suspicion."""

import numpy as np
import pytest

from edge_hpcr.learner.calibration import FEWEST_SAMPLES, Calibration, calibrate
from edge_hpcr.live.accuracy import LONGEST_CURVE, HeldOut, TestThenTrain, balanced
from edge_hpcr.live.suspicious import suspicious
from edge_hpcr.live.teaching import Close, Follower, Forget, Relabel, Teach, operations
from edge_hpcr.workspace.records import Event, Move


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def _label(seq, *moves, kind="label", closed=()):
    return Event(seq, 100.0 + seq, kind, [Move(*move) for move in moves], list(closed))


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


def test_too_few_held_out_samples_calibrate_nothing(rng):
    few = FEWEST_SAMPLES - 1
    calibration = calibrate(np.tile([0.9, 0.1], (few, 1)), np.full(few, 0.5), np.zeros(few, int), 0.05)
    assert calibration == Calibration(samples=few) and not calibration.is_measured
    assert not calibration.unknown(np.array([-1.0])).any()


def test_one_class_and_certain_scores_stay_finite():
    one = calibrate(np.ones((30, 1)), np.linspace(0, 1, 30), np.zeros(30, int), 0.05)
    assert one.temperature == 1 and one.unknown_below is not None
    certain = calibrate(np.tile([1.0, 0.0], (30, 1)), np.ones(30), np.array([0] * 29 + [1]), 0.05)
    assert np.isfinite(certain.confidences(np.array([[1.0, 0.0]]))).all()


def test_the_frames_of_a_burst_calibrate_as_one_picture(rng):
    similarity = rng.uniform(0.2, 1, 40)
    scores, columns = np.tile([0.7, 0.3], (40, 1)), (rng.random(40) < 0.3).astype(int)
    once = calibrate(scores, similarity, columns, 0.1)
    rows = np.repeat(np.arange(40), np.where(np.arange(40) < 5, 20, 1))
    weights = np.where(rows < 5, 1 / 20, 1.0)
    filmed = calibrate(scores[rows], similarity[rows], columns[rows], 0.1, weights)
    assert filmed.samples == once.samples == 40
    assert filmed.temperature == pytest.approx(once.temperature, rel=1e-3)
    assert filmed.unknown_below == pytest.approx(once.unknown_below, abs=0.03)
    few = calibrate(scores, similarity, columns, 0.1, np.full(40, 1 / 10))
    assert few == Calibration(samples=4), "forty frames of four pictures"


def test_few_samples_do_not_call_more_unknown_than_many(rng):
    """The lowest of twenty has more than a twentieth of what is to come below it, as often as not."""
    called = []
    for _ in range(2000):
        measured = rng.random(FEWEST_SAMPLES)
        line = calibrate(np.ones((FEWEST_SAMPLES, 1)), measured, np.zeros(FEWEST_SAMPLES, int), 0.05)
        called.append(line.unknown_below)  # of an even distribution, the share below it
    assert np.mean(called) == pytest.approx(0.05, abs=0.005)


def test_twenty_right_answers_do_not_make_it_certain():
    scores = np.tile([0.6, 0.4], (FEWEST_SAMPLES, 1))
    calibration = calibrate(scores, np.ones(FEWEST_SAMPLES), np.zeros(FEWEST_SAMPLES, int), 0.05)
    assert 0.6 < calibration.confidences(scores[:1])[0, 0] < 0.97


# Accuracy -------------------------------------------------------------------------------------------------------------


def test_every_label_tests_once_also_the_first_of_a_class():
    record = TestThenTrain()
    for class_id, predicted in ((1, None), (1, 1), (2, 1), (2, 2), (1, 1)):
        record.record(class_id, predicted)
    summary = record.summary()
    assert (summary["labels"], summary["accuracy"]) == (5, 0.6)
    assert summary["classes"][1] == {"labels": 3, "accuracy": pytest.approx(2 / 3)}
    assert summary["recent"] == {"labels": 5, "accuracy": pytest.approx(0.6)}


def test_lately_means_the_last_hundred_labels_and_the_curve_stays_short():
    record = TestThenTrain()
    for number in range(5000):
        record.record(1, 1 if number >= 4950 else 2)
    assert record.summary()["recent"] == {"labels": 100, "accuracy": 0.5}
    assert len(record.curve) <= LONGEST_CURVE
    assert record.curve[-1][0] > 4900


def test_forgetting_is_measured_from_a_class_s_best():
    held_out = HeldOut()
    truth = np.array([1, 1, 1, 1, 2, 2])
    held_out.record(10, truth, np.array([1, 1, 1, 1, 1, 2]))
    held_out.record(20, truth, np.array([1, 2, 2, 1, 2, 2]))
    recalls = held_out.recalls()
    assert recalls[1].recall == 0.5 and recalls[1].forgetting == 0.5
    assert recalls[2].recall == 1.0 and recalls[2].forgetting == 0.0
    assert held_out.accuracy == pytest.approx(4 / 6) and held_out.samples == 6
    assert (1, 2, 2) in held_out.confusion


def test_accuracy_survives_a_checkpoint():
    record, held_out = TestThenTrain(), HeldOut()
    for number in range(150):
        record.record(number % 3, number % 2)
    held_out.record(5, np.array([1, 2]), np.array([1, 1]))
    assert TestThenTrain.from_state(record.state()).summary() == record.summary()
    assert HeldOut.from_state(held_out.state()).summary() == held_out.summary()


def test_the_held_out_share_is_even_over_classes_and_takes_the_newest():
    members = {1: list(range(100)), 2: [500, 501], 3: list(range(200, 230))}
    chosen = balanced(members, 12)
    assert {500, 501} <= set(chosen)
    assert sum(i < 100 for i in chosen) == 5 and sum(200 <= i < 230 for i in chosen) == 5
    assert {99, 98, 229, 228} <= set(chosen)


# Following the journal ------------------------------------------------------------------------------------------------


def test_a_label_teaches_a_correction_also_mends_the_memory_an_undone_one_is_forgotten():
    first, *_ = operations(_label(1, (7, None, 2, False)))
    assert first == Teach(7, 2, False, fresh=True, corrected=False, seq=1, at=101.0)
    correction = list(operations(_label(2, (7, 2, 3, False), kind="correct")))
    assert correction[:2] == [
        Relabel(7, 3, was=2, taught_anew=True),
        Teach(7, 3, False, fresh=False, corrected=True, seq=2, at=102.0),
    ]
    undone, *_ = operations(_label(3, (7, 3, None, False), kind="undo"))
    assert undone == Forget(7, was=3)


def test_a_merge_moves_labels_without_teaching_the_images_again():
    merged = list(operations(_label(4, (7, 2, 3, False), (8, 2, 3, True, True), kind="merge", closed=[2])))
    assert merged[:3] == [Relabel(7, 3, was=2), Relabel(8, 3, was=None), Close(2)]  # 8 was held out


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
    assert follower.applied == 3 and follower.next(2) is None


def test_an_event_that_is_half_learned_is_not_applied():
    follower = Follower(0)
    follower.put([_label(1, *[(i, None, 5, False) for i in range(1, 6)])])
    assert len(follower.next(3)) == 3
    follower.done()
    assert follower.applied == 0 and not follower.whole
    assert len(follower.next(3)) == 2
    follower.done()
    assert follower.applied == 1 and follower.whole and follower.labels_waiting == 0


def test_operations_keep_the_journal_s_order():
    follower = Follower(0)
    follower.put(
        [
            _label(1, (1, None, 5, False)),
            _label(2, (1, 5, None, False), kind="undo"),
            _label(3, (1, None, 5, False), kind="redo"),
        ]
    )
    first = follower.next(10)
    assert isinstance(first, list) and len(first) == 1
    assert follower.next(10) == Forget(1, was=5)
    assert follower.next(10)[0].seq == 3


def test_the_same_sample_is_never_twice_in_a_step():
    follower = Follower(0)
    follower.put([_label(1, (1, None, 5, False)), _label(2, (1, None, 6, False))])
    assert [teach.class_id for teach in follower.next(10)] == [5]
    assert [teach.class_id for teach in follower.next(10)] == [6]


def test_an_event_without_work_is_applied_at_once():
    follower = Follower(4)
    follower.put([_label(5, kind="rename")])
    assert follower.next(10) is None and follower.applied == 5


# Suspicion ------------------------------------------------------------------------------------------------------------


def _clusters(rng, sizes, spread=0.5):
    """Features of classes 1, 2, … with so many samples each, around directions of their own."""
    classes = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    centres = 3 * np.eye(16)[: len(sizes)]
    return classes, centres[classes - 1] + rng.normal(size=(len(classes), 16)) * spread


def _told(ids, classes, features, bursts=None):
    found = suspicious(ids, classes, features, np.arange(len(ids)) if bursts is None else bursts)
    return [(each.sample_id, each.class_id, each.suggested) for each in found]


@pytest.mark.parametrize("sizes", [(4, 4), (7, 20, 20), (20, 20, 20), (3, 3, 3, 30)])
def test_a_wrong_label_is_suspicious_and_right_ones_are_not(rng, sizes):
    classes, features = _clusters(rng, sizes)
    ids = np.arange(100, 100 + len(classes))
    assert _told(ids, classes, features) == []
    wrong = len(classes) - 1  # of the last class, and called the first
    classes[wrong] = 1
    assert _told(ids, classes, features) == [(100 + wrong, 1, len(sizes))]


def test_a_class_that_has_just_begun_is_not_suspicious_whatever_it_resembles(rng):
    """As it was: 4 of 6 right labels of a new class were marked, because three neighbours of another class were near."""
    classes, features = _clusters(rng, (30, 30, 6))
    features[-6:] += (
        2 * np.eye(16)[0]
    )  # parts of both: they resemble the first class much, and each other more
    ids = np.arange(len(classes))
    assert _told(ids, classes, features) == []
    for size in (1, 2):  # too few to say anything for or against
        part = slice(0, 60 + size)
        assert _told(ids[part], classes[part], features[part]) == []


def test_the_strongest_suspicion_comes_first_and_a_single_class_raises_none(rng):
    classes, features = _clusters(rng, (10, 10))
    features[19] = 3 * np.eye(16)[0]  # a first class's picture by all means
    features[18] = 3 * np.eye(16)[0] + 2 * np.eye(16)[1]
    found = suspicious(np.arange(20), classes, features, np.arange(20))
    assert [each.sample_id for each in found] == [19, 18] and found[0].strength > found[1].strength
    assert _told(np.arange(10), classes[:10], features[:10]) == []
    assert _told(np.empty(0, int), np.empty(0, int), np.empty((0, 16))) == []


def _shown_in_bursts(rng, shots, frames):
    """Features of classes 1, 2, … of which so many things were filmed, and the numbers of their bursts."""
    classes, things = _clusters(rng, shots)
    rows = np.repeat(np.arange(len(things)), frames)
    return classes[rows], things[rows] + rng.normal(size=(len(rows), 16)) * 0.05, rows


@pytest.mark.parametrize(("shots", "frames"), [((2, 4), 5), ((3, 4, 4), 5), ((3, 8, 8), 12), ((4, 4), 2)])
def test_a_whole_burst_under_a_wrong_name_is_suspicious_and_right_bursts_are_not(rng, shots, frames):
    classes, features, bursts = _shown_in_bursts(rng, shots, frames)
    ids = np.arange(len(classes))
    assert _told(ids, classes, features, bursts) == []
    wrong = ids[-frames:]  # the last class's last burst, called the first
    classes[wrong] = 1
    assert sorted(_told(ids, classes, features, bursts)) == [(each, 1, len(shots)) for each in wrong]


def test_the_first_bursts_of_a_class_are_not_judged(rng):
    classes, features, bursts = _shown_in_bursts(rng, (2, 4), 6)
    features[:6] = features[-6:]  # whatever it resembles: two pictures do not tell what a class looks like
    told = _told(np.arange(len(classes)), classes, features, bursts)
    assert not [each for each in told if each[1] == 1]


def test_many_frames_of_one_picture_weigh_no_more_than_one(rng):
    """A long burst would pull its class's mean to itself, and make the other pictures of the class suspicious."""
    classes, features = _clusters(rng, (4, 4))
    classes[3] = 2  # one wrong
    ids = np.arange(len(classes))
    rows = np.append(ids, [7] * 30)
    once, often = (
        suspicious(np.arange(len(each)), classes[each], features[each], each) for each in (ids, rows)
    )
    assert [each.sample_id for each in once] == [each.sample_id for each in often] == [3]
    assert often[0].strength == pytest.approx(once[0].strength)
