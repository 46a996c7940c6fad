"""A copy of what a learner is at one moment: all that an exported model is made of.

The copy is taken between two steps of a running learner, or read from the newest checkpoint of a workspace; whatever
is done with it later does not disturb the learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

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
from edge_hpcr.workspace.layout import Layout
from export.device.manifest import ClassLabel

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

IMAGES = 64  # of the memory: outputs are compared on them, and 8 bits calibrated
COPY_SECONDS = (
    120.0  # a step of large images takes seconds; a learner that does not answer for so long never will
)


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

    state: dict[str, Tensor]  # on the CPU; the averaged weights if the workspace uses them
    classes: tuple[ClassLabel, ...]
    height: int
    width: int
    nf: int
    tau: float
    method: str
    temperature: float
    unknown_below: float | None
    step: int
    images: np.ndarray  # uint8 [n, H, W, 3] from the memory, at least one
    held_out: HeldOutSamples

    @cached_property
    def network(self) -> Network:
        """The network in evaluation mode; copy it before changing it."""
        network = Network((self.height, self.width), self.nf, self.tau)
        network.take_over(self.state)
        return network.eval().requires_grad_(False)


@dataclass(frozen=True)
class _Copied:
    """What must be taken between two steps."""

    state: dict[str, Tensor]
    class_ids: list[int]
    step: int
    images: np.ndarray


def snapshot_of(live: LiveLearner) -> Snapshot:
    """Copy a running learner: the weights between two steps, everything else beside the learning."""
    averaged = live.workspace.settings.averaged
    asked = live.call(lambda: (_copy(live.learner, averaged), live.predictor.calibration))
    try:
        copied, calibration = asked.result(COPY_SECONDS)
    except NotInTime:
        raise UserError("the learner does not answer: is it started?") from None
    return _snapshot(copied, calibration, live.learner, live.workspace)


def snapshot_of_workspace(path: Path | str) -> Snapshot:
    """Read the newest whole checkpoint, with the names that classes have now; changes nothing."""
    with Workspace.open(path, learning=False) as workspace:
        learner, notes = _newest_checkpoint(workspace.layout)
        calibration = Calibration(**notes["calibration"]) if "calibration" in notes else Calibration()
        return _snapshot(_copy(learner, workspace.settings.averaged), calibration, learner, workspace)


def _newest_checkpoint(layout: Layout) -> tuple[Learner, dict[str, Any]]:
    found, refused = checkpoints.newest(layout, lambda folder: Learner.load(folder, "cpu"))
    if found is not None:
        return found
    if refused:
        raise UserError(f"no checkpoint in {layout.checkpoints} can be used: {refused[0][1]}")
    raise UserError(
        f"nothing to export in {layout.path}: nothing that was learned has been saved there yet; label some images while "
        "`learn` runs"
    )


def _copy(learner: Learner, averaged: bool) -> _Copied:
    average = learner.average if averaged else None
    network = learner.network if average is None else average.network
    state = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    held = len(learner.memory)
    # By place and not by chance: the learner's random numbers must go on as if nobody had looked.
    slots = np.unique(np.linspace(0, held - 1, min(IMAGES, held)).astype(np.int64))
    images = learner.memory.at(slots).images
    return _Copied(state, list(learner.class_ids), learner.step, images.copy())


def _snapshot(copied: _Copied, calibration: Calibration, learner: Learner, workspace: Workspace) -> Snapshot:
    rows = workspace.journal.classes()
    known = {row.id: ClassLabel(row.id, row.name, row.colour) for row in rows}
    held_out = held_out_samples(workspace, (learner.config.height, learner.config.width))
    return _put_together(copied, calibration, learner, known, held_out)


def snapshot_of_learner(
    learner: Learner,
    classes: Mapping[int, ClassLabel],
    held_out: HeldOutSamples | None = None,
    calibration: Calibration | None = None,
    averaged: bool = True,
) -> Snapshot:
    """Copy a learner that has no workspace; the caller knows its classes' names."""
    size = (learner.config.height, learner.config.width)
    nothing = HeldOutSamples(np.empty((0, *size, 3), np.uint8), np.empty(0, dtype=np.int64))
    copied = _copy(learner, averaged)
    return _put_together(copied, calibration or Calibration(), learner, classes, held_out or nothing)


def _put_together(
    copied: _Copied,
    calibration: Calibration,
    learner: Learner,
    classes: Mapping[int, ClassLabel],
    held_out: HeldOutSamples,
) -> Snapshot:
    config = learner.config
    _check_method(config.method)
    # A class that was deleted a moment ago may still have its column.
    columns = [column for column, class_id in enumerate(copied.class_ids) if class_id in classes]
    size = (config.height, config.width)
    return Snapshot(
        state={**copied.state, "proxies": copied.state["proxies"][columns]},
        classes=tuple(classes[copied.class_ids[column]] for column in columns),
        height=config.height,
        width=config.width,
        nf=config.nf,
        tau=config.tau,
        method=config.method,
        temperature=calibration.temperature,
        unknown_below=calibration.unknown_below,
        step=copied.step,
        images=copied.images if len(copied.images) else _any_images(size),
        held_out=held_out,
    )


def _check_method(name: str) -> None:
    if methods.method_class(name).classifier is not Method.classifier:
        raise UserError(f"method {name} does not classify by its proxies alone: it cannot be exported")


def _any_images(size: tuple[int, int]) -> np.ndarray:
    """Noise, for a learner without memory: outputs can be compared on that too."""
    return np.random.default_rng(0).integers(0, 256, (IMAGES, *size, 3), np.uint8)


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
    """Exactly `IMAGES` of them; few are repeated, so that a full batch is tried whatever the memory holds."""
    return snapshot.images[np.arange(IMAGES) % len(snapshot.images)]
