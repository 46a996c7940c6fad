"""A model in ONNX Runtime, whole or in two parts: the frozen trunk, and what comes after it.

An image's latents do not change while learning goes on. They are kept, so that testing a new version on the same images
costs what its trainable part costs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto

from edge_hpcr.common.files import sha256
from export.device.errors import BadModel
from export.device.providers import RUNTIME_ERRORS, one_line, open_session
from export.publish.snapshot import HeldOutSamples

IMAGE, LATENT = "image", "latent"
MOST_KEPT_BYTES = 64_000_000  # of latents, in a process
_BATCH = 16
Key = tuple[str, str]  # SHA-256 of the trunk's graph and of the image


@dataclass(frozen=True)
class Accuracy:
    held_out: float | None  # None without samples
    samples: int


class Outputs(NamedTuple):
    scores: np.ndarray
    features: np.ndarray
    similarity: np.ndarray | None = None  # of versions that leave it to the device: None


def read_model(data: bytes, where: str) -> ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except DecodeError as error:
        raise BadModel(f"{where}: no ONNX model: {one_line(error)}") from None


class RunningModel:
    """A model in ONNX Runtime on the CPU."""

    def __init__(self, data: bytes, where: str, threads: int = 1) -> None:
        session = open_session(data, where, "cpu", threads)
        self._session, self._where = session.run, where
        (self._input,) = session.inputs
        self._outputs = [
            name for name in ("scores", "feature", "similarity", LATENT) if name in session.outputs
        ]

    def run(self, inputs: np.ndarray) -> list[np.ndarray]:
        try:
            return self._session.run(self._outputs, {self._input: inputs})
        except RUNTIME_ERRORS as error:
            raise BadModel(f"{self._where}: it does not run: {one_line(error)}") from None

    def __call__(self, inputs: np.ndarray) -> Outputs:
        return Outputs(*self.run(inputs))


class TwoParts:
    """A model whose trunk, if it has one, sees an image once in the life of a process."""

    def __init__(self, model: ModelProto, where: str) -> None:
        trunk, rest = split(model)
        self._where = where
        self._trunk = None if trunk is None else trunk.SerializeToString()
        self._digest = sha256(self._trunk or b"")
        self.rest = RunningModel(rest.SerializeToString(), where)

    @property
    def has_trunk(self) -> bool:
        return self._trunk is not None

    def inputs(self, images: np.ndarray) -> np.ndarray:
        """What the part behind the trunk sees of images."""
        if self._trunk is None:
            return images
        keys = [(self._digest, sha256(image.tobytes())) for image in images]
        rows = _KEPT.get(keys)
        missing = [place for place, key in enumerate(keys) if key not in rows]
        if missing:
            trunk = RunningModel(self._trunk, self._where)
            for start in range(0, len(missing), _BATCH):
                places = missing[start : start + _BATCH]
                latents = trunk.run(images[places])[0]
                rows |= {keys[place]: row for place, row in zip(places, latents, strict=True)}
            _KEPT.put(rows)
        return np.stack([rows[key] for key in keys])

    def __call__(self, images: np.ndarray) -> Outputs:
        return self.rest(self.inputs(images))

    def accuracy(self, samples: HeldOutSamples, class_ids: list[int]) -> Accuracy:
        """`class_ids` are those of the scores' columns; a sample of a class that is not among them counts as wrong."""
        if not len(samples):
            return Accuracy(None, 0)
        inputs = self.inputs(samples.images)
        columns = [
            self.rest(inputs[start : start + _BATCH]).scores.argmax(1)
            for start in range(0, len(samples), _BATCH)
        ]
        answers = np.array(class_ids, dtype=np.int64)[np.concatenate(columns)]
        return Accuracy(float((answers == samples.class_ids).mean()), len(samples))


class _Latents:
    """Latents by trunk and image; what was not asked for the longest goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[Key, np.ndarray] = OrderedDict()
        self._bytes = 0

    def get(self, keys: Iterable[Key]) -> dict[Key, np.ndarray]:
        """Those that are held."""
        with self._lock:
            held = [key for key in keys if key in self._held]
            for key in held:
                self._held.move_to_end(key)
            return {key: self._held[key] for key in held}

    def put(self, rows: dict[Key, np.ndarray]) -> None:
        with self._lock:
            for key, row in rows.items():
                if key not in self._held:
                    self._held[key] = row.copy()  # a row alone would keep its whole batch
                    self._bytes += row.nbytes
            while self._bytes > MOST_KEPT_BYTES:
                self._bytes -= self._held.popitem(last=False)[1].nbytes


_KEPT = _Latents()


def split(model: ModelProto) -> tuple[ModelProto | None, ModelProto]:
    """The trunk, from images to latents, and the rest; without a trunk, the model is all rest."""
    graph = model.graph
    end = next((place for place, node in enumerate(graph.node, 1) if LATENT in node.output), None)
    if end is None:
        return None, model
    (latent,) = (value for value in graph.value_info if value.name == LATENT)
    trunk, rest = ModelProto(), ModelProto()
    for part, nodes, inputs, outputs in (
        (trunk, graph.node[:end], graph.input, [latent]),
        (rest, graph.node[end:], [latent], graph.output),
    ):
        part.ir_version = model.ir_version
        part.opset_import.extend(model.opset_import)
        part.graph.name = graph.name
        part.graph.node.extend(nodes)
        part.graph.input.extend(inputs)
        part.graph.output.extend(outputs)
        used = {name for node in nodes for name in node.input}
        part.graph.initializer.extend(each for each in graph.initializer if each.name in used)
    return trunk, rest


def joined(trunk: ModelProto, rest: ModelProto) -> ModelProto:
    """The counterpart of `split`, for parts that were changed apart: of names that both use, the rest gets new ones."""
    model = ModelProto()
    model.CopyFrom(rest)
    taken = _names(trunk.graph) - {LATENT}
    new = {name: f"{name}_behind" for name in _names(rest.graph) & taken}
    for place, node in enumerate(model.graph.node):
        node.name = f"behind_{place}"
        for names in (node.input, node.output):
            names[:] = [new.get(name, name) for name in names]
    for tensor in model.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    nodes, initializers = list(model.graph.node), list(model.graph.initializer)
    for field in ("node", "initializer", "input", "value_info"):
        model.graph.ClearField(field)
    model.graph.node.extend([*trunk.graph.node, *nodes])
    model.graph.initializer.extend([*trunk.graph.initializer, *initializers])
    model.graph.input.extend(trunk.graph.input)
    model.graph.value_info.extend(trunk.graph.output)
    known = {each.domain for each in model.opset_import}
    model.opset_import.extend(each for each in trunk.opset_import if each.domain not in known)
    return model


def _names(graph: GraphProto) -> set[str]:
    """Of every value inside."""
    inner = {name for node in graph.node for name in node.output}
    return inner | {each.name for each in graph.initializer}
