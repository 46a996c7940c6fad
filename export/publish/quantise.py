"""Smaller variants of a model: 8-bit integers for CPUs that gain by them, 16-bit floats for CUDA.

INT8 is kept only if it was measured to be faster on this machine and to lose at most a point of held-out accuracy;
otherwise the manifest says why there is none. Behind the last convolution everything stays float32: the classifier is a
thousandth of the work and all of the answer.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from edge_hpcr.common.files import flush_to_disk, sha256
from export.device.errors import BadModel
from export.publish.kept import keep, kept
from export.publish.policy import FEWEST_SAMPLES, falls_by_more
from export.publish.portable import LOWEST_INT8_OPSET, portable
from export.publish.running import IMAGE, RunningModel, TwoParts, joined, split
from export.publish.snapshot import Snapshot, parity_images
from export.publish.to_onnx import Exported, ParityFailed, check, file_facts, graph_versions, network_outputs

MOST_LOSS = 0.01  # of held-out accuracy
ROUNDS, CALLS, WARM_UP = 15, 4, 3
LONG_SECONDS = 0.01  # of one call
FP16_TOLERANCE = 0.05  # of a score
FP16_SAME = 0.95  # of the answers
TRUNK = "trunk.int8.onnx"
# The first layers of a network with depthwise convolutions stay in float32, as far as this many of them: a few channels
# have most of the range there, and 8 bits for them are few for the others.
FLOAT_DEPTHWISE = 3
_BETWEEN = ("Add", "Relu", "Clip")  # layers that work in the bits of the convolutions around them
_CALIBRATION_BATCH = 16


def make_int8(
    model: Path, exported: Exported, snapshot: Snapshot, folder: Path | None = None
) -> dict[str, Any]:
    """Make `model.int8.onnx` beside the model; the manifest's entry, which may be the reason why there is none.

    What is the same in every version is kept in `folder`.
    """
    samples = snapshot.held_out
    if len(samples) < FEWEST_SAMPLES:
        return none(
            f"{len(samples)} held-out samples: at least {FEWEST_SAMPLES} are needed to see what it loses"
        )
    path = model.with_name("model.int8.onnx")
    try:
        eight_bits = quantised(exported.model, snapshot.images, folder)
        check(eight_bits)
        path.write_bytes(eight_bits.SerializeToString())
        plain, small = (RunningModel(each.read_bytes(), str(each)) for each in (model, path))
        accuracy = TwoParts(eight_bits, str(path)).accuracy(samples, [each.id for each in snapshot.classes])
    except (BadModel, ParityFailed, ValueError, RuntimeError) as error:
        # The quantiser's own failures have these two types; without it the version is as good as before.
        path.unlink(missing_ok=True)
        return none(f"it could not be made: {error}")
    before, now = exported.accuracy.held_out or 0.0, accuracy.held_out or 0.0
    loses = falls_by_more(before, now, MOST_LOSS)
    speedup = measured_speedup(plain, small, snapshot.images[:1])
    figures = {
        "accuracy": accuracy.held_out,
        "samples": accuracy.samples,
        "speedup": round(speedup, 3),
        **graph_versions(eight_bits),
    }
    if loses or speedup <= 1:
        path.unlink()
        lost = f"loses {before - now:.1%} of held-out accuracy, where {MOST_LOSS:.0%} is allowed"
        slow = f"{speedup:.2f} times as fast as the plain model here"
        return none(lost if loses else slow) | figures
    flush_to_disk(path)
    return file_facts(path) | figures


def make_fp16(
    model: Path, exported: Exported, snapshot: Snapshot, folder: Path | None = None
) -> dict[str, Any]:
    """Make `model.fp16.onnx` beside the model; its speed shows only on the GPU that it is for."""
    path = model.with_name("model.fp16.onnx")
    try:
        half = to_float16(exported.model)
        check(half)
        path.write_bytes(half.SerializeToString())
        runs = TwoParts(half, str(path))
        images = parity_images(snapshot)
        scores, expected = runs(images).scores, network_outputs(snapshot, images).scores
        accuracy = runs.accuracy(snapshot.held_out, [each.id for each in snapshot.classes])
    except (BadModel, ParityFailed) as error:
        path.unlink(missing_ok=True)
        return none(f"it could not be made: {error}")
    difference = float(np.abs(scores - expected).max())
    same = float((scores.argmax(1) == expected.argmax(1)).mean())
    # The other way round, NaN would pass.
    if not (difference <= FP16_TOLERANCE and same >= FP16_SAME):
        path.unlink()
        return none(f"scores differ by up to {difference:.1e}, and {same:.0%} of the answers are the same")
    flush_to_disk(path)
    figures = {"accuracy": accuracy.held_out, "samples": accuracy.samples, "max_score_difference": difference}
    return file_facts(path) | figures | {"for": "cuda"} | graph_versions(half)


MAKERS: dict[str, Callable[[Path, Exported, Snapshot, Path], dict[str, Any]]] = {
    "int8": make_int8,
    "fp16": make_fp16,
}


def none(reason: str) -> dict[str, Any]:
    """The manifest's entry of a variant that was not kept."""
    return {"kept": False, "reason": " ".join(reason.split())}


# Eight bits -----------------------------------------------------------------------------------------------------------


class _Samples(CalibrationDataReader):
    def __init__(self, name: str, inputs: np.ndarray) -> None:
        parts = range(0, len(inputs), _CALIBRATION_BATCH)
        self._batches = iter([{name: inputs[start : start + _CALIBRATION_BATCH]} for start in parts])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantised(model: ModelProto, images: np.ndarray, folder: Path | None = None) -> ModelProto:
    """Static, QDQ, a scale for each channel; ranges are those that the images show.

    A trunk is the same in every version: in 8 bits, it is kept in `folder`.
    """
    plain = portable(model, LOWEST_INT8_OPSET)
    trunk, rest = split(plain)
    if trunk is None:
        eight_bits = _quantised(plain, images)
    else:
        eight_bits = joined(
            _quantised_trunk(trunk, images, folder), _quantised(rest, TwoParts(plain, "model").inputs(images))
        )
    eight_bits = portable(eight_bits, LOWEST_INT8_OPSET)  # the quantiser chooses an IR version of its own
    said = {each.key: each.value for each in model.metadata_props}
    if "versions" in said:
        said["versions"] = json.dumps({**json.loads(said["versions"]), **graph_versions(eight_bits)})
    helper.set_model_props(eight_bits, said)
    return eight_bits


def _quantised_trunk(trunk: ModelProto, images: np.ndarray, folder: Path | None) -> ModelProto:
    facts = {
        "trunk": sha256(trunk.SerializeToString()),
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "float_depthwise": FLOAT_DEPTHWISE,
    }
    small = kept(folder / TRUNK, facts) if folder else None
    if small is None:
        small = _quantised(trunk, images)
        if folder:
            keep(folder / TRUNK, small, facts)
    return small


def _quantised(model: ModelProto, inputs: np.ndarray) -> ModelProto:
    if not _classifier_place(model.graph):
        return model  # nothing in it is worth 8 bits
    with tempfile.TemporaryDirectory() as folder, _quiet():
        plain, ready, small = (str(Path(folder, f"{name}.onnx")) for name in ("plain", "ready", "small"))
        onnx.save_model(model, plain)
        # ONNX's own shape inference does for this graph; the symbolic one fails on a free N.
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        prepared = onnx.load_model(ready)
        for place, node in enumerate(prepared.graph.node):
            node.name = f"node {place}"
        nodes = prepared.graph.node
        left = [*nodes[: _early_place(prepared.graph)], *nodes[_classifier_place(prepared.graph) :]]
        quantize_static(
            prepared,
            small,
            _Samples(model.graph.input[0].name, inputs),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", *_BETWEEN],
            nodes_to_exclude=[node.name for node in left],
            per_channel=True,
            # Without VNNI, an x86 processor adds two products in 16 bits: full 8-bit weights would overflow there.
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        eight_bits = onnx.load_model(small)
    eight_bits.graph.ClearField("value_info")
    return eight_bits


def _classifier_place(graph: GraphProto) -> int:
    """Where the classifier begins: behind the last convolution, and what belongs to it. 0 without convolutions."""
    place = max((place for place, node in enumerate(graph.node, 1) if node.op_type == "Conv"), default=0)
    while 0 < place < len(graph.node) and graph.node[place].op_type in _BETWEEN:
        place += 1
    return place


def _early_place(graph: GraphProto) -> int:
    """Where the layers end that stay as they are because they come first. 0 without enough depthwise convolutions."""
    places = [place for place, node in enumerate(graph.node, 1) if _is_depthwise(node)]
    return (
        places[FLOAT_DEPTHWISE - 1] if graph.input[0].name == IMAGE and len(places) >= FLOAT_DEPTHWISE else 0
    )


def _is_depthwise(node: NodeProto) -> bool:
    return node.op_type == "Conv" and any(each.name == "group" and each.i > 1 for each in node.attribute)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantiser, which logs advice through the root logger."""

    def drop(record: logging.LogRecord) -> bool:
        return "onnxruntime" not in record.pathname

    root = logging.getLogger()
    handler = (
        logging.NullHandler()
    )  # without one, the first record would set up logging for the whole process
    root.addHandler(handler)
    root.addFilter(drop)
    try:
        yield
    finally:
        root.removeFilter(drop)
        root.removeHandler(handler)


def measured_speedup(plain: RunningModel, small: RunningModel, image: np.ndarray) -> float:
    """Batch 1 on one thread, in turns, so that other work on the machine hits both alike; the median round."""
    for _ in range(WARM_UP):
        plain(image), small(image)
    long = _seconds(plain, image, 1) > LONG_SECONDS  # then it takes few calls to tell
    rounds, calls = (ROUNDS // 3, 1) if long else (ROUNDS, CALLS)
    ratios = [_seconds(plain, image, calls) / max(_seconds(small, image, calls), 1e-9) for _ in range(rounds)]
    return float(np.median(ratios))


def _seconds(model: RunningModel, image: np.ndarray, calls: int) -> float:
    """Of this thread's processor time, in which it does all the work: a busy machine does not count."""
    begun = time.thread_time()
    for _ in range(calls):
        model(image)
    return time.thread_time() - begun


# Sixteen bits ---------------------------------------------------------------------------------------------------------


def to_float16(model: ModelProto) -> ModelProto:
    """Convolutions in 16 bits; inputs, outputs and the classifier as they are.

    ONNX Runtime's own converter writes the same name twice when an output is used inside the graph too, as `feature` is.
    """
    half = ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    place = _classifier_place(graph)
    body, classifier = list(graph.node[:place]), list(graph.node[place:])
    used, wanted = ({name for node in part for name in node.input} for part in (body, classifier))
    for node in body:
        if node.op_type == "Cast":
            _halve_type(node)
    shared: set[str] = set()
    for tensor in list(graph.initializer):
        if tensor.name in used and tensor.data_type == TensorProto.FLOAT:
            if tensor.name in wanted:
                shared.add(tensor.name)
                graph.initializer.add().CopyFrom(tensor)
                graph.initializer[-1].name = f"{tensor.name}_float32"
            with np.errstate(over="ignore"):  # what does not fit is infinite, and shows in the answers
                array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    typed = onnx.shape_inference.infer_shapes(model).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*typed.value_info, *typed.output)}
    made = {name for node in body for name in node.output if kinds.get(name) == TensorProto.FLOAT}
    back = [
        helper.make_node("Cast", [name], [f"{name}_float32"], f"{name}_back", to=TensorProto.FLOAT)
        for name in sorted(made & wanted)
    ]
    for node in classifier:
        node.input[:] = [f"{name}_float32" if name in shared | made else name for name in node.input]
    for value in graph.value_info:
        if value.name in made:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    graph.ClearField("node")
    graph.node.extend([*body, *back, *classifier])
    return half


def _halve_type(cast: NodeProto) -> None:
    for attribute in cast.attribute:
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
