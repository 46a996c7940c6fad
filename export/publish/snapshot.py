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
from edge_hpcr.common.text import many
from edge_hpcr.learner.calibration import FEWEST_SAMPLES, Calibration
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.network import Classifier, Network
from edge_hpcr.live.accuracy import HeldOut, held_out_ids
from edge_hpcr.stream.region import Region
from edge_hpcr.stream.resize import prepare
from edge_hpcr.workspace.recover import why_foreign
from edge_hpcr.workspace.workspace import Workspace
from export.device.manifest import ClassLabel

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner

IMAGES, LARGE_IMAGES = 64, 16  # outputs are compared on so many, and 8 bits calibrated
LARGE = 64 * 64  # pixels, from which on fewer are enough: each has more to compare, and takes longer
CALIBRATION_SECONDS = 60.0  # the first one takes about half of that
COPY_SECONDS = 120.0  # a step of large images takes seconds
MOST_EVENTS = 1_000_000  # of the journal that are looked at for labels
NO_UNKNOWN = f"it never answers unknown, which needs {FEWEST_SAMPLES} labelled pictures that were not learned, and a moment of idle time"


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
    images: np.ndarray  # uint8 [n, H, W, 3], at least one: of the workspace, else noise
    held_out: HeldOutSamples
    labels: Mapping[int, int] = field(default_factory=dict)  # labelled samples by class; empty if unknown
    region: Region | None = None  # of the picture of the source that was used last
    measured: HeldOut | None = None  # what the learner found on pictures that it did not learn
    unlearned: int = 0  # samples whose label has changed since the network learned

    @property
    def notes(self) -> list[str]:
        """What a person should know before devices use it."""
        found = []
        if self.unknown_below is None:
            found.append(NO_UNKNOWN)
        if self.unlearned:
            changes = many(self.unlearned, "changed label")
            found.append(f"without {changes}: let `learn` or the app learn that, then publish again")
        return found


def snapshot_of(live: LiveLearner) -> Snapshot:
    """Copy a running learner: the weights between two steps, everything else while learning goes on."""
    workspace = live.workspace
    live.wait_until_calibrated(CALIBRATION_SECONDS)  # without one the model never answers *unknown*

    def copied() -> Snapshot:
        measured = live.self_test.held_out.model_copy(deep=True)
        return _copied(live.learner, workspace, live.predictor.calibration, measured)

    asked = live.call(copied)
    try:
        return _with_samples(asked.result(COPY_SECONDS), workspace)
    except NotInTime:
        raise UserError("the learner does not answer: is it started?") from None


def snapshot_of_workspace(path: Path | str) -> Snapshot:
    """Read the newest whole checkpoint, with the names that classes have now; changes nothing."""
    with Workspace.open(path, learning=False) as workspace:
        layout = workspace.layout

        def load(folder: Path) -> tuple[Learner, dict[str, Any]]:
            if why := why_foreign(folder, workspace.journal):
                raise UserError(f"checkpoint {folder.name} {why}")
            return Learner.load(folder, "cpu")

        found, refused = layout.newest_checkpoint(load)
        if found is None and refused:
            raise UserError(f"no checkpoint in {layout.checkpoints} can be used: {refused[0][1]}")
        if found is None:
            raise UserError(
                f"nothing to export in {layout.path}: nothing that was learned has been saved there yet; "
                "label some images while `learn` runs"
            )
        learner, notes = found
        calibration = Calibration(**notes.get("calibration", {}))
        measured = HeldOut.model_validate(notes.get("held_out", {}))
        copied = _copied(learner, workspace, calibration, measured)
        events = workspace.journal.events_after(notes.get("applied", 0), MOST_EVENTS)
        changed = {move.sample_id for event in events for move in event.moves}
        return _with_samples(replace(copied, unlearned=len(changed)), workspace)


def _copied(learner: Learner, workspace: Workspace, calibration: Calibration, measured: HeldOut) -> Snapshot:
    names = {row.id: ClassLabel(row.id, row.name, row.colour) for row in workspace.journal.classes()}
    copied = snapshot_of_learner(learner, names, None, calibration, workspace.settings.averaged)
    return replace(copied, measured=measured)


def snapshot_of_learner(
    learner: Learner,
    classes: Mapping[int, ClassLabel] | None = None,
    held_out: HeldOutSamples | None = None,
    calibration: Calibration | None = None,
    averaged: bool = True,
) -> Snapshot:
    """Copy a learner, without columns of other classes: of one that was just deleted, say.

    Without `classes` it is all that it knows, without names.
    """
    config, calibration = learner.config, calibration or Calibration()
    average = learner.average if averaged else None
    source = learner.network if average is None else average.network
    head = learner.method.classifier(learner.view, source)
    if not isinstance(head, Classifier):
        raise UserError(f"method {config.method} classifies by {type(head).__name__}: it cannot be exported")
    if classes is None:
        classes = {class_id: ClassLabel(class_id, "") for class_id in learner.class_ids}
    columns = [column for column, class_id in enumerate(learner.class_ids) if class_id in classes]
    network, head = copy.deepcopy(source).cpu().eval().requires_grad_(False), copy.deepcopy(head).cpu()
    network.keep_proxies(columns)
    head.keep(columns)
    shape = (config.height, config.width, 3)
    noise = np.random.default_rng(0).integers(0, 256, (images_wanted(*shape[:2]), *shape), np.uint8)
    return Snapshot(
        network=network,
        head=head,
        classes=tuple(classes[learner.class_ids[column]] for column in columns),
        height=config.height,
        width=config.width,
        backbone=config.backbone,
        method=config.method,
        temperature=calibration.temperature,
        unknown_below=calibration.unknown_below,
        step=learner.step,
        images=noise,
        held_out=held_out or HeldOutSamples(np.empty((0, *shape), np.uint8), np.empty(0, dtype=np.int64)),
    )


def _with_samples(copied: Snapshot, workspace: Workspace) -> Snapshot:
    size = (copied.height, copied.width)
    # The oldest that are not held out, evenly over the classes: so they stay the same from version to version.
    chosen = workspace.journal.over_classes(held_out=False, newest=False, limit=images_wanted(*size))
    found = _read(workspace, [sample_id for sample_id, _, _ in chosen], size)
    return replace(
        copied,
        images=np.stack(list(found.values())) if found else copied.images,
        held_out=held_out_samples(workspace, size),
        labels={row.id: row.labels for row in workspace.journal.classes()},
        region=workspace.regions.current(),
    )


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
