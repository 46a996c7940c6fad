"""A copy of a learner: all that an exported model is made of.

It is taken between two steps of a running learner, or read from the newest checkpoint of a workspace; using it does not
disturb the learning.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.methods import Method
from edge_hpcr.learner.network import Network
from edge_hpcr.live import checkpoints
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.live.calibration import Calibration
from edge_hpcr.stream.resize import prepare
from edge_hpcr.workspace.folder import Workspace
from export.device.manifest import ClassLabel

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

IMAGES = 64  # of the memory: outputs are compared on them, and 8 bits calibrated
COPY_SECONDS = 120.0  # a step of large images takes seconds


@dataclass(frozen=True)
class HeldOutSamples:
    """Samples that were never trained on, as the network sees them."""

    images: np.ndarray  # uint8 [n, H, W, 3]
    class_ids: np.ndarray  # int64 [n]

    def __len__(self) -> int:
        return len(self.class_ids)


@dataclass(frozen=True)
class Snapshot:
    """A network, its classes in the order of its columns, and real images to compare outputs on."""

    network: Network  # on the CPU, in evaluation mode, the averaged weights if the workspace uses them
    classes: tuple[ClassLabel, ...]
    height: int
    width: int
    backbone: str
    method: str
    temperature: float
    unknown_below: float | None
    step: int
    images: np.ndarray  # uint8 [n, H, W, 3] from the memory, at least one
    held_out: HeldOutSamples


def snapshot_of(live: LiveLearner) -> Snapshot:
    """Copy a running learner: the weights between two steps, everything else beside the learning."""
    workspace = live.workspace
    asked = live.call(
        lambda: snapshot_of_learner(
            live.learner, None, None, live.predictor.calibration, workspace.settings.averaged
        )
    )
    try:
        copied = asked.result(COPY_SECONDS)
    except NotInTime:
        raise UserError("the learner does not answer: is it started?") from None
    return _of_workspace(copied, workspace)


def snapshot_of_workspace(path: Path | str) -> Snapshot:
    """Read the newest whole checkpoint, with the names that classes have now; changes nothing."""
    with Workspace.open(path, learning=False) as workspace:
        layout = workspace.layout
        found, refused = checkpoints.newest(layout, lambda folder: Learner.load(folder, "cpu"))
        if found is None and refused:
            raise UserError(f"no checkpoint in {layout.checkpoints} can be used: {refused[0][1]}")
        if found is None:
            raise UserError(
                f"nothing to export in {layout.path}: nothing that was learned has been saved there yet; "
                "label some images while `learn` runs"
            )
        learner, notes = found
        calibration = Calibration(**notes.get("calibration", {}))
        copied = snapshot_of_learner(learner, None, None, calibration, workspace.settings.averaged)
        return _of_workspace(copied, workspace)


def snapshot_of_learner(
    learner: Learner,
    classes: Mapping[int, ClassLabel] | None,
    held_out: HeldOutSamples | None = None,
    calibration: Calibration | None = None,
    averaged: bool = True,
) -> Snapshot:
    """Copy a learner; without `classes`, all that it knows, without names."""
    config, calibration = learner.config, calibration or Calibration()
    if methods.method_class(config.method).classifier is not Method.classifier:
        raise UserError(
            f"method {config.method} does not classify by its proxies alone: it cannot be exported"
        )
    average = learner.average if averaged else None
    network = learner.network if average is None else average.network
    held = len(learner.memory)
    # By place and not by chance: the learner's random numbers must not change.
    slots = np.unique(np.linspace(0, held - 1, min(IMAGES, held)).astype(np.int64))
    images, shape = learner.memory.at(slots).inputs.copy(), (config.height, config.width, 3)
    if not len(images):  # no memory: outputs can be compared on noise too
        images = np.random.default_rng(0).integers(0, 256, (IMAGES, *shape), np.uint8)
    copied = Snapshot(
        network=copy.deepcopy(network).cpu().eval().requires_grad_(False),
        classes=tuple(ClassLabel(class_id, "") for class_id in learner.class_ids),
        height=config.height,
        width=config.width,
        backbone=config.backbone,
        method=config.method,
        temperature=calibration.temperature,
        unknown_below=calibration.unknown_below,
        step=learner.step,
        images=images,
        held_out=held_out or HeldOutSamples(np.empty((0, *shape), np.uint8), np.empty(0, dtype=np.int64)),
    )
    return copied if classes is None else _named(copied, classes)


def _named(copied: Snapshot, classes: Mapping[int, ClassLabel]) -> Snapshot:
    """The snapshot with these names, without the columns of other classes: of one that was just deleted, say."""
    columns = [column for column, each in enumerate(copied.classes) if each.id in classes]
    network = copy.deepcopy(copied.network)
    network.keep_proxies(columns)
    named = tuple(classes[copied.classes[column].id] for column in columns)
    return replace(copied, network=network, classes=named)


def _of_workspace(copied: Snapshot, workspace: Workspace) -> Snapshot:
    rows = workspace.journal.classes()
    named = _named(copied, {row.id: ClassLabel(row.id, row.name, row.colour) for row in rows})
    return replace(named, held_out=held_out_samples(workspace, (copied.height, copied.width)))


def held_out_samples(workspace: Workspace, size: tuple[int, int]) -> HeldOutSamples:
    """The samples that the learner tests itself on: balanced over classes, within their budget."""
    images, class_ids = [], []
    for sample_id, class_id in held_out_ids(workspace).items():
        try:
            images.append(prepare(workspace.image(sample_id), size))
        except UserError:
            continue  # dropped since its row was read; the learner reports what is missing for good
        class_ids.append(class_id)
    stacked = np.stack(images) if images else np.empty((0, *size, 3), np.uint8)
    return HeldOutSamples(stacked, np.array(class_ids, dtype=np.int64))


def parity_images(snapshot: Snapshot) -> np.ndarray:
    """Exactly `IMAGES` of them; few are repeated, so that a full batch is always tried."""
    return snapshot.images[np.arange(IMAGES) % len(snapshot.images)]
