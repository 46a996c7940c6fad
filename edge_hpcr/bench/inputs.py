"""What a learner sees of pictures. A frozen trunk sees each once: what it says is kept on disk for the next run.

A class's pictures are one file, so that a draw of ten classes out of a hundred computes no more than those. Whoever deletes
the files loses time and nothing else.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from edge_hpcr.bench.pictures import Pictures
from edge_hpcr.common.files import locked, sha256, write_atomically
from edge_hpcr.learner.backbones.weights import cache_folder
from edge_hpcr.learner.learner import Learner, LearnerConfig

BATCH = 50  # pictures that are resized at once
PORTION = 1000
TIMED = 20
LONGEST_WAIT = 3600.0  # seconds, for another process that computes the same


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
        self._folder = self._cache()
        if self._folder is not None:
            self._drop_stale(self._folder)
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
        """Have these at hand, so that what follows is not timed with the trunk's passes."""
        if self._folder is None:
            return
        classes = np.unique(self._pictures.labels[chosen]).tolist()
        missing = [class_id for class_id in classes if class_id not in self._of_class]
        with tqdm(missing, "trunk", leave=False, unit="class", disable=None, dynamic_ncols=True) as bar:
            for class_id in bar:
                self._of_class[class_id] = self._kept(class_id)

    def images(self, chosen: np.ndarray) -> np.ndarray:
        return self._pictures.prepared(chosen, self._encoder.config.height)

    def pass_seconds(self, chosen: np.ndarray) -> float:
        """Of one picture at a time through the trunk, the median; next to nothing without one."""
        return float(np.median(timed(self._encoder.encode, self.images(chosen[:TIMED]))))

    def _members(self, class_id: int) -> np.ndarray:
        return np.flatnonzero(self._pictures.labels == class_id)

    def _cache(self) -> Path | None:
        """Where the latents of these pictures are kept; None without a trunk."""
        config, trunk = self._encoder.config, self._encoder.network.backbone.trunk
        if trunk is None:
            return None
        views = asdict(config.augment) if config.stored_views > 1 else {}
        facts = [
            self._pictures.identity,
            trunk.sha256,
            config.height,
            config.width,
            config.stored_views,
            views,
        ]
        key = sha256(json.dumps(facts).encode())[:16]
        backbone = config.backbone.replace(":", "_").replace("/", "_")
        return cache_folder() / "latents" / f"{self._pictures.name}-{backbone}-{config.height}-{key}"

    def _drop_stale(self, folder: Path) -> None:
        """Remove latents of another version of the trunk, which answers a fixed picture otherwise."""
        side = self._encoder.config.height
        picture = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), np.uint8)
        answer = self._encoder.encode(picture)[:, 0]
        path = folder / "answer.npy"
        kept = _read(path)
        alike = kept is not None and kept.shape == answer.shape
        # Not equal: other kernels, or threads, change the last bits.
        if alike and np.linalg.norm(kept - answer) < 1e-3 * np.linalg.norm(answer):
            return
        with suppress(OSError):  # a disk that is full or may not be written
            folder.mkdir(parents=True, exist_ok=True)
            for stale in folder.glob("*.npy"):
                stale.unlink(missing_ok=True)
            _write(path, answer)

    def _kept(self, class_id: int) -> np.ndarray:
        """A class's latents, from the disk or for it."""
        assert self._folder is not None
        path = self._folder / f"{class_id}.npy"
        try:
            with locked(path.with_suffix(".lock"), f"{path} is being made", LONGEST_WAIT, remove=True):
                latents = _read(path)
                if latents is None or len(latents) != len(self._members(class_id)):
                    if not sys.stderr.isatty():  # where there is no bar to see
                        name = self._pictures.class_names[class_id]
                        print(f"{self._pictures.name}: the trunk looks at class {name}", file=sys.stderr)
                    latents = self._computed(class_id)
                    _write(path, latents)
                return latents
        except OSError:  # a disk that is full or may not be written
            return self._computed(class_id)

    def _computed(self, class_id: int) -> np.ndarray:
        own = self._members(class_id)
        self._encoder.rng = np.random.default_rng(class_id)  # for the augmented views
        parts = np.array_split(own, -(-len(own) // BATCH))
        # Half of the bytes; the memory keeps even less.
        return np.concatenate([self._encoder.encode(self.images(part)).astype(np.float16) for part in parts])


def _read(path: Path) -> np.ndarray | None:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # not made yet, or cut short by a power failure
        return None


def _write(path: Path, array: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, array)
    write_atomically(path, file.getvalue(), durable=False)
