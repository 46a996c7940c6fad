"""MiniImageNet and TinyImageNet in the layouts people have, made small by the tests."""

import pickle
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_hpcr.bench.datasets import imagenet, sources, store
from edge_hpcr.bench.datasets.registry import DATASETS
from edge_hpcr.common.errors import UserError

MINI = replace(DATASETS["mini_imagenet"], classes=6, train_per_class=3, test_per_class=2)
TINY = replace(DATASETS["tiny_imagenet"], classes=3, train_per_class=3, test_per_class=2)
MINI_SPLITS = {"train": ("n03", "n01", "n02"), "val": ("n05",), "test": ("n04", "n06")}


def _save_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(".png" if path.suffix == ".png" else ".jpg", image[..., ::-1])[1]
    path.write_bytes(encoded.tobytes())


# MiniImageNet


def _mini_image(wnid: str, index: int) -> np.ndarray:
    return np.full((84, 84, 3), (10 * int(wnid[1:]), 20 * index, 128), np.uint8)


def _mini_folder(folder: Path, side: int = 84) -> Path:
    for split, wnids in MINI_SPLITS.items():
        for wnid in wnids:
            for index in range(5):
                image = cv2.resize(_mini_image(wnid, index), (side, side))
                _save_image(folder / split / wnid / f"{wnid}_{index:03}.jpg", image)
    return folder


def _mini_pickles(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, wnids in MINI_SPLITS.items():
        images = np.stack([_mini_image(wnid, index) for index in range(5) for wnid in wnids])
        members = {wnid: list(range(place, len(images), len(wnids))) for place, wnid in enumerate(wnids)}
        content = {"image_data": images, "class_dict": members}
        (folder / f"mini-imagenet-cache-{split}.pkl").write_bytes(pickle.dumps(content, protocol=2))
    return folder


@pytest.mark.parametrize(("make", "tolerance"), [(_mini_folder, 4), (_mini_pickles, 0)])
def test_both_layouts_of_mini_imagenet_give_the_same_classes_and_split(tmp_path, make, tolerance):
    path = sources.obtain("mini_imagenet", MINI, tmp_path / "root", folder=make(tmp_path / "mini"))
    loaded = store.read(path.parent, "mini_imagenet", MINI)
    assert loaded.class_names == ("n01", "n02", "n03", "n05", "n04", "n06")
    assert loaded.train_labels.tolist() == np.repeat(np.arange(6), 3).tolist()
    assert loaded.test_labels.tolist() == np.repeat(np.arange(6), 2).tolist()
    for images, indices in ((loaded.train_images, (0, 1, 2)), (loaded.test_images, (3, 4))):
        expected = np.stack([_mini_image(wnid, index) for wnid in loaded.class_names for index in indices])
        assert np.abs(images.astype(int) - expected).max() <= tolerance


@pytest.mark.parametrize("other", ["val", "test"])
def test_the_folder_of_continual_learning_keeps_its_own_split(tmp_path, other):
    folder = tmp_path / "mini"
    for split, indices in (("train", (0, 1, 2)), (other, (3, 4))):
        for wnid in ("n03", "n01", "n02", "n05", "n04", "n06"):
            for index in indices:
                # Names that would mix the two parts if they were sorted together.
                _save_image(folder / split / wnid / f"{9 - index}.png", _mini_image(wnid, index))
    arrays = imagenet.read_mini(folder, MINI)
    assert arrays.class_names == ("n01", "n02", "n03", "n04", "n05", "n06")
    for images, labels, indices in (
        (arrays.train_images, arrays.train_labels, (2, 1, 0)),
        (arrays.test_images, arrays.test_labels, (4, 3)),
    ):
        expected = np.stack([_mini_image(wnid, index) for wnid in arrays.class_names for index in indices])
        np.testing.assert_array_equal(images, expected)
        assert labels.tolist() == np.repeat(np.arange(6), len(indices)).tolist()
    (folder / other / "n05" / "5.png").unlink()
    with pytest.raises(UserError, match=rf"{other}: class n05 has 1 images instead of 2"):
        imagenet.read_mini(folder, MINI)


def test_larger_images_are_scaled_to_the_datasets_size(tmp_path):
    arrays = imagenet.read_mini(_mini_folder(tmp_path / "mini", side=100), MINI)
    assert arrays.train_images.shape == (18, 84, 84, 3)
    assert np.abs(arrays.train_images[0].astype(int) - _mini_image("n01", 0)).max() <= 4


def test_a_class_with_another_number_of_images_is_named(tmp_path):
    folder = _mini_folder(tmp_path / "mini")
    next((folder / "val" / "n05").iterdir()).unlink()
    with pytest.raises(UserError, match=r"val: class n05 has 4 images instead of 5"):
        imagenet.read_mini(folder, MINI)


def test_a_missing_class_is_counted(tmp_path):
    with pytest.raises(UserError, match="6 classes instead of 7"):
        imagenet.read_mini(_mini_pickles(tmp_path / "mini"), replace(MINI, classes=7))


def test_splits_that_share_a_class_are_refused(tmp_path):
    folder = _mini_folder(tmp_path / "mini")
    (folder / "test" / "n04").rename(folder / "test" / "n05")
    with pytest.raises(UserError, match="class 'n05' is in more than one of train, val, test"):
        imagenet.read_mini(folder, MINI)


def test_a_file_that_is_no_image_is_named(tmp_path):
    folder = _mini_folder(tmp_path / "mini")
    for content in (b"", b"no picture"):
        (folder / "train" / "n02" / "n02_001.jpg").write_bytes(content)
        with pytest.raises(UserError, match=r"n02_001\.jpg: damaged: not an image"):
            imagenet.read_mini(folder, MINI)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"image_data": np.zeros((5, 84, 84, 3), np.uint8)}, "needs an array 'image_data' and a dictionary"),
        ([1], "needs an array 'image_data' and a dictionary"),
        ({"image_data": np.zeros((5, 80, 84, 3), np.uint8), "class_dict": {}}, "instead of uint8 84x84x3"),
        (
            {"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {"n05": [0, 5]}},
            "class 'n05' does not",
        ),
        (
            {"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {"n05": [-1]}},
            "class 'n05' does not",
        ),
        (
            {"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {"n05": ["a"]}},
            "class 'n05' does not",
        ),
    ],
)
def test_a_wrong_mini_imagenet_pickle_is_named(tmp_path, content, complaint):
    folder = _mini_pickles(tmp_path / "mini")
    (folder / "mini-imagenet-cache-val.pkl").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UserError, match=rf"cache-val\.pkl: .*{complaint}"):
        imagenet.read_mini(folder, MINI)


def test_a_folder_that_is_not_mini_imagenet_says_what_it_needs_and_where_it_is_had(tmp_path):
    with pytest.raises(
        UserError, match=r"not MiniImageNet: .*same classes.*train, val and test.*no official address"
    ):
        imagenet.read_mini(tmp_path, MINI)


# TinyImageNet


def _tiny_image(wnid: str, index: int) -> np.ndarray:
    return np.full((64, 64, 3), (60 * int(wnid[1:]), 20 * index, 99), np.uint8)


def _tiny_folder(folder: Path) -> Path:
    lines = []
    for wnid in ("n02", "n03", "n01"):
        for index in range(3):
            _save_image(folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG", _tiny_image(wnid, index))
        for index in range(2):
            name = f"val_{wnid}_{index}.JPEG"
            _save_image(folder / "val" / "images" / name, _tiny_image(wnid, 5 + index))
            lines.append(f"{name}\t{wnid}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "words.txt").write_text("n01\tcrane\nn02\tgoldfish, Carassius auratus\nn03\tcrane, bird\n")
    return folder


@pytest.mark.parametrize("above", [False, True])
def test_tiny_imagenet_is_read_with_its_validation_images_as_test_set(tmp_path, above):
    folder = _tiny_folder(tmp_path / "tiny-imagenet-200")
    path = sources.obtain("tiny_imagenet", TINY, tmp_path / "root", folder=tmp_path if above else folder)
    loaded = store.read(path.parent, "tiny_imagenet", TINY)
    assert loaded.class_names == ("crane (n01)", "goldfish", "crane (n03)")
    assert loaded.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert loaded.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    for images, indices in ((loaded.train_images, (0, 1, 2)), (loaded.test_images, (5, 6))):
        expected = np.stack([_tiny_image(wnid, index) for wnid in ("n01", "n02", "n03") for index in indices])
        assert np.abs(images.astype(int) - expected).max() <= 4


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("val_x.JPEG\tn99\n", "line 7 names no image and known class"),
        ("val_x.JPEG n01\n", "line 7 names no image and known class"),
        ("../../secret.JPEG\tn01\n", "line 7 names no image and known class"),
        ("val_x.JPEG\tn01\n", "class n01 has 3 images instead of 2"),
    ],
)
def test_a_wrong_annotation_of_tiny_imagenet_is_named(tmp_path, line, complaint):
    folder = _tiny_folder(tmp_path / "tiny")
    with (folder / "val" / "val_annotations.txt").open("a") as file:
        file.write(line)
    with pytest.raises(UserError, match=complaint):
        imagenet.read_tiny(folder, TINY)


def test_a_missing_image_of_tiny_imagenet_is_named(tmp_path):
    folder = _tiny_folder(tmp_path / "tiny")
    (folder / "val" / "images" / "val_n03_1.JPEG").unlink()
    with pytest.raises(UserError, match=r"val_n03_1\.JPEG: cannot be read"):
        imagenet.read_tiny(folder, TINY)


def test_a_folder_that_is_not_tiny_imagenet_says_what_it_needs(tmp_path):
    with pytest.raises(UserError, match=r"not TinyImageNet: it needs train/<class>/images"):
        imagenet.read_tiny(tmp_path, TINY)
    folder = _tiny_folder(tmp_path / "tiny")
    with pytest.raises(UserError, match="3 classes instead of 200"):
        imagenet.read_tiny(folder, DATASETS["tiny_imagenet"])
