"""The rivals that choose or edit what they replay by a step that is not taken: MIR and GMED."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from rival_parts import SHADES, observe, pictures, rival
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import methods
from edge_hpcr.learner.config import suited_memory
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods.lookahead import after_virtual_step
from edge_hpcr.learner.network import Network
from export.publish.running import RunningModel
from export.publish.snapshot import snapshot_of_learner
from export.publish.to_onnx import export_full

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


def test_mir_scores_without_moving_the_statistics_of_batch_norm() -> None:
    learner = trained("mir")
    before = learner.network.backbone.stem_bn.running_mean.clone()
    learner.method.choose_replay(learner.view, INCOMING, COLUMNS, 4)
    assert torch.equal(learner.network.backbone.stem_bn.running_mean, before)


def test_gmed_moves_what_it_replays_along_the_gradient_of_the_loss_that_the_step_adds() -> None:
    learner = trained("gmed", replay=3, views=False)
    held = {
        sample: learner.memory.at(np.array([slot]))
        for slot, sample in enumerate(learner.memory.ids().tolist())
    }
    later, now = after_virtual_step(learner.view, INCOMING, COLUMNS), copy.deepcopy(learner.network).eval()
    learner.memory.threshold = 0.0  # nothing else changes in memory
    learner.observe(INCOMING, COLUMNS)
    edited = 0
    for sample, was in held.items():
        slot = learner.memory.ids().tolist().index(sample)
        image = learner.to_device(was.inputs)[0].requires_grad_()
        label = int(was.labels[0])
        change = loss_of(later, image, label) - 1.001 * loss_of(now, image, label)
        (gradient,) = torch.autograd.grad(change, [image])
        expected = 255 * (image.detach() + 0.05 * gradient).clamp(0, 1).permute(1, 2, 0).numpy()
        found = learner.memory.at(np.array([slot])).inputs[0]
        if not np.array_equal(found, was.inputs[0]):
            edited += 1
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)
    assert edited == 3


def test_each_edit_of_an_image_is_smaller_than_the_last_and_its_number_survives_a_checkpoint(
    tmp_path: Path,
) -> None:
    learner = trained("gmed", method_options={"decay": 0.5}, replay=3, views=False)
    learner.memory.threshold = 1e-12  # nobody comes or goes
    held = learner.memory.ids().tolist()
    counts = dict(zip(held, learner.method.edits.of(held), strict=True))
    assert sum(counts.values()) == 6  # two steps of its training found something to edit
    for seed in range(6):
        if seed == 3:
            learner.save(tmp_path / "checkpoint")
            learner, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
            learner.rehearse()  # edits nothing
        images, before = pictures([2, 3, 2, 3], seed), learner.memory.at(np.arange(12))
        later, now = after_virtual_step(learner.view, images, COLUMNS), copy.deepcopy(learner.network).eval()
        learner.observe(images, COLUMNS)
        after = learner.memory.at(np.arange(12))
        assert after.ids.tolist() == before.ids.tolist()
        for row in np.flatnonzero((after.inputs != before.inputs).any((1, 2, 3))).tolist():
            image = learner.to_device(before.inputs[row : row + 1])[0].requires_grad_()
            label, sample = int(before.labels[row]), int(before.ids[row])
            change = loss_of(later, image, label) - 1.001 * loss_of(now, image, label)
            (gradient,) = torch.autograd.grad(change, [image])
            step = 0.05 * 0.5 ** counts[sample] * gradient
            expected = 255 * (image.detach() + step).clamp(0, 1).permute(1, 2, 0).numpy()
            np.testing.assert_allclose(after.inputs[row], expected, rtol=1e-3, atol=1e-2)
            counts[sample] += 1
    assert sum(counts.values()) == 6 + 18 and max(counts.values()) > 1
    assert dict(zip(counts, learner.method.edits.of(counts), strict=True)) == counts


def test_the_numbers_of_gmeds_edits_belong_to_samples_that_are_held_and_count_as_bytes() -> None:
    learner = trained("gmed", method_options={"decay": 0.1})
    learner.observe(INCOMING, COLUMNS)
    numbers = dict(zip(learner.method.edits.ids.tolist(), learner.method.edits.values.tolist(), strict=True))
    assert list(numbers) == learner.memory.ids().tolist() and 4 <= sum(numbers.values()) <= 12
    edited = next(sample for sample, number in numbers.items() if number)
    learner.forget(edited)
    learner.rehearse()
    assert edited not in learner.method.edits.ids.tolist()
    assert learner.byte_breakdown()["method"] == len(learner.memory) * 12


def test_the_edits_of_gmed_stay_with_their_samples_while_others_come_and_go() -> None:
    learner = rival(
        "gmed", {"alpha": 0.0}, memory=MemoryConfig(samples=8)
    )  # edits that change nothing but the place
    for seed in range(12):
        observe(learner, [seed % 4] * 3, seed)
        learner.rehearse()
        held = learner.memory.at(np.arange(len(learner.memory)))
        shades = np.array([SHADES[label] for label in held.labels.tolist()])
        # Each class has a colour of its own.
        assert np.abs(held.inputs.mean((1, 2)) - shades).max() < 40


def test_an_exported_model_of_gmed_answers_as_the_learner(tmp_path: Path) -> None:
    learner = trained("gmed", ema_decay=None)
    images = pictures([0, 1], seed=9)
    model = export_full(snapshot_of_learner(learner, None), tmp_path / "model.onnx").model
    scores = RunningModel(model.SerializeToString(), "gmed")(images).scores
    np.testing.assert_allclose(scores, learner.predict(images).scores, atol=1e-4)


def test_gmed_says_that_it_needs_images() -> None:
    with pytest.raises(UserError, match="edits images, and this backbone keeps latents"):
        suited_memory(MemoryConfig(samples=12, codec="latent"), methods.create("gmed"))


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


def test_gmed_refuses_to_keep_its_images_in_a_codec() -> None:
    with pytest.raises(UserError, match="codec webp: gmed edits the images"):
        rival("gmed", memory=MemoryConfig(samples=12, codec="webp"))


@pytest.mark.parametrize(
    ("name", "options"), [("mir", {"candidates": 0}), ("gmed", {"alpha": -1.0}), ("gmed", {"decay": 1.0})]
)
def test_impossible_options_are_refused_in_one_line(name: str, options: dict[str, float]) -> None:
    (option,) = options
    with pytest.raises(UserError, match=rf"{option} .*give"):
        rival(name, options)
