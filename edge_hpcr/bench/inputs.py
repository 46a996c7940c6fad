"""The pictures of a benchmark, and what a learner sees of them.

A frozen trunk sees each picture once: what it says is kept on disk for the next run. A class's pictures are one file, in
which rows stay empty until their pictures are asked for: a draw computes what it uses. Whoever deletes the files loses time
and nothing else.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import Dataset
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import cache_folder, disk_errors, sha256, write_atomically
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


class Inputs:
    """The inputs of a learner's trainable part by the pictures' indices: images, or latents as the trunk made them."""

    def __init__(self, config: LearnerConfig, pictures: Pictures, device: str = "auto") -> None:
        self._pictures = pictures
        self._encoder = Learner(replace(config, seed=0), device)  # whose trunk is any learner's
        trunk = self._encoder.network.backbone.trunk
        self._trunk = trunk and fastest(trunk, config.height, config.width, self._encoder.device)
        self._folder = self._cache()
        self._of_class: dict[int, np.ndarray] = {}
        self._place = np.zeros(len(pictures.labels), np.int64)  # of a picture among those of its class
        for class_id in range(len(pictures.class_names)):
            own = self._members(class_id)
            self._place[own] = np.arange(len(own))

    def __getitem__(self, chosen: np.ndarray) -> np.ndarray:
        """What a learner's `observe` and `predict` take."""
        if self._folder is None:
            return self.images(chosen)
        self.fill(chosen)
        rows = zip(self._pictures.labels[chosen].tolist(), self._place[chosen].tolist(), strict=True)
        return np.stack([self._of_class[class_id][place] for class_id, place in rows]).astype(np.float32)

    def batches(self, chosen: np.ndarray) -> Iterator[np.ndarray]:
        """The same in portions: all test pictures' latents at once may be more than the memory holds."""
        return (self[part] for part in np.array_split(chosen, max(1, -(-len(chosen) // PORTION))))

    def fill(self, chosen: np.ndarray) -> None:
        """Have these at hand: many at once, for each time writes whole files."""
        if self._folder is None:
            return
        labels = self._pictures.labels[chosen]
        wanted = {c: self._place[chosen[labels == c]] for c in np.unique(labels).tolist()}
        missing = [c for c, places in wanted.items() if _lacking(self._of_class.get(c), places).size]
        with tqdm(missing, "trunk", leave=False, unit="class", disable=None, dynamic_ncols=True) as bar:
            for class_id in bar:
                self._of_class[class_id] = self._kept(class_id, wanted[class_id])

    def images(self, chosen: np.ndarray) -> np.ndarray:
        return self._pictures.prepared(chosen, self._encoder.config.height)

    def pass_seconds(self, chosen: np.ndarray) -> float:
        """Of one picture at a time through the trunk, the median; next to nothing without one."""
        return float(np.median(timed(self._encode, self.images(chosen[:TIMED]))))

    def _encode(self, images: np.ndarray) -> np.ndarray:
        if self._trunk is None:
            return images
        return self._trunk(self._encoder.to_device(images)).cpu().numpy()[:, None]

    def _members(self, class_id: int) -> np.ndarray:
        return np.flatnonzero(self._pictures.labels == class_id)

    def _cache(self) -> Path | None:
        """Where the latents of these pictures are kept; None without a trunk."""
        config, trunk = self._encoder.config, self._encoder.network.backbone.trunk
        if trunk is None:
            return None
        shape = {"latent": trunk.latent_shape} if trunk.places else {}
        facts = [
            self._pictures.identity,
            trunk.sha256,
            config.height,
            config.width,
            LATENTS_FORMAT,
            shape,
        ]
        key = sha256(json.dumps(facts).encode())[:16]
        backbone = config.backbone.replace(":", "_").replace("/", "_")
        return cache_folder() / "latents" / f"{self._pictures.name}-{backbone}-{config.height}-{key}"

    def _kept(self, class_id: int, places: np.ndarray) -> np.ndarray:
        """A class's latents, from the disk or for it, with those of these pictures at the least."""
        assert self._folder is not None
        path = self._folder / f"{class_id}.npy"
        latents = _read(path)
        if latents is not None and len(latents) != len(self._members(class_id)):
            latents = None
        lacking = _lacking(latents, places)
        if lacking.size or latents is None:
            if not sys.stderr.isatty():  # where there is no bar to see
                name = f"{len(lacking)} pictures of class {self._pictures.class_names[class_id]}"
                print(f"{self._pictures.name}: the trunk looks at {name}", file=sys.stderr)
            latents = self._computed(class_id, lacking, latents)
            with suppress(OSError):  # a disk that is full or may not be written
                self._folder.mkdir(parents=True, exist_ok=True)
                _write(path, latents)
        return latents

    def _computed(self, class_id: int, places: np.ndarray, known: np.ndarray | None) -> np.ndarray:
        """The latents of a class with those at these places; a row that nobody has asked for is not a number."""
        own = self._members(class_id)
        parts = np.array_split(own[places], -(-len(places) // BATCH))
        # Half of the bytes; the memory keeps even less.
        made = np.concatenate([self._encode(self.images(part)).astype(np.float16) for part in parts])
        whole = np.full((len(own), *made.shape[1:]), np.nan, np.float16) if known is None else np.array(known)
        whole[places] = made
        return whole


def _lacking(latents: np.ndarray | None, places: np.ndarray) -> np.ndarray:
    """Which of these rows are not computed yet."""
    places = np.unique(places)
    return places if latents is None else places[np.isnan(latents[places].reshape(len(places), -1)[:, 0])]


def _read(path: Path) -> np.ndarray | None:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # not made yet, or cut short by a power failure
        return None


def _write(path: Path, array: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, array)
    write_atomically(path, file.getvalue(), durable=False)
