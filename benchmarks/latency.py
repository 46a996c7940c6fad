"""`python -m benchmarks.latency`: how long a model takes here, in torch and in ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx

from benchmarks.runner import (
    ROOT,
    Out,
    check_writable,
    circumstances,
    in_turns,
    keep_with_page,
    quartiles,
    torch_threads,
)
from edge_hpcr.bench.datasets import load
from edge_hpcr.bench.report import markdown
from edge_hpcr.commands import cli
from edge_hpcr.learner.backbones import backbone_class
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.stream.resize import prepare
from export.device.manifest import ClassLabel
from export.publish.graph import RunningModel
from export.publish.publish import publish
from export.publish.quantise import quantised
from export.publish.snapshot import IMAGES, Snapshot, images_wanted, parity_images, snapshot_of_learner
from export.publish.to_onnx import network_outputs

# The paper's network at its size, and a pre-trained one at its own.
SCRATCH, TRUNK = (
    ("reduced_resnet18", 32),
    ("efficientnet_lite0", backbone_class("efficientnet_lite0").default_size),
)
CLASSES = 10
CONTESTANTS = ("torch", "onnx", "int8")
THREADS = (1, 2)
ROUNDS, CALLS = 10, 20  # calls of each contestant in a round
STARTS = 3  # of a device


commands = cli.new_commands()


@commands.command()
def latency(
    out: Out = Path("results/machine/latency.json"),
) -> None:
    """One model in torch, in ONNX Runtime and in 8 bits: latency by threads; and a device's first answer."""
    check_writable(out)
    result = measure()
    keep_with_page(out, result, tables(result), "python -m benchmarks.latency")


# Measuring ------------------------------------------------------------------------------------------------------------


def measure() -> dict[str, Any]:
    """Everything that the command reports, ready for JSON."""
    latency, devices = [], []
    with circumstances() as facts, tempfile.TemporaryDirectory() as folder:
        for backbone, size in (SCRATCH, TRUNK):
            snapshot = sample_snapshot(backbone, size)
            exports = Path(folder, f"{backbone}-{size}")
            exports.mkdir()
            publish(exports, snapshot)
            named = {"backbone": backbone, "size": size}
            latency += [{**named, **row} for row in _latencies(snapshot, exports)]
            first = [round(first_answer(exports), 3) for _ in range(STARTS)]
            devices.append({**named, "first_answer_seconds": first})
    facts["versions"]["onnx"] = onnx.__version__
    return {**facts, "latency": latency, "device": devices}


def sample_snapshot(backbone: str, size: int) -> Snapshot:
    """Ten digits after two steps: for timing a network as any other, with real images."""
    digits = load("digits")
    memory = MemoryConfig(samples=IMAGES, codec="raw" if backbone == SCRATCH[0] else LATENT)
    config = LearnerConfig.recommended(backbone, height=size, width=size, memory=memory)
    learner = Learner(config, "cpu")
    images = np.stack([prepare(image, (size, size)) for image in digits.train_images[:20]])
    for rows in (slice(0, 10), slice(10, 20)):
        learner.observe(images[rows], digits.train_labels[rows].tolist())
    names = {number: ClassLabel(number, f"digit {number}") for number in range(CLASSES)}
    return replace(snapshot_of_learner(learner, names), images=images[: images_wanted(size, size)])


def _latencies(snapshot: Snapshot, exports: Path) -> list[dict[str, Any]]:
    plain = (exports / "v000001" / "model.onnx").read_bytes()
    eight_bits = quantised(onnx.load_model_from_string(plain), snapshot.images).SerializeToString()
    rows = []
    image = parity_images(snapshot)[:1]
    for threads in THREADS:
        contestants: dict[str, Callable[[], Any]] = {
            "torch": partial(network_outputs, snapshot, image),
            "onnx": partial(RunningModel(plain, "onnx", threads), image),
            "int8": partial(RunningModel(eight_bits, "int8", threads), image),
        }
        with torch_threads(threads):
            times = in_turns(contestants, ROUNDS, CALLS)
        usual = {name: np.median(each, axis=1) for name, each in times.items()}
        rows.append(
            {
                "threads": threads,
                "ms": {name: quartiles(each * 1e3) for name, each in usual.items()},
                "times_as_fast_as_torch": {
                    name: quartiles(usual["torch"] / usual[name]) for name in CONTESTANTS[1:]
                },
            }
        )
    return rows


def first_answer(exports: Path) -> float:
    """From the start of the runtime's command to its first line, of a picture in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        cv2.imwrite(str(Path(folder, "one.png")), np.zeros((480, 640, 3), np.uint8))
        arguments = ["--models", str(exports.resolve()), "--source", folder]
        command = [sys.executable, "-m", "export.runtime", *arguments]
        begun = time.monotonic()
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as runtime:
            line = runtime.stdout.readline() if runtime.stdout else b""
            took = time.monotonic() - begun
    if not line.startswith(b'{"frame"'):
        raise RuntimeError("the runtime gave no answer")
    return took


# Tables ---------------------------------------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> list[str]:
    header = ["network, threads", *(f"{name} ms" for name in CONTESTANTS), "onnx/torch", "int8/torch"]
    models = [
        [
            f"{_network(row)}, {row['threads']}",
            *(f"{row['ms'][name]['median']:.2f}" for name in CONTESTANTS),
            *(f"{ratio['median']:.2f}" for ratio in row["times_as_fast_as_torch"].values()),
        ]
        for row in result["latency"]
    ]
    devices = [[_network(row), f"{np.median(row['first_answer_seconds']):.2f}"] for row in result["device"]]
    return [
        f"{ROUNDS} rounds of {CALLS} calls, one picture each; medians on the wall's clock.",
        markdown(header, models, left=1),
        markdown(["device", "first answer s"], devices, left=1),
    ]


def _network(row: dict[str, Any]) -> str:
    return f"{row['backbone']} at {row['size']} pixels"


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.latency"))
