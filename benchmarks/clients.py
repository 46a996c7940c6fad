"""`python -m benchmarks.clients`: an exported model in runtimes that others wrote; writes docs/clients.md from what it found."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from sklearn.datasets import load_sample_images
from typer import Option

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
from edge_hpcr.bench.datasets import load
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import write_atomically
from edge_hpcr.stream.resize import prepare
from export.publish.quantise import quantised
from export.publish.to_onnx import export_full, graph_versions

NETWORKS = {"from scratch, 32 pixels": (SCRATCH, 32), "the default, 224 pixels": (TRUNK, 224)}
PICTURES = 100
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
    out: Annotated[Path, Option(metavar="FILE", help="where to keep it")] = Path("results/clients.json"),
    page: Annotated[Path, Option(metavar="FILE", help="the page made from it")] = PAGE,
    only_page: Annotated[bool, Option("--only-page", help="make the page anew, measure nothing")] = False,
) -> None:
    """Give 100 pictures to every runtime that is here; agreement with ONNX Runtime, and milliseconds a picture."""
    check_writable(out)
    if only_page:
        try:
            result = json.loads(out.read_text())
        except (OSError, ValueError):
            raise UserError(f"{out} is no result of this command: run it without --only-page") from None
    else:
        result = measure()
        keep(out, result)
    text = page_of(result)
    write_atomically(page, text)
    print(f"{text}\nkept in {out} and {page}")


def measure() -> dict[str, Any]:
    with circumstances() as facts, tempfile.TemporaryDirectory() as folder:
        networks, asked = _networks(Path(folder))
        expected, rows = with_onnxruntime(asked), []
        for name, client in CLIENTS.items():
            print(f"{name} …", file=sys.stderr, flush=True)
            rows.append({"client": name, **_tried(client, asked, expected)})
    return {**facts, "busy": facts["load_average"]["start"][0] > BUSY, "networks": networks, "clients": rows}


def _networks(folder: Path) -> tuple[list[dict[str, Any]], list[Asked]]:
    networks, asked = [], []
    for name, (backbone, size) in NETWORKS.items():
        place = folder / backbone
        place.mkdir()
        snapshot = sample_snapshot(backbone, size)
        exported = export_full(snapshot, place / "model.onnx")
        images = pictures(size)
        asked.append(Asked(place / "model.onnx", images))
        # 8 bits belong to the page, too: what they change of the answers.
        (place / "int8").mkdir()
        small = place / "int8" / "model.onnx"
        small.write_bytes(quantised(exported.model, snapshot.images).SerializeToString())
        plain, eight = (with_onnxruntime([Asked(each, images)])[0] for each in (asked[-1].model, small))
        networks.append(
            {
                "name": name,
                "backbone": backbone,
                "size": size,
                "bytes": asked[-1].model.stat().st_size,
                "int8_bytes": small.stat().st_size,
                **graph_versions(exported.model),
                "int8": eight.compared(plain),
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
            name: found.compared(wanted)
            for name, found, wanted in zip(names, answers, expected, strict=True)
        }
    }


def _in_chromium(asked: Sequence[Asked]) -> list[Answers]:
    try:
        from browser_parts import chromium  # in tests/
    except ImportError:
        raise Absent("PYTHONPATH=tests and the packages of requirements-dev.txt are needed") from None
    with chromium() as browser:
        return with_browser(asked, browser)


# The page -------------------------------------------------------------------------------------------------------------


def page_of(result: dict[str, Any]) -> str:
    """docs/clients.md: the words beside this file, with the tables of a result."""
    busy = "The machine was busy with other work: the times say little, the agreement is what it is." * result["busy"]
    parts = {
        "CIRCUMSTANCES": "\n".join(filter(None, [described(result), busy])),
        "CLIENTS": _clients_table(result),
        "NETWORKS": _networks_table(result),
        "TOLERANCE": f"{SCORE_TOLERANCE:g}",
    }
    text = WORDS.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = text.replace(f"{{{name}}}", content)
    return text


def _clients_table(result: dict[str, Any]) -> str:
    header = ["client", "version", "network", "same answer", "scores within", "similarity within", "ms a picture"]
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
    header = ["network", "backbone", "opset", "IR", "bytes", "bytes in 8 bits", "8 bits: same answer", "8 bits: scores within"]
    rows = [
        [
            each["name"], each["backbone"], str(each["opset"]), str(each["ir"]),
            f"{each['bytes']:,}", f"{each['int8_bytes']:,}",
            f"{each['int8']['same_answer']} of {each['int8']['pictures']}",
            f"{each['int8']['max_score_difference']:.2f}",
        ]
        for each in result["networks"]
    ]  # fmt: skip
    return table(header, rows)


if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.clients"))
