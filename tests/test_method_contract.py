"""The contract has room for the methods of the paper's table: small ones that use each hook for real.

They are found by name as those of a file in `edge_hpcr/learner/methods/` are, so that checkpoints find them.
"""

import copy
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner import losses, methods
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.memory import MemoryConfig, Replay
from edge_hpcr.learner.methods import Batch, Method, StepView
from edge_hpcr.learner.network import Network

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


# A-GEM: project the gradient ---------------------------------------------------------------------------------------


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


class AGEM(Probe):
    """Learns from the incoming samples alone, but never against the gradient of samples in memory."""

    def __init__(self, config=None) -> None:
        super().__init__(config)
        self.conflicts: list[tuple[float, float]] = []
        self.expected: list[Tensor] = []

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        return view.held.sample(0)

    def adjust_gradients(self, view: StepView, batch: Batch) -> None:
        parameters = list(view.network.parameters())
        if len(view.held):
            drawn = view.held.sample(10)
            logits = view.network(view.to_device(drawn.inputs))[0]
            loss = losses.replay_cross_entropy(logits, torch.from_numpy(drawn.labels))
            self._project(parameters, list(torch.autograd.grad(loss, parameters)))
        lr = view.lr
        self.expected = [p.detach() - lr * p.grad for p in parameters]

    def _project(self, parameters: list[torch.nn.Parameter], reference: list[Tensor]) -> None:
        along = flat(reference)
        before = flat([p.grad for p in parameters]) @ along
        if before < 0:
            for parameter, other in zip(parameters, reference, strict=True):
                parameter.grad -= before / (along @ along) * other
            self.conflicts.append((before.item(), (flat([p.grad for p in parameters]) @ along).item()))


def test_a_method_can_project_gradients_as_a_gem_does(learner_of, digit_batches) -> None:
    learner = learner_of(AGEM)
    (images, labels), (others, _) = digit_batches([0, 1], 2)
    for _ in range(2):
        learner.observe(images, labels)
    for _ in range(3):
        # The same pictures with their names exchanged: certain to pull against what the memory holds.
        learner.observe(images, 1 - labels)
    method = learner.method
    assert method.conflicts
    assert all(before < -1e-4 and abs(after) < 1e-3 * abs(before) for before, after in method.conflicts)
    learner.observe(others, labels)
    for parameter, expected in zip(learner.network.parameters(), method.expected, strict=True):
        torch.testing.assert_close(parameter.detach(), expected)


# MIR: choose what to replay ----------------------------------------------------------------------------------------


class MIR(Probe):
    """Replays the samples that a step on the incoming ones alone would hurt most."""

    candidates = 20

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        drawn = view.held.sample(self.candidates)
        virtual = copy.deepcopy(view.network)
        before = self._losses(view, virtual, drawn)
        virtual.train()
        logits = virtual(view.to_device(inputs))[0]
        losses.replay_cross_entropy(logits, torch.from_numpy(columns)).backward()
        with torch.no_grad():
            for parameter in virtual.parameters():
                parameter -= view.lr * parameter.grad
        self.increase = self._losses(view, virtual, drawn) - before
        self.drawn = drawn
        self.chosen = view.held.at(drawn.slots[np.argsort(-self.increase)[:size]])
        return self.chosen

    @staticmethod
    def _losses(view: StepView, network: Network, replay: Replay) -> np.ndarray:
        with torch.no_grad():
            logits = network.eval()(view.to_device(replay.inputs))[0]
            return F.cross_entropy(logits, torch.from_numpy(replay.labels), reduction="none").numpy()

    def loss(self, batch: Batch) -> Tensor:
        self.replayed_labels = batch.labels[batch.replayed]
        return super().loss(batch)


def test_a_method_can_choose_what_to_replay_as_mir_does(learner_of, two_tasks) -> None:
    learner = learner_of(MIR, replay=5, views=False)
    reports = [learner.observe(images, labels) for images, labels in two_tasks]
    method = learner.method
    assert [report.replayed for report in reports] == [0, 5, 5, 5, 5, 5]
    hurt = dict(zip(method.drawn.ids.tolist(), method.increase.tolist(), strict=True))
    chosen = [hurt.pop(sample) for sample in method.chosen.ids.tolist()]
    assert min(chosen) >= max(hurt.values()) and len(hurt) == 15
    assert method.replayed_labels.tolist() == method.chosen.labels.tolist()


# GSS: choose what to store -----------------------------------------------------------------------------------------


class GSS(Probe):
    """Offers only the half of the incoming samples that are least like each other."""

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None]:
        count = batch.incoming_rows // 2  # the other half are their views
        unit = F.normalize(batch.features[:count].detach(), dim=1)
        likeness = (unit @ unit.T).fill_diagonal_(-1).amax(1)
        self.stored = likeness.argsort()[: count // 2].numpy()
        return dict.fromkeys(self.stored.tolist())


def test_a_method_can_choose_what_to_store_as_gss_does(learner_of, digit_batches) -> None:
    learner = learner_of(GSS)
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


# OCM: a second model -----------------------------------------------------------------------------------------------


class OCM(Probe):
    """Keeps a slow copy of the network and holds the features of replayed samples near the copy's."""

    def __init__(self, config=None) -> None:
        super().__init__(config)
        self.slow: dict[str, Tensor] = {}
        self.target: Tensor | None = None

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        replay = super().choose_replay(view, inputs, columns, size)
        network = view.network.eval()
        with torch.no_grad():
            self.target = torch.func.functional_call(network, self.slow, (view.to_device(replay.inputs),))[1]
        return replay

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if self.target is not None:
            loss = loss + F.mse_loss(batch.features[batch.replayed][: len(self.target)], self.target)
        return loss

    def after_step(self, view: StepView, batch: Batch) -> None:
        for name, value in view.network.state_dict().items():
            old = self.slow.get(name)
            if old is None or not value.is_floating_point():
                self.slow[name] = value.clone()
                continue
            # A class that came since starts as the network has it.
            known = slice(None, len(old)) if old.dim() else ...
            moved = value.clone()
            moved[known] = torch.lerp(old, value[known], 0.5)
            self.slow[name] = moved

    def state(self) -> dict[str, Tensor]:
        return self.slow

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.slow = state


def test_a_methods_second_model_survives_a_checkpoint_as_ocm_needs(
    learner_of, two_tasks, tmp_path: Path
) -> None:
    learner = learner_of(OCM)
    for images, labels in two_tasks[:4]:
        learner.observe(images, labels)
    assert not torch.equal(learner.method.slow["backbone.stem.weight"], learner.network.backbone.stem.weight)
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert isinstance(restored.method, OCM)
    for name, value in learner.method.slow.items():
        other = restored.method.slow[name]
        assert (other.shape, other.stride(), other.data_ptr() % 64) == (value.shape, value.stride(), 0), name
    for images, labels in two_tasks[4:]:
        assert restored.observe(images, labels).loss == learner.observe(images, labels).loss
    assert learner.method.slow.keys() == restored.method.slow.keys()
    assert all(torch.equal(value, restored.method.slow[name]) for name, value in learner.method.slow.items())


# SCR: classify by the nearest class mean ---------------------------------------------------------------------------


class NearestMean(torch.nn.Module):
    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = means

    def forward(self, features: Tensor) -> Tensor:
        return -torch.cdist(F.normalize(features, dim=1), self.means)


class SCR(Method):
    """No proxies: contrasts samples with samples, and answers with the nearest mean of those in memory."""

    def loss(self, batch: Batch) -> Tensor:
        return losses.supervised_contrastive(batch.features, batch.labels, batch.tau)

    def classifier(self, view: StepView, network: Network) -> NearestMean:
        held = view.held.at(np.arange(len(view.held)))
        unit = F.normalize(network.features(view.to_device(held.inputs)), dim=1)
        means = torch.stack([unit[held.labels == column].mean(0) for column in range(network.num_classes)])
        return NearestMean(means)


def unit_features(learner: Learner, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        features = learner.network.eval().features(learner.to_device(images)).numpy()
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def test_a_method_can_classify_by_nearest_class_mean_as_scr_does(learner_of, digits, digit_batches) -> None:
    learner = learner_of(SCR, memory=MemoryConfig(samples=60))
    for images, labels in digit_batches([6, 1], 12):
        learner.observe(images, labels)
    chosen = np.isin(digits.test_labels, [6, 1])
    pictures = digits.test_images[chosen]
    held = learner.memory.at(np.arange(len(learner.memory)))
    features, stored = unit_features(learner, pictures), unit_features(learner, held.inputs)
    distances = [
        np.linalg.norm(features - stored[held.labels == column].mean(0), axis=1) for column in (0, 1)
    ]
    prediction = learner.predict(pictures)
    assert prediction.best.tolist() == prediction.class_ids[np.argmin(distances, axis=0)].tolist()
    # The proxies, which nobody trained, answer otherwise.
    by_proxy = learner.network.similarities(torch.from_numpy(features)).argmax(1).numpy()
    assert (prediction.class_ids[by_proxy] != prediction.best).any()


# ER-WA: correct weights after training -----------------------------------------------------------------------------


class ERWA(Probe):
    """Gives all proxies the same length after every step."""

    @torch.no_grad()
    def after_step(self, view: StepView, batch: Batch) -> None:
        proxies = view.network.proxies
        length = proxies.norm(dim=1, keepdim=True)
        proxies *= length.mean() / length


@pytest.mark.slow
def test_a_method_can_correct_weights_after_the_step_as_er_wa_does(learner_of, two_tasks) -> None:
    learner = learner_of(ERWA, optimiser="adam", lr=0.01)
    plain = learner_of(Probe, optimiser="adam", lr=0.01)
    for images, labels in two_tasks:
        before = learner.network.proxies.detach().clone()
        learner.observe(images, labels)
        plain.observe(images, labels)
        lengths = learner.network.proxies.norm(dim=1)
        torch.testing.assert_close(lengths, lengths.mean().expand_as(lengths))
        # The optimiser still moves the parameter that was corrected.
        assert len(before) == 0 or not torch.equal(learner.network.proxies[: len(before)], before)
    assert plain.network.proxies.norm(dim=1).std() > 1e-3


# GMED: edit stored samples -----------------------------------------------------------------------------------------


class GMED(Probe):
    """Makes what it replays a little harder: moves the stored pictures along the gradient of their own loss."""

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        self.replay = super().choose_replay(view, inputs, columns, size)
        return self.replay

    def adjust_gradients(self, view: StepView, batch: Batch) -> None:
        # Here, and not after the step: slots stay valid only until the memory takes the incoming samples in.
        if not len(view.held):
            return
        pictures = view.to_device(self.replay.inputs).requires_grad_()
        logits = view.network(pictures)[0]
        loss = losses.replay_cross_entropy(logits, torch.from_numpy(self.replay.labels))
        (gradient,) = torch.autograd.grad(loss, [pictures])
        edited = (pictures.detach() + 0.1 * gradient.sign()).clamp(0, 1).mul(255).round()
        self.edited = edited.permute(0, 2, 3, 1).to(torch.uint8).numpy()
        for slot, image in zip(self.replay.slots.tolist(), self.edited, strict=True):
            view.held.replace_input(slot, image)


def test_a_method_can_edit_stored_samples_as_gmed_does(learner_of, digit_batches) -> None:
    learner = learner_of(GMED, memory=MemoryConfig(samples=100), replay=5)
    for number, (images, labels) in enumerate(digit_batches([0, 1], 3)):
        learner.observe(images, labels, np.arange(10) + 10 * number)
    replay, edited = learner.method.replay, learner.method.edited
    held = learner.memory.at(np.arange(len(learner.memory)))
    rows = [held.ids.tolist().index(sample) for sample in replay.ids.tolist()]
    assert len(held.ids) == 30 and np.array_equal(held.inputs[rows], edited)
    assert (edited != replay.inputs).any() and held.labels[rows].tolist() == replay.labels.tolist()


# What a hook gets --------------------------------------------------------------------------------------------------


def test_a_hook_can_draw_and_edit_samples_but_not_add_or_drop_them_nor_replace_parts(small_learner) -> None:
    view = small_learner().view
    with pytest.raises(FrozenInstanceError):
        view.network = None
    changing = {"update", "offer", "admit", "resize", "remove", "relabel", "add_class", "drop_class"}
    assert not changing & set(dir(view.held))
