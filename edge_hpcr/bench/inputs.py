"""The pictures of a benchmark, and what a learner sees of them.

A frozen trunk sees each picture once, when it is first asked for: what it says is kept on disk for the next run. Whoever
deletes these files loses time and nothing else.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor
from tqdm import tqdm

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import Dataset
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import cache_folder, disk_errors, sha256
from edge_hpcr.common.text import as_text
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.trunk_session import fastest
from edge_hpcr.stream import workbench
from edge_hpcr.stream.decode import BadImage
from edge_hpcr.stream.image_folder import class_folder, parts_of, read_frame, require_folder, walk
from edge_hpcr.stream.resize import prepare

WORKBENCH = "workbench"
NAMES = (*data.DATASETS, WORKBENCH)
DRAWN = 100  # pictures of each class of the workbench
MOST_PER_CLASS = 500  # of a folder's files, drawn by lot: each is decoded once before anything is taught
BATCH = 50  # pictures that are resized at once
PORTION = 1000
TIMED = 20
LATENTS_FORMAT = 1  # to be raised when a trunk with the same weights answers otherwise


@dataclass(frozen=True)
class Pictures:
    """Labelled pictures of any size."""

    name: str
    identity: str  # the same for the same pictures in the same order, and for no others
    # uint8 RGB [H, W, 3]; decoded anew each time, for all would fill the memory.
    frame: Callable[[int], np.ndarray]
    labels: np.ndarray  # int64 [N]
    class_names: tuple[str, ...]

    def prepared(self, chosen: np.ndarray, side: int) -> np.ndarray:
        """The chosen pictures as a learner sees them, uint8 [N, side, side, 3]."""
        return np.stack([prepare(self.frame(i), (side, side)) for i in chosen.tolist()])

    @property
    def smallest_class(self) -> tuple[str, int]:
        """Its name, and how many pictures it has."""
        counts = np.bincount(self.labels, minlength=len(self.class_names))
        return self.class_names[counts.argmin()], int(counts.min())


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
        WORKBENCH, f"{WORKBENCH}2-{'train' if validation else 'test'}", frame, labels, workbench.CLASSES
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
            label = class_folder(parts_of(path, folder))
            if label is not None:
                by_class.setdefault(label, []).append(path)
    rng = np.random.default_rng(seed)
    found: list[tuple[str, Path, str]] = []  # class, file and digest
    for label, paths in by_class.items():
        for i in rng.permutation(len(paths)).tolist()[:MOST_PER_CLASS]:
            try:
                found.append((label, paths[i], read_frame(paths[i], folder).digest or ""))
            except BadImage as error:
                complain(paths[i], str(error))
    classes, files, digests = zip(*found, strict=True) if found else ((), (), ())
    names = tuple(dict.fromkeys(classes))
    if len(names) < 2:
        raise UserError(
            f"{as_text(folder)} has pictures of {len(names)} classes: give a folder with at least two sub-folders, one "
            "for each class, with pictures in them"
        )

    def frame(i: int) -> np.ndarray:
        return read_frame(files[i], folder).image

    identity = sha256("\n".join(digests).encode())
    labels = np.array([names.index(each) for each in classes], np.int64)
    return Pictures(as_text(folder.resolve().name), identity, frame, labels, names)


def timed(work: Callable[[np.ndarray], object], images: np.ndarray) -> list[float]:
    """The seconds of each of these images alone."""
    times = []
    for image in images:
        begun = time.perf_counter()
        work(image[None])
        times.append(time.perf_counter() - begun)
    return times


class LatentFile:
    """Latents of pictures by their indices, in half of their bytes. Several processes may use one file.

    It is a cache: where the disk is full or may not be written, latents stay in memory.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._unwritten: dict[int, np.ndarray] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _database(path)
        except (OSError, sqlite3.OperationalError):
            self._db = _database(":memory:")
        except sqlite3.DatabaseError:  # damaged
            path.unlink()
            self._db = _database(path)

    def __del__(self) -> None:
        self._db.close()

    def __getitem__(self, i: int) -> np.ndarray:
        if i in self._unwritten:
            return self._unwritten[i]
        (latent,) = self._db.execute("SELECT latent FROM latents WHERE id = ?", (i,)).fetchone()
        return np.frombuffer(latent, np.float16).reshape(self._shape)

    def missing(self, chosen: np.ndarray) -> np.ndarray:
        """Those that are not here, each once and in order."""
        query = "SELECT 1 FROM latents WHERE id = ?"
        left = (i for i in np.unique(chosen).tolist() if i not in self._unwritten)
        return np.array([i for i in left if self._db.execute(query, (i,)).fetchone() is None], np.int64)

    def keep(self, chosen: np.ndarray, latents: np.ndarray) -> None:
        made = dict(zip(chosen.tolist(), latents.astype(np.float16), strict=True))
        rows = [(i, latent.tobytes()) for i, latent in made.items()]
        try:
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO latents VALUES (?, ?)", rows)
        except sqlite3.OperationalError:
            self._unwritten |= made


def _database(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the newest, and damages nothing
    db.execute("CREATE TABLE IF NOT EXISTS latents (id INTEGER PRIMARY KEY, latent BLOB)")
    return db


class Inputs:
    """The inputs of a learner's trainable part by the pictures' indices: images, or latents as the trunk made them."""

    def __init__(self, config: LearnerConfig, pictures: Pictures, device: str = "auto") -> None:
        self._pictures = pictures
        self._encoder = Learner(replace(config, seed=0), device)  # whose trunk is any learner's
        self._trunk: Callable[[Tensor], Tensor] | None = None
        self._latents: LatentFile | None = None
        if (trunk := self._encoder.network.backbone.trunk) is not None:
            self._trunk = fastest(trunk, config.height, config.width, self._encoder.device)
            made_of = [pictures.identity, trunk.sha256, config.height, trunk.latent_shape, LATENTS_FORMAT]
            name = f"{pictures.name}-{sha256(json.dumps(made_of).encode())[:16]}.sqlite"
            self._latents = LatentFile(cache_folder() / "latents" / name, (1, *trunk.latent_shape))

    def __getitem__(self, chosen: np.ndarray) -> np.ndarray:
        """What a learner's `observe` and `predict` take."""
        if self._latents is None:
            return self.images(chosen)
        self.fill(chosen)
        return np.stack([self._latents[i] for i in chosen.tolist()]).astype(np.float32)

    def batches(self, chosen: np.ndarray) -> Iterator[np.ndarray]:
        """The same in portions: all test pictures' latents at once may be more than the memory holds."""
        return (self[part] for part in np.array_split(chosen, max(1, -(-len(chosen) // PORTION))))

    def fill(self, chosen: np.ndarray) -> None:
        """Have the latents of these at hand: the trunk sees many at once, class by class."""
        if self._latents is None:
            return
        missing = self._latents.missing(chosen)
        labels = self._pictures.labels[missing]
        classes = np.unique(labels).tolist()
        with tqdm(classes, "trunk", leave=False, unit="class", disable=None, dynamic_ncols=True) as bar:
            for class_id in bar:
                own = missing[labels == class_id]
                if bar.disable:
                    name = f"{len(own)} pictures of class {self._pictures.class_names[class_id]}"
                    print(f"{self._pictures.name}: the trunk looks at {name}", file=sys.stderr)
                for part in np.array_split(own, -(-len(own) // BATCH)):
                    self._latents.keep(part, self._encode(self.images(part)))

    def images(self, chosen: np.ndarray) -> np.ndarray:
        return self._pictures.prepared(chosen, self._encoder.config.height)

    def pass_seconds(self, chosen: np.ndarray) -> float:
        """Of one picture at a time through the trunk, the median; next to nothing without one."""
        return float(np.median(timed(self._encode, self.images(chosen[:TIMED]))))

    def _encode(self, images: np.ndarray) -> np.ndarray:
        if self._trunk is None:
            return images
        return self._trunk(self._encoder.to_device(images)).cpu().numpy()[:, None]
