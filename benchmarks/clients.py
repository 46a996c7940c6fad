"""`python -m benchmarks.clients`: an exported model in runtimes that others wrote; writes docs/clients.md from what it found."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from sklearn.datasets import load_sample_images
from typer import Argument, Option

from benchmarks.client_runs import (
    SCORE_TOLERANCE,
    Absent,
    Answers,
    Asked,
    with_browser,
    with_ncnn,
    with_node,
    with_old_onnxruntime,
    with_onnxruntime,
    with_opencv,
    with_openvino,
    with_tflite,
)
from benchmarks.latency import SCRATCH, TRUNK, sample_snapshot
from benchmarks.runner import check_writable, circumstances, described, keep, table
from edge_hpcr.bench.datasets import Dataset, load
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import write_atomically
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.stream.resize import RESIZE_STEPS, prepare
from export.device.manifest import ClassLabel
from export.publish.quantise import MOST_LOSS, quantised
from export.publish.running import TwoParts
from export.publish.snapshot import HeldOutSamples, Snapshot, images_wanted, snapshot_of_learner
from export.publish.to_onnx import export_full, graph_versions

NETWORKS = {"from scratch, 32 pixels": (SCRATCH, 32), "the default, 224 pixels": (TRUNK, 224)}
PICTURES = 100
LABELS, TESTS = 20, 2000  # per class, and in all
LOOKED_AT = 300  # test pictures on which it was chosen which layers stay in 32 bits: others are asked
BUSY = 1.5  # of the load average: more work than this measurement alone
PAGE = Path("docs/clients.md")
WORDS = Path(__file__).with_name("clients_page.md")

Client = Callable[[Sequence[Asked]], list[Answers]]
CLIENTS: dict[str, Client] = {
    "onnxruntime (Python)": with_onnxruntime,
    "onnxruntime 1.17 (Python)": with_old_onnxruntime,
    "onnxruntime-node": with_node,
    "onnxruntime-web, Chromium": lambda asked: _in_chromium(asked),
    "OpenCV DNN": with_opencv,
    "OpenCV DNN, the engine of OpenCV 4": lambda asked: with_opencv(asked, classic=True),
    "OpenVINO": with_openvino,
    "ncnn, converted by pnnx": with_ncnn,
    "LiteRT (TFLite), converted by onnx2tf": with_tflite,
}

commands = cli.new_commands()


@commands.command()
def clients(
    part: Annotated[str, Argument(help="clients, int8, page (measures nothing) or all")] = "all",
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/clients.json"),
    page: Annotated[Path, Option(metavar="FILE", help="the page made from it")] = PAGE,
    only: Annotated[str, Option(metavar="TEXT", help="of the clients, those with this in their name")] = "",
    data: Annotated[str, Option(metavar="NAME", help="the dataset on which 8 bits are measured")] = "digits",
) -> None:
    """Give 100 pictures to every runtime that is here; agreement with ONNX Runtime, and milliseconds a picture.

    `int8` measures what 8 bits lose of the accuracy on pictures that were never shown.
    """
    one_of("part", part, ("clients", "int8", "page", "all"))
    check_writable(out)
    try:
        result = dict(json.loads(out.read_text())) if out.exists() else {}
    except ValueError:
        raise UserError(f"{out} is no result of this command: move it away, or give another file") from None
    if part in ("clients", "all"):
        result |= measure(only, result.get("clients", []))
    if part in ("int8", "all"):
        result["int8"] = measure_int8(data)
    keep(out, result)
    if not {"clients", "int8"} <= result.keys():
        raise UserError(
            f"{out} lacks a part, and the page needs both: run `python -m benchmarks.clients all`"
        )
    text = page_of(result)
    write_atomically(page, text)
    print(f"{text}\nkept in {out} and {page}")


def measure_int8(data: str) -> dict[str, Any]:
    """Accuracy in 32 and in 8 bits, on the same test pictures, of networks that were taught a little."""
    dataset, rows = load(data), []
    for name, (backbone, size) in NETWORKS.items():
        print(f"8 bits, {name} …", file=sys.stderr, flush=True)
        snapshot = taught_snapshot(dataset, backbone, size)
        class_ids = [each.id for each in snapshot.classes]
        with tempfile.TemporaryDirectory() as folder:
            exported = export_full(snapshot, Path(folder, "model.onnx"))
        small = TwoParts(quantised(exported.model, snapshot.images), "8 bits")
        now = small.accuracy(snapshot.held_out, class_ids)
        rows.append(
            {"name": name, "samples": now.samples, "fp32": exported.accuracy.held_out, "int8": now.held_out}
        )
    return {"data": data, "labels_per_class": LABELS, "rows": rows, "most_loss": MOST_LOSS}


def taught_snapshot(dataset: Dataset, backbone: str, size: int) -> Snapshot:
    """Some labels of each class in a single pass, as from a camera; calibrated on pictures that it was taught with."""
    memory = MemoryConfig(samples=500, codec="raw" if backbone == SCRATCH else LATENT)
    learner = Learner(LearnerConfig.recommended(backbone, height=size, width=size, memory=memory), "cpu")
    classes = np.unique(dataset.train_labels)
    rows = np.concatenate([np.flatnonzero(dataset.train_labels == each)[:LABELS] for each in classes])
    rows = np.random.default_rng(0).permutation(rows)
    images = np.stack([prepare(image, (size, size)) for image in dataset.train_images[rows]])
    for start in range(0, len(rows), 10):
        part = slice(start, start + 10)
        learner.observe(images[part], dataset.train_labels[rows[part]].tolist())
    tests = np.random.default_rng(1).permutation(len(dataset.test_labels))[LOOKED_AT : LOOKED_AT + TESTS]
    seen = np.stack([prepare(image, (size, size)) for image in dataset.test_images[tests]])
    held_out = HeldOutSamples(seen, dataset.test_labels[tests].astype(np.int64))
    names = {int(number): ClassLabel(int(number), f"class {number}") for number in classes}
    snapshot = snapshot_of_learner(learner, names, held_out)
    return replace(snapshot, images=images[: images_wanted(size, size)])


def measure(only: str, before: list[dict[str, Any]]) -> dict[str, Any]:
    """The clients with `only` in their name; of the others, what was measured before."""
    known = {row["client"]: row for row in before}
    with circumstances() as facts, tempfile.TemporaryDirectory() as folder:
        networks, asked = _networks(Path(folder))
        expected, rows = with_onnxruntime(asked), []
        for name, client in CLIENTS.items():
            if only not in name:
                rows += [known[name]] if name in known else []
                continue
            print(f"{name} …", file=sys.stderr, flush=True)
            row = {"client": name, "measured": date.today().isoformat(), **_tried(client, asked, expected)}
            # What was measured once, where its package was, is worth more than that it is missing here.
            rows.append(known[name] if "absent" in row and "networks" in known.get(name, {}) else row)
    return {**facts, "busy": facts["load_average"]["start"][0] > BUSY, "networks": networks, "clients": rows}


def _networks(folder: Path) -> tuple[list[dict[str, Any]], list[Asked]]:
    networks, asked = [], []
    for name, (backbone, size) in NETWORKS.items():
        place = folder / backbone
        place.mkdir()
        snapshot = sample_snapshot(backbone, size)
        exported = export_full(snapshot, place / "model.onnx")
        asked.append(Asked(place / "model.onnx", pictures(size)))
        networks.append(
            {
                "name": name,
                "backbone": backbone,
                "size": size,
                "bytes": asked[-1].model.stat().st_size,
                **graph_versions(exported.model),
            }
        )
    return networks, asked


def pictures(size: int, count: int = PICTURES) -> np.ndarray:
    """Real pictures as a model of this size sees them: handwritten digits, and parts of two photographs."""
    rng = np.random.default_rng(0)
    found = [prepare(image, (size, size)) for image in load("digits").test_images[: count // 2]]
    photographs = load_sample_images().images
    while len(found) < count:
        photograph = photographs[len(found) % 2]
        side = int(rng.integers(100, min(photograph.shape[:2])))
        top, left = (int(rng.integers(0, length - side)) for length in photograph.shape[:2])
        found.append(prepare(photograph[top : top + side, left : left + side], (size, size)))
    return np.stack(found)


def _tried(client: Client, asked: Sequence[Asked], expected: list[Answers]) -> dict[str, Any]:
    try:
        answers = client(asked)
    except Absent as absent:
        return {"absent": str(absent)}
    names = list(NETWORKS)
    return {
        "networks": {
            name: found.compared(wanted) for name, found, wanted in zip(names, answers, expected, strict=True)
        }
    }


def _in_chromium(asked: Sequence[Asked]) -> list[Answers]:
    try:
        from browser_parts import chromium  # in tests/
    except ImportError:
        raise Absent("PYTHONPATH=tests and the packages of requirements-dev.txt are needed") from None
    with chromium(windows=True) as browser:
        return with_browser(asked, browser)


# The page -------------------------------------------------------------------------------------------------------------


def page_of(result: dict[str, Any]) -> str:
    """docs/clients.md: the words beside this file, with the tables of a result."""
    busy = (
        "The machine was busy with other work: the times say little, the agreement is what it is."
        * result["busy"]
    )
    parts = {
        "CIRCUMSTANCES": "\n".join(filter(None, [described(result), busy])),
        "CLIENTS": _clients_table(result),
        "NETWORKS": _networks_table(result),
        "INT8": _int8_table(result["int8"]),
        "INT8_DATA": f"{result['int8']['labels_per_class']} labels a class of `{result['int8']['data']}`",
        "TOLERANCE": f"{SCORE_TOLERANCE:g}",
        "STEPS": "\n".join(f"{number}. {step}" for number, step in enumerate(RESIZE_STEPS, 1)),
    }
    text = WORDS.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = text.replace(f"{{{name}}}", content)
    return text


def _clients_table(result: dict[str, Any]) -> str:
    header = [
        "client",
        "version",
        "network",
        "same answer",
        "scores within",
        "similarity within",
        "ms a picture",
    ]
    rows = []
    for row in result["clients"]:
        if "absent" in row:
            rows.append([row["client"], "–", f"not tried: {row['absent']}", "–", "–", "–", "–"])  # noqa: RUF001
        for name, found in row.get("networks", {}).items():
            same = f"{found['same_answer']} of {found['pictures']}"
            apart = (f"{found[key]:.1e}" for key in ("max_score_difference", "max_similarity_difference"))
            rows.append([row["client"], found["version"], name, same, *apart, f"{found['ms']:.2f}"])
    return table(header, rows)


def _networks_table(result: dict[str, Any]) -> str:
    rows = [
        [each["name"], each["backbone"], str(each["opset"]), str(each["ir"]), f"{each['bytes']:,}"]
        for each in result["networks"]
    ]
    return table(["network", "backbone", "opset", "IR", "bytes"], rows)


def _int8_table(int8: dict[str, Any]) -> str:
    header = ["network", "test pictures", "32 bits %", "8 bits %", "lost, points", "allowed"]
    rows = [
        [
            each["name"], f"{each['samples']:,}", f"{100 * each['fp32']:.1f}", f"{100 * each['int8']:.1f}",
            f"{100 * (each['fp32'] - each['int8']):.1f}", f"{100 * int8['most_loss']:.0f}",
        ]
        for each in int8["rows"]
    ]  # fmt: skip
    return table(header, rows)


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.clients"))
