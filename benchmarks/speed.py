"""`python -m benchmarks.speed`: how fast a training step is here, beside a plain step and beside the machine's bound."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer import Option

from benchmarks import speed_parts
from benchmarks.plain_step import PlainStep
from benchmarks.runner import (
    QUICK_HELP,
    by_clock,
    check_writable,
    circumstances,
    in_turns,
    keep_with_page,
    table,
    torch_threads,
)
from benchmarks.speed_parts import Batches
from edge_hpcr.bench import datasets as data
from edge_hpcr.bench.analyses.cost import operations
from edge_hpcr.commands import cli
from edge_hpcr.common.allocator import keep_freed_memory
from edge_hpcr.learner.config import memory_options
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.network import Network
from edge_hpcr.learner.precision import has_fast_bfloat16

CLASSES = 10
INCOMING = 10
SIDE = 32
POOL = 500  # distinct images to draw batches from
MATMUL_SIDE = 1024
GOAL_BOUND, GOAL_OUTSIDE = 0.6, 0.10
GOAL_SPEEDUPS = {"ours": 1.5, "ours, bfloat16": 1.9}
GOAL_EDGE, GOAL_CODEC = 1.1, 0.05  # times our step; share of a step of edge


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int = 20
    steps: int = 3  # of each contestant in a round
    part_steps: int = 20  # over which the parts of a step are timed
    layer_calls: int = 5


QUICK = Plan(rounds=2, steps=1, part_steps=2, layer_calls=1)


commands = cli.new_commands()


@commands.command()
def speed(
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/speed.json"),
    threads: Annotated[int, Option(min=1, metavar="N", help="PyTorch's")] = 1,
    rounds: Annotated[int | None, Option(min=1, metavar="N", show_default=str(Plan.rounds))] = None,
    quick: Annotated[bool, Option("--quick", help=QUICK_HELP)] = False,
) -> None:
    """A training step beside a plain one and beside the bound that matrix products set on this machine."""
    plan = QUICK if quick else Plan()
    check_writable(out)
    result = measure(replace(plan, rounds=rounds or plan.rounds), threads)
    keep_with_page(out, result, tables(result), "python -m benchmarks.speed")


def measure(plan: Plan, threads: int = 1) -> dict[str, Any]:
    """Everything that the command reports, ready for JSON."""
    keep_freed_memory()  # for all contestants
    with circumstances() as facts, torch_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # torchvision's transforms draw from PyTorch's own generator
        images, labels, source = real_images()
        config = LearnerConfig(SIDE, SIDE, method="hpcr", memory=MemoryConfig(samples=200))
        learner, plain = Learner(config, "cpu"), PlainStep(config, CLASSES)
        fill(learner, plain, images, labels)
        learners = {"ours": learner}
        if has_fast_bfloat16(learner.device):
            learners["ours, bfloat16"] = Learner(replace(config, compute="bfloat16"), "cpu")
            fill(learners["ours, bfloat16"], PlainStep(config, CLASSES), images, labels)
        batches = _batches(images, labels)
        edge = _edge(images, labels)
        contest = _contest(plan, learners, edge, plain, batches)
        counted = {name: operations(each, [next(batches)]) for name, each in (learners | edge).items()}
        shares = speed_parts.shares(learner, batches, plan.part_steps)
        batch = learner.to_device(images[: 4 * INCOMING])  # incoming and replayed, each with its view
        matmul_gflops = contest["bound"]["matmul_gflops"]["processor"]["median"]
        layers = speed_parts.layers(learner.network, batch, plan.layer_calls, matmul_gflops)
    return {
        **facts,
        "threads": threads,
        "plan": asdict(plan),
        "images": source,
        **contest,
        "operations": {name: counted[name] / counted["ours"] for name in edge},
        "shares": shares,
        "outside_network": 1 - shares["network forward"] - shares["network backward"],
        "layers": layers,
    }


# What is fed ---------------------------------------------------------------------------------------------------------


def real_images() -> tuple[np.ndarray, np.ndarray, str]:
    """Images uint8 [N, 32, 32, 3], of CIFAR10 if it is here, class columns, and where they are from."""
    if (data.default_root() / "cifar10").is_dir():
        dataset = data.load("cifar10")
        return dataset.train_images[:POOL], dataset.train_labels[:POOL].astype(np.int64), "CIFAR10"
    images, source = tiles(SIDE, POOL)
    return images, np.random.default_rng(0).integers(0, CLASSES, POOL), f"{source} (no CIFAR10 here)"


def tiles(side: int, count: int) -> tuple[np.ndarray, str]:
    """So many images of this size at the most, evenly over two photographs, and where they are from.

    Photographs and not noise: the size and the cost of an encoded image depend on what it shows.
    """
    from sklearn.datasets import load_sample_images  # here, because importing it takes a second

    every = [
        photo[top : top + side, left : left + side]
        for photo in load_sample_images().images
        for top in range(0, photo.shape[0] - side + 1, side)
        for left in range(0, photo.shape[1] - side + 1, side)
    ]
    chosen = np.linspace(0, len(every) - 1, min(count, len(every))).astype(int)
    return np.stack([every[place] for place in chosen]), "tiles of scikit-learn's two photographs"


def _batches(images: np.ndarray, labels: np.ndarray) -> Batches:
    starts = range(0, len(images) - INCOMING + 1, INCOMING)
    return cycle((images[start : start + INCOMING], labels[start : start + INCOMING]) for start in starts)


def fill(learner: Learner, plain: PlainStep, images: np.ndarray, labels: np.ndarray) -> None:
    """Fill both memories with the same samples, recorded before the last two classes came: so distillation has work."""
    rng = np.random.default_rng(0)
    older = CLASSES - 2
    rows = np.flatnonzero(labels < older)[: learner.config.memory.samples]
    # Rounded to the learner's 16 bits, so that both hold the same numbers.
    logits, features = (
        rng.uniform(-1, 1, (len(rows), width)).astype(np.float16).astype(np.float32)
        for width in (older, learner.network.feature_size)
    )
    for class_id in range(older):
        learner.add_class(class_id)
    learner.memory.update(images[rows], labels[rows], logits, features)
    for class_id in range(older, CLASSES):
        learner.add_class(class_id)
    pixels = torch.from_numpy(images[rows]).permute(0, 3, 1, 2).to(torch.float32).div(255)
    # With what the learner's records say of the classes that came since.
    logits = learner.memory.at(np.arange(len(rows))).logits
    columns, *records = (torch.from_numpy(each) for each in (labels[rows], logits, features))
    plain.memory.update(pixels, columns, *records, older, plain.rng)


def _edge(images: np.ndarray, labels: np.ndarray) -> dict[str, Learner]:
    """Our own method, whose step encodes 10 images and decodes 40, with SGD and with a teacher; the memory is full."""
    options = memory_options(LearnerConfig.backbone, "edge") | {"codec": "webp", "quality": 75}
    config = LearnerConfig.recommended(
        LearnerConfig.backbone,
        method="edge",
        height=SIDE,
        width=SIDE,
        memory=MemoryConfig(samples=200, **options),
    )
    made = {
        "edge": config,
        "edge with SGD": replace(config, optimiser="sgd"),
        "edge with a teacher": replace(config, method_options={"teacher": 1.0}),
        "edge with a teacher of replayed images": replace(
            config, method_options={"teacher": 1.0, "taught": "replayed"}
        ),
    }
    learners = {name: Learner(each, "cpu") for name, each in made.items()}
    for learner in learners.values():
        for class_id in range(CLASSES):
            learner.add_class(class_id)
        learner.memory.update(images, labels)
    return learners


# The contest ---------------------------------------------------------------------------------------------------------


def _contest(
    plan: Plan, learners: dict[str, Learner], edge: dict[str, Learner], plain: PlainStep, batches: Batches
) -> dict[str, Any]:
    left, right, product = torch.rand(3, MATMUL_SIDE, MATMUL_SIDE)
    steps = {name: each.observe for name, each in (learners | edge).items()} | {"plain": plain.observe}

    def one(observe: Callable[[np.ndarray, np.ndarray], Any]) -> None:
        observe(*next(batches))

    def encode_and_decode() -> None:
        memory, (images, _) = edge["edge"].memory, next(batches)
        memory.as_kept(images)
        memory.sample(edge["edge"].config.replay)

    contestants: dict[str, Callable[[], Any]] = {
        **{name: partial(one, observe) for name, observe in steps.items()},
        "codec": encode_and_decode,
        "matmul": lambda: torch.mm(left, right, out=product),
    }
    # A bound is the best that was seen; a step is what it usually is.
    times = in_turns(contestants, plan.rounds, dict.fromkeys(contestants, plan.steps), best=["matmul"])
    gflop, matmul_gflop = step_flops(plain.network) / 1e9, 2 * MATMUL_SIDE**3 / 1e9
    bound = times["matmul"] * gflop / matmul_gflop
    return {
        "step": {
            name: {
                "ms": by_clock(times[name] * 1e3),
                "samples_per_second": INCOMING / float(np.median(times[name][:, 0])),
            }
            for name in steps
        },
        "speedup": {name: by_clock(times["plain"] / times[name]) for name in learners},
        "edge": {name: by_clock(times[name] / times["ours"]) for name in edge},
        "codec": by_clock(times["codec"] / times["edge"]),
        "bound": {
            "step_gflop": gflop,
            "matmul_gflops": by_clock(matmul_gflop / times["matmul"]),
            "ms": by_clock(bound * 1e3),
            "share": by_clock(bound / times["ours"]),
        },
    }


def step_flops(network: Network) -> int:
    """Multiplications and additions of the network's forward and backward over the 40 images of a step.

    Counted in the plain step's network: an algorithm that needs fewer of them must not lower its own bound.
    """
    network.train()
    with FlopCounterMode(display=False) as counter:
        network.features(torch.zeros(4 * INCOMING, 3, SIDE, SIDE)).sum().backward()
    network.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())


# Tables --------------------------------------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> list[str]:
    bound, plan = result["bound"], result["plan"]
    head = f"{plan['rounds']} rounds of {plan['steps']} steps, {result['threads']} thread(s), images: {result['images']}"
    steps = [
        [name, *_spreads(step["ms"], 0), f"{step['samples_per_second']:.1f}"]
        for name, step in result["step"].items()
    ]
    bound_rate = INCOMING * 1e3 / bound["ms"]["wall"]["median"]
    steps.append(["bound by matmul", *_spreads(bound["ms"], 0), f"{bound_rate:.1f}"])
    ratios = [
        *(
            [f"{name}: times as fast as plain", *_spreads(speedup), f">= {GOAL_SPEEDUPS[name]}"]
            for name, speedup in result["speedup"].items()
        ),
        *(
            [f"{name}: times the step of ours", *_spreads(ratio), f"<= {GOAL_EDGE}" if name == "edge" else ""]
            for name, ratio in result["edge"].items()
        ),
        *(
            [f"{name}: times the operations of ours", f"{ratio:.2f}", "", ""]
            for name, ratio in result["operations"].items()
        ),
        ["encoding and decoding: share of edge's step", *_spreads(result["codec"]), f"<= {GOAL_CODEC}"],
        ["ours: share of the bound", *_spreads(bound["share"]), f">= {GOAL_BOUND}"],
    ]
    arithmetic = (
        f"The bound: {bound['step_gflop']:.2f} GFLOP per step at "
        f"{bound['matmul_gflops']['wall']['median']:.1f} GFLOP/s, the speed of a float32 matrix product here."
    )
    shares = [[part, f"{share:.1%}"] for part, share in result["shares"].items()]
    shares.append(
        ["all outside the network", f"{result['outside_network']:.1%} (goal <= {GOAL_OUTSIDE:.0%})"]
    )
    measured = ("forward_ms", "forward_share_of_matmul", "backward_ms", "backward_share_of_matmul")
    layers = [
        [row["layer"], str(row["times"]), *(f"{row[name]:.2f}" for name in measured)]
        for row in result["layers"]
    ]
    return [
        head,
        table(["one step", "wall ms", "processor ms", "samples/s"], steps),
        table(["median (quartiles)", "wall", "processor", "goal"], ratios),
        arithmetic,
        table(["part of our step", "share"], shares),
        table(
            ["convolution, 40 images", "times", "forward ms", "of matmul", "backward ms", "of matmul"], layers
        ),
    ]


def _spreads(clocks: dict[str, dict[str, float]], digits: int = 2) -> list[str]:
    return [
        f"{each['median']:.{digits}f} ({each['q1']:.{digits}f} to {each['q3']:.{digits}f})"
        for each in clocks.values()
    ]


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.speed"))
