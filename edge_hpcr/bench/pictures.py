"""The pictures that `bench teach` teaches from and tests with: those of a dataset, or of a folder for each class."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import Dataset
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import disk_errors, sha256
from edge_hpcr.common.text import as_text
from edge_hpcr.stream import workbench
from edge_hpcr.stream.decode import BadImage
from edge_hpcr.stream.folder import class_of, read_frame, require_folder, walk
from edge_hpcr.stream.resize import prepare

WORKBENCH = "workbench"
NAMES = (*data.DATASETS, WORKBENCH)
DRAWN = 100  # pictures of each class of the workbench
MOST_PER_CLASS = 500  # of a folder's files, drawn by lot: each is decoded once before anything is taught


@dataclass(frozen=True)
class Pictures:
    """Labelled pictures of any size."""

    name: str
    identity: str  # the same for the same pictures in the same order, and for no others
    frame: Callable[
        [int], np.ndarray
    ]  # uint8 RGB [H, W, 3]; decoded anew each time, for all would fill the memory
    labels: np.ndarray  # int64 [N]
    class_names: tuple[str, ...]

    def prepared(self, chosen: np.ndarray, side: int) -> np.ndarray:
        """The chosen pictures as a learner sees them, uint8 [N, side, side, 3]."""
        return np.stack([prepare(self.frame(i), (side, side)) for i in chosen.tolist()])

    @property
    def smallest_class(self) -> tuple[str, int]:
        counts = np.bincount(self.labels, minlength=len(self.class_names))
        smallest = int(counts.argmin())
        return self.class_names[smallest], int(counts[smallest])


def of_dataset(name: str, root: Path | None = None, validation: bool = False) -> Pictures:
    """A dataset's test pictures; with `validation` its training pictures, on which settings may be chosen."""
    one_of("dataset", name, NAMES)
    if name == WORKBENCH:
        return of_workbench(validation)
    dataset = data.load(name, root)
    if validation:
        return of_arrays(dataset, "train", dataset.train_images, dataset.train_labels)
    return of_arrays(dataset, "test", dataset.test_images, dataset.test_labels)


def of_workbench(validation: bool = False) -> Pictures:
    """Parts on a workbench, each picture drawn when it is asked for; `validation` gives others."""
    seed = int(validation)

    def frame(i: int) -> np.ndarray:
        return workbench.picture(workbench.CLASSES[i // DRAWN], i % DRAWN, seed)

    labels = np.repeat(np.arange(len(workbench.CLASSES)), DRAWN)
    return Pictures(
        WORKBENCH, f"{WORKBENCH}-{'train' if validation else 'test'}", frame, labels, workbench.CLASSES
    )


def of_arrays(dataset: Dataset, part: str, images: np.ndarray, labels: np.ndarray) -> Pictures:
    return Pictures(dataset.name, f"{dataset.name}-{part}", images.__getitem__, labels, dataset.class_names)


def of_folder(folder: Path, seed: int = 0) -> Pictures:
    """The pictures below a folder, whose first-level sub-folders name the classes. Files that are none are named."""
    require_folder(folder)

    def complain(path: Path, reason: str) -> None:
        print(f"left out: {reason}", file=sys.stderr)

    by_class: dict[str, list[Path]] = {}
    with disk_errors(f"{folder} cannot be listed"):
        for path in walk(folder, complain):
            label = class_of(path, folder, "folders")
            if label is not None:
                by_class.setdefault(label, []).append(path)
    rng = np.random.default_rng(seed)
    files: list[Path] = []
    labels: list[int] = []
    digests: list[str] = []
    names: list[str] = []
    for label, paths in by_class.items():
        before = len(files)
        for i in rng.permutation(len(paths)).tolist()[:MOST_PER_CLASS]:
            try:
                digests.append(read_frame(paths[i], folder, "folders").digest or "")
            except BadImage as error:
                complain(paths[i], str(error))
            else:
                files.append(paths[i])
        if len(files) > before:
            labels += [len(names)] * (len(files) - before)
            names.append(label)
    if len(names) < 2:
        raise UserError(
            f"{as_text(folder)} has pictures of {len(names)} classes: give a folder with at least two sub-folders, one "
            "for each class, with pictures in them"
        )

    def frame(i: int) -> np.ndarray:
        return read_frame(files[i], folder, "folders").image

    identity = sha256("\n".join(digests).encode())
    return Pictures(as_text(folder.resolve().name), identity, frame, np.array(labels, np.int64), tuple(names))
