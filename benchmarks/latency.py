"""`python -m benchmarks.latency`: how long a model takes here, in torch and in ONNX Runtime, and what publishing costs.

The contestants take turns within a round, so that whatever else the machine does hits all of them alike; ratios are
taken inside a round, and reported as median and quartiles over the rounds.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version as installed
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import psutil
import torch
from tqdm import tqdm
from typer import Option

from benchmarks.device_process import first_answer, memory
from benchmarks.output import check_writable, keep_with_page, table
from benchmarks.speed_parts import quartiles, seconds
from benchmarks.swap_delay import FRAMES_PER_SECOND, swap_delay
from edge_hpcr import __version__
from edge_hpcr.bench.datasets import load
from edge_hpcr.bench.run import hardware
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.network import Network
from edge_hpcr.stream.resize import prepare
from export.device.hot_swap import HotSwap
from export.device.manifest import ClassLabel
from export.device.model import Classifier
from export.device.model_source import Loading, LocalModels
from export.publish.publish import TEMPLATE, publish
from export.publish.quantise import quantised
from export.publish.republish import load_template, republish, save_template
from export.publish.snapshot import IMAGES, Snapshot, parity_images, snapshot_of_learner
from export.publish.to_onnx import Exported, RunningModel, export_full
from export.publish.versions import rollback, rollforward

GOAL_SPEEDUP, GOAL_REPUBLISH_SECONDS, GOAL_REPUBLISH_RATIO, GOAL_FRAME_TIMES = 2.5, 1.0, 10.0, 2.0
GOAL_FIRST_ANSWER_SECONDS = 2.0
GOAL_SIZE = 32  # pixels, at which the goals are set
CLASSES = 10
CONTESTANTS = ("torch", "onnx", "int8")
TURN_SECONDS = 0.1


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    sizes: tuple[int, ...] = (32, 64, 84, 128)
    batches: tuple[int, ...] = (1, 16)
    threads: tuple[int, ...] = (1, 2)
    rounds: int = 10
    calls: int = 2  # of each contestant in a round, at least
    most_calls: int = 40  # of one that takes little time: two calls of a millisecond say little
    repeats: int = 3  # of republishing, loading and swapping
    warm_up: bool = True  # a full export before the first that counts


QUICK = Plan(
    sizes=(32,), batches=(1,), threads=(1,), rounds=3, calls=2, most_calls=2, repeats=2, warm_up=False
)


commands = cli.new_commands()


@commands.command()
def latency(
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/latency.json"),
    tables_of: Annotated[
        Path | None,
        Option("--table", metavar="FILE", help="print the tables of an earlier result; nothing is measured"),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="too few rounds to trust, to see that it works")] = False,
) -> None:
    """One model in torch, in ONNX Runtime and in 8 bits: latency by size, batch and threads; the time to publish, to
    load and to swap; memory. Goals that are missed are marked.
    """
    if tables_of is not None:
        print(_tables_of(tables_of))
        return
    check_writable(out)
    result = measure(QUICK if quick else Plan())
    keep_with_page(out, result, tables(result), "python -m benchmarks.latency")


def _tables_of(path: Path) -> str:
    try:
        return tables(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"--table {path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise UserError(f"--table {path}: `python -m benchmarks.latency` did not write this file") from None


# Measuring ------------------------------------------------------------------------------------------------------------


def measure(plan: Plan) -> dict[str, Any]:
    """Everything that the command reports, ready for JSON."""
    load_before, stolen_before = os.getloadavg(), stolen_seconds()
    latency, publishing, devices = [], [], []
    total = len(plan.sizes) * (len(plan.threads) * len(plan.batches) * plan.rounds + 2)
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=total, desc="latency", disable=None, leave=False) as bar,
    ):
        if plan.warm_up:
            # The first export of a process loads the exporter too.
            export_full(sample_snapshot(plan.sizes[0]), Path(folder, "warm-up.onnx"))
        for size in plan.sizes:
            snapshot = sample_snapshot(size)
            exports = Path(folder, str(size))
            publishing.append({"size": size, **_publishing(snapshot, exports, plan)})
            bar.update()
            latency += _latencies(snapshot, exports, plan, bar)
            devices.append({"size": size, **_device(exports, plan)})
            bar.update()
    return {
        "hardware": hardware(),
        "versions": {
            "edge_hpcr": __version__,
            "python": platform.python_version(),
            **{name: installed(name) for name in ("torch", "onnx")},
            "onnxruntime": onnxruntime.__version__,
        },
        "plan": asdict(plan),
        "load_average": {"start": list(load_before), "end": list(os.getloadavg())},
        "stolen_seconds": round(stolen_seconds() - stolen_before, 2),
        "latency": latency,
        "publishing": publishing,
        "device": devices,
        "goals": goals(latency, publishing, devices),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def stolen_seconds() -> float:
    """What the host gave to other virtual machines while this one wanted it, since the start; 0 where unknown."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def sample_snapshot(size: int) -> Snapshot:
    """Ten digits after two steps: a network as any other, as far as time goes, with real images in its memory."""
    digits = load("digits")
    learner = Learner(LearnerConfig(height=size, width=size, memory=MemoryConfig(samples=IMAGES)), "cpu")
    for start in (0, 10):
        rows = slice(start, start + 10)
        images = np.stack([prepare(image, (size, size)) for image in digits.train_images[rows]])
        learner.observe(images, digits.train_labels[rows].tolist())
    names = {number: ClassLabel(number, f"digit {number}") for number in range(CLASSES)}
    return snapshot_of_learner(learner, names)


def _publishing(snapshot: Snapshot, exports: Path, plan: Plan) -> dict[str, Any]:
    """A full export beside fast ones, both with all their checks; leaves two published versions."""
    exports.mkdir()
    path = exports / "measured.onnx"
    with _torch_threads(1):  # as beside a learner
        *full, exported = _timed(lambda: export_full(snapshot, path))
        save_template(exports / TEMPLATE, exported.model, snapshot)
        template = load_template(exports / TEMPLATE, snapshot)
        if template is None:
            raise RuntimeError("the first export left no template")
        # Each from a snapshot of its own, which has not built its network yet.
        fast = [_timed(lambda: republish(replace(snapshot), template, path))[:2] for _ in range(plan.repeats)]
    path.unlink()
    for _ in range(2):
        publish(exports, snapshot, variants=())
    wall, processor = (float(middle) for middle in np.median(fast, axis=0))
    return {
        "parity_images": IMAGES,
        "full_seconds": {"wall": full[0], "processor": full[1]},
        "republish_seconds": {"wall": wall, "processor": processor},
        "times_as_fast": {"wall": full[0] / wall, "processor": full[1] / processor},
    }


def _timed(run: Callable[[], Exported]) -> tuple[float, float, Exported]:
    made: list[Exported] = []
    wall, processor = seconds(lambda: made.append(run()))
    return wall, processor, made[0]


def _latencies(snapshot: Snapshot, exports: Path, plan: Plan, bar: tqdm) -> list[dict[str, Any]]:
    plain = (exports / "v000001" / "model.onnx").read_bytes()
    eight_bits = quantised(onnx.load_model_from_string(plain), snapshot.images).SerializeToString()
    rows = []
    for threads, batch in product(plan.threads, plan.batches):
        images = parity_images(snapshot)[:batch]
        runs = {
            name: RunningModel(data, name, threads) for name, data in (("onnx", plain), ("int8", eight_bits))
        }

        contestants: dict[str, Callable[[], Any]] = {
            "torch": partial(_answer_in_torch, snapshot.network, snapshot.temperature, images),
            **{name: partial(run, images) for name, run in runs.items()},
        }
        with _torch_threads(threads):
            wall, processor = _rounds(contestants, plan, bar)
        rows.append(
            {
                "size": snapshot.height,
                "batch": batch,
                "threads": threads,
                **_compared(wall, processor),
            }
        )
    return rows


def _answer_in_torch(network: Network, temperature: float, images: np.ndarray) -> None:
    """Eagerly, from the same bytes to the same scores."""
    with torch.inference_mode():
        logits, _ = network(torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255))
        (logits / temperature).softmax(1)


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rounds(
    contestants: dict[str, Callable[[], Any]], plan: Plan, bar: tqdm
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Wall and processor seconds of one call, a value a round."""
    calls = {}
    for name, run in contestants.items():
        run()
        calls[name] = int(np.clip(TURN_SECONDS / seconds(run)[0], plan.calls, plan.most_calls))
    found: dict[str, list[np.ndarray]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(plan.rounds):
        first = number % len(names)  # each in its turn: the caches one meets are not always the same other's
        for name in names[first:] + names[:first]:
            contestants[name]()  # its weights are in the caches again, as where nothing else runs
            times = [seconds(contestants[name]) for _ in range(calls[name])]
            found[name].append(np.median(times, axis=0))
        bar.update()
    arrays = {name: np.array(times) for name, times in found.items()}
    return (
        {name: times[:, 0] for name, times in arrays.items()},
        {name: times[:, 1] for name, times in arrays.items()},
    )


def _compared(wall: dict[str, np.ndarray], processor: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        "wall_ms": {name: quartiles(times * 1e3) for name, times in wall.items()},
        "processor_ms": {name: quartiles(times * 1e3) for name, times in processor.items()},
        "times_as_fast_as_torch": {
            name: {
                "wall": quartiles(wall["torch"] / wall[name]),
                "processor": quartiles(processor["torch"] / processor[name]),
            }
            for name in CONTESTANTS[1:]
        },
    }


def _device(exports: Path, plan: Plan) -> dict[str, Any]:
    """A device's own code: load, swap to another version and back, and the memory of a process of its own."""
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
        "memory_bytes": memory(exports),
    }


def goals(
    latency: list[dict[str, Any]], publishing: list[dict[str, Any]], devices: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each goal with what was measured: those for models at the size that they are set for, those for devices at all."""
    found = []
    for row in latency:
        if (row["size"], row["batch"], row["threads"]) == (GOAL_SIZE, 1, 1):
            ratio = row["times_as_fast_as_torch"]["onnx"]["wall"]["median"]
            found.append(
                _goal("ONNX Runtime, times as fast as torch", ratio, GOAL_SPEEDUP, ratio >= GOAL_SPEEDUP)
            )
    for row in publishing:
        if row["size"] == GOAL_SIZE:
            took, ratio = row["republish_seconds"]["wall"], row["times_as_fast"]["wall"]
            most = GOAL_REPUBLISH_SECONDS
            found.append(_goal("seconds to republish", took, most, took < most))
            least = GOAL_REPUBLISH_RATIO
            found.append(_goal("republishing, times as fast as a full export", ratio, least, ratio >= least))
    for row in devices:  # at every size
        at = f"at {row['size']} pixels"
        most, latest = GOAL_FRAME_TIMES, row["late_frames"]["around_swaps"]["most"]
        found.append(
            _goal(f"frame times until an answer while models change, {at}", latest, most, latest <= most)
        )
        slowest, most = max(row["first_answer_seconds"]), GOAL_FIRST_ANSWER_SECONDS
        found.append(_goal(f"seconds from start to the first answer, {at}", slowest, most, slowest < most))
    return found


def _goal(what: str, measured: float, goal: float, met: bool) -> dict[str, Any]:
    return {"what": what, "measured": measured, "goal": goal, "met": met}


# Tables ---------------------------------------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> str:
    """In Markdown that can be read as it is."""
    versions, load_average = result["versions"], result["load_average"]
    head = (
        f"{result['hardware']}, torch {versions['torch']}, ONNX Runtime {versions['onnxruntime']}, "
        f"{result['plan']['rounds']} rounds of {result['plan']['calls']} to {result['plan']['most_calls']} calls.\n"
        f"Load average {load_average['start'][0]:.1f} at the start, {load_average['end'][0]:.1f} at the end "
        f"(wall times count only where nothing else ran); other machines on its host took {result['stolen_seconds']:.1f} s of its "
        "processors."
    )
    return "\n\n".join(
        [head, _latency_table(result), _publishing_table(result), _device_table(result), _goals(result)]
    )


def _latency_table(result: dict[str, Any]) -> str:
    header = ["pixels, batch, threads", *(f"{name} ms" for name in CONTESTANTS), "onnx/torch", "int8/torch"]
    rows = []
    for row in result["latency"]:
        ratios = row["times_as_fast_as_torch"]
        rows.append(
            [
                f"{row['size']}, {row['batch']}, {row['threads']}",
                *(f"{row['wall_ms'][name]['median']:.2f}" for name in CONTESTANTS),
                *(
                    f"{ratios[name]['wall']['median']:.2f} ({ratios[name]['processor']['median']:.2f})"
                    for name in CONTESTANTS[1:]
                ),
            ]
        )
    return f"{table(header, rows)}\n\nMedians on the wall's clock; in brackets on the processor's."


def _publishing_table(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['size']}",
            f"{row['full_seconds']['wall']:.1f} ({row['full_seconds']['processor']:.1f})",
            f"{row['republish_seconds']['wall']:.2f} ({row['republish_seconds']['processor']:.2f})",
            f"{row['times_as_fast']['wall']:.1f} ({row['times_as_fast']['processor']:.1f})",
        ]
        for row in result["publishing"]
    ]
    return table(["publishing, pixels", "full s", "republish s", "times as fast"], rows)


def _device_table(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['size']}",
            f"{row['load_ms']['median']:.0f}",
            f"{row['swap_ms']['median']:.0f}",
            f"{np.median(row['first_answer_seconds']):.2f}",
            *(f"{row['late_frames'][name]['most']:.2f}" for name in ("quiet", "around_swaps")),
            *(f"{row['memory_bytes'][name] / 1e6:.0f}" for name in ("imports", "loaded", "predicting")),
        ]
        for row in result["device"]
    ]
    header = ["device, pixels", "load ms", "swap ms", "first answer s", "latest frame", "and in a swap"]
    text = table([*header, "MB imports", "MB loaded", "MB predicting"], rows)
    return f"{text}\n\nThe latest frame: until its answer, in frame times at {FRAMES_PER_SECOND:g} frames/s."


def _goals(result: dict[str, Any]) -> str:
    rows = [
        [goal["what"], f"{goal['measured']:.2f}", f"{goal['goal']:g}", "met" if goal["met"] else "MISSED"]
        for goal in result["goals"]
    ]
    return table([f"goal (at {GOAL_SIZE} pixels, unless it says so)", "measured", "goal", ""], rows)


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.latency"))
