"""Computation and memory of every method that learns by a loss, relative to ER's: the page of methods shows them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.paper.analysis import Analysis, Runs, Settings, as_printed
from edge_hpcr.bench import datasets
from edge_hpcr.bench.methods_page import paper_costs
from edge_hpcr.bench.report import NOTHING, markdown
from edge_hpcr.bench.run import Run
from edge_hpcr.learner import methods
from edge_hpcr.learner.backbones.winograd import Conv3x3
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory

PAPER_DATASETS = ("cifar10", "cifar100", "mini_imagenet", "tiny_imagenet")


@dataclass(frozen=True)
class CostSettings(Settings):
    warm_up: int = 30  # images per task that a method learns before its steps are measured
    rounds: int = 7  # in which each method takes one timed step
    counted: int = 3  # steps whose operations are counted
    methods: tuple[str, ...] = ()  # none: all that have a loss


def with_loss() -> list[str]:
    """The methods that learn by a loss."""
    return [name for name in methods.names() if not methods.method_class(name).closed_form]


class Operations(TorchDispatchMode):
    """Counts multiplications and additions by PyTorch's own table.

    PyTorch's counter says where in the network each took place, and fails where a method calls `autograd.grad`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        counted = flop_registry.get(func.overloadpacket)
        if counted is not None:
            self.count += counted(*args, **(kwargs or {}), out_val=made)
        return made


def operations(learner: Learner, batches: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Floating-point operations of a step, the mean over these batches."""
    # All convolutions direct, so that passes with and without gradients count alike.
    with patch.object(Conv3x3, "forward", nn.Conv2d.forward), Operations() as counter:
        for batch in batches:
            learner.observe(*batch)
    return counter.count / len(batches)


def full_memory(method: str, dataset: str) -> ReplayMemory:
    """The memory of this method when it knows all classes of a dataset; nobody needs the images for that."""
    info = datasets.info(dataset)
    memory = MemoryConfig(samples=info.classes)
    config = LearnerConfig(info.side, info.side, method=method, memory=memory, ema_decay=None)
    learner = Learner(config, "cpu")
    for class_id in range(info.classes):
        learner.add_class(class_id)
    return learner.memory


class Cost(Analysis):
    name = "cost"
    purpose = "computation and memory of every method relative to ER"
    source = "Table `other`"
    conclusion = "HPCR costs no more computation than ER (OCM and OnPro 16 times as much) and at most 8 % more memory for data."
    small = CostSettings()
    paper = as_printed(CostSettings, "cifar10", 100, warm_up=60, rounds=10)

    def measure(self, settings: CostSettings, runs: Runs) -> dict[str, Any]:
        return {"methods": self._methods(settings, runs), "data": self._data(settings)}

    def _methods(self, settings: CostSettings, runs: Runs) -> dict[str, Any]:
        """Each learns a little, so that its memory is full; then all take steps in turns."""
        names = list(settings.methods) or with_loss()
        short = replace(settings, limit=settings.warm_up)
        learned = {}
        for name in runs.each(names, "cost: warm-up"):
            # The average counts where it predicts.
            without = {"ema_decay"} if methods.method_class(name).predicts_averaged else set()
            own = replace(short, learner={k: v for k, v in settings.learner.items() if k not in without})
            learned[name] = Run(runs.config(own, name, 0), runs.folder, runs.root)
            learned[name].run()
        rng = np.random.default_rng(0)
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(settings.rounds):
            for name, run in learned.items():
                (batch,) = _batches(run, rng, 1)
                begun = time.process_time()
                run.learner.observe(*batch)
                times[name].append(time.process_time() - begun)
        measured = {}
        for name, run in learned.items():
            passes = max(1, methods.method_class(name).shuffled_passes)  # that a sample of the stream is seen
            steps = passes / run.samples_per_step
            measured[name] = {
                "gflop": operations(run.learner, _batches(run, rng, settings.counted)) * steps / 1e9,
                "ms": 1e3 * float(np.median(times[name])) * steps,
                "learner": run.learner.learner_bytes(),
            }
        return measured

    def _data(self, settings: CostSettings) -> dict[str, Any]:
        """What each method that stores more than samples adds to them, with the paper's network."""
        kinds = {name: methods.create(name) for name in list(settings.methods) or with_loss()}
        storing = [name for name, kind in kinds.items() if kind.stores_logits or kind.stores_features]
        pairs = [(name, dataset) for name in storing for dataset in PAPER_DATASETS]
        measured: dict[str, Any] = {name: {} for name in storing}
        for name, dataset in pairs:
            measured[name][dataset] = full_memory(name, dataset).overhead()
        return measured

    def table(self, result: dict[str, Any]) -> str:
        rows = [
            [name, dataset, f"{each['numbers']:.2f}", _printed(name, dataset), f"{each['bytes']:.2f}"]
            for name, by_dataset in result["measured"]["data"].items()
            for dataset, each in by_dataset.items()
        ]
        return "\n\n".join(
            [
                "docs/methods.md has the operations, time and learner bytes of every method.",
                "Data overhead of the methods that keep logits or features, in numbers as the paper counts and in bytes, with all "
                "classes known (from the sizes alone):",
                markdown(["method", "dataset", "numbers", "paper's numbers", "bytes"], rows),
            ]
        )


def _batches(run: Run, rng: np.random.Generator, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps' worth of training images of all classes."""
    labels = run.dataset.train_labels
    chosen = [rng.choice(len(labels), run.samples_per_step, replace=False) for _ in range(count)]
    return [(run.dataset.train_images[rows], labels[rows]) for rows in chosen]


def _printed(method: str, dataset: str) -> str:
    value, half = paper_costs().get(("data", method, dataset), (None, None))
    if value is None:
        return NOTHING
    return f"{value:g}" if half is None else f"{value:g} ± {half:g}"
