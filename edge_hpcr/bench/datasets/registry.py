"""What each dataset is: its classes, its size, its split into tasks, and how its content is recognised."""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from edge_hpcr.common.errors import UserError


@dataclass(frozen=True)
class Dataset:
    """Images uint8 [N, H, W, 3] RGB and labels int64 [N], for training and for testing."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]


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
DATASETS = MappingProxyType(
    {
        "digits": DatasetInfo(
            classes=10,
            tasks=5,
            side=8,
            sources=(),
            description="1,797 handwritten digits, grey; inside scikit-learn, nothing to fetch",
        ),
        "mnist": DatasetInfo(
            classes=10,
            tasks=5,
            side=28,
            sources=("download", "npm", "folder"),
            description="70,000 handwritten digits, grey",
            content_sha256="25c98f992c005963b7428e1f38418b233c9b286cc403519287eb8063f0bcfe07",
        ),
        "fashion_mnist": DatasetInfo(
            classes=10,
            tasks=5,
            side=28,
            train_per_class=6000,
            test_per_class=1000,
            sources=("download", "debian", "folder"),
            description="70,000 pieces of clothing, grey",
            content_sha256="eee656c63c1c7a3b7c885d28c97fd74dc039264ce75eae7cb8d991df379ef736",
        ),
        "cifar10": DatasetInfo(
            classes=10,
            tasks=5,
            side=32,
            train_per_class=5000,
            test_per_class=1000,
            sources=("download", "npm", "folder"),
            description="60,000 photographs of animals and vehicles",
            content_sha256="775d1cdb78ca59c4aecb20bd9c893a3138a8eb8a31294b5d28ba31e69d818ed4",
        ),
        "cifar100": DatasetInfo(
            classes=100,
            tasks=10,
            side=32,
            train_per_class=500,
            test_per_class=100,
            sources=("download", "folder"),
            description="60,000 photographs of animals, plants and things",
            content_sha256="d3f4e91ea45f2a0efb04c09b3fab5a47219621f9c3f2aa4e1e4a4a258a749b99",
        ),
        "mini_imagenet": DatasetInfo(
            classes=100,
            tasks=10,
            side=84,
            train_per_class=500,
            test_per_class=100,
            sources=("folder",),
            description="60,000 photographs out of ImageNet",
            where="MiniImageNet has no official address. Few-shot learning projects (Ren et al., 2018, for "
            "one) tell where to get mini-imagenet-cache-{train,val,test}.pkl; with the lists of Ravi and "
            "Larochelle (2017) the image folder train|val|test/<wnid>/*.jpg is made out of ImageNet; "
            "continual-learning projects have train|val/<wnid>/*.jpg with 500 and 100 images per class",
        ),
        "tiny_imagenet": DatasetInfo(
            classes=200,
            tasks=20,
            side=64,
            train_per_class=500,
            test_per_class=50,
            sources=("download", "folder"),
            description="110,000 photographs out of ImageNet",
        ),
    }
)


def info(name: str) -> DatasetInfo:
    """The facts about a dataset, or an error that lists the known names."""
    if name not in DATASETS:
        raise UserError(f"unknown dataset {name!r}; known are: {', '.join(DATASETS)}")
    return DATASETS[name]
