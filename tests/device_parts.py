"""What the tests of the device share: tiny real ONNX models with everything that a published one carries."""

import base64
import contextlib
import hashlib
import json
import subprocess
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from process_parts import ROOT, Answer, send, started

from export.device.manifest import Latest
from export.device.model import Classifier

SIZE = 16
LOAD = partial(Classifier.load, providers="cpu", threads=1)
# The mean colour of a frame is its feature, and a class is a colour: what the model must say of a frame is plain.
COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "white": (1, 1, 1)}
NAMES = tuple(COLOURS)


def frame_of(name: str, height: int = 48, width: int = 64) -> np.ndarray:
    """Of one of the colours; any other name is black."""
    return np.full((height, width, 3), [200 * part for part in COLOURS.get(name, (0, 0, 0))], np.uint8)


def tiny_model(version: int = 1, scale: float = 0.2) -> ModelProto:
    """uint8 image -> mean colour -> cosine to each class's colour -> softmax; a negative `scale` turns answers round.

    Of format 1: it leaves the similarity to the device.
    """
    colours = np.array([*COLOURS.values()], np.float32)
    proxies = colours / np.linalg.norm(colours, axis=1, keepdims=True)
    nodes = [
        helper.make_node("Cast", ["image"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers", "axes"], ["feature"], keepdims=0),
        helper.make_node("MatMul", ["feature", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", SIZE, SIZE, 3])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", len(NAMES)]),
            helper.make_tensor_value_info("feature", TensorProto.FLOAT, ["N", 3]),
        ],
        [
            numpy_helper.from_array(proxies.T * scale, "weights"),
            numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    kept = base64.b64encode(proxies.astype("<f2").tobytes()).decode()
    helper.set_model_props(model, {"version": str(version), "proxies": kept})
    return model


def manifest_of(data: bytes, version: int = 1) -> dict[str, Any]:
    return {
        "format": 1,
        "version": version,
        "created": "2026-11-16T06:00:00Z",
        "step": 100 * version,
        "file": "model.onnx",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "image": {"height": SIZE, "width": SIZE, "resize": "centre-square-area"},
        "classes": [
            {"id": 10 + place, "name": name, "colour": "#1f77b4"} for place, name in enumerate(NAMES)
        ],
        "unknown_below": 0.5,
        "feature_size": 3,
        "accuracy": {"held_out": 0.9, "samples": 48},
        "variants": {"int8": {"kept": False, "reason": "0.9 times as fast as the plain model"}},
        "versions": {"edge_hpcr": "0.1.0"},
    }


def publish(
    exports: Path, version: int, data: bytes | None = None, manifest: dict[str, Any] | None = None
) -> Path:
    """Write a version as the trainer does and name it in latest.json."""
    data = tiny_model(version).SerializeToString() if data is None else data
    facts = manifest_of(data, version) if manifest is None else manifest
    exports.mkdir(exist_ok=True)
    folder = exports / f"v{version:06d}"
    writing = exports / f".writing-{version}"
    writing.mkdir()
    (writing / "model.onnx").write_bytes(data)
    text = json.dumps(facts).encode()
    (writing / "manifest.json").write_bytes(text)
    writing.rename(folder)
    point_at(exports, version, text)
    return folder


def point_at(exports: Path, version: int, manifest: bytes) -> None:
    latest = Latest(version, f"v{version:06d}", hashlib.sha256(manifest).hexdigest())
    (exports / ".latest").write_bytes(latest.to_bytes())
    (exports / ".latest").replace(exports / "latest.json")


# A device as a process -----------------------------------------------------------------------------------------------

# Named, so that no test leaves a name in the cache of whoever runs it.
USUAL = ("--cpu", "--threads", "1", "--device-id", "test")


def png(name: str) -> bytes:
    return cv2.imencode(".png", cv2.cvtColor(frame_of(name), cv2.COLOR_RGB2BGR))[1].tobytes()


def add(folder: Path, file: str, name: str) -> None:
    (folder / ".writing").write_bytes(png(name))
    (folder / ".writing").replace(folder / file)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "export.runtime", *USUAL, *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=60)


def running_device(*arguments: object) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return started(*command(*arguments)[1:])


# A server of files ----------------------------------------------------------------------------------------------------


def files_of(exports: Path) -> Answer:
    """What any static file server does, without ETag or ranges."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = exports / handler.path[1:]
        send(handler, path.read_bytes() if path.is_file() else b"", 200 if path.is_file() else 404)

    return answer
