"""What the tests of exporting share: small real learners on digits, and one full export for all of them."""

import copy
import functools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from live_parts import Lessons

from edge_hpcr.bench.datasets import load
from edge_hpcr.learner.calibration import Calibration
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.network import Classifier
from export.device.manifest import ClassLabel
from export.publish.publish import TEMPLATE
from export.publish.snapshot import HeldOutSamples, Snapshot, snapshot_of_learner
from export.publish.to_onnx import Exported, export

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
    made = snapshot_of_learner(learner, classes, held_out, calibration)
    return replace(made, images=digits.train_images[:64]) if size == 8 else made


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
    exported = export(snapshot, folder / "model.onnx", version=1, templates=folder / TEMPLATE)
    assert exported.traced and (folder / TEMPLATE).exists()
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


class Teaching(Lessons):
    """One whose models are published."""

    def __init__(self, path: Path, **settings: object) -> None:
        super().__init__(path, **{"method": "hpcr", "memory_bytes": 60_000, **settings})
        self.exports = self.workspace.layout.exports
        with_template(self.exports)

    def teach(self, digit: int, count: int = 4) -> int:
        """Show the first few of this digit, each labelled by itself, and wait until they are learned."""
        class_id = self.class_of(digit)
        for image in self.digits.train_images[self.digits.train_labels == digit][:count]:
            self.journal.label([self.workspace.take(image, "test")], class_id)
        self.learned()
        return class_id
