"""ONNX graphs: in the oldest form that says the same, cut in two, and run.

torch traces in opset 18. What that opset writes in a new way, most of all the axes of a reduction as an input instead of an
attribute, is written in the old way again; then the lowest opset is taken whose rules ONNX's own checker finds kept, and
the lowest IR version that has this opset. Whether the answers stayed the same is not decided here: `to_onnx.finish`
compares every model with its network. (ONNX's own version converter knows no way down from opset 14.)

A model with a trunk is run in two parts. An image's latents do not change while learning goes on: they are kept, so that
testing a new version on the same images costs what its trainable part costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, helper, numpy_helper
from onnx.utils import Extractor

from edge_hpcr.common.files import sha256
from export.device import BadModel
from export.device.model import Session, one_line
from export.publish.snapshot import HeldOutSamples

IMAGE, LATENT = "image", "latent"
# The value behind the cast, float RGB from 0 to 1, [N, 3, H, W]: a tool that takes no uint8 can be given the graph from
# there on.
PIXELS = "pixels"
LOWEST_OPSET = 11  # from which on `Clip` takes its limits as inputs
FORM = 5  # of the graphs that are made here; a graph that was kept in another form is traced again
# The same words meant something else before, but in two dimensions, which the scores have.
_CHANGED_IN_13 = ("Softmax", "LogSoftmax", "Hardmax")
_BATCH = 16
FEWEST_SAMPLES = 20  # held out: an accuracy on fewer is a guess, and nothing is refused for a guess
MOST_KEPT_BYTES = 64_000_000  # of latents, in a process
_KEPT: dict[tuple[str, str], np.ndarray] = {}  # latents, by the SHA-256 of the trunk's graph and of the image


def check(model: ModelProto) -> None:
    """Everything that ONNX itself asks of a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise BadModel(f"no valid ONNX model: {one_line(error)}") from None


def read_model(data: bytes, where: str) -> ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except DecodeError as error:
        raise BadModel(f"{where}: no ONNX model: {one_line(error)}") from None


# Its form -------------------------------------------------------------------------------------------------------------


def opset_of(model: ModelProto) -> int:
    return next(each.version for each in model.opset_import if not each.domain)


def graph_versions(model: ModelProto) -> dict[str, int]:
    """What a runtime must be able to read."""
    return {"opset": opset_of(model), "ir": model.ir_version}


def in_lowest_opset(model: ModelProto) -> ModelProto:
    """The model in the lowest opset that can say it, and in the lowest IR version with that opset."""
    for opset in range(LOWEST_OPSET, opset_of(model)):
        if opset < 13 and any(
            node.op_type in _CHANGED_IN_13 and "scores" not in node.output for node in model.graph.node
        ):
            continue
        older = _written_in(model, opset)
        try:
            check(older)
        except BadModel:
            continue
        return older
    return _written_in(model, opset_of(model))


def with_lowest_ir(model: ModelProto) -> ModelProto:
    """Name the operator sets that it uses and no others, and the lowest IR version that has them."""
    used = {node.domain for node in model.graph.node} | {""}
    versions = {each.domain: each.version for each in model.opset_import if each.domain in used}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model.ClearField("opset_import")
    model.opset_import.extend(imports)
    model.ir_version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return model


def _written_in(model: ModelProto, opset: int) -> ModelProto:
    written = ModelProto()
    written.CopyFrom(model)
    next(each for each in written.opset_import if not each.domain).version = opset
    graph = written.graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    used_before = _used(graph)
    for node in graph.node:
        known = onnx.defs.get_schema(node.op_type, opset_of(model), node.domain).attributes
        try:
            older = onnx.defs.get_schema(node.op_type, opset, node.domain).attributes
        except onnx.defs.SchemaError:
            continue  # no such operator yet: the checker will say so
        if "axes" in older and "axes" not in known and len(node.input) == 2 and node.input[1] in constants:
            node.attribute.append(helper.make_attribute("axes", constants[node.input.pop()].tolist()))
        for attribute in [each for each in node.attribute if each.name not in older]:
            if _says_nothing_new(attribute, known, constants.get(node.input[-1])):
                node.attribute.remove(attribute)
    for each in [each for each in graph.initializer if each.name in used_before - _used(graph)]:
        graph.initializer.remove(each)  # runtimes warn of what nothing uses
    return with_lowest_ir(written)


def _used(graph: GraphProto) -> set[str]:
    return {name for node in graph.node for name in node.input}


def _says_nothing_new(attribute: AttributeProto, known: Mapping[str, Any], last: np.ndarray | None) -> bool:
    """Whether an attribute only says what an opset that does not know it does anyway."""
    if attribute.name == "allowzero" and last is not None and (last != 0).all():
        return True  # whether a zero in a shape means zero is no question where there is none
    default: Any = known[attribute.name].default_value if attribute.name in known else None
    return default is not None and helper.get_attribute_value(attribute) == helper.get_attribute_value(
        default
    )


# Running --------------------------------------------------------------------------------------------------------------


class Outputs(NamedTuple):
    scores: np.ndarray
    features: np.ndarray
    similarity: np.ndarray | None = None  # of versions that leave it to the device: None


class RunningModel:
    """A model in ONNX Runtime on the CPU."""

    def __init__(self, data: bytes, where: str, threads: int = 1) -> None:
        session = self._session = Session(data, where, "cpu", threads)
        (self._input,) = session.inputs
        self._outputs = [name for name in ("scores", "feature", "similarity") if name in session.outputs]

    def __call__(self, inputs: np.ndarray) -> Outputs:
        return Outputs(*self._session.run(self._outputs, {self._input: inputs}))


class TwoParts:
    """A model whose trunk, if it has one, sees an image once in the life of a process."""

    def __init__(self, model: ModelProto, where: str) -> None:
        self._where, self._trunk, rest = where, b"", model
        if any(LATENT in node.output for node in model.graph.node):
            whole = Extractor(onnx.shape_inference.infer_shapes(model))
            outputs = [value.name for value in model.graph.output]
            self._trunk = with_lowest_ir(whole.extract_model([IMAGE], [LATENT])).SerializeToString()
            rest = with_lowest_ir(whole.extract_model([LATENT], outputs))
        self._digest = sha256(self._trunk)
        self.rest = RunningModel(rest.SerializeToString(), where)

    @property
    def has_trunk(self) -> bool:
        return bool(self._trunk)

    def inputs(self, images: np.ndarray) -> np.ndarray:
        """What the part behind the trunk sees of images."""
        if not self.has_trunk:
            return images
        keys = [(self._digest, sha256(image.tobytes())) for image in images]
        if sum(row.nbytes for row in _KEPT.values()) > MOST_KEPT_BYTES:
            _KEPT.clear()
        if any(key not in _KEPT for key in keys):
            trunk = Session(self._trunk, self._where, "cpu", 1)
            for key, image in zip(keys, images, strict=True):
                if key not in _KEPT:
                    _KEPT[key] = trunk.run([LATENT], {IMAGE: image[None]})[0][0]
        return np.stack([_KEPT[key] for key in keys])

    def accuracy(self, samples: HeldOutSamples, class_ids: list[int]) -> float | None:
        """`class_ids` are those of the scores' columns; a sample of a class that is not among them counts as wrong.

        None without samples.
        """
        if not len(samples):
            return None
        inputs = self.inputs(samples.images)
        columns = [
            self.rest(inputs[start : start + _BATCH]).scores.argmax(1)
            for start in range(0, len(samples), _BATCH)
        ]
        answers = np.array(class_ids, dtype=np.int64)[np.concatenate(columns)]
        return float((answers == samples.class_ids).mean())
