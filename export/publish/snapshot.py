"""A copy of a learner: all that an exported model is made of.

It is taken between two steps of a running learner, or read from the newest checkpoint of a workspace; using it does not
disturb the learning.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.calibration import Calibration
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.network import Classifier, Network
from edge_hpcr.live import checkpoints
from edge_hpcr.live.accuracy import balanced, held_out_ids
from edge_hpcr.stream.region import Region
from edge_hpcr.stream.resize import prepare
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.set_aside import why_foreign
from export.device.manifest import ClassLabel

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

IMAGES, LARGE_IMAGES = 64, 16  # outputs are compared on so many, and 8 bits calibrated
LARGE = 64 * 64  # pixels, from which on fewer are enough: each has more to compare, and takes longer
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
    head: Classifier  # from features to class scores, before the temperature and the softmax
    classes: tuple[ClassLabel, ...]
    height: int
    width: int
    backbone: str
    method: str
    temperature: float
    unknown_below: float | None
    step: int
    images: (
        np.ndarray
    )  # uint8 [n, H, W, 3], at least one: from the memory, else from the workspace, else noise
    held_out: HeldOutSamples
    labels: Mapping[int, int] = field(
        default_factory=dict
    )  # labelled samples by class; empty if nobody counted
    region: Region | None = None  # of the picture of the source that was used last


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

        def load(folder: Path) -> tuple[Learner, dict[str, Any]]:
            if why := why_foreign(folder, workspace.journal):
                raise UserError(f"checkpoint {folder.name} {why}")
            return Learner.load(folder, "cpu")

        found, refused = checkpoints.newest(layout, load)
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
    average = learner.average if averaged else None
    network = learner.network if average is None else average.network
    head = learner.method.classifier(learner.view, network)
    if not isinstance(head, Classifier):
        raise UserError(f"method {config.method} classifies by {type(head).__name__}: it cannot be exported")
    shape = (config.height, config.width, 3)
    copied = Snapshot(
        network=copy.deepcopy(network).cpu().eval().requires_grad_(False),
        head=copy.deepcopy(head).cpu(),
        classes=tuple(ClassLabel(class_id, "") for class_id in learner.class_ids),
        height=config.height,
        width=config.width,
        backbone=config.backbone,
        method=config.method,
        temperature=calibration.temperature,
        unknown_below=calibration.unknown_below,
        step=learner.step,
        images=_memory_images(learner, shape),
        held_out=held_out or HeldOutSamples(np.empty((0, *shape), np.uint8), np.empty(0, dtype=np.int64)),
    )
    return copied if classes is None else _named(copied, classes)


def _named(copied: Snapshot, classes: Mapping[int, ClassLabel]) -> Snapshot:
    """The snapshot with these names, without the columns of other classes: of one that was just deleted, say."""
    columns = [column for column, each in enumerate(copied.classes) if each.id in classes]
    network, head = copy.deepcopy(copied.network), copy.deepcopy(copied.head)
    network.keep_proxies(columns)
    head.keep(columns)
    named = tuple(classes[copied.classes[column].id] for column in columns)
    return replace(copied, network=network, head=head, classes=named)


def _memory_images(learner: Learner, shape: tuple[int, int, int]) -> np.ndarray:
    """By place and not by chance: the learner's random numbers must not change."""
    most, held = images_wanted(*shape[:2]), len(learner.memory)
    if not held or learner.network.backbone.trunk is not None:
        return np.random.default_rng(0).integers(
            0, 256, (most, *shape), np.uint8
        )  # nothing better is at hand
    slots = np.unique(np.linspace(0, held - 1, min(most, held)).astype(np.int64))
    return learner.memory.at(slots).inputs.astype(np.uint8)  # a rival edits them as floats


def _of_workspace(copied: Snapshot, workspace: Workspace) -> Snapshot:
    rows, size = workspace.journal.classes(), (copied.height, copied.width)
    named = _named(copied, {row.id: ClassLabel(row.id, row.name, row.colour) for row in rows})
    whole = replace(
        named,
        held_out=held_out_samples(workspace, size),
        labels={row.id: row.labels for row in rows},
        region=workspace.regions.current(),
    )
    if copied.network.backbone.trunk is None:
        return whole
    # The memory holds latents: the images are on the disk, and of those some stay the same from version to version.
    found = _read(workspace, _oldest_labelled(workspace, images_wanted(*size)), size)
    images = np.stack(list(found.values())) if found else whole.held_out.images[: images_wanted(*size)]
    return replace(whole, images=images) if len(images) else whole


def _oldest_labelled(workspace: Workspace, most: int) -> list[int]:
    """So many samples that are not held out, evenly over the classes."""
    members: dict[int, list[int]] = {}
    for row in workspace.journal.all_samples(state="labelled", held_out=False, has_image=True):
        members.setdefault(row.class_id or 0, []).append(-row.id)
    return [-negative for negative in balanced(members, most)]


def held_out_samples(workspace: Workspace, size: tuple[int, int]) -> HeldOutSamples:
    """The samples that the learner tests itself on: balanced over classes, within their budget."""
    class_ids = held_out_ids(workspace)
    images = _read(workspace, class_ids, size)
    stacked = np.stack(list(images.values())) if images else np.empty((0, *size, 3), np.uint8)
    return HeldOutSamples(stacked, np.array([class_ids[i] for i in images], dtype=np.int64))


def _read(workspace: Workspace, ids: Iterable[int], size: tuple[int, int]) -> dict[int, np.ndarray]:
    """The samples' images as the network sees them."""
    images = {}
    for sample_id in ids:
        # Dropped since its row was read, or damaged: the learner reports what is missing for good.
        with suppress(UserError):
            images[sample_id] = prepare(workspace.image(sample_id), size)
    return images


def images_wanted(height: int, width: int) -> int:
    """How many images outputs are compared on."""
    return int(np.clip(IMAGES * LARGE // (height * width), LARGE_IMAGES, IMAGES))


def parity_images(snapshot: Snapshot) -> np.ndarray:
    """Exactly as many as are wanted; few are repeated, so that a full batch is always tried."""
    wanted = images_wanted(snapshot.height, snapshot.width)
    return snapshot.images[np.arange(wanted) % len(snapshot.images)]
