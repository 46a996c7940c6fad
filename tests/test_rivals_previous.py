"""The frozen copy of the network that some rivals keep from one task to the next."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner import losses, methods
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import Batch
from edge_hpcr.learner.methods.previous import KeepsPrevious

pytestmark = pytest.mark.computes


class Distils(KeepsPrevious):
    """Cross-entropy, and the previous network's logits as targets."""

    def loss(self, batch: Batch) -> Tensor:
        loss = losses.replay_cross_entropy(batch.logits, batch.labels)
        if self.previous is None:
            return loss
        target = self.previous.logits(self.previous.features(batch.inputs))
        return loss + F.mse_loss(batch.logits[:, : self.old_classes], target)


@pytest.fixture
def distiller(monkeypatch, small_learner) -> Callable[..., Learner]:
    found, broken = methods._found()
    monkeypatch.setattr(methods, "_found", lambda: (found | {"distils": Distils}, broken))

    def make(**options) -> Learner:
        return small_learner(method="distils", **options)

    return make


def test_the_copy_is_of_the_end_of_the_task_and_stays_as_it_was(distiller, digit_batches) -> None:
    learner = distiller()
    for images, labels in digit_batches([0, 1], 2):
        learner.observe(images, labels)
    assert learner.method.previous is None and learner.method.old_classes == 0
    learner.end_task()
    expected = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    for images, labels in digit_batches([2, 3], 2):
        learner.observe(images, labels)
    assert learner.method.old_classes == 2
    for name, tensor in learner.method.previous.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert not torch.equal(learner.network.proxies[:2], expected["proxies"])


@pytest.mark.parametrize("ended", [False, True])
def test_a_restored_method_continues_bit_for_bit_with_its_previous_network(
    distiller, digit_batches, tmp_path, ended
) -> None:
    learner = distiller()
    first, second = digit_batches([0, 1], 1) + digit_batches([2, 3], 1)
    learner.observe(*first)
    if ended:
        learner.end_task()
    learner.observe(*second)
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert restored.method.old_classes == learner.method.old_classes == (2 if ended else 0)
    for name, tensor in learner.method.state().items():
        other = restored.method.state()[name]
        assert torch.equal(tensor, other) and tensor.stride() == other.stride(), name
    assert restored.observe(*second).loss == learner.observe(*second).loss
    assert torch.equal(restored.network.proxies, learner.network.proxies)


def test_a_dropped_class_leaves_the_previous_network_too(distiller, digit_batches) -> None:
    learner = distiller()
    for batch in digit_batches([0, 1, 2], 2):
        learner.observe(*batch)
    learner.end_task()
    before = learner.method.previous.proxies.clone()
    learner.observe(*digit_batches([3], 1)[0])
    ids = list(learner.class_ids)
    learner.drop_class(ids[1])
    assert torch.equal(learner.method.previous.proxies, before[[0, 2]])
    learner.drop_class(3)
    assert learner.method.old_classes == 2
    learner.observe(*digit_batches([ids[0]], 1)[0])


def test_the_second_network_counts_in_a_byte_budget_from_the_start(distiller, digit_batches) -> None:
    learner = distiller(memory=MemoryConfig(bytes=185_000))
    network = sum(tensor.nbytes for tensor in learner.network.state_dict().values())
    assert learner.byte_breakdown()["method"] == learner.memory.reserved == network > 0
    for batch in digit_batches([0, 1], 4):
        learner.observe(*batch)
    held = len(learner.memory)
    learner.end_task()
    assert len(learner.memory) == held
    assert learner.byte_breakdown()["total"] <= 185_000
