"""What the tests of the device share: tiny real ONNX models with everything that a published one carries."""

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from export.device.manifest import Latest

SIZE = 16
# The mean colour of a frame is its feature, and a class is a colour: what the model must say of a frame is plain.
COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "white": (1, 1, 1)}
NAMES = tuple(COLOURS)


def frame_of(name: str, height: int = 48, width: int = 64) -> np.ndarray:
    """Of one of the colours; any other name is black."""
    return np.full((height, width, 3), [200 * part for part in COLOURS.get(name, (0, 0, 0))], np.uint8)


def classes_of(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"id": 10 + place, "name": name, "colour": "#1f77b4"} for place, name in enumerate(names)]


def metadata_of(version: int = 1, names: tuple[str, ...] = NAMES, size: int = SIZE) -> dict[str, str]:
    return {
        "format": "1",
        "version": str(version),
        "step": str(100 * version),
        "classes": json.dumps(classes_of(names)),
        "image": json.dumps({"height": size, "width": size, "resize": "centre-square-area"}),
        "unknown_below": "0.5",
        "temperature": "1.5",
        "accuracy": json.dumps({"held_out": 0.9, "samples": 48}),
        "feature_size": "3",
        "created": "2026-11-16T06:00:00Z",
        "edge_hpcr": "0.1.0",
        "proxies": base64.b64encode(_proxies(names).astype("<f2").tobytes()).decode(),
    }


def _proxies(names: tuple[str, ...]) -> np.ndarray:
    colours = np.array([COLOURS.get(name, (1, 2, 3)) for name in names], np.float32)
    return colours / np.linalg.norm(colours, axis=1, keepdims=True)


def tiny_model(
    version: int = 1,
    names: tuple[str, ...] = NAMES,
    size: int = SIZE,
    metadata: dict[str, str] | None = None,
    scale: float = 0.2,
) -> ModelProto:
    """uint8 image -> mean colour -> cosine to each class's colour -> softmax; a negative `scale` turns answers round."""
    nodes = [
        helper.make_node("Cast", ["image"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers", "axes"], ["feature"], keepdims=0),
        helper.make_node("MatMul", ["feature", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    weights = (_proxies(names).T * scale).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", size, size, 3])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", len(names)]),
            helper.make_tensor_value_info("feature", TensorProto.FLOAT, ["N", 3]),
        ],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, metadata_of(version, names, size) if metadata is None else metadata)
    return model


def manifest_of(
    data: bytes, version: int = 1, names: tuple[str, ...] = NAMES, size: int = SIZE
) -> dict[str, Any]:
    return {
        "format": 1,
        "version": version,
        "created": "2026-11-16T06:00:00Z",
        "step": 100 * version,
        "file": "model.onnx",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "image": {"height": size, "width": size, "resize": "centre-square-area"},
        "classes": classes_of(names),
        "unknown_below": 0.5,
        "temperature": 1.5,
        "feature_size": 3,
        "accuracy": {"held_out": 0.9, "samples": 48},
        "parity": {
            "images": 64,
            "max_score_difference": 1e-7,
            "max_feature_difference": 1e-6,
            "same_answer": 64,
        },
        "variants": {"int8": {"kept": False, "reason": "0.9 times as fast as the plain model"}},
        "versions": {"edge_hpcr": "0.1.0"},
    }


def publish(
    exports: Path,
    version: int,
    data: bytes | None = None,
    manifest: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write a version as the trainer does and name it in latest.json; keywords as of `tiny_model`."""
    data = tiny_model(version, **options).SerializeToString() if data is None else data
    names, size = options.get("names", NAMES), options.get("size", SIZE)
    facts = manifest_of(data, version, names, size) if manifest is None else manifest
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


MANY_SWAPS = """
import json, sys, threading
from pathlib import Path
import numpy as np, psutil
from export.device.hot_swap import HotSwap
from export.device.model_source import Loading, LocalModels

exports, swaps = Path(sys.argv[1]), int(sys.argv[2])
texts = [(exports / f"latest{n}").read_bytes() for n in (1, 2)]
swap = HotSwap(LocalModels(exports), Loading("cpu", 1), lambda text: None)
swap.first()
frame = np.zeros((480, 640, 3), np.uint8)
stop = threading.Event()

def classify():
    while not stop.wait(0.005):
        classifier = swap.classifier
        images = classifier.prepare([frame])
        classifier.predict_prepared(images)
        swap.remember(images[0])

thread = threading.Thread(target=classify)
thread.start()
resident = []
for number in range(20 + swaps):
    (exports / "next").write_bytes(texts[1 - number % 2])
    (exports / "next").replace(exports / "latest.json")
    assert swap.look()
    resident.append(psutil.Process().memory_info().rss)
stop.set()
thread.join()
print(json.dumps({"swaps": swap.swaps, "before": resident[19], "after": resident[-1]}))
"""


def many_swaps(exports: Path, swaps: int) -> dict[str, int]:
    """Swaps between a first and a second version while frames are classified; resident bytes after 20 and at the end."""
    publish(exports, 2)
    (exports / "latest2").write_bytes((exports / "latest.json").read_bytes())
    point_at(exports, 1, (exports / "v000001" / "manifest.json").read_bytes())
    (exports / "latest1").write_bytes((exports / "latest.json").read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", MANY_SWAPS, str(exports), str(swaps)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, int] = json.loads(done.stdout)
    return facts
