"""The settings of the paper's tables, by name: `paper/cifar10-200` is Split CIFAR10 with a buffer of 200 samples.

`paper-ocm/cifar100-1000` is of its table in the setting of OCM: a wider network, 64 replayed samples, Adam.
`edge/cifar10-200` is our own method in the bytes that the authors' program spends on those 200 samples.
"""

from dataclasses import dataclass, field
from typing import Any

from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.common.errors import one_of


@dataclass(frozen=True)
class Setting:
    """What one cell of a table needs beside the seed; the paper's are for any method."""

    dataset: str
    buffer: int | None = None
    learner_options: dict[str, Any] = field(default_factory=dict)
    budget: int | None = None  # in bytes, in place of a buffer of samples
    method: str = "hpcr"


BUFFERS = {
    "cifar10": (100, 200, 500),
    "cifar100": (1000, 2000, 5000),
    "mini_imagenet": (1000, 2000, 5000),
    "tiny_imagenet": (2000, 4000, 10000),
}
AUTHORS_FEATURES = 160  # of an image of 32x32
OCM_SETTING = {"nf": 64, "replay": 64, "optimiser": "adam", "lr": 0.001}


def authors_bytes(dataset: str, buffer: int) -> int:
    """What the authors' program keeps of so many samples: image, feature and logits in 32-bit floats.

    >>> authors_bytes("cifar10", 200)
    2593600
    """
    info = DATASETS[dataset]
    feature = AUTHORS_FEATURES * max(1, info.side // 32) ** 2
    return buffer * 4 * (3 * info.side**2 + feature + info.classes)


PRESETS = {
    f"paper/{dataset}-{buffer}": Setting(dataset, buffer)
    for dataset, buffers in BUFFERS.items()
    for buffer in buffers
} | {
    f"paper-ocm/cifar100-{buffer}": Setting("cifar100", buffer, OCM_SETTING) for buffer in BUFFERS["cifar100"]
}
PRESETS |= {
    name.replace("paper/", "edge/"): Setting(
        each.dataset,
        budget=authors_bytes(each.dataset, each.buffer),
        method="edge",
    )
    for name, each in PRESETS.items()
    if name.startswith("paper/") and each.buffer
}


def preset(name: str) -> Setting:
    one_of("preset", name, PRESETS)
    return PRESETS[name]
