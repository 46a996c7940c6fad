"""`python -m benchmarks.speed`: how fast a training step is here, beside a plain step."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from typer import Option

from benchmarks.plain_step import PlainStep
from benchmarks.runner import (
    Out,
    check_writable,
    circumstances,
    in_turns,
    keep_with_page,
    quartiles,
    torch_threads,
)
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.report import markdown
from edge_hpcr.commands import cli
from edge_hpcr.learner.device import has_fast_bfloat16, keep_freed_memory
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig

Batches = Iterator[tuple[np.ndarray, np.ndarray]]
CLASSES, INCOMING, SIDE = 10, 10, 32
POOL = 500  # distinct images to draw batches from
ROUNDS, STEPS = 20, 3  # steps of each contestant in a round
GOALS = {"ours": 1.5, "ours, bfloat16": 1.9}  # times as fast as the plain step

commands = cli.new_commands()


@commands.command()
def speed(
    out: Out = Path("results/machine/speed.json"),
    threads: Annotated[int, Option(min=1, metavar="N", help="PyTorch's")] = 1,
    rounds: Annotated[int, Option(min=1, metavar="N")] = ROUNDS,
) -> None:
    """A training step beside a plain one."""
    check_writable(out)
    result = measure(rounds, STEPS, threads)
    keep_with_page(out, result, tables(result), "python -m benchmarks.speed")


def measure(rounds: int, steps: int, threads: int = 1) -> dict[str, Any]:
    """Everything that the command reports, ready for JSON; processor time, which other work on the machine stretches less."""
    keep_freed_memory()  # for all contestants
    with circumstances() as facts, torch_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # torchvision's transforms draw from PyTorch's own generator
        images, labels, source = real_images()
        config = LearnerConfig(SIDE, SIDE, method="hpcr", memory=MemoryConfig(samples=200))
        learners = {"ours": Learner(config, "cpu")}
        if has_fast_bfloat16(learners["ours"].device):
            learners["ours, bfloat16"] = Learner(replace(config, compute="bfloat16"), "cpu")
        held = [fill(learner, images, labels) for learner in learners.values()]
        steppers = {**learners, "plain": PlainStep(config, CLASSES, held[0])}
        contest = _contest(steppers, _batches(images, labels), rounds, steps)
    return {**facts, "threads": threads, "rounds": rounds, "steps": steps, "images": source, **contest}


def real_images() -> tuple[np.ndarray, np.ndarray, str]:
    """Images uint8 [N, 32, 32, 3], of CIFAR10 if it is here, class columns, and where they are from."""
    if (data.default_root() / "cifar10").is_dir():
        dataset = data.load("cifar10")
        return dataset.train_images[:POOL], dataset.train_labels[:POOL].astype(np.int64), "CIFAR10"
    images = np.random.default_rng(0).integers(0, 256, (POOL, SIDE, SIDE, 3), np.uint8)
    return images, np.random.default_rng(0).integers(0, CLASSES, POOL), "noise (no CIFAR10 here)"


def _batches(images: np.ndarray, labels: np.ndarray) -> Batches:
    starts = range(0, len(images) - INCOMING + 1, INCOMING)
    return cycle((images[start : start + INCOMING], labels[start : start + INCOMING]) for start in starts)


def fill(learner: Learner, images: np.ndarray, labels: np.ndarray) -> list[torch.Tensor]:
    """Fill a memory with samples recorded before the last two classes came: so distillation has work. Returns what it holds."""
    older = CLASSES - 2
    rows = np.flatnonzero(labels < older)[: learner.config.memory.samples]
    rng, width = np.random.default_rng(0), learner.network.feature_size
    logits, features = (rng.uniform(-1, 1, (len(rows), count)) for count in (older, width))
    for class_id in range(older):
        learner.add_class(class_id)
    learner.memory.update(images[rows], labels[rows], logits, features)
    for class_id in range(older, CLASSES):
        learner.add_class(class_id)
    held = learner.memory.at(np.arange(len(rows)))
    pixels = torch.from_numpy(held.inputs).permute(0, 3, 1, 2).to(torch.float32).div(255)
    numbers = (held.labels, held.logits, held.features, held.known)
    return [pixels, *map(torch.from_numpy, numbers)]


def _contest(steppers: dict[str, Any], batches: Batches, rounds: int, steps: int) -> dict[str, Any]:
    def one(observe: Callable[[np.ndarray, np.ndarray], Any]) -> None:
        observe(*next(batches))

    contestants = {name: partial(one, stepper.observe) for name, stepper in steppers.items()}
    times = in_turns(contestants, rounds, steps, time.process_time)
    step = {name: np.median(each, axis=1) for name, each in times.items()}
    return {
        "step_ms": {name: quartiles(each * 1e3) for name, each in step.items()},
        "speedup": {name: quartiles(step["plain"] / step[name]) for name in steppers if "ours" in name},
    }


def tables(result: dict[str, Any]) -> list[str]:
    head = (
        f"{result['rounds']} rounds of {result['steps']} steps, {result['threads']} thread(s), images: "
        f"{result['images']}; processor time, medians and quartiles."
    )
    steps = [
        [name, _spread(each, 0), f"{INCOMING * 1e3 / each['median']:.1f}"]
        for name, each in result["step_ms"].items()
    ]
    speedups = [
        [f"{name}: times as fast as plain", _spread(each), f">= {GOALS[name]}"]
        for name, each in result["speedup"].items()
    ]
    return [
        head,
        markdown(["one step", "ms", "samples/s"], steps, left=1),
        markdown(["ratio", "measured", "goal"], speedups, left=1),
    ]


def _spread(each: dict[str, float], digits: int = 2) -> str:
    return f"{each['median']:.{digits}f} ({each['q1']:.{digits}f} to {each['q3']:.{digits}f})"


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.speed"))
