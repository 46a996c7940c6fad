"""Smaller variants of a model: 8-bit integers for CPUs that gain by them, 16-bit floats for CUDA.

INT8 is kept only if it was measured to be faster on this machine and to lose at most a point of held-out accuracy;
otherwise the manifest says why there is none. From AveragePool on everything stays float32: the classifier is a
thousandth of the work and all of the answer.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from edge_hpcr.common.files import flush_to_disk
from export.device.errors import BadModel
from export.publish.policy import FEWEST_SAMPLES, falls_by_more
from export.publish.snapshot import Snapshot, parity_images
from export.publish.to_onnx import Exported, ParityFailed, RunningModel, check, file_facts, network_outputs

MOST_LOSS = 0.01  # of held-out accuracy
ROUNDS, CALLS, WARM_UP = 15, 4, 3
FP16_TOLERANCE = 0.05  # of a score
FP16_SAME = 0.95  # of the answers
_CALIBRATION_BATCH = 16


def make_int8(model: Path, exported: Exported, snapshot: Snapshot) -> dict[str, Any]:
    """Make `model.int8.onnx` beside the model; the manifest's entry, which may be the reason why there is none."""
    samples = snapshot.held_out
    if len(samples) < FEWEST_SAMPLES:
        return none(
            f"{len(samples)} held-out samples: at least {FEWEST_SAMPLES} are needed to see what it loses"
        )
    path = model.with_name("model.int8.onnx")
    try:
        eight_bits = quantised(exported.model, snapshot.images)
        check(eight_bits)
        path.write_bytes(eight_bits.SerializeToString())
        plain, small = (RunningModel(each.read_bytes(), str(each)) for each in (model, path))
        accuracy = small.accuracy(samples, [each.id for each in snapshot.classes])
    except (BadModel, ParityFailed, ValueError, RuntimeError) as error:
        # The quantiser's own failures have these two types; without it the version is as good as before.
        path.unlink(missing_ok=True)
        return none(f"it could not be made: {error}")
    before, now = exported.accuracy.held_out or 0.0, accuracy.held_out or 0.0
    loses = falls_by_more(before, now, MOST_LOSS)
    speedup = measured_speedup(plain, small, snapshot.images[:1])
    figures = {"accuracy": accuracy.held_out, "samples": accuracy.samples, "speedup": round(speedup, 3)}
    if loses or speedup <= 1:
        path.unlink()
        lost = f"loses {before - now:.1%} of held-out accuracy, where {MOST_LOSS:.0%} is allowed"
        slow = f"{speedup:.2f} times as fast as the plain model here"
        return none(lost if loses else slow) | figures
    flush_to_disk(path)
    return file_facts(path) | figures


def make_fp16(model: Path, exported: Exported, snapshot: Snapshot) -> dict[str, Any]:
    """Make `model.fp16.onnx` beside the model; its speed shows only on the GPU that it is for."""
    path = model.with_name("model.fp16.onnx")
    try:
        half = to_float16(exported.model)
        check(half)
        path.write_bytes(half.SerializeToString())
        runs = RunningModel(path.read_bytes(), str(path))
        images = parity_images(snapshot)
        scores, expected = runs(images)[0], network_outputs(snapshot, images)[0]
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
    return file_facts(path) | figures | {"for": "cuda"}


MAKERS: dict[str, Callable[[Path, Exported, Snapshot], dict[str, Any]]] = {
    "int8": make_int8,
    "fp16": make_fp16,
}


def none(reason: str) -> dict[str, Any]:
    """The manifest's entry of a variant that was not kept."""
    return {"kept": False, "reason": " ".join(reason.split())}


# Eight bits -----------------------------------------------------------------------------------------------------------


class _Images(CalibrationDataReader):
    def __init__(self, images: np.ndarray) -> None:
        parts = range(0, len(images), _CALIBRATION_BATCH)
        self._batches = iter([{"image": images[start : start + _CALIBRATION_BATCH]} for start in parts])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantised(model: ModelProto, images: np.ndarray) -> ModelProto:
    """Static, QDQ, a scale for each channel; ranges are those that the images show."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        plain, ready, small = (str(Path(folder, f"{name}.onnx")) for name in ("plain", "ready", "small"))
        onnx.save_model(model, plain)
        # ONNX's own shape inference does for this graph; the symbolic one fails on a free N.
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantize_static(
            ready,
            small,
            _Images(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Add", "Relu"],
            per_channel=True,
            # Without VNNI, an x86 processor adds two products in 16 bits: full 8-bit weights would overflow there.
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        eight_bits = onnx.load_model(small)
    eight_bits.graph.ClearField("value_info")
    helper.set_model_props(eight_bits, {each.key: each.value for each in model.metadata_props})
    return eight_bits


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
    ratios = [_seconds(plain, image) / max(_seconds(small, image), 1e-9) for _ in range(ROUNDS)]
    return float(np.median(ratios))


def _seconds(model: RunningModel, image: np.ndarray) -> float:
    """Of this thread's processor time, in which it does all the work: a busy machine does not count."""
    begun = time.thread_time()
    for _ in range(CALLS):
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
    place = next(index for index, node in enumerate(graph.node) if node.op_type == "AveragePool")
    body, classifier = list(graph.node[:place]), list(graph.node[place:])
    for node in body:
        if node.op_type == "Cast":
            _set_type(node, TensorProto.FLOAT16)
    used = {name for node in body for name in node.input} - {
        name for node in classifier for name in node.input
    }
    for tensor in graph.initializer:
        if tensor.name in used and tensor.data_type == TensorProto.FLOAT:
            with np.errstate(over="ignore"):  # what does not fit is infinite, and shows in the answers
                array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    inner = classifier[0].input[0]
    classifier[0].input[0] = f"{inner}_float32"
    back = helper.make_node("Cast", [inner], [f"{inner}_float32"], "back_to_float32", to=TensorProto.FLOAT)
    graph.ClearField("node")
    graph.node.extend([*body, back, *classifier])
    return half


def _set_type(cast: NodeProto, kind: int) -> None:
    for attribute in cast.attribute:
        if attribute.name == "to":
            attribute.i = kind
