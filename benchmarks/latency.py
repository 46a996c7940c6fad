"""`python -m benchmarks.latency`: how long a model takes here, in torch and in ONNX Runtime, and what publishing costs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
from typer import Option

from benchmarks.device_process import FRAMES_PER_SECOND, first_answer, memory, swap_delay
from benchmarks.runner import (
    CLOCKS,
    QUICK_HELP,
    by_clock,
    check_writable,
    circumstances,
    in_turns,
    keep_with_page,
    quartiles,
    seconds,
    table,
    torch_threads,
)
from edge_hpcr.bench.datasets import load
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import one_of
from edge_hpcr.learner.backbones import backbone_class
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.stream.resize import prepare
from export.device.hot_swap import HotSwap
from export.device.manifest import ClassLabel
from export.device.model import Classifier
from export.device.model_source import Loading, LocalModels
from export.publish.publish import TEMPLATE, publish
from export.publish.quantise import quantised
from export.publish.republish import load_template, republish, save_template
from export.publish.running import RunningModel
from export.publish.snapshot import IMAGES, Snapshot, images_wanted, parity_images, snapshot_of_learner
from export.publish.to_onnx import Exported, export_full, network_outputs
from export.publish.versions import rollback, rollforward

SCRATCH, TRUNK = "reduced_resnet18", "efficientnet_lite0"
# At which the goals are set: the paper's network at its size, and the default of a new workspace at its own.
GOALS = ((SCRATCH, 32), (TRUNK, backbone_class(TRUNK).default_size))
CLASSES = 10
CONTESTANTS = ("torch", "onnx", "int8")
TURN_SECONDS = 0.1


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    networks: tuple[tuple[str, int], ...] = (*((SCRATCH, size) for size in (32, 64, 84, 128)), GOALS[1])
    batches: tuple[int, ...] = (1, 16)
    threads: tuple[int, ...] = (1, 2)
    rounds: int = 10
    calls: int = 2  # of each contestant in a round, at least
    most_calls: int = 40  # of one that takes little time: two calls of a millisecond say little
    repeats: int = 3  # of republishing, loading and swapping
    warm_up: bool = True  # a full export before the first that is measured


QUICK = Plan(
    networks=GOALS[:1], batches=(1,), threads=(1,), rounds=3, calls=2, most_calls=2, repeats=2, warm_up=False
)


commands = cli.new_commands()


@commands.command()
def latency(
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/latency.json"),
    size: Annotated[
        int | None, Option(metavar="N", help="only the network at so many pixels", show_default="all")
    ] = None,
    quick: Annotated[bool, Option("--quick", help=QUICK_HELP)] = False,
) -> None:
    """One model in torch, in ONNX Runtime and in 8 bits: latency by size, batch and threads; the time to publish, to
    load and to swap; memory. Goals that are missed are marked.
    """
    check_writable(out)
    plan = QUICK if quick else Plan()
    if size is not None:
        networks = {str(each): (name, each) for name, each in Plan().networks}
        one_of("--size", str(size), networks)
        plan = replace(plan, networks=(networks[str(size)],))
    result = measure(plan)
    keep_with_page(out, result, tables(result), "python -m benchmarks.latency")


# Measuring ------------------------------------------------------------------------------------------------------------


def measure(plan: Plan) -> dict[str, Any]:
    """Everything that the command reports, ready for JSON."""
    latency, publishing, devices = [], [], []
    with circumstances() as facts, tempfile.TemporaryDirectory() as folder:
        if plan.warm_up:
            # The first export of a process loads the exporter too.
            export_full(sample_snapshot(*plan.networks[0]), Path(folder, "warm-up.onnx"))
        for backbone, size in plan.networks:
            snapshot = sample_snapshot(backbone, size)
            exports = Path(folder, f"{backbone}-{size}")
            named = {"backbone": backbone, "size": size}
            publishing.append({**named, **_publishing(snapshot, exports, plan)})
            latency += [{**named, **row} for row in _latencies(snapshot, exports, plan)]
            devices.append({**named, **_device(exports, plan)})
    facts["versions"]["onnx"] = onnx.__version__
    return {
        **facts,
        "plan": asdict(plan),
        "latency": latency,
        "publishing": publishing,
        "device": devices,
        "goals": goals(latency, publishing, devices),
    }


def sample_snapshot(backbone: str, size: int) -> Snapshot:
    """Ten digits after two steps: for timing a network as any other, with real images."""
    digits = load("digits")
    memory = MemoryConfig(samples=IMAGES, codec="raw" if backbone == SCRATCH else LATENT)
    config = LearnerConfig.recommended(backbone, height=size, width=size, memory=memory)
    learner = Learner(config, "cpu")
    images = np.stack([prepare(image, (size, size)) for image in digits.train_images[:20]])
    for rows in (slice(0, 10), slice(10, 20)):
        learner.observe(images[rows], digits.train_labels[rows].tolist())
    names = {number: ClassLabel(number, f"digit {number}") for number in range(CLASSES)}
    return replace(snapshot_of_learner(learner, names), images=images[: images_wanted(size, size)])


def _publishing(snapshot: Snapshot, exports: Path, plan: Plan) -> dict[str, Any]:
    """A full export beside fast ones, both with all their checks; leaves two published versions."""
    exports.mkdir()
    path = exports / "measured.onnx"
    made: list[Exported] = []
    with torch_threads(1):  # as beside a learner
        full = seconds(lambda: made.append(export_full(snapshot, path)))
        save_template(exports / TEMPLATE, made[0].model, snapshot)
        template = load_template(exports / TEMPLATE, snapshot)
        if template is None:
            raise RuntimeError("the first export left no template")
        # Each from a new snapshot, which has not built its network yet.
        again = [seconds(lambda: republish(replace(snapshot), template, path)) for _ in range(plan.repeats)]
    path.unlink()
    for _ in range(2):
        publish(exports, snapshot, variants=())
    fast = np.median(again, axis=0).tolist()
    return {
        "parity_images": images_wanted(snapshot.height, snapshot.width),
        "full_seconds": dict(zip(CLOCKS, full, strict=True)),
        "republish_seconds": dict(zip(CLOCKS, fast, strict=True)),
        "times_as_fast": {clock: full[place] / fast[place] for place, clock in enumerate(CLOCKS)},
    }


def _latencies(snapshot: Snapshot, exports: Path, plan: Plan) -> list[dict[str, Any]]:
    plain = (exports / "v000001" / "model.onnx").read_bytes()
    eight_bits = quantised(onnx.load_model_from_string(plain), snapshot.images).SerializeToString()
    rows = []
    for threads, batch in product(plan.threads, plan.batches):
        images = parity_images(snapshot)[:batch]
        contestants: dict[str, Callable[[], Any]] = {
            "torch": partial(network_outputs, snapshot, images),
            "onnx": partial(RunningModel(plain, "onnx", threads), images),
            "int8": partial(RunningModel(eight_bits, "int8", threads), images),
        }
        with torch_threads(threads):
            calls = {}
            for name, run in contestants.items():
                run()
                calls[name] = int(np.clip(TURN_SECONDS / seconds(run)[0], plan.calls, plan.most_calls))
            times = in_turns(contestants, plan.rounds, calls)
        rows.append({"batch": batch, "threads": threads, **compared(times)})
    return rows


def compared(times: dict[str, np.ndarray]) -> dict[str, Any]:
    milliseconds = {name: by_clock(values * 1e3) for name, values in times.items()}
    return {
        **{f"{clock}_ms": {name: each[clock] for name, each in milliseconds.items()} for clock in CLOCKS},
        "times_as_fast_as_torch": {name: by_clock(times["torch"] / times[name]) for name in CONTESTANTS[1:]},
    }


def _device(exports: Path, plan: Plan) -> dict[str, Any]:
    """With a device's code: load, swap to another version and back; and from outside, a process that classifies."""
    loads = [seconds(lambda: Classifier.load(exports, "cpu", 1))[0] for _ in range(plan.repeats)]
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), report=lambda line: None)
    swap.first()
    swaps = []
    for _ in range(plan.repeats):
        for move in (rollback, rollforward):
            move(exports)
            swaps.append(seconds(swap.look)[0])
    if swap.swaps != len(swaps):
        raise RuntimeError(f"{swap.swaps} swaps of {len(swaps)} took place")
    return {
        "load_ms": quartiles(np.array(loads) * 1e3),
        "swap_ms": quartiles(np.array(swaps) * 1e3),
        "first_answer_seconds": [round(first_answer(exports), 3) for _ in range(plan.repeats)],
        "late_frames": swap_delay(exports, 2 * plan.repeats),
        "late_frames_all_threads": swap_delay(exports, 2 * plan.repeats, threads=0),
        "memory_bytes": memory(exports),
    }


def goals(
    latency: list[dict[str, Any]], publishing: list[dict[str, Any]], devices: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each goal with what was measured: those for models where they are set, those for devices everywhere."""
    found: list[dict[str, Any]] = []

    def judge(what: str, measured: float, goal: float, met: bool) -> None:
        found.append({"what": what, "measured": measured, "goal": goal, "met": met})

    for row in latency:
        if _has_goals(row) and (row["batch"], row["threads"]) == (1, 1):
            ratio = row["times_as_fast_as_torch"]["onnx"]["wall"]["median"]
            judge(f"ONNX Runtime, times as fast as torch, {_network(row)}", ratio, 2.5, ratio >= 2.5)
    for row in publishing:
        if _has_goals(row):
            took, ratio = row["republish_seconds"]["wall"], row["times_as_fast"]["wall"]
            judge(f"seconds to republish, {_network(row)}", took, 1.0, took < 1.0)
            judge(
                f"republishing, times as fast as a full export, {_network(row)}", ratio, 10.0, ratio >= 10.0
            )
    for row in devices:
        at = _network(row)
        slowest = max(row["first_answer_seconds"])
        for key, how in (("late_frames", "one thread"), ("late_frames_all_threads", "all threads")):
            latest = row[key]["around_swaps"]["most"]
            judge(f"frame times until an answer while models change, {how}, {at}", latest, 2.0, latest <= 2.0)
        judge(f"seconds from start to the first answer, {at}", slowest, 2.0, slowest < 2.0)
    return found


def _has_goals(row: dict[str, Any]) -> bool:
    return (row["backbone"], row["size"]) in GOALS


def _network(row: dict[str, Any]) -> str:
    return f"{row['backbone']} at {row['size']} pixels"


# Tables ---------------------------------------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> list[str]:
    plan = result["plan"]
    header = ["network, batch, threads", *(f"{name} ms" for name in CONTESTANTS), "onnx/torch", "int8/torch"]
    models = [
        [
            f"{_network(row)}, {row['batch']}, {row['threads']}",
            *(f"{row['wall_ms'][name]['median']:.2f}" for name in CONTESTANTS),
            *(
                f"{ratio['wall']['median']:.2f} ({ratio['processor']['median']:.2f})"
                for ratio in row["times_as_fast_as_torch"].values()
            ),
        ]
        for row in result["latency"]
    ]
    kinds = {"full_seconds": 1, "republish_seconds": 2, "times_as_fast": 1}  # with their digits
    publishing = [
        [
            _network(row),
            *(
                f"{row[kind]['wall']:.{digits}f} ({row[kind]['processor']:.{digits}f})"
                for kind, digits in kinds.items()
            ),
        ]
        for row in result["publishing"]
    ]
    device_header = [
        "device",
        "load ms",
        "swap ms",
        "first answer s",
        "latest frame",
        "and in a swap",
    ]
    devices = [
        [
            _network(row),
            *(f"{row[name]['median']:.0f}" for name in ("load_ms", "swap_ms")),
            f"{np.median(row['first_answer_seconds']):.2f}",
            *(f"{row['late_frames'][name]['most']:.2f}" for name in ("quiet", "around_swaps")),
            *(f"{held / 1e6:.0f}" for held in row["memory_bytes"].values()),
        ]
        for row in result["device"]
    ]
    judged = [
        [goal["what"], f"{goal['measured']:.2f}", f"{goal['goal']:g}", "met" if goal["met"] else "MISSED"]
        for goal in result["goals"]
    ]
    return [
        f"{plan['rounds']} rounds of {plan['calls']} to {plan['most_calls']} calls.",
        table(header, models),
        "Medians on the wall's clock; in brackets on the processor's.",
        table(["publishing", "full s", "republish s", "times as fast"], publishing),
        table([*device_header, "MB imports", "MB loaded", "MB predicting"], devices),
        f"The latest frame: until its answer, in frame times at {FRAMES_PER_SECOND:g} frames/s.",
        table(["goal", "measured", "goal", ""], judged),
    ]


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.latency"))
