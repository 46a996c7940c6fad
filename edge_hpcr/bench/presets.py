"""The settings of the paper's tables, by name: `paper/cifar10-200` is Split CIFAR10 with a buffer of 200 samples.

`paper-ocm/cifar100-1000` is of its table in the setting of OCM: a wider network, 64 replayed samples, Adam.
"""

from dataclasses import dataclass, field
from typing import Any

from edge_hpcr.common.errors import one_of


@dataclass(frozen=True)
class Setting:
    """What one cell of the paper's tables needs beside the method and the seed."""

    dataset: str
    buffer: int
    learner_options: dict[str, Any] = field(default_factory=dict)


BUFFERS = {
    "cifar10": (100, 200, 500),
    "cifar100": (1000, 2000, 5000),
    "mini_imagenet": (1000, 2000, 5000),
    "tiny_imagenet": (2000, 4000, 10000),
}
OCM_SETTING = {"nf": 64, "replay": 64, "optimiser": "adam", "lr": 0.001}

PRESETS = {
    f"paper/{dataset}-{buffer}": Setting(dataset, buffer)
    for dataset, buffers in BUFFERS.items()
    for buffer in buffers
} | {
    f"paper-ocm/cifar100-{buffer}": Setting("cifar100", buffer, OCM_SETTING) for buffer in BUFFERS["cifar100"]
}


def preset(name: str) -> Setting:
    one_of("preset", name, PRESETS)
    return PRESETS[name]
