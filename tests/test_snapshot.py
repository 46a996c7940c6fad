"""A snapshot is the learner of one moment, and taking it changes nothing."""

import shutil

import numpy as np
import pytest
import torch
from export_parts import Teaching

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.learner import Learner
from edge_hpcr.live import accuracy
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.workspace.layout import Layout
from edge_hpcr.workspace.recover import backup_journal
from edge_hpcr.workspace.workspace import Workspace
from export.publish.snapshot import (
    held_out_samples,
    snapshot_of,
    snapshot_of_workspace,
)


@pytest.fixture
def teaching(tmp_path):
    made = []

    def make(**settings):
        made.append(Teaching(tmp_path / "w", **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.computes
@pytest.mark.slow
def test_the_copy_stays_as_it_was_when_learning_goes_on(teaching):
    one = teaching()
    one.teach(0)
    snapshot = snapshot_of(one.live)
    before = {name: tensor.clone() for name, tensor in snapshot.network.state_dict().items()}
    one.teach(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot.network.state_dict().items())
    assert len(snapshot.classes) == 1 and len(snapshot_of(one.live).classes) == 2


@pytest.mark.computes
@pytest.mark.parametrize("averaged", [True, False])
def test_the_averaged_weights_are_taken_if_the_workspace_uses_them(teaching, averaged):
    one = teaching(averaged=averaged)
    one.teach(0)
    learner = one.live.learner
    source = learner.average.network if averaged else learner.network
    assert torch.equal(snapshot_of(one.live).network.backbone.stem.weight, source.backbone.stem.weight)
    one.close()
    assert torch.equal(
        snapshot_of_workspace(one.path).network.backbone.stem.weight, source.backbone.stem.weight
    )


@pytest.mark.computes
@pytest.mark.slow
def test_a_workspace_at_rest_gives_the_snapshot_that_its_learner_gave(teaching):
    one = teaching()
    for digit in (0, 1):
        one.teach(digit, 20)
    one.live.call(one.live.self_test.test).result(60)
    running = snapshot_of(one.live)
    one.close()
    resting = snapshot_of_workspace(one.path)
    assert (resting.classes, resting.step) == (running.classes, running.step)
    assert (resting.temperature, resting.unknown_below) == (running.temperature, running.unknown_below)
    assert running.measured == one.live.self_test.held_out and resting.measured.samples
    assert all(
        torch.equal(tensor, other)
        for tensor, other in zip(resting.network.parameters(), running.network.parameters(), strict=True)
    )
    assert np.array_equal(resting.images, running.images)
    assert np.array_equal(resting.held_out.class_ids, running.held_out.class_ids)


@pytest.mark.slow
def test_a_class_that_was_deleted_since_the_checkpoint_has_no_column(teaching):
    one = teaching()
    zero, one_ = one.teach(0), one.teach(1)
    one.close()
    columns = dict(
        zip(one.live.learner.class_ids, snapshot_of_workspace(one.path).network.proxies, strict=True)
    )
    with Workspace.open(one.path, learning=False) as elsewhere:
        elsewhere.journal.delete_class(zero)
    snapshot = snapshot_of_workspace(one.path)
    assert [each.id for each in snapshot.classes] == [one_]
    assert torch.equal(snapshot.network.proxies, columns[one_][None])
    assert snapshot.network.num_classes == 1


@pytest.mark.slow
def test_the_held_out_samples_are_those_that_the_learner_tests_itself_on(teaching, monkeypatch):
    monkeypatch.setattr(accuracy, "HELD_OUT_BYTES", 800)
    one = teaching()
    for digit in (0, 1, 2):
        one.teach(digit, 20)
    wanted = held_out_ids(one.workspace)
    samples = held_out_samples(one.workspace, (8, 8))
    assert samples.class_ids.tolist() == list(wanted.values())
    assert 0 < len(samples) < one.journal.counts().held_out, "the budget must leave some out"
    for image, sample_id in zip(samples.images, wanted, strict=True):
        assert np.array_equal(image, one.live.predictor.encoder.prepare(one.workspace.image(sample_id)))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_and_left_where_it_is(teaching):
    one = teaching(checkpoint_steps=1)
    for digit in (0, 1):
        one.teach(digit, 1)
    one.close()
    folders = one.workspace.layout.checkpoint_folders()
    (folders[-1] / "average.safetensors").write_bytes(b"cut short")
    step = Learner.load(folders[-2], "cpu")[0].step
    assert snapshot_of_workspace(one.path).step == step
    assert one.workspace.layout.checkpoint_folders() == folders
    for folder in folders:
        (folder / "average.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError):
        snapshot_of_workspace(one.path)


@pytest.mark.slow
def test_a_checkpoint_that_is_ahead_of_the_journal_is_not_published(teaching, tmp_path):
    one = teaching()
    one.teach(0)
    backup_journal(one.workspace.layout.journal, tmp_path / "older.sqlite")
    one.teach(1)
    one.close()
    shutil.copy(tmp_path / "older.sqlite", one.path / "journal.sqlite")
    for folder in Layout(one.path).checkpoint_folders()[:-1]:
        shutil.rmtree(folder)
    with pytest.raises(UserError):
        snapshot_of_workspace(one.path)
