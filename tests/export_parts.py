"""What the tests of exporting share: small real learners on digits, and one full export for all of them."""

import copy
import functools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from workspace_parts import SMALL

from edge_hpcr.bench.datasets import load
from edge_hpcr.learner.backbones import Backbone, BackboneConfig, Trunk
from edge_hpcr.learner.calibration import Calibration
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.network import Classifier, Network
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Workspace
from export.device.manifest import ClassLabel
from export.publish.publish import TEMPLATE
from export.publish.republish import save_template
from export.publish.snapshot import HeldOutSamples, Snapshot, snapshot_of_learner
from export.publish.to_onnx import Exported, export_full, network_outputs

HELD_OUT, RIGHT = 60, 45
CALIBRATION = Calibration(temperature=1.3, unknown_below=0.4, samples=HELD_OUT)


def make_learner(classes: int = 10, steps: int = 8) -> Learner:
    """Digits of 8x8 pixels after a few steps; more than ten classes are digits under wrong names."""
    digits = load("digits")
    learner = Learner(LearnerConfig(height=8, width=8, memory=MemoryConfig(samples=100)), "cpu")
    for step in range(max(steps, -(-classes // 10))):
        rows = np.flatnonzero(digits.train_labels < classes)[step * 10 : step * 10 + 10]
        names = digits.train_labels[rows] if classes <= 10 else (np.arange(10) + step * 10) % classes
        learner.observe(digits.train_images[rows], names.tolist())
    return learner


def untrained_learner(size: int, classes: int) -> Learner:
    """A narrow network of any size with numbers of all kinds in it, at no cost."""
    learner = Learner(LearnerConfig(height=size, width=size, nf=8, ema_decay=None), "cpu")
    for class_id in range(classes):
        learner.add_class(class_id)
    generator = torch.Generator().manual_seed(1)
    for module in learner.network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor in (module.running_mean, module.weight.data, module.bias.data):
                tensor.add_(torch.rand(tensor.shape, generator=generator) / 2)
    return learner


def sharpen(learner: Learner) -> None:
    """Set proxies and batch-norm's statistics from the digits, so that many answers are clear by construction.

    What a few steps of training reach depends on the processor. Class means of normalised features do not:
    the 60 clearest of the test images are then 0.2 nearer to their proxy than to any other, or more.
    """
    digits = load("digits")
    labels = torch.from_numpy(digits.train_labels[:500])
    images = learner.to_device(digits.train_images[:500])
    for network in (learner.network, learner.average.network):
        norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the statistics become those of the next batch
        with torch.no_grad():
            network.train().features(images)
            features = torch.nn.functional.normalize(network.eval().features(images))
            means = torch.stack([features[labels == class_id].mean(0) for class_id in learner.class_ids])
            network.proxies.copy_(means - features.mean(0))
        for norm in norms:
            norm.momentum = 0.1


def clear_samples(learner: Learner) -> HeldOutSamples:
    """Of the test digits those with the clearest answers; labelled so that exactly 45 of 60 answers are right.

    The other 15 are labelled with the next column's class: right once the proxies are `confused`.
    """
    images = load("digits").test_images
    scores = learner.predict(images, averaged=True).scores
    second, best = np.sort(scores)[:, -2:].T
    clearest = np.argsort(second / best, kind="stable")[:HELD_OUT]
    columns = scores[clearest].argmax(1)
    columns[RIGHT:] = (columns[RIGHT:] + 1) % len(learner.class_ids)
    return HeldOutSamples(images[clearest], np.array(learner.class_ids)[columns])


def snapshot_from(
    learner: Learner, samples: int = HELD_OUT, calibration: Calibration = CALIBRATION
) -> Snapshot:
    digits = load("digits")
    size = learner.config.height
    classes = {i: ClassLabel(i, f"digit {i}", "#1f77b4") for i in learner.class_ids}
    rows = np.flatnonzero(np.isin(digits.test_labels, learner.class_ids))[: samples if size == 8 else 0]
    images = digits.test_images[rows] if size == 8 else np.empty((0, size, size, 3), np.uint8)
    held_out = HeldOutSamples(images, digits.test_labels[rows].astype(np.int64))
    return snapshot_of_learner(learner, classes, held_out, calibration)


class SmallTrunk(Backbone):
    """As a pre-trained backbone, but traced in a moment: a trunk of one layer, with maps as latents."""

    name = "small_trunk"

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            trunk = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6())
            self.trunk = Trunk(trunk, (8, config.height // 2, config.width // 2), "0" * 64)
            self.layer = nn.Conv2d(8, 16, 3, 1, 1)
        nn.init.zeros_(self.layer.bias)  # an exporter leaves out what is zero
        self.feature_size = 16

    def forward(self, inputs: torch.Tensor, groups: list[int] | None = None) -> torch.Tensor:
        return nn.functional.relu(self.layer(inputs)).mean((2, 3))


def snapshot_with_trunk(classes: int = 3, size: int = 16, seed: int = 0) -> Snapshot:
    """Of a network that has learned nothing; of 40 held-out images it says what their labels say."""
    network = Network(SmallTrunk(BackboneConfig(size, size, seed=0))).eval().requires_grad_(False)
    generator = np.random.default_rng(seed)
    network.backbone.layer.weight.copy_(
        torch.from_numpy(generator.normal(size=network.backbone.layer.weight.shape))
    )
    images = np.random.default_rng(0).integers(0, 256, (64, size, size, 3), np.uint8)
    images = (images * np.linspace(0, 1, 64)[:, None, None, None]).astype(np.uint8)
    features = network(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)[1]
    network.proxies = nn.Parameter(features[:: 63 // max(1, classes - 1)][:classes] - features.mean(0), False)
    snapshot = Snapshot(
        network=network,
        head=Classifier.by_proxies(network),
        classes=tuple(ClassLabel(number, f"class {number}") for number in range(classes)),
        height=size,
        width=size,
        backbone=SmallTrunk.name,
        method="hpcr",
        temperature=1.5,
        unknown_below=0.2,
        step=1 + seed,
        images=images,
        held_out=HeldOutSamples(images[:40], np.zeros(40, np.int64)),
    )
    answers = network_outputs(snapshot, images[:40]).scores.argmax(1)
    return replace(snapshot, held_out=HeldOutSamples(images[:40], answers))


@dataclass(frozen=True)
class First:
    """A full export, and what it took."""

    learner: Learner
    snapshot: Snapshot
    exported: Exported
    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"


@functools.cache
def first() -> First:
    """Once for all tests: tracing takes many seconds."""
    torch.set_num_threads(1)
    learner = make_learner()
    sharpen(learner)
    snapshot = replace(snapshot_from(learner), held_out=clear_samples(learner))
    # Kept by the function's cache, and so removed with the process.
    folder = Path(_temporary().name)
    exported = export_full(snapshot, folder / "model.onnx", version=1)
    assert save_template(folder / TEMPLATE, exported.model, snapshot)
    return First(learner, snapshot, exported, folder)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="export-tests-", ignore_cleanup_errors=True)


def with_template(exports: Path) -> Path:
    """An exports folder in which nothing needs to be traced."""
    (exports / TEMPLATE).mkdir(parents=True, exist_ok=True)
    for kept in (first().folder / TEMPLATE).iterdir():
        (exports / TEMPLATE / kept.name).write_bytes(kept.read_bytes())
    return exports


def with_proxies(snapshot: Snapshot, proxies: torch.Tensor) -> Snapshot:
    network = copy.deepcopy(snapshot.network)
    network.proxies = torch.nn.Parameter(proxies, requires_grad=False)
    return replace(snapshot, network=network, head=Classifier.by_proxies(network))


def confused(snapshot: Snapshot) -> Snapshot:
    """The same network with the classes' proxies mixed up: 15 of 60 held-out samples are right."""
    return replace(with_proxies(snapshot, snapshot.network.proxies.roll(1, 0)), step=snapshot.step + 1)


def later(snapshot: Snapshot, steps: int = 1) -> Snapshot:
    return replace(snapshot, step=snapshot.step + steps)


class Teaching:
    """A workspace of 8x8 digits with its running learner."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.digits = load("digits")
        self.workspace = Workspace.open(path)
        self.workspace.change_settings(
            **{**SMALL, "method": "hpcr", "idle_steps": 0, "threads": 1, "memory_bytes": 60_000, **settings}
        )
        self.path, self.exports = path, self.workspace.layout.exports
        with_template(self.exports)
        self.journal = self.workspace.journal
        self.live = LiveLearner(self.workspace)
        self.live.start()

    def teach(self, digit: int, count: int = 4) -> int:
        """Show so many of this digit, each labelled by itself, and wait until they are learned."""
        name = f"digit {digit}"
        found = self.journal.class_id(name)
        class_id = self.journal.create_class(name) if found is None else found
        for image in self.digits.train_images[self.digits.train_labels == digit][:count]:
            self.journal.label([self.workspace.take(image, "test")], class_id)
        assert self.live.wait_until_caught_up(60), self.live.problems
        return class_id

    def saved(self) -> bool:
        """Whether a checkpoint holds everything that was taught."""
        names = [folder.name for folder in self.workspace.layout.checkpoint_folders()]
        return bool(names) and names[-1].endswith(f"-{self.journal.last_seq:09d}")

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline and not self.live.failed, self.live.problems
            time.sleep(0.01)

    def close(self) -> None:
        self.live.stop()
        self.workspace.close()
