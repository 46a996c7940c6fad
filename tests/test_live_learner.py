"""A workspace that learns: labels from the journal, answers meanwhile, restarts, undo, merges, bad luck."""

import numpy as np
import pytest
from live_parts import PATIENCE, Lessons

from edge_hpcr.learner.learner import Learner
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.queries import reading
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(**settings):
        made.append(Lessons(tmp_path / "w", **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.slow
def test_held_out_samples_are_tested_but_never_trained_on(bench):
    one = bench()
    for digit in (0, 1):  # twenty at once, so that ten make a step however fast the learner is
        shown = [one.show(digit) for _ in range(20)]
        one.journal.label_each([(sample, one.class_of(digit)) for sample in shown])
    learner = one.learned()
    held_out = {row.id for row in one.journal.samples(held_out=True)}
    assert len(held_out) == 4  # one in ten of each class
    assert not held_out & set(learner.memory.ids().tolist())
    assert len(learner.memory) == 36
    one.until(lambda: one.live.self_test.held_out.samples == 4)
    # The first step of each class, ten labels, is no test: it was not known yet.
    assert len(one.live.self_test.test_then_train.recent) == 20


def test_a_corrected_label_is_corrected_in_memory_without_a_second_copy(bench):
    one = bench()
    one.label(1, 2)
    (sample,) = one.label(0)
    one.learned()
    one.journal.label([sample], one.class_of(1))
    memory = one.learned().memory
    slots = np.flatnonzero(memory.ids() == sample)
    assert len(slots) == 1
    assert one.live.learner.class_ids[int(memory.at(slots).labels[0])] == one.class_of(1)


@pytest.mark.slow
def test_a_merge_moves_memory_and_a_deletion_empties_it(bench):
    one = bench()
    zeros, ones, twos = one.label(0, 4), one.label(1, 4), one.label(2, 4)
    one.learned()
    one.journal.merge_classes(one.class_of(1), one.class_of(0))
    learner = one.learned()
    kept = one.class_of(0)
    assert learner.class_ids == [kept, one.class_of(2)]
    replay = learner.memory.at(np.arange(len(learner.memory)))
    labels = {int(i): learner.class_ids[int(c)] for i, c in zip(replay.ids, replay.labels, strict=True)}
    assert all(labels[i] == kept for i in zeros + ones)
    one.journal.delete_class(one.class_of(2))
    assert not set(twos) & set(one.learned().memory.ids().tolist())
    one.journal.undo()
    assert set(twos) <= set(one.learned().memory.ids().tolist())


@pytest.mark.slow
def test_the_last_three_checkpoints_are_kept_and_the_newest_whole_one_is_used(bench):
    one = bench(checkpoint_steps=1)
    for _ in range(6):
        one.label(0)
        one.learned()
    one.close()
    folders = one.workspace.layout.checkpoint_folders()
    assert len(folders) == 3
    (folders[-1] / "network.safetensors").write_bytes(b"cut short")
    one.open()
    assert any("cut short or changed" in problem for problem in one.live.problems)
    assert sorted(one.learned().memory.ids().tolist()) == [
        row.id for row in one.journal.samples() if not row.held_out
    ]


def test_an_image_that_is_gone_costs_one_label_and_not_the_learner(bench):
    one = bench()
    one.label(0, 2)
    one.learned()
    sample = one.show(1)
    (one.workspace.layout.images / one.journal.sample(sample).file).unlink()
    one.journal.label([sample], one.class_of(1))
    (fine,) = one.label(1)
    learner = one.learned()
    assert fine in learner.memory.ids() and sample not in learner.memory.ids()
    assert any(str(sample) in problem for problem in one.live.problems)


@pytest.mark.slow
def test_images_that_nobody_needs_leave_when_the_disk_budget_is_full_and_others_stay(bench):
    one = bench(memory_bytes=3000, disk_bytes=4000, checkpoint_steps=1, queue_samples=5)
    for _ in range(8):
        one.label(0, 5)
        one.learned()
    queued = one.show(1)
    one.close()
    one.open()
    counts = one.journal.counts()
    assert counts.labels == 40, "labels stay, whatever happens to images"
    rows = {row.id: row for row in one.journal.samples()}
    assert any(not row.has_image for row in rows.values())
    needed = set(one.live.learner.memory.ids().tolist()) | set(held_out_ids(one.workspace)) | {queued}
    assert all(rows[i].has_image for i in needed)
    covered = int(one.workspace.layout.checkpoint_folders()[0].name.rsplit("-", 1)[1])
    assert all(row.has_image for row in rows.values() if row.labelled_seq and row.labelled_seq > covered)


@pytest.mark.slow
def test_labels_that_fit_are_learned_although_others_of_their_batch_do_not(bench):
    one = bench(memory_bytes=3000, method="hpcr")
    one.live.stop()
    one.workspace.close()
    with Workspace.open(
        one.path
    ) as workspace:  # many labels wait before it starts, so that they share a batch
        ids = [workspace.take(image, "test") for image in one.digits.train_images[:10]]
        workspace.journal.label_each([(i, workspace.journal.create_class(f"class {i}")) for i in ids])
    one.open()
    learner = one.learned()
    assert 2 <= len(learner.class_ids) < 10
    assert learner.step >= len(learner.class_ids), "each class that fits has been trained"
    assert any("raise the budget" in problem for problem in one.live.problems)


def test_statistics_follow_corrections_undo_and_merges_as_if_the_labels_had_been_right_from_the_start(bench):
    """A closed-form method keeps no sample: what was learned wrong is subtracted, from the image on disk."""
    one = bench(method="ncm", held_out_share=0.3)
    ids = one.label(3, 6) + one.label(5, 4) + one.label(8, 4)
    one.journal.label(ids[:2], one.class_of(5))
    one.journal.merge_classes(one.class_of(8), one.class_of(5))
    one.label(3)
    one.journal.undo()
    learner = one.learned()
    rows = [row for row in one.journal.all_samples(state="labelled") if not row.held_out]
    assert 0 < len(rows) < len(ids) and not one.live.problems
    fresh = Learner(learner.config, device="cpu")
    fresh.add_class(learner.class_ids[0])
    fresh.add_class(learner.class_ids[1])
    for row in rows:
        fresh.observe(one.live.predictor.encoder.prepare(one.workspace.image(row.id))[None], [row.class_id])
    assert learner.class_ids == fresh.class_ids == [one.class_of(3), one.class_of(5)]
    assert learner.method.counts.tolist() == fresh.method.counts.tolist()
    np.testing.assert_allclose(learner.method.sums.numpy(), fresh.method.sums.numpy(), atol=1e-4)


def test_the_answers_follow_once_when_many_labels_are_taken_back(bench, monkeypatch):
    """With hundreds of classes they take longer than what they follow."""
    one = bench(method="ncm", held_out_share=0.0)
    one.label(3)
    ids = [one.show(5) for _ in range(30)]
    one.journal.label_each([(sample, one.class_of(5)) for sample in ids])
    assert one.learned().method.counts.tolist() == [1, 30]
    followed, refresh = [], one.live.predictor.refresh
    monkeypatch.setattr(one.live.predictor, "refresh", lambda: followed.append(refresh()))
    one.journal.undo()
    assert one.learned().method.counts.tolist() == [1] and len(followed) < 5
    assert not one.live.problems


def test_statistics_catch_up_with_many_labels_in_few_steps(bench):
    one = bench(method="ncm", held_out_share=0.0, memory_bytes=400_000)
    one.live.stop()
    one.workspace.close()
    with Workspace.open(one.path) as workspace:
        ids = workspace.take_many([Frame(image, "test") for image in one.digits.train_images[:400]])
        classes = [workspace.journal.create_class(name) for name in ("even", "odd")]
        workspace.journal.label_each(
            (i, classes[digit % 2]) for i, digit in zip(ids, one.digits.train_labels, strict=False)
        )
    one.open()
    learner = one.learned()
    assert learner.method.counts.sum() == 400 and learner.step < 20


def test_a_class_whose_only_label_is_held_out_is_no_answer(bench):
    one = bench()
    one.label(0)
    (first,) = one.label(1)
    one.journal.held_out_share = 0.9
    (measured,) = one.label(1)
    assert one.journal.sample(measured).held_out
    learner = one.learned()
    assert len(learner.class_ids) == 2
    one.journal.delete_samples([first])
    assert one.learned().class_ids == [one.class_of(0)]
    answer = one.live.predictor.look(Frame(one.workspace.image(measured), "test"))
    assert [class_id for class_id, _ in answer.top] == [one.class_of(0)]
    one.journal.held_out_share = 0.0
    one.label(1)
    assert one.learned().class_ids == [one.class_of(0), one.class_of(1)]


def test_the_journal_is_copied_when_it_says_more_than_its_copy_and_not_again(bench):
    one = bench()
    one.label(0)
    one.learned()
    layout = one.workspace.layout
    one.until(lambda: layout.backup.exists() and one.live.phase == "idle")
    copied = layout.backup.stat().st_mtime_ns
    one.live.call(one.live._save).result(PATIENCE)
    assert layout.backup.stat().st_mtime_ns == copied
    layout.backup.unlink()
    one.live.call(one.live._save).result(PATIENCE)
    assert layout.backup.exists()
    one.label(0)
    one.learned()
    one.live.call(one.live._save).result(PATIENCE)
    with reading(layout.backup) as copy:
        assert copy.last_seq == one.journal.last_seq


def test_a_checkpoint_that_the_disk_refuses_is_saved_once_there_is_room(bench):
    one = bench()
    one.label(0)
    one.learned()
    layout = one.workspace.layout
    one.until(layout.checkpoint_folders)
    place, away = layout.checkpoints, layout.checkpoints.with_name("away")
    place.rename(away)
    place.write_text("a file where the folder was: nothing can be stored in it")
    one.label(0)
    one.learned()
    one.until(lambda: one.live.problems)
    place.unlink()
    away.rename(place)
    one.live._save_again_at = 0.0
    one.until(lambda: not one.live.problems)
    assert layout.checkpoint_folders()[-1].name.endswith(f"event-{one.journal.last_seq:09d}")
