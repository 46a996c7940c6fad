"""What a method may do with the memory, and what it may not. The rivals' own tests show every other hook in use."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner import losses, methods
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import Batch, Method, StepView

pytestmark = pytest.mark.computes

Batches = list[tuple[np.ndarray, np.ndarray]]


class Probe(Method):
    """Cross-entropy; the methods below differ from it in one hook each."""

    def loss(self, batch: Batch) -> Tensor:
        return losses.replay_cross_entropy(batch.logits, batch.labels)


@pytest.fixture
def learner_of(monkeypatch, small_learner) -> Callable[..., Learner]:
    """A learner that runs this method class, found by name."""

    def make(kind: type[Method], **options) -> Learner:
        name = kind.__name__.lower()
        found, broken = methods._found()
        monkeypatch.setattr(methods, "_found", lambda: (found | {name: kind}, broken))
        return small_learner(method=name, **options)

    return make


@pytest.fixture
def two_tasks(digit_batches) -> Batches:
    return digit_batches([0, 1], 3) + digit_batches([2, 3], 3)


# What it stores --------------------------------------------------------------------------------------------------


class LeastAlike(Probe):
    """Keeps only the half of the incoming samples that are least like each other."""

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None]:
        count = batch.incoming_rows // 2  # the other half are their views
        unit = F.normalize(batch.features[:count].detach(), dim=1)
        likeness = (unit @ unit.T).fill_diagonal_(-1).amax(1)
        self.stored = likeness.argsort()[: count // 2].numpy()
        return dict.fromkeys(self.stored.tolist())


def test_a_method_can_choose_what_to_store(learner_of, digit_batches) -> None:
    learner = learner_of(LeastAlike)
    expected: list[int] = []
    for number, (images, labels) in enumerate(digit_batches([0, 1], 4)):
        ids = np.arange(10) + 100 * number
        learner.observe(images, labels, ids)
        expected += ids[learner.method.stored].tolist()
    held = learner.memory.at(np.arange(len(learner.memory)))
    assert len(expected) == 20 and sorted(held.ids.tolist()) == sorted(expected)


class Picky(Probe):
    """Offers nothing at all."""

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None]:
        return {}


def test_a_method_may_store_nothing_of_a_batch(learner_of, digit_batches) -> None:
    learner = learner_of(Picky)
    for images, labels in digit_batches([0, 1], 2):
        learner.observe(images, labels)
    assert len(learner.memory) == 0 and learner.step == 2


class Replacing(Probe):
    """Lets the first incoming sample take the place of the first held one."""

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None]:
        return {0: 0 if len(view.held) else None}


@pytest.mark.parametrize("memory", [MemoryConfig(samples=5), MemoryConfig(bytes=4_000, codec="webp")])
def test_a_sample_can_take_the_slot_of_another(learner_of, digit_batches, memory) -> None:
    learner = learner_of(Replacing, memory=memory)
    for number, (images, labels) in enumerate(digit_batches([0, 1], 3)):
        learner.observe(images, labels, np.arange(10) + 100 * number)
        assert learner.memory.ids().tolist() == [100 * number]
        assert learner.byte_breakdown()["total"] == learner.memory.row_bytes()


# What a hook gets --------------------------------------------------------------------------------------------------


def test_a_hook_can_draw_and_edit_samples_but_not_add_or_drop_them_nor_replace_parts(small_learner) -> None:
    view = small_learner().view
    with pytest.raises(FrozenInstanceError):
        view.network = None
    changing = {"update", "offer", "admit", "resize", "remove", "relabel", "add_class", "drop_class"}
    assert not changing & set(dir(view.held))
