"""An exported model is the network, describes itself in the oldest form that says it, and is nothing else."""

import json

import numpy as np
import onnx
import pytest
from export_parts import CALIBRATION, first, make_learner, snapshot_from
from onnx import TensorProto, helper, numpy_helper

from edge_hpcr.learner.calibration import Calibration
from export.publish import to_onnx
from export.publish.graph import RunningModel, check, in_lowest_opset, opset_of
from export.publish.publish import TEMPLATE as FOLDER
from export.publish.quantise import quantised
from export.publish.to_onnx import TEMPLATE, ParityFailed, export, finish, load_template

computes = pytest.mark.computes


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load_model(first().model)


def changed(model: onnx.ModelProto, name: str, change) -> onnx.ModelProto:
    """The model with other numbers in one of its weights."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    (tensor,) = (each for each in other.graph.initializer if each.name == name)
    array = change(numpy_helper.to_array(tensor).copy()).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return other


# The contract ---------------------------------------------------------------------------------------------------------


@computes
@pytest.mark.parametrize("count", [1, 64])
def test_scores_are_the_learners_calibrated_confidences_for_any_number_of_images(digits, count):
    images = digits.test_images[100 : 100 + count]
    found = RunningModel(first().model.read_bytes(), "model")(images)
    expected = first().learner.predict(images, averaged=True)
    assert found.scores.shape == (count, 10)
    assert np.abs(found.scores - CALIBRATION.confidences(expected.scores)).max() < 1e-4
    assert np.abs(found.similarity - expected.similarity).max() < 1e-4


@computes
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("temperature", lambda old: old * 1.01),  # the same answers, other confidences
        ("head.weight", lambda old: old[::-1]),  # classes in another order
        ("proxies", lambda old: old * 0.9),  # only the similarity
        ("backbone.stem.bias", lambda old: old + np.nan),
    ],
)
def test_a_model_that_differs_from_the_network_is_no_model(model, tmp_path, name, change):
    with pytest.raises(ParityFailed):
        finish(changed(model, name, change), first().snapshot, tmp_path / "model.onnx", version=1)
    assert not (tmp_path / "model.onnx").exists()


# New weights in a known graph -----------------------------------------------------------------------------------------


@computes
@pytest.mark.slow
def test_a_republished_model_answers_as_a_full_export_of_the_same_snapshot(tmp_path, digits):
    """Other weights, two classes more, another temperature, no threshold."""
    snapshot = snapshot_from(make_learner(classes=12, steps=12), 0, Calibration(temperature=0.8))
    full = export(snapshot, tmp_path / "full.onnx", version=7)
    fast = export(snapshot, tmp_path / "fast.onnx", version=7, templates=first().folder / FOLDER)
    assert full.traced and not fast.traced
    outputs = [
        RunningModel(each.model.SerializeToString(), "")(digits.test_images[:64]) for each in (full, fast)
    ]
    for ours, theirs in zip(*outputs, strict=True):
        assert ours.shape == theirs.shape and np.abs(ours - theirs).max() < 1e-5

    def facts(exported):
        return {each.key: each.value for each in exported.model.metadata_props if each.key != "created"}

    assert facts(full) == facts(fast)
    assert facts(fast)["unknown_below"] == "" and len(json.loads(facts(fast)["classes"])) == 12


def test_a_template_of_other_packages_or_cut_short_is_as_good_as_none(tmp_path, monkeypatch):
    data = (first().folder / FOLDER / TEMPLATE).read_bytes()
    assert len(data) < 100_000 < first().model.stat().st_size, "it holds no weights"
    assert load_template(first().folder / FOLDER, first().snapshot) is not None
    for contents in (data[: len(data) // 2], b""):
        (tmp_path / TEMPLATE).write_bytes(contents)
        assert load_template(tmp_path, first().snapshot) is None
    monkeypatch.setattr(to_onnx, "installed", lambda package: "0.0.1")
    assert load_template(first().folder / FOLDER, first().snapshot) is None


# Eight bits ---------------------------------------------------------------------------------------------------------


@computes
def test_convolutions_are_quantised_with_a_scale_for_each_channel_and_the_answers_stay(model):
    small = quantised(model, first().snapshot.images)
    assert [(each.domain, each.version) for each in small.opset_import] == [
        ("", 13)
    ] and small.ir_version == 7
    shapes = {each.name: list(each.dims) for each in small.graph.initializer}
    kinds = {each.name: each.data_type for each in small.graph.initializer}
    weights = [
        name for name, kind in kinds.items() if kind == TensorProto.INT8 and name.endswith("_quantized")
    ]
    assert len(weights) == sum(node.op_type == "Conv" for node in small.graph.node) == 20
    users = {node.input[0]: node for node in small.graph.node if node.op_type == "DequantizeLinear"}
    assert all(shapes[users[name].input[1]] == [shapes[name][0]] for name in weights)
    assert kinds["proxies"] == TensorProto.FLOAT, "the classifier stays as it is"
    images = first().snapshot.held_out.images
    plain, eight = (RunningModel(each.SerializeToString(), "")(images).scores for each in (model, small))
    assert (plain.argmax(1) == eight.argmax(1)).all() and np.abs(plain - eight).max() > 1e-4
    said, same = ({each.key: each.value for each in m.metadata_props} for m in (small, model))
    versions, plain_versions = json.loads(said.pop("versions")), json.loads(same.pop("versions"))
    assert said == same and versions == {**plain_versions, "opset": 13, "ir": 7}


# The form -------------------------------------------------------------------------------------------------------------

CONSTANTS = {
    "axes": np.array([1], np.int64),
    "shape": np.array([-1, 4], np.int64),
    "zero_shape": np.array([0, 4], np.int64),
    "scale": np.ones(4, np.float32),
}
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def graph_of(node: onnx.NodeProto) -> onnx.ModelProto:
    """From `x` float [N, 4] to `y`, in the opset in which torch traces."""
    made = helper.make_graph(
        [node],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(CONSTANTS[name], name) for name in node.input if name in CONSTANTS],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)  # of `y`
    model.graph.ClearField("value_info")
    return model


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("node", "opset", "ir"),
    [
        (helper.make_node("ReduceL2", ["x", "axes"], ["y"], keepdims=1, noop_with_empty_axes=0), 11, 6),
        (helper.make_node("Reshape", ["x", "shape"], ["y"], allowzero=1), 11, 6),
        (helper.make_node("Reshape", ["x", "zero_shape"], ["y"], allowzero=1), 14, 7),  # a zero means zero
        (helper.make_node("LayerNormalization", ["x", "scale"], ["y"]), 17, 8),
        (helper.make_node("ReduceMax", ["x", "axes"], ["y"], noop_with_empty_axes=1), 18, 8),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else str(value),
)
def test_a_graph_takes_the_lowest_opset_that_can_say_it(node, opset, ir):
    model = graph_of(node)
    written = in_lowest_opset(model)
    assert (opset_of(written), written.ir_version) == (opset, ir)
    check(written)
    if node.input[-1] != "zero_shape":
        assert np.array_equal(run(written, X), run(model, X))
