"""An exported model is the network, describes itself, and is nothing else."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from export_parts import (
    CALIBRATION,
    HELD_OUT,
    RIGHT,
    first,
    make_learner,
    snapshot_from,
    untrained_learner,
    with_proxies,
)

from edge_hpcr.live.predictor import to_answers
from export.device.model import Classifier
from export.publish import to_onnx
from export.publish.republish import load_template
from export.publish.running import RunningModel, TwoParts
from export.publish.to_onnx import (
    ParityFailed,
    compare,
    deployed,
    export_full,
    fill,
    finish,
    network_outputs,
)

pytestmark = pytest.mark.computes


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load_model(first().model)


def test_the_inputs_and_outputs_are_those_of_the_contract(model):
    def described(value: onnx.ValueInfoProto) -> tuple[str, int, list[str | int]]:
        kind = value.type.tensor_type
        return value.name, kind.elem_type, [dim.dim_param or dim.dim_value for dim in kind.shape.dim]

    assert [described(value) for value in model.graph.input] == [
        ("image", onnx.TensorProto.UINT8, ["N", 8, 8, 3])
    ]
    assert [described(value) for value in model.graph.output] == [
        ("scores", onnx.TensorProto.FLOAT, ["N", 10]),
        ("feature", onnx.TensorProto.FLOAT, ["N", first().snapshot.network.feature_size]),
        ("similarity", onnx.TensorProto.FLOAT, ["N"]),
    ]


def test_the_metadata_say_everything_and_nothing_of_the_exporter_is_left(model):
    facts = {each.key: each.value for each in model.metadata_props}
    wanted = "format version step created classes image unknown_below temperature accuracy feature_size edge_hpcr versions"
    assert sorted(facts) == sorted(wanted.split())
    versions = json.loads(facts["versions"])
    assert versions.keys() == {"edge_hpcr", "torch", "onnx", "opset", "ir"}
    assert (versions["opset"], versions["ir"]) == (model.opset_import[0].version, model.ir_version) == (11, 6)
    assert json.loads(facts["classes"])[3] == {
        "id": first().snapshot.classes[3].id,
        "name": first().snapshot.classes[3].name,
        "colour": "#1f77b4",
    }
    assert json.loads(facts["image"]) == {
        "height": 8, "width": 8, "colour": "RGB", "layout": "NHWC", "type": "uint8", "resize": "centre-square-area",
    }  # fmt: skip
    assert (facts["unknown_below"], facts["temperature"], facts["version"]) == ("0.4", "1.3", "1")
    assert b"pkg.torch" not in model.SerializeToString() and b"/work" not in model.SerializeToString()


@pytest.mark.parametrize("count", [1, 2, 64])
def test_scores_are_the_learners_calibrated_confidences_for_any_number_of_images(digits, count):
    images = digits.test_images[100 : 100 + count]
    found = RunningModel(first().model.read_bytes(), "model")(images)
    expected = first().learner.predict(images, averaged=True)
    assert found.scores.shape == (count, 10)
    assert np.abs(found.scores - CALIBRATION.confidences(expected.scores)).max() < 1e-4
    assert np.abs(found.similarity - expected.similarity).max() < 1e-4


def test_a_device_answers_as_the_learner_does_and_calls_the_same_images_unknown(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
    images = np.concatenate([first().snapshot.held_out.images, noise])
    predicted = first().learner.predict(images, averaged=True)
    near = np.sort(predicted.similarity)
    widest = np.argmax(near[1:] - near[:-1])  # a threshold that rounding moves no image across
    calibration = replace(CALIBRATION, unknown_below=float(near[widest : widest + 2].mean()))
    snapshot = replace(first().snapshot, unknown_below=calibration.unknown_below)
    template = load_template(first().folder / "template", snapshot)
    finish(fill(template, snapshot), snapshot, tmp_path / "model.onnx", version=1)
    results = Classifier.load(tmp_path / "model.onnx", "cpu", 1).predict(list(images))
    said = to_answers(predicted, calibration)
    assert [result.unknown for result in results] == [answer.unknown for answer in said]
    assert {result.unknown for result in results} == {True, False}
    clear = len(first().snapshot.held_out)  # noise may lie between two classes
    assert [r.top[0].id for r in results[:clear]] == [answer.best[0] for answer in said[:clear]]


def test_the_accuracy_is_that_of_the_exported_model_on_held_out_samples():
    samples = first().snapshot.held_out
    assert first().exported.accuracy.samples == len(samples) == HELD_OUT
    assert first().exported.accuracy.held_out == RIGHT / HELD_OUT


def test_parity_is_measured_on_images_of_the_memory():
    parity = first().exported.parity
    assert (parity.images, parity.same_answer) == (64, 64)
    assert 0 < parity.max_score_difference < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 100])
def test_one_class_and_a_hundred_are_classes_as_any_others(tmp_path, count):
    learner = make_learner(classes=count, steps=2)
    snapshot = snapshot_from(learner, samples=0)
    assert len(snapshot.classes) == count
    template = load_template(first().folder / "template", snapshot)
    finish(fill(template, snapshot), snapshot, tmp_path / "model.onnx", version=1)
    (result,) = Classifier.load(tmp_path / "model.onnx", "cpu", 1).predict([snapshot.images[0]], top=200)
    assert len(result.top) == count
    assert sum(label.confidence for label in result.top) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "classes"), [(84, 1), (128, 100)])  # maps of 11 pixels a side; four windows
def test_other_sizes_are_traced_checked_and_loaded_without_a_word(tmp_path, capfd, size, classes):
    learner = untrained_learner(size, classes)
    exported = export_full(snapshot_from(learner), tmp_path / "model.onnx")
    assert exported.parity.max_score_difference < 1e-4
    info = Classifier.load(tmp_path / "model.onnx", "cpu", 1).info
    assert (info.height, len(info.classes)) == (size, classes)
    assert info.feature_size == learner.network.feature_size
    assert capfd.readouterr() == ("", "")


def changed(name: str, change) -> onnx.ModelProto:
    """The first model with other numbers in one of its weights."""
    model = onnx.load_model(first().model)
    (tensor,) = (each for each in model.graph.initializer if each.name == name)
    array = change(onnx.numpy_helper.to_array(tensor).copy())
    tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("temperature", lambda old: old * 1.01),  # the same answers, other confidences
        ("head.weight", lambda old: old[::-1]),  # classes in another order
        ("proxies", lambda old: old * 0.9),  # only the similarity
        ("backbone.stem.bias", lambda old: old + np.nan),
        ("backbone.stages.7.conv2.bias", lambda old: old * 1.05),
    ],
)
def test_a_model_that_differs_from_the_network_is_no_model(tmp_path, name, change):
    with pytest.raises(ParityFailed, match="differs from the network"):
        finish(changed(name, change), first().snapshot, tmp_path / "model.onnx", version=1)
    assert not (tmp_path / "model.onnx").exists()


def test_what_is_no_number_counts_as_a_difference_without_end(tmp_path):
    model = changed("backbone.stem.bias", lambda old: old + np.nan)
    with pytest.raises(ParityFailed, match=r"scores by up to inf .* features by inf"):
        finish(model, first().snapshot, tmp_path / "model.onnx", version=1)


def test_a_model_that_scales_features_but_not_scores_is_found_too():
    """Scores rest on directions alone."""

    model = onnx.load_model(first().model)
    for node in model.graph.node:
        node.output[:] = ["before" if name == "feature" else name for name in node.output]
        node.input[:] = ["before" if name == "feature" else name for name in node.input]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.1, np.float32), "more"))
    model.graph.node.append(onnx.helper.make_node("Mul", ["before", "more"], ["feature"]))
    with pytest.raises(ParityFailed, match=r"features by \d"):
        compare(TwoParts(model, "model"), first().snapshot)


def test_an_invalid_graph_is_refused_by_onnx_own_checker(tmp_path):
    model = onnx.load_model(first().model)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 11
    with pytest.raises(ParityFailed, match="no valid ONNX model"):
        finish(model, first().snapshot, tmp_path / "model.onnx", version=1)


def test_of_two_classes_that_are_equally_near_either_is_the_same_answer(tmp_path):
    snapshot = first().snapshot
    twins = snapshot.network.proxies.clone()
    twins[1] = twins[0]
    snapshot = with_proxies(snapshot, twins)
    template = load_template(first().folder / "template", snapshot)
    exported = finish(fill(template, snapshot), snapshot, tmp_path / "model.onnx", version=1)
    assert exported.parity.same_answer == exported.parity.images > 0


def test_the_deployed_module_is_the_network_and_leaves_it_as_it_was():
    snapshot = replace(first().snapshot)
    images = snapshot.images[:8]
    before = network_outputs(snapshot, images)
    with torch.no_grad():
        scores, features, similarity = deployed(snapshot)(torch.from_numpy(images))
    assert np.abs(scores.numpy() - before.scores).max() < 1e-5
    assert np.abs(features.numpy() - before.features).max() < 1e-4
    assert np.abs(similarity.numpy() - before.similarity).max() < 1e-5
    assert (network_outputs(snapshot, images).scores == before.scores).all()


def test_a_wrong_count_of_pythons_is_tried_again_and_other_errors_are_not(monkeypatch):
    """As CPython 3.11 raises it while another thread parses; it cannot be brought about at will."""
    said: list[str] = []

    def fail(*arguments):
        said.append("tried")
        raise SystemError(
            "AST constructor recursion depth mismatch (before=45, after=93)" if len(said) < 9 else "other"
        )

    monkeypatch.setattr(to_onnx, "_trace_once", fail)
    with pytest.raises(SystemError, match="mismatch"):
        to_onnx.trace(first().snapshot)
    assert len(said) == to_onnx.TRACE_ATTEMPTS
    said[:] = ["tried"] * 8
    with pytest.raises(SystemError, match="other"):
        to_onnx.trace(first().snapshot)
    assert len(said) == 9
