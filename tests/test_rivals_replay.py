"""The rivals that choose or edit what they replay by a step that is not taken: MIR and GMED."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from rival_parts import observe, pictures, rival
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods.shared import after_virtual_step
from edge_hpcr.learner.network import Network

pytestmark = pytest.mark.computes

INCOMING, COLUMNS = pictures([2, 3, 2, 3], seed=7), np.array([2, 3, 2, 3])


def trained(name: str, **changes) -> Learner:
    """It knows four classes and holds twelve samples of the first two."""
    learner = rival(name, memory=MemoryConfig(samples=12), **changes)
    for seed in range(3):
        observe(learner, [0, 1, 0, 1], seed)
    for class_id in (2, 3):
        learner.add_class(class_id)
    return learner


def loss_of(network: Network, image: Tensor, label: int) -> Tensor:
    return F.cross_entropy(network.logits(network.features(image[None])), torch.tensor([label]))


def test_a_virtual_step_is_a_step_of_sgd_on_a_copy() -> None:
    learner = trained("er")
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    later = after_virtual_step(learner.view, INCOMING, COLUMNS)
    assert all(torch.equal(value, before[name]) for name, value in learner.network.state_dict().items())
    copied = copy.deepcopy(learner.network).train()
    loss = F.cross_entropy(copied(learner.to_device(INCOMING))[0], torch.from_numpy(COLUMNS))
    gradients = torch.autograd.grad(loss, list(copied.parameters()))
    for new, old, gradient in zip(later.parameters(), copied.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old.detach() - 0.1 * gradient)
    assert not later.training and not any(parameter.requires_grad for parameter in later.parameters())


def test_mir_replays_what_a_step_on_the_incoming_samples_would_hurt_most() -> None:
    learner = trained("mir")
    later, now = after_virtual_step(learner.view, INCOMING, COLUMNS), learner.network.eval()
    held = learner.memory.at(np.arange(12))
    images = learner.to_device(held.inputs)
    with torch.no_grad():
        hurt = {
            sample: (loss_of(later, image, label) - loss_of(now, image, label)).item()
            for sample, image, label in zip(held.ids.tolist(), images, held.labels.tolist(), strict=True)
        }
    chosen = learner.method.choose_replay(learner.view, INCOMING, COLUMNS, 4).ids.tolist()
    others = [value for sample, value in hurt.items() if sample not in chosen]
    # With other kernels two that are nearly alike may change places.
    assert len(set(chosen)) == 4 and min(hurt[sample] for sample in chosen) >= max(others) - 1e-4


def test_gmed_moves_each_replayed_image_along_its_own_gradient() -> None:
    learner = trained("gmed", replay=3, views=False)
    learner.memory.threshold = 1e-12  # nobody comes or goes
    images, before = pictures([2, 3, 2, 3], 0), learner.memory.at(np.arange(12))
    later, now = after_virtual_step(learner.view, images, COLUMNS), copy.deepcopy(learner.network).eval()
    learner.observe(images, COLUMNS)
    after = learner.memory.at(np.arange(12))
    assert after.ids.tolist() == before.ids.tolist()
    edited = np.flatnonzero((after.inputs != before.inputs).any((1, 2, 3))).tolist()
    assert len(edited) == 3
    for row in edited:
        image = learner.to_device(before.inputs[row : row + 1])[0].requires_grad_()
        label = int(before.labels[row])
        change = loss_of(later, image, label) - 1.001 * loss_of(now, image, label)
        (gradient,) = torch.autograd.grad(change, [image])
        expected = 255 * (image.detach() + 0.05 * gradient).clamp(0, 1).permute(1, 2, 0).numpy()
        np.testing.assert_allclose(after.inputs[row], expected, rtol=1e-3, atol=1e-2)


def test_the_edited_images_of_gmed_are_floats_and_count_as_such(tmp_path: Path) -> None:
    learner = trained("gmed")
    assert learner.byte_breakdown()["image"] == 12 * 8 * 8 * 3 * 4
    learner.observe(INCOMING, COLUMNS)
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    slots = np.arange(12)
    assert np.array_equal(restored.memory.at(slots).inputs, learner.memory.at(slots).inputs)
    assert restored.memory.at(slots).inputs.dtype == np.float32
    # In the same bytes it holds about a quarter of what ER holds.
    budget = MemoryConfig(bytes=6_000)
    counts = {}
    for name in ("gmed", "er"):
        other = rival(name, memory=budget)
        for seed in range(8):
            observe(other, [0, 1, 0, 1], seed)
        assert other.byte_breakdown()["total"] <= 6_000
        counts[name] = len(other.memory)
    # A slot has 12 bytes of its own, and the number of edits as many.
    assert counts == {"gmed": 6_000 // (768 + 24), "er": 6_000 // (192 + 12)}
