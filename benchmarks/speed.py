"""`python -m benchmarks.speed`: how fast a training step is here, beside a plain step and beside the machine's bound.

The contestants take turns within a round, so that whatever else the machine does hits all of them alike; ratios are
taken inside a round, and reported as median and quartiles over the rounds.
"""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm
from typer import Option

from benchmarks import speed_parts, speed_tables
from benchmarks.output import check_writable, keep_with_page
from benchmarks.plain_step import PlainStep
from benchmarks.speed_parts import COST_CODECS, Batches, quartiles, seconds
from edge_hpcr import __version__
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.run import hardware
from edge_hpcr.commands import cli
from edge_hpcr.common.allocator import keep_freed_memory
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.network import Network

CLASSES = 10
INCOMING = 10
SIDE = 32
POOL = 500  # distinct images to draw batches from
MATMUL_SIDE = 1024


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int = 20
    steps: int = 3  # of each contestant in a round
    warm_up: int = 3  # steps before the first round
    part_steps: int = 20  # over which the parts of a step are timed
    layer_calls: int = 5
    memory_calls: int = 50  # of each operation of the memory in a round


QUICK = Plan(rounds=2, steps=1, warm_up=1, part_steps=2, layer_calls=1, memory_calls=3)


commands = cli.new_commands()


@commands.command()
def speed(
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/speed.json"),
    threads: Annotated[int, Option(min=1, metavar="N", help="PyTorch's")] = 1,
    rounds: Annotated[int | None, Option(min=1, metavar="N", show_default=str(Plan.rounds))] = None,
    quick: Annotated[bool, Option("--quick", help="too few rounds to trust, to see that it works")] = False,
) -> None:
    """A training step beside a plain one and beside the bound that matrix products set on this machine."""
    plan = QUICK if quick else Plan()
    check_writable(out)
    result = measure(replace(plan, rounds=rounds or plan.rounds), threads)
    keep_with_page(out, result, speed_tables.tables(result), "python -m benchmarks.speed")


def measure(plan: Plan, threads: int = 1) -> dict[str, Any]:
    """Everything that `speed` reports, ready for JSON."""
    threads_before, load_before = torch.get_num_threads(), os.getloadavg()
    torch.set_num_threads(threads)
    keep_freed_memory()  # for all contestants
    try:
        with torch.random.fork_rng(devices=[]), _progress_bar(plan) as bar:
            torch.manual_seed(0)  # torchvision's transforms draw from PyTorch's own generator
            measured = _measurements(plan, bar)
    finally:
        torch.set_num_threads(threads_before)
    return {
        "hardware": hardware(),
        "versions": {
            "edge_hpcr": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "threads": threads,
        "plan": asdict(plan),
        "load_average": {"start": list(load_before), "end": list(os.getloadavg())},
        **measured,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _progress_bar(plan: Plan) -> tqdm:
    total = plan.warm_up + plan.rounds + 2 * plan.part_steps + len(COST_CODECS) * plan.rounds
    return tqdm(total=total, desc="speed", disable=None, leave=False, dynamic_ncols=True)


def _measurements(plan: Plan, bar: tqdm) -> dict[str, Any]:
    images, labels, source = _images()
    config = LearnerConfig(SIDE, SIDE, method="hpcr", memory=MemoryConfig(samples=200))
    learner, plain = Learner(config, "cpu"), PlainStep(config, CLASSES)
    fill(learner, plain, images, labels)
    batches = _batches(images, labels)
    contest = _contest(plan, learner, plain, batches, bar)
    shares = speed_parts.shares(learner, batches, plan.part_steps, bar)
    operations = speed_parts.operations(learner, batches, plan.part_steps, bar)
    batch = learner.to_device(images[: 4 * INCOMING])  # incoming and replayed, each with its view
    matmul_gflops = contest["bound"]["matmul_gflops_processor"]["median"]
    return {
        "images": source,
        **contest,
        "shares": shares,
        "outside_network": 1 - shares["network forward"] - shares["network backward"],
        "operations_ms": operations,
        "layers": speed_parts.layers(learner.network, batch, plan.layer_calls, matmul_gflops),
        "bytes_per_sample": speed_parts.bytes_per_sample(images, learner.network.feature_size, CLASSES),
        "memory_cost": [
            speed_parts.memory_cost(codec, batches, images, CLASSES, plan.rounds, plan.memory_calls, bar)
            for codec in COST_CODECS
        ],
    }


# What is fed ---------------------------------------------------------------------------------------------------------


def _images() -> tuple[np.ndarray, np.ndarray, str]:
    """Real images uint8 [N, 32, 32, 3], class columns, and where they are from."""
    if (data.default_root() / "cifar10").is_dir():
        dataset = data.load("cifar10")
        return dataset.train_images[:POOL], dataset.train_labels[:POOL].astype(np.int64), "CIFAR10"
    from sklearn.datasets import load_sample_images  # here, because importing it takes a second

    # Photographs and not noise: the size and the cost of an encoded image depend on what it shows.
    tiles = [
        photo[top : top + SIDE, left : left + SIDE]
        for photo in load_sample_images().images
        for top in range(0, photo.shape[0] - SIDE + 1, SIDE)
        for left in range(0, photo.shape[1] - SIDE + 1, SIDE)
    ]
    labels = np.random.default_rng(0).integers(0, CLASSES, POOL)
    return np.stack(tiles[:POOL]), labels, "tiles of scikit-learn's two photographs (no CIFAR10 here)"


def _batches(images: np.ndarray, labels: np.ndarray) -> Batches:
    starts = range(0, len(images) - INCOMING + 1, INCOMING)
    return cycle((images[start : start + INCOMING], labels[start : start + INCOMING]) for start in starts)


def fill(learner: Learner, plain: PlainStep, images: np.ndarray, labels: np.ndarray) -> None:
    """Both memories with the same samples, recorded before the last two classes came: so distillation has work."""
    rng = np.random.default_rng(0)
    older = CLASSES - 2
    rows = np.flatnonzero(labels < older)[: learner.config.memory.samples]
    # As the learner's own 16 bits hold them, so that both hold the same numbers.
    logits = rng.uniform(-1, 1, (len(rows), older)).astype(np.float16).astype(np.float32)
    features = (
        rng.uniform(-1, 1, (len(rows), learner.network.feature_size)).astype(np.float16).astype(np.float32)
    )
    for class_id in range(older):
        learner.add_class(class_id)
    learner.memory.update(images[rows], labels[rows], logits, features)
    for class_id in range(older, CLASSES):
        learner.add_class(class_id)
    plain.memory.update(
        torch.from_numpy(images[rows]).permute(0, 3, 1, 2).to(torch.float32).div(255),
        torch.from_numpy(labels[rows]),
        torch.from_numpy(logits),
        torch.from_numpy(features),
        older,
        plain.rng,
    )


# The contest ---------------------------------------------------------------------------------------------------------


def _contest(plan: Plan, learner: Learner, plain: PlainStep, batches: Batches, bar: tqdm) -> dict[str, Any]:
    left, right, product = torch.rand(3, MATMUL_SIDE, MATMUL_SIDE)
    contestants: dict[str, Callable[[], Any]] = {
        "ours": lambda: learner.observe(*next(batches)),
        "plain": lambda: plain.observe(*next(batches)),
        "matmul": lambda: torch.mm(left, right, out=product),
    }
    for _ in range(plan.warm_up):
        for run in contestants.values():
            run()
        bar.update()
    rounds: dict[str, list[np.ndarray]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(plan.rounds):
        first = number % len(
            names
        )  # each in its turn: the caches one meets are then not always the same other's
        for name in names[first:] + names[:first]:
            times = [seconds(contestants[name]) for _ in range(plan.steps)]
            # A bound is the best that was seen; a step is what it usually is.
            rounds[name].append(np.min(times, axis=0) if name == "matmul" else np.median(times, axis=0))
        bar.update()
    wall, cpu = ({name: np.array(times)[:, clock] for name, times in rounds.items()} for clock in (0, 1))
    return _compared(wall, cpu, step_flops(plain.network))


def _compared(wall: dict[str, np.ndarray], cpu: dict[str, np.ndarray], flops: int) -> dict[str, Any]:
    """Seconds by contestant, a value a round, to what is reported."""
    gflop, matmul_gflop = flops / 1e9, 2 * MATMUL_SIDE**3 / 1e9
    gflops = matmul_gflop / wall["matmul"]
    return {
        "step": {
            name: {
                "wall_ms": quartiles(wall[name] * 1e3),
                "processor_ms": quartiles(cpu[name] * 1e3),
                "samples_per_second": INCOMING / float(np.median(wall[name])),
            }
            for name in ("ours", "plain")
        },
        "speedup": {
            "wall": quartiles(wall["plain"] / wall["ours"]),
            "processor": quartiles(cpu["plain"] / cpu["ours"]),
        },
        "bound": {
            "step_gflop": gflop,
            "matmul_gflops": quartiles(gflops) | {"best": float(gflops.max())},
            "matmul_gflops_processor": quartiles(matmul_gflop / cpu["matmul"]),
            "wall_ms": gflop / float(np.median(gflops)) * 1e3,
            "processor_ms": gflop / matmul_gflop * float(np.median(cpu["matmul"])) * 1e3,
            "share_wall": quartiles(gflop / matmul_gflop * wall["matmul"] / wall["ours"]),
            "share_processor": quartiles(gflop / matmul_gflop * cpu["matmul"] / cpu["ours"]),
        },
    }


def step_flops(network: Network) -> int:
    """Multiplications and additions of the network's forward and backward over the 40 images of a step.

    Of the plain step's network: a way to compute with fewer of them must not lower the bound that it is held against.
    """
    network.train()
    with FlopCounterMode(display=False) as counter:
        network.features(torch.zeros(4 * INCOMING, 3, SIDE, SIDE)).sum().backward()
    network.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.speed"))
