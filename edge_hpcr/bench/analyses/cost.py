"""Computation and memory of every method that learns by a loss, relative to ER's, and what HPCR's extra bytes are worth."""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from edge_hpcr.bench import plots
from edge_hpcr.bench.analyses.contract import (
    Analysis,
    Settings,
    as_in_paper,
    as_printed,
    mean,
    percent,
    table_of,
)
from edge_hpcr.bench.analyses.runs import BELOW, Runs
from edge_hpcr.bench.datasets import registry
from edge_hpcr.bench.report import NOTHING
from edge_hpcr.bench.run import Run
from edge_hpcr.learner import methods
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig, ReplayMemory
from edge_hpcr.learner.winograd import direct_convolutions

PAPER_COSTS = Path(__file__).parents[1] / "paper_costs.csv"
PAPER_DATASETS = ("cifar10", "cifar100", "mini_imagenet", "tiny_imagenet")
REFERENCE, OURS, CONTROL = "er", "hpcr", "pcr_ct"


@dataclass(frozen=True)
class CostSettings(Settings):
    warm_up: int = 30  # images per task that a method learns before its steps are measured
    rounds: int = 7  # in which each method takes one timed step
    counted: int = 3  # steps whose operations are counted
    methods: tuple[str, ...] = ()  # none: all that have a loss


@cache
def paper_costs() -> dict[tuple[str, str, str], tuple[float, float | None]]:
    """What the paper prints, with its interval if it has one, by kind, method and dataset ("": on all of them)."""
    with PAPER_COSTS.open(newline="") as file:
        return {
            (row["kind"], row["method"], row["dataset"]): (
                float(row["value"]),
                float(row["ci95"]) if row["ci95"] else None,
            )
            for row in csv.DictReader(file)
        }


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
    with direct_convolutions(), Operations() as counter:
        for batch in batches:
            learner.observe(*batch)
    return counter.count / len(batches)


def model_bytes(learner: Learner) -> dict[str, int]:
    """Of the network, and of what the method keeps of its own: a second network, statistics."""
    tensors = [*learner.network.parameters(), *learner.network.buffers()]
    return {"network": sum(tensor.nbytes for tensor in tensors), "method": learner.method.bytes()}


def full_memory(method: str, dataset: str, options: dict[str, Any]) -> ReplayMemory:
    """The memory of this method when it knows all classes of a dataset; nobody needs the images for that."""
    info = registry.info(dataset)
    memory = MemoryConfig(samples=info.classes)
    config = LearnerConfig(
        info.side, info.side, method=method, memory=memory, **{"ema_decay": None, **options}
    )
    learner = Learner(config, "cpu")
    for class_id in range(info.classes):
        learner.add_class(class_id)
    return learner.memory


def control_samples(settings: Settings) -> dict[str, int]:
    """How many plain samples cost as much as HPCR's samples with their logits and features."""
    ours, plain = (full_memory(name, settings.dataset, settings.learner) for name in (OURS, CONTROL))
    return {
        "numbers": int(settings.buffer * ours.overhead()["numbers"] / plain.overhead()["numbers"]),
        "bytes": settings.buffer * ours.row_bytes() // plain.row_bytes(),
    }


class Cost(Analysis):
    name = "cost"
    order = 100
    purpose = "computation and memory of every method relative to ER, and HPCR's extra bytes spent on samples"
    source = "Tables `other` and `memory`"
    conclusion = (
        "HPCR costs no more computation than ER (OCM and OnPro 16 times as much), at most 8 % more memory for data, and the "
        "same memory spent on more samples is worth less."
    )
    small = CostSettings()
    paper = as_printed(CostSettings, "cifar10", 100, warm_up=200, rounds=20)

    def measure(self, settings: CostSettings, runs: Runs) -> dict[str, Any]:
        return {
            "control": self._control(settings, runs),
            "methods": self._methods(settings, runs),
            "data": self._data(settings, runs),
        }

    def _methods(self, settings: CostSettings, runs: Runs) -> dict[str, Any]:
        """Each learns a little, so that its memory is full; then all take steps in turns."""
        names = list(settings.methods) or with_loss()
        short = replace(settings, limit=settings.warm_up, learner=settings.learner | {"ema_decay": None})
        learned = {}
        for name in runs.each(names, "cost: warm-up"):
            learned[name] = Run(runs.config(short, name, 0), runs.folder, runs.root)
            learned[name].run(BELOW)
        rng = np.random.default_rng(0)
        times: dict[str, list[float]] = defaultdict(list)
        for _ in runs.quietly(range(settings.rounds), "rounds"):
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
                "model": model_bytes(run.learner),
                "stores": _stored(run.learner) if run.learner.method.uses_memory else None,
            }
        return measured

    def _data(self, settings: CostSettings, runs: Runs) -> dict[str, Any]:
        """What each method that stores more than samples adds to them, with the paper's network."""
        kinds = {name: methods.create(name) for name in list(settings.methods) or with_loss()}
        storing = [name for name, kind in kinds.items() if kind.stores_logits or kind.stores_features]
        pairs = [(name, dataset) for name in storing for dataset in PAPER_DATASETS]
        measured: dict[str, Any] = {name: {} for name in storing}
        for name, dataset in runs.quietly(pairs, "memory"):
            measured[name][dataset] = full_memory(name, dataset, {}).overhead()
        return measured

    def _control(self, settings: CostSettings, runs: Runs) -> list[dict[str, Any]]:
        more = control_samples(settings)
        rows = [
            ("HPCR", OURS, settings.buffer),
            ("without distillation", CONTROL, settings.buffer),
            ("control: as many numbers", CONTROL, more["numbers"]),
            ("control: as many bytes", CONTROL, more["bytes"]),
        ]
        measured = []
        for title, method, samples in runs.each(rows, "cost: control"):
            configs = [runs.config(settings, method, seed, buffer=samples) for seed in range(settings.seeds)]
            results = [runs.result(config) for config in configs]
            measured.append(
                {
                    **{"title": title, "samples": samples, "A_T": [result["A_T"] for result in results]},
                    "bytes": max(result["bytes"]["total"] for result in results),
                }
            )
        return measured

    def finding(self, result: dict[str, Any]) -> str:
        measured = result["measured"]
        ours, reference = (measured["methods"][name]["gflop"] for name in (OURS, REFERENCE))
        hpcr, _, numbers, in_bytes = (mean(row["A_T"]) for row in measured["control"])
        return (
            f"a step of HPCR takes {ours / reference:.2f} times the operations of ER's (the paper: 1); HPCR reaches "
            f"{100 * hpcr:.1f}, the control with as many numbers, which is the paper's, {100 * numbers:.1f} "
            f"({as_in_paper(hpcr > numbers)}), and the one with as many bytes {100 * in_bytes:.1f} "
            f"({as_in_paper(hpcr > in_bytes)})."
        )

    def table(self, result: dict[str, Any]) -> str:
        return "\n\n".join(
            [
                "Operations (multiplications and additions) and processor time for one sample of the stream, measured in turns in one "
                "process; C_D is the first relative to ER's. Model: the network and what the method keeps beside it, relative to "
                "ER's. Data: the numbers that are kept of a sample relative to those of its image, and its bytes relative to ER's.",
                _methods_table(result["measured"]["methods"]),
                "Data overhead of the methods that keep logits or features, in numbers as the paper counts and in bytes, with all "
                "classes known (from the sizes alone):",
                _data_table(result["measured"]["data"]),
                "What HPCR's extra memory is worth: `pcr_ct` (HPCR without distillation) with as many samples as the same numbers, "
                "or the same bytes, would hold:",
                _control_table(result),
            ]
        )

    def draw(self, result: dict[str, Any]) -> Figure:
        measured = result["measured"]["methods"]
        reference = measured[REFERENCE]
        figure = plots.new_figure(
            8.5, 1.6 + 0.3 * len(measured), "Cost of one sample of the stream, relative to ER"
        )
        axes = figure.subplots()
        for i, (key, label) in enumerate((("gflop", "operations (C_D)"), ("ms", "processor time"))):
            values = [each[key] / reference[key] for each in measured.values()]
            places = np.arange(len(measured)) + (i - 0.5) * 0.4
            bars = axes.barh(places, values, 0.38, color=plots.COLOURS[i], label=label)
            axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axes.set_yticks(range(len(measured)), list(measured))
        axes.invert_yaxis()
        axes.axvline(1, color="#555555", linewidth=0.8)
        axes.margins(x=0.08, y=0.02)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        return figure


def _stored(learner: Learner) -> dict[str, float]:
    """Of a sample: numbers beside those of its image, as the paper counts, and bytes in all."""
    return {"numbers": learner.memory.overhead()["numbers"], "bytes": learner.memory.row_bytes()}


def _batches(run: Run, rng: np.random.Generator, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps' worth of training images of all classes."""
    labels = run.dataset.train_labels
    chosen = [rng.choice(len(labels), run.samples_per_step, replace=False) for _ in range(count)]
    return [(run.dataset.train_images[rows], labels[rows]) for rows in chosen]


def _printed(kind: str, method: str, dataset: str = "") -> str:
    value, half = paper_costs().get((kind, method, dataset), (None, None))
    if value is None:
        return NOTHING
    return f"{value:g}" if half is None else f"{value:g} ± {half:g}"


def _methods_table(measured: dict[str, Any]) -> str:
    reference = measured[REFERENCE]
    network = sum(reference["model"].values())
    rows = []
    for name, each in measured.items():
        stores = each["stores"]
        data = [NOTHING, NOTHING]
        if stores:
            data = [f"{stores['numbers']:.2f}", f"{stores['bytes'] / reference['stores']['bytes']:.2f}"]
        rows.append(
            [
                name,
                f"{1e3 * each['gflop']:.1f}",
                f"{each['ms']:.2f}",
                f"{each['gflop'] / reference['gflop']:.2f}",
                _printed("computation", name),
                f"{each['ms'] / reference['ms']:.2f}",
                f"{sum(each['model'].values()) / network:.2f}",
                _printed("model", name),
                *data,
            ]
        )
    head = [
        "method",
        "MFLOP",
        "ms",
        "C_D",
        "paper's C_D",
        "time",
        "model",
        "paper's model",
        "numbers",
        "bytes",
    ]
    return table_of(head, rows)


def _data_table(measured: dict[str, Any]) -> str:
    rows = [
        [name, dataset, f"{each['numbers']:.2f}", _printed("data", name, dataset), f"{each['bytes']:.2f}"]
        for name, by_dataset in measured.items()
        for dataset, each in by_dataset.items()
    ]
    return table_of(["method", "dataset", "numbers", "paper's numbers", "bytes"], rows, left=2)


def _control_table(result: dict[str, Any]) -> str:
    dataset, paper = result["settings"]["dataset"], result["version"] == "paper"
    printed = {"HPCR": ("accuracy", OURS), "control: as many numbers": ("control", CONTROL)}
    rows = [
        [
            row["title"],
            f"{row['samples']:,}",
            f"{row['bytes']:,}",
            percent(row["A_T"]),
            _printed(*printed[row["title"]], dataset) if paper and row["title"] in printed else NOTHING,
        ]
        for row in result["measured"]["control"]
    ]
    return table_of(["setting", "samples", "bytes", "A_T", "paper's A_T"], rows)
