"""Datasets of the split benchmarks: `load(name)` reads one, `get(name)` fetches it once.

>>> digits = load("digits")
>>> digits.train_images.shape, digits.train_images.dtype
((1433, 8, 8, 3), dtype('uint8'))
"""

import os
import sys
from pathlib import Path

from edge_hpcr.bench.datasets import registry, sources, store
from edge_hpcr.bench.datasets.registry import DATASETS, Dataset, DatasetInfo
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.stream.digits import read_digits

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "default_root", "get", "identity", "is_here", "load"]


def default_root() -> Path:
    """The folder that holds the datasets: $EDGE_HPCR_DATA, or ./datasets."""
    return Path(os.environ.get("EDGE_HPCR_DATA") or "datasets")


def is_here(name: str, root: Path | None = None) -> bool:
    """Whether a dataset is built in, or stored below the root."""
    return not registry.info(name).sources or ((root or default_root()) / name / store.META).is_file()


def identity(name: str, root: Path | None = None) -> str:
    """The same for the same images and labels; "" if they are not here. Whether they are whole, only `load` knows."""
    if not is_here(name, root):
        return ""
    if registry.info(name).sources:
        return store.identity(root or default_root(), name)
    built_in = load(name)
    parts = (built_in.train_images, built_in.train_labels, built_in.test_images, built_in.test_labels)
    return sha256(b"".join(part.tobytes() for part in parts))


def load(name: str, root: Path | None = None) -> Dataset:
    """A dataset that is on this machine, checked against the hashes stored with it."""
    info = registry.info(name)
    if name == "digits":
        images, labels, training = read_digits()
        train, test = (images[training], labels[training]), (images[~training], labels[~training])
        return Dataset(*train, *test, tuple(map(str, range(info.classes))), name)
    return store.read(root or default_root(), name, info, options="" if root is None else f" --root {root}")


def get(name: str, root: Path | None = None, source: str = "auto", folder: Path | None = None) -> Path:
    """Fetch a dataset, check it and store it; returns its folder. One that is whole is left alone."""
    info = registry.info(name)
    place = root or default_root()
    if not info.sources:
        raise UserError(f"{name} is built in: there is nothing to fetch")
    if (place / name).exists():
        try:
            store.read(place, name, info)
        except UserError as error:
            print(f"{name}: fetching it again: {error}", file=sys.stderr)
        else:
            print(f"{name}: already there and whole", file=sys.stderr)
            return place / name
    return sources.obtain(name, info, place, source, folder)
