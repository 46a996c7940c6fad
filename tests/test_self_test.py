"""What a learner says of itself: of pictures that are a fair sample of what comes, and the same after it was opened again."""

import numpy as np
import pytest
from browser_parts import wait_for
from live_parts import PATIENCE, learning, photo
from workspace_parts import SMALL

from edge_hpcr.live.accuracy import ELSEWHERE, in_one_place, verdict
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.predictor import Answer
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.records import ClassRow, SampleRow
from edge_hpcr.workspace.selection import DRAWN, PICKED, rank
from edge_hpcr.workspace.workspace import Workspace
from export.publish.snapshot import snapshot_of, snapshot_of_workspace

TRUNK = {"image_size": 32, "idle_steps": 1, "idle_share": 1.0, "threads": 1}
SCRATCH = {**SMALL, "idle_steps": 0, "threads": 1}


def teach(workspace: Workspace, numbers: range) -> None:
    ids = [workspace.journal.class_named(name) for name in ("coarse", "fine")]
    for number in numbers:
        workspace.journal.label([workspace.take(photo(number), "camera 0")], ids[number % 2])


def rest(live: LiveLearner) -> None:
    """Wait until it has learned and measured everything."""
    wait_for(lambda: live.caught_up and not live.calibrates and live.phase == "idle", "rest", PATIENCE)


# Opened again, and published ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_workspace_that_is_opened_again_says_what_it_said_before(workspace):
    workspace.change_settings(**TRUNK)
    teach(workspace, range(40))
    with learning(workspace) as live:
        rest(live)
        said, calibration = live.self_test.held_out, live.predictor.calibration
        assert said.samples >= 20 and calibration.is_measured
    opened = LiveLearner(workspace)
    assert (opened.self_test.held_out, opened.predictor.calibration) == (said, calibration)
    with learning(workspace) as again:
        for copied in (snapshot_of_workspace(workspace.path), snapshot_of(again)):  # before a new test
            assert (copied.unknown_below, copied.measured) == (calibration.unknown_below, said)
        again.call(again.self_test.test).result(PATIENCE)
        assert again.self_test.held_out.samples == said.samples
        assert again.predictor.calibration == calibration


@pytest.mark.slow
def test_a_model_that_is_published_while_new_labels_are_measured_keeps_its_calibration(workspace):
    workspace.change_settings(**TRUNK, held_out_share=0.0)
    teach(workspace, range(40))
    with learning(workspace) as live:
        rest(live)
    workspace.change_settings(idle_share=0.0)  # nothing more is measured by itself
    teach(workspace, range(40, 42))
    with learning(workspace) as live:
        live.call(lambda: [live.self_test.validate(), live.self_test.test()]).result(PATIENCE)
        assert snapshot_of(live).unknown_below is not None


@pytest.mark.slow
def test_the_first_model_waits_for_the_calibration_that_is_on_its_way(workspace):
    workspace.change_settings(**TRUNK)
    teach(workspace, range(40))
    with learning(workspace) as live:
        assert snapshot_of(live).unknown_below is not None


# A fair sample --------------------------------------------------------------------------------------------------------


def test_what_the_queue_offers_first_is_never_held_out_and_what_was_drawn_is(workspace):
    workspace.change_settings(held_out_share=0.5)
    rows = [SampleRow(priority=priority) for priority in (0.0, 0.9, 2.0, 0.3, DRAWN, DRAWN, 0.9)]
    ids = workspace.journal.add_samples(rows)
    mug = workspace.journal.create_class("mug")
    held_out = [workspace.journal.label([i], mug).moves[0].held_out for i in ids]
    assert held_out == [False, False, False, False, True, True, False]
    marked = [row.priority == PICKED for row in workspace.journal.rows_of(ids)]
    assert marked == [False, True, True, True, False, False, True]


def test_every_fourth_place_of_the_queue_is_for_what_was_drawn_in_the_order_of_arrival():
    ids, priorities = [*range(1, 9)], [0.1, DRAWN, 0.3, 2.0, DRAWN, 0.5, 0.6, 0.7]
    codes = [7 << 8 * place for place in range(8)]  # all different
    order = rank(ids, priorities, codes)
    assert [order[3], order[7]] == [2, 5] and sorted(order) == ids
    assert order[0] == 4, "the unknown one first, as without them"


def test_a_frame_that_was_drawn_waits_for_a_label_however_sure_the_learner_is(workspace, monkeypatch):
    workspace.change_settings(**SCRATCH, gate_distance=0, gate_per_second=1000.0, held_out_share=0.5)
    live = LiveLearner(workspace)
    sure = Answer(((1, 1.0), (2, 0.0)), 1.0, unknown=False)
    monkeypatch.setattr(live.predictor, "look", lambda frame: sure)
    feeder = Feeder(workspace, live)
    monkeypatch.setattr(feeder._chance, "random", lambda: 0.4)
    taken = [feeder.take(Frame(photo(number), "camera 0")) for number in range(12)]
    assert [frame.verdict for frame in taken] == ["queue"] * 12
    assert {row.priority for row in workspace.journal.queued()} == {DRAWN}
    workspace.change_settings(held_out_share=0.0)
    assert feeder.take(Frame(photo(12), "camera 0")).verdict == "sure"


@pytest.mark.slow
def test_pictures_that_somebody_picked_from_the_queue_do_not_measure(workspace):
    workspace.change_settings(**TRUNK, held_out_share=0.0)
    teach(workspace, range(30))
    ids = workspace.take_many([Frame(photo(i), "camera 0", priority=0.9) for i in range(30, 60)])
    workspace.journal.label_each([(i, 1 + number % 2) for number, i in enumerate(ids)])
    with learning(workspace) as live:
        rest(live)
        assert 20 <= live.self_test.held_out.samples <= 30


# Bursts and places ----------------------------------------------------------------------------------------------------


def test_a_burst_that_is_held_out_counts_as_one_picture(workspace, digits):
    workspace.change_settings(**SCRATCH, held_out_share=0.5)
    rng = np.random.default_rng(0)
    journal = workspace.journal
    for name in ("one", "two"):
        looks = [int(rng.integers(1, 2**63)) for _ in range(4)]
        frames = [Frame(digits.train_images[0], "camera 0", hash64=look) for look in looks for _ in range(5)]
        journal.label(workspace.take_many(frames), journal.class_named(name))
    with learning(workspace) as live:
        live.call(live.self_test.test).result(PATIENCE)
        assert journal.counts().held_out == 20 and live.self_test.held_out.samples == 4


def test_the_sentence_says_in_this_place_until_there_is_a_second_one():
    def taken(*cameras: tuple[str, float], digest: str | None = None) -> list[SampleRow]:
        return [SampleRow(origin=origin, added=added, source_digest=digest) for origin, added in cameras]

    assert in_one_place(taken(("camera 0", 0.0), ("camera 0", 500.0), ("camera 0", 900.0)))
    assert not in_one_place(taken(("camera 0", 0.0), ("camera 0", 5000.0)))
    assert not in_one_place(taken(("camera 0", 0.0), ("rtsp://yard", 1.0)))
    assert not in_one_place(taken(("a.jpg", 0.0), ("b.jpg", 1.0), digest="ab"))
    assert not in_one_place([])
    classes, answers = [ClassRow(i, f"thing {i}", None, 50, 5) for i in (1, 2)], [(1, 1, 50), (2, 2, 50)]
    here = verdict(classes, answers, one_place=True)
    assert "in this place" in here.sentence and here.advice.endswith(ELSEWHERE)
    assert "place" not in verdict(classes, answers).sentence
