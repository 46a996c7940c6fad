"""A model in 8-bit integers, for CPUs that gain by them.

Of a trunk with linear layers (a transformer) those alone are in 8 bits, and their inputs' ranges are taken from each picture: with
ranges that some pictures have shown, little of its answers is left. Of others it is the convolutions.

It is kept only if it loses at most a point of held-out accuracy; otherwise the manifest says why there is none. Whether it
is faster depends on the device's processor, so that the device chooses (`--variant int8`). Behind the last convolution
everything stays float32: the classifier is a thousandth of the work and all of the answer.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.quant_utils import add_pre_process_metadata
from onnxruntime.quantization.shape_inference import quant_pre_process

from edge_hpcr.common.files import write_through
from export.device import BadModel
from export.publish.graph import (
    FEWEST_SAMPLES,
    IMAGE,
    LATENT,
    TwoParts,
    check,
    graph_versions,
    opset_of,
    with_lowest_ir,
)
from export.publish.snapshot import Snapshot
from export.publish.to_onnx import Exported, file_facts

LOWEST_OPSET = 13  # which brought a scale for each channel
MOST_LOSS = 0.01  # of held-out accuracy
# The first layers of a network with depthwise convolutions stay in float32, as far as this many of them: a few channels
# have most of the range there, and 8 bits for them are few for the others.
FLOAT_DEPTHWISE = 3
_BETWEEN = ("Add", "Relu", "Clip")  # layers that work in the bits of the convolutions around them
_CALIBRATION_BATCH = 16
# Without VNNI, an x86 processor adds two products in 16 bits: full 8-bit weights would overflow there.
_FORM: dict[str, Any] = {"per_channel": True, "reduce_range": True, "weight_type": QuantType.QInt8}


def make_int8(model: Path, exported: Exported, snapshot: Snapshot) -> dict[str, Any]:
    """Make `model.int8.onnx` beside the model; the manifest's entry, or why there is none."""
    samples = snapshot.held_out
    if len(samples) < FEWEST_SAMPLES:
        return none(
            f"{len(samples)} held-out samples: at least {FEWEST_SAMPLES} are needed to see what it loses"
        )
    path = model.with_name("model.int8.onnx")
    try:
        small = quantised(exported.model, snapshot.images)
        check(small)
        accuracy = TwoParts(small, str(path)).accuracy(samples, [each.id for each in snapshot.classes])
    except (BadModel, ValueError, RuntimeError) as error:
        # The quantiser's own failures have the last two types; without it the version is as good as before.
        return none(f"it could not be made: {error}")
    was, now = exported.accuracy or 0.0, accuracy or 0.0
    figures = {"accuracy": now, "plain": was, "samples": len(samples), **graph_versions(small)}
    if round(was - now, 9) > MOST_LOSS:  # exactly that much is allowed
        return figures | none(f"loses {was - now:.1%} of held-out accuracy, where {MOST_LOSS:.0%} is allowed")
    write_through(path, small.SerializeToString())
    return file_facts(path) | figures


def none(reason: str) -> dict[str, Any]:
    """The manifest's entry of a variant that was not kept."""
    return {"kept": False, "reason": " ".join(reason.split())}


class _Samples(CalibrationDataReader):
    def __init__(self, images: np.ndarray) -> None:
        parts = range(0, len(images), _CALIBRATION_BATCH)
        self._batches = iter([{IMAGE: images[start : start + _CALIBRATION_BATCH]} for start in parts])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantised(model: ModelProto, images: np.ndarray) -> ModelProto:
    """Linear layers dynamically; else convolutions as QDQ, with the ranges that the images show. A scale for each channel."""
    plain = ModelProto()
    plain.CopyFrom(model)
    if opset_of(plain) < LOWEST_OPSET:
        plain = version_converter.convert_version(plain, LOWEST_OPSET)
    said = {each.key: each.value for each in model.metadata_props}
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, "small.onnx")
        if linear := _linear_layers(plain.graph):
            add_pre_process_metadata(plain)  # else it is advised, through the root logger
            quantize_dynamic(plain, small, nodes_to_quantize=linear, **_FORM)
        elif _classifier_place(plain.graph):
            _quantise_convolutions(plain, images, small)
        else:
            return plain  # nothing in it is worth 8 bits
        eight_bits = onnx.load_model(small)
    eight_bits.graph.ClearField("value_info")
    with_lowest_ir(eight_bits)  # the quantiser chooses a version of its own
    if "versions" in said:
        said["versions"] = json.dumps({**json.loads(said["versions"]), **graph_versions(eight_bits)})
    helper.set_model_props(eight_bits, said)
    return eight_bits


def _quantise_convolutions(model: ModelProto, images: np.ndarray, small: Path) -> None:
    given, ready = small.with_name("given.onnx"), small.with_name("ready.onnx")
    onnx.save_model(model, given)
    # ONNX's own shape inference does for this graph; the symbolic one fails on a free N.
    quant_pre_process(given, ready, skip_symbolic_shape=True)
    prepared = onnx.load_model(ready)
    nodes = prepared.graph.node
    for place, node in enumerate(nodes):
        node.name = f"node {place}"
    left = [*nodes[: _early_place(prepared.graph)], *nodes[_classifier_place(prepared.graph) :]]
    quantize_static(
        prepared,
        small,
        _Samples(images),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv", *_BETWEEN],
        nodes_to_exclude=[node.name for node in left],
        activation_type=QuantType.QUInt8,
        **_FORM,
    )


def _linear_layers(graph: GraphProto) -> list[str]:
    """The names of the trunk's products with weights, all before its latents."""
    weights = {each.name for each in graph.initializer}
    end = next((place for place, node in enumerate(graph.node) if LATENT in node.output), 0)
    return [
        node.name
        for node in graph.node[:end]
        if node.op_type == "MatMul" and weights.intersection(node.input)
    ]


def _classifier_place(graph: GraphProto) -> int:
    """Where the classifier begins: behind the last convolution, and what belongs to it. 0 without convolutions."""
    place = max((place for place, node in enumerate(graph.node, 1) if node.op_type == "Conv"), default=0)
    while 0 < place < len(graph.node) and graph.node[place].op_type in _BETWEEN:
        place += 1
    return place


def _early_place(graph: GraphProto) -> int:
    """Where the layers end that stay as they are because they come first. 0 without enough depthwise convolutions."""
    places = [place for place, node in enumerate(graph.node, 1) if _is_depthwise(node)]
    return places[FLOAT_DEPTHWISE - 1] if len(places) >= FLOAT_DEPTHWISE else 0


def _is_depthwise(node: NodeProto) -> bool:
    return node.op_type == "Conv" and any(each.name == "group" and each.i > 1 for each in node.attribute)
