"""Datasets: fetched from a server, a package or a folder, checked, stored whole or not at all, and read."""

import gc
import json
import os
import pickle
import tarfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import cv2
import numpy as np
import pytest
from process_parts import http_server, send
from torchvision import datasets as official

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.datasets import DATASETS, Dataset
from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
OFFICIAL = replace(DATASETS["cifar10"], sources=("download",))  # and not from a package
CIFAR = replace(OFFICIAL, content_sha256=None)
MINI = replace(DATASETS["mini_imagenet"], classes=6, train_per_class=3, test_per_class=2)
TINY = replace(DATASETS["tiny_imagenet"], classes=3, train_per_class=3, test_per_class=2)


@dataclass
class Site:
    """A local server that offers what torchvision downloads."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    breaks_after: list[int] = field(default_factory=list)  # bytes of each coming file before the line is cut
    asked: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        content = self.files.get(handler.path.strip("/"))
        if content is None:
            return handler.send_error(404)
        # torchvision first asks only for the address behind redirects
        cuts = not handler.headers.get("Method") and self.breaks_after
        return send(handler, content[: self.breaks_after.pop(0)] if cuts else content, length=len(content))


@pytest.fixture
def site() -> Iterator[Site]:
    offered = Site()
    with http_server(offered.answer) as (offered.address, offered.asked):
        yield offered
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # torchvision leaves the sockets of refused requests to Python


def arrays(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(30, dtype=np.int64) % 10
    return Dataset(images[:20], labels[:20], images[20:], labels[20:], tuple(data.CIFAR10_CLASSES.split()))


def save_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, image[..., ::-1])[1].tobytes())


# The store


def test_what_is_stored_is_read_back_and_not_changed_by_its_reader(tmp_path):
    data.write(tmp_path, "cifar10", arrays(), "folder")
    loaded, written = data.load("cifar10", tmp_path), arrays()
    assert loaded.class_names == written.class_names and loaded.name == "cifar10"
    np.testing.assert_array_equal(loaded.test_labels, written.test_labels)
    np.testing.assert_array_equal(loaded.train_images, written.train_images)
    loaded.train_images[:] = 0
    loaded.train_labels[:] = 0
    np.testing.assert_array_equal(data.load("cifar10", tmp_path).train_labels, written.train_labels)
    assert data.is_here("cifar10", tmp_path) and not data.is_here("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("train_images.npy", "changed"), ("test_labels.npy", "missing"), ("meta.json", "cut")],
)
def test_a_damaged_file_is_named_with_the_command_that_fetches_it(tmp_path, name, damage):
    path = data.write(tmp_path, "cifar10", arrays(), "folder") / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:  # one that is changed keeps its size: only the hash can tell
        path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError) as refused:
        data.load("cifar10", tmp_path)
    assert str(path) in str(refused.value) and "data get cifar10 --root" in str(refused.value)


def test_an_array_of_python_objects_is_not_unpickled(tmp_path):
    path = data.write(tmp_path, "cifar10", arrays(), "folder") / "train_images.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    meta = path.with_name("meta.json")
    facts = json.loads(meta.read_text())
    facts["files"][path.name]["sha256"] = data.sha256(path)
    meta.write_text(json.dumps(facts))
    with pytest.raises(UserError):
        data.load("cifar10", tmp_path)


# Folders


@pytest.fixture
def cifar(tmp_path, monkeypatch) -> np.ndarray:
    """The images of a small CIFAR10 in two training batches of 4 and one test batch of 2, protocol 2 as the official."""
    images = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def save(name: str, content: object) -> tuple[str, str]:
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return name, data.hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch(part: slice) -> dict:
        planes = images[part].transpose(0, 3, 1, 2).reshape(-1, 3072)
        return {"data": planes, "labels": [index % 2 for index in range(10)][part]}

    train = [save("one", batch(slice(0, 4))), save("two", batch(slice(4, 8)))]
    monkeypatch.setattr(official.CIFAR10, "train_list", train)
    monkeypatch.setattr(official.CIFAR10, "test_list", [save("last", batch(slice(8, 10)))])
    name, md5 = save("meta", {"names": ["cat", "dog"]})
    monkeypatch.setattr(official.CIFAR10, "meta", {"filename": name, "key": "names", "md5": md5})
    return images


class Calls:
    """Pickles as a call of a function, which is what an attacker's object does."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar_pickles_are_read_in_their_order_and_nothing_that_was_changed_is_unpickled(
    tmp_path, cifar, inside
):
    found = data.read_folder("cifar10", DATASETS["cifar10"], tmp_path / inside)
    np.testing.assert_array_equal(found.train_images, cifar[:8])
    np.testing.assert_array_equal(found.test_images, cifar[8:])
    assert found.train_labels.tolist() == [0, 1] * 4 and found.class_names == ("cat", "dog")
    evil = tmp_path / "cifar-10-batches-py" / "two"
    evil.write_bytes(pickle.dumps(Calls(os.mkdir, str(tmp_path / "trace"))))
    with pytest.raises(UserError):
        data.read_folder("cifar10", DATASETS["cifar10"], tmp_path)
    assert not (tmp_path / "trace").exists()


def mini_image(wnid: str, index: int) -> np.ndarray:
    image = np.full((84, 84, 3), 40 * int(wnid[1:]), np.uint8)
    image[:, :, 1] = 20 * index
    return image


MINI_SPLITS = {"train": ("n01", "n02", "n03"), "val": ("n05",), "test": ("n04", "n06")}


def mini_folder(folder: Path) -> None:
    for split, wnids in MINI_SPLITS.items():
        for wnid in reversed(wnids):
            for index in range(5):
                save_image(folder / split / wnid / f"{wnid}_{index:03}.png", mini_image(wnid, index))


def test_the_classes_of_few_shot_learning_are_put_together_and_split(tmp_path):
    mini_folder(tmp_path / "mini")
    data.obtain("mini_imagenet", MINI, tmp_path / "root", folder=tmp_path / "mini")
    loaded = data.load("mini_imagenet", tmp_path / "root")
    assert loaded.class_names == ("n01", "n02", "n03", "n05", "n04", "n06")
    assert loaded.test_labels.tolist() == np.repeat(np.arange(6), 2).tolist()
    for images, indices in ((loaded.train_images, (0, 1, 2)), (loaded.test_images, (3, 4))):
        expected = np.stack([mini_image(wnid, index) for wnid in loaded.class_names for index in indices])
        np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize("above", [False, True])
def test_tiny_imagenet_is_read_with_its_validation_images_as_test_set(tmp_path, above):
    folder, lines = tmp_path / "tiny-imagenet-200", []
    for wnid in ("n02", "n03", "n01"):
        image = np.full((64, 64, 3), 60 * int(wnid[1:]), np.uint8)
        for index in range(5):
            name = f"{wnid}_{index}.png"
            part = f"train/{wnid}/images" if index < 3 else "val/images"
            save_image(folder / part / name, image)
            lines += [f"{name}\t{wnid}\t0\t0\t62\t62\n"] if index >= 3 else []
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    found = data.read_folder("tiny_imagenet", TINY, tmp_path if above else folder)
    assert found.class_names == ("n01", "n02", "n03") and found.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.test_images[:, 0, 0, 0].tolist() == [60, 60, 120, 120, 180, 180]
    for wrong in ("x.png\tn99\n", "x.png\n"):
        (folder / "val" / "val_annotations.txt").write_text("".join([*lines, wrong]))
        with pytest.raises(UserError):
            data.read_folder("tiny_imagenet", TINY, folder)


@pytest.mark.slow
def test_a_zip_with_tiny_imagenet_is_downloaded_and_unpacked(site, tmp_path, monkeypatch):
    info = replace(TINY, classes=1, train_per_class=1, test_per_class=1)
    picture = cv2.imencode(".png", np.full((64, 64, 3), 9, np.uint8))[1].tobytes()
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as bundle:
        bundle.writestr("tiny-imagenet-200/train/n01/images/n01_0.png", picture)
        bundle.writestr("tiny-imagenet-200/val/images/val_0.png", picture)
        bundle.writestr("tiny-imagenet-200/val/val_annotations.txt", "val_0.png\tn01\t0\n")
    site.files["tiny.zip"] = (tmp_path / "made.zip").read_bytes()
    monkeypatch.setattr(data, "TINY_ADDRESS", f"{site.address}/tiny.zip")
    monkeypatch.setattr(data, "TINY_MD5", data.hashlib.md5(site.files["tiny.zip"]).hexdigest())
    data.obtain("tiny_imagenet", info, tmp_path / "root")
    assert data.load("tiny_imagenet", tmp_path / "root").test_images[:, 0, 0, 0].tolist() == [9]


# Downloads


@pytest.fixture
def offered(site, cifar, tmp_path, monkeypatch) -> np.ndarray:
    """The small CIFAR10 as the archive that torchvision downloads."""
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    site.files["cifar.tar.gz"] = (tmp_path / "made.tar.gz").read_bytes()
    monkeypatch.setattr(official.CIFAR10, "url", f"{site.address}/cifar.tar.gz")
    monkeypatch.setattr(official.CIFAR10, "tgz_md5", data.hashlib.md5(site.files["cifar.tar.gz"]).hexdigest())
    return cifar


@pytest.mark.slow
def test_a_download_that_breaks_keeps_what_is_whole_and_the_next_one_stores_it(
    site,
    offered,
    tmp_path,
    capsys,
):
    root = tmp_path / "root"
    site.breaks_after = [10]
    with pytest.raises(UserError, match="run the same command"):
        data.obtain("cifar10", CIFAR, root)
    assert not (root / "cifar10").exists()
    unfinished = data.partial_folder(root, "cifar10")
    (unfinished / official.CIFAR10.filename).write_bytes(site.files["cifar.tar.gz"])
    (unfinished / "cifar-10-batches-py").mkdir()
    (unfinished / "cifar-10-batches-py" / "one").write_bytes(b"a process that was killed while it unpacked")
    site.asked.clear()
    assert data.obtain("cifar10", CIFAR, root) == root / "cifar10"
    assert "/cifar.tar.gz" not in site.asked
    np.testing.assert_array_equal(data.load("cifar10", root).test_images, offered[8:])
    assert not (root / ".partial" / "cifar10").exists()
    assert capsys.readouterr().out == ""  # where the command prints the folder


@pytest.mark.slow
def test_data_that_are_not_the_official_ones_are_not_stored(offered, tmp_path):
    with pytest.raises(UserError) as refused:
        data.obtain("cifar10", OFFICIAL, tmp_path / "root")
    assert "not the official ones" in str(refused.value) and not (tmp_path / "root" / "cifar10").exists()


# The command


def test_the_command_lists_the_datasets_and_fetches_again_what_is_damaged(tmp_path, capsys):
    stored, root = data.write(tmp_path, "cifar10", arrays(), "folder"), ["--root", str(tmp_path)]
    assert main(["data", "get", "digits", *root]) == 0
    assert main(["data", "list", *root]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    for name, state in {"cifar10": " there ", "cifar100": " not fetched ", "digits": "built in"}.items():
        assert state in lines[name]
    assert main(["data", "get", "cifar10", *root]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == str(stored) and "already there and whole" in told.err
    (stored / "test_labels.npy").write_bytes(b"damaged")
    assert main(["data", "get", "cifar10", *root, "--folder", str(tmp_path / "absent")]) == 2
    assert "fetching it again" in capsys.readouterr().err
    assert stored.exists()  # nothing is taken away before there is something better
