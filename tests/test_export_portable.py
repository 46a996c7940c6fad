"""Graphs in the lowest opset that can say them, and what lies beside a model for other programs."""

import hashlib
import json
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from device_parts import manifest_of, tiny_model
from device_parts import publish as publish_old
from export_parts import first, with_template
from onnx import TensorProto, helper, numpy_helper

from edge_hpcr.stream.resize import RESIZE_STEPS, prepare
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.verify import verify_workspace
from export.device.errors import BadModel
from export.device.manifest import ClassLabel, Manifest, read_manifest
from export.device.model import Classifier
from export.publish.companions import model_card
from export.publish.portable import PIXELS, merge_pools, opset_of, portable
from export.publish.publish import publish
from export.publish.quantise import quantised, to_float16
from export.publish.serve import make_server
from export.publish.to_onnx import described, file_facts

CONSTANTS = {
    "axes": np.array([1], np.int64),
    "shape": np.array([-1, 4], np.int64),
    "zero_shape": np.array([0, 4], np.int64),
    "scale": np.ones(4, np.float32),
}


def graph_of(
    *nodes: onnx.NodeProto, sides: tuple[int, ...] = (4,), **constants: np.ndarray
) -> onnx.ModelProto:
    """From `x` float [N, ...] to `y`, in the opset in which torch traces."""
    constants = CONSTANTS | constants
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *sides])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)  # of `y`
    model.graph.ClearField("value_info")
    return model


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0])


X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("node", "opset", "ir"),
    [
        (helper.make_node("ReduceL2", ["x", "axes"], ["y"], keepdims=1, noop_with_empty_axes=0), 11, 6),
        (helper.make_node("ReduceSum", ["x", "axes"], ["y"]), 11, 6),
        (helper.make_node("Unsqueeze", ["x", "axes"], ["y"]), 11, 6),
        (helper.make_node("Reshape", ["x", "shape"], ["y"], allowzero=1), 11, 6),
        (
            helper.make_node("Reshape", ["x", "zero_shape"], ["y"], allowzero=1),
            14,
            7,
        ),  # where a zero means zero
        (helper.make_node("Softmax", ["x"], ["y"], axis=1), 13, 7),  # of which nobody knows the dimensions
        (helper.make_node("HardSwish", ["x"], ["y"]), 14, 7),
        (helper.make_node("LayerNormalization", ["x", "scale"], ["y"]), 17, 8),
        (helper.make_node("ReduceMax", ["x", "axes"], ["y"], noop_with_empty_axes=1), 18, 8),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else str(value),
)
def test_a_graph_takes_the_lowest_opset_that_can_say_it(node, opset, ir):
    model = graph_of(node)
    before = model.SerializeToString()
    written = portable(model)
    assert (opset_of(written), written.ir_version) == (opset, ir)
    onnx.checker.check_model(written, full_check=True)
    if node.input[-1] != "zero_shape":
        assert np.array_equal(run(written, X), run(model, X))
    assert model.SerializeToString() == before


def test_reductions_have_their_axes_where_an_opset_wants_them_both_ways():
    model = graph_of(helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0))
    old = portable(model)
    assert not old.graph.initializer and len(old.graph.node[0].input) == 1
    new = portable(old, lowest=13)
    assert opset_of(new) == 13 and len(new.graph.node[0].input) == 2
    assert np.array_equal(run(new, X), run(old, X))


def test_the_means_over_a_grid_become_one_product():
    rng = np.random.default_rng(1)
    rows, columns = (rng.random(sides).astype(np.float32) for sides in ((3, 5), (6, 2)))
    nodes = [
        helper.make_node("MatMul", ["rows", "x"], ["half"]),
        helper.make_node("MatMul", ["half", "columns"], ["grid"]),
        helper.make_node("Reshape", ["grid", "flat"], ["y"]),
    ]
    flat = np.array([-1, 4 * 6], np.int64)
    model = graph_of(*nodes, sides=(4, 5, 6), rows=rows, columns=columns, flat=flat)
    x = rng.normal(size=(2, 4, 5, 6)).astype(np.float32)
    before = run(model, x)
    merge_pools(model)
    assert [node.op_type for node in model.graph.node] == ["Reshape", "MatMul", "Reshape"]
    assert {each.name for each in model.graph.initializer} == {"flat", "half_grid", "half_sides"}
    onnx.checker.check_model(model, full_check=True)
    assert np.allclose(run(model, x), before, atol=1e-5)


def test_a_product_that_is_no_pooling_is_left_alone():
    model = graph_of(helper.make_node("MatMul", ["x", "x"], ["y"]), sides=(4, 4))
    before = model.SerializeToString()
    merge_pools(model)
    assert model.SerializeToString() == before


def test_every_variant_says_which_opset_it_needs(tmp_path):
    model = first().exported.model
    assert (opset_of(model), model.ir_version) == (11, 6)
    assert (opset_of(to_float16(model)), to_float16(model).ir_version) == (11, 6)
    small = quantised(model, first().snapshot.images[:16])
    assert [(each.domain, each.version) for each in small.opset_import] == [
        ("", 13)
    ] and small.ir_version == 7
    published = publish(with_template(tmp_path / "exports"), first().snapshot, variants=("fp16",))
    made = published.manifest.facts["variants"]["fp16"]
    assert (made["opset"], made["ir"]) == (11, 6)


def test_a_tool_that_takes_no_bytes_can_be_given_the_graph_behind_the_cast(tmp_path):
    """As docs/clients.md says it."""
    onnx.utils.extract_model(
        str(first().model), str(tmp_path / "float.onnx"), [PIXELS], ["scores", "feature", "similarity"]
    )
    cut = onnx.load_model(tmp_path / "float.onnx")
    assert not any(node.op_type == "Cast" for node in cut.graph.node)
    images = first().snapshot.images[:4]
    evaluated = Classifier.load(first().model, "cpu", 1).predict_prepared(images)
    pixels = images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    session = onnxruntime.InferenceSession(tmp_path / "float.onnx", providers=["CPUExecutionProvider"])
    scores = session.run(["scores"], {PIXELS: pixels})[0]
    assert [result.top[0].confidence for result in evaluated] == pytest.approx(
        scores.max(1).tolist(), abs=1e-5
    )


# Beside the model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """With one published version."""
    path = tmp_path_factory.mktemp("beside") / "workspace"
    with Workspace.open(path):
        pass
    names = [ClassLabel(each.id, f"größe | {each.id}") for each in first().snapshot.classes]
    snapshot = replace(first().snapshot, classes=tuple(names), labels={names[0].id: 1234})
    publish(with_template(path / "exports"), snapshot, variants=())
    return path


@pytest.fixture(scope="module")
def folder(workspace) -> Path:
    return workspace / "exports" / "v000001"


def test_the_manifest_has_all_that_a_client_needs(folder):
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["image"] == {
        "height": 8, "width": 8, "colour": "RGB", "layout": "NHWC", "type": "uint8", "resize": "centre-square-area",
    }  # fmt: skip
    assert facts["outputs"] == ["scores", "feature", "similarity"] and facts["unknown_below"] == 0.4
    assert facts["resize_steps"] == list(RESIZE_STEPS)
    assert [each["name"] for each in facts["classes"]] == (folder / "labels.txt").read_text().splitlines()
    assert set(facts["beside"]) == {"labels", "card", "golden", "golden_image", "golden_input"}
    for file in facts["beside"].values():
        data = (folder / file["file"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_the_golden_sample_has_the_answers_of_the_device(folder):
    golden = json.loads((folder / "golden.json").read_text())
    picture, seen = (cv2.imread(str(folder / golden[key]))[..., ::-1] for key in ("image", "input"))
    assert np.array_equal(prepare(picture, (8, 8)), seen)
    classifier = Classifier.load(folder, "cpu", 1)
    (result,) = classifier.predict([picture], top=10)
    scores = {label.id: label.confidence for label in result.top}
    assert golden["scores"] == pytest.approx([scores[each.id] for each in classifier.info.classes], abs=1e-5)
    assert golden["similarity"] == pytest.approx(result.similarity, abs=1e-5)
    assert (golden["unknown"], golden["best"]["id"]) == (result.unknown, result.top[0].id)


def test_the_model_card_says_what_it_is_and_on_what_that_rests(folder):
    card = (folder / "model-card.md").read_text()
    facts = json.loads((folder / "manifest.json").read_text())
    assert f"75 % (n={facts['accuracy']['samples']}" in card
    assert f"| {facts['bytes']} | `{facts['sha256']}` |" in card
    first_class = facts["classes"][0]
    assert f"| 0 | {first_class['id']} | größe \\| {first_class['id']} | 1,234 |" in card
    assert "| not known |" in card and "reduced_resnet18, learned with hpcr" in card
    assert "below 0.4 is *unknown*" in card and facts["created"].replace("T", " ") in card
    assert "opset 11, ir 6" in card


def test_a_card_without_threshold_and_with_many_classes_is_short():
    snapshot = replace(
        first().snapshot,
        unknown_below=None,
        classes=tuple(ClassLabel(number, str(number)) for number in range(1000)),
    )
    facts = described(snapshot, first().exported, 1) | file_facts(first().model)
    facts |= {
        "parity": vars(first().exported.parity),
        "variants": {"int8": {"kept": False, "reason": "too slow"}},
    }
    card = model_card(snapshot, facts)
    assert "and 800 more: see `labels.txt`" in card and len(card.splitlines()) < 260
    assert "Too few pictures were there to measure it on" in card
    assert "no threshold for *unknown* is known yet" in card and "No int8: too slow." in card


def test_a_server_hands_out_what_lies_beside_a_model_and_nothing_else(workspace, folder):
    (folder / "secret.txt").write_text("not in the manifest")
    server = make_server(workspace, "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/v000001"
        for file in read_manifest(folder).beside.values():
            with urllib.request.urlopen(f"{address}/{file.file}", timeout=20) as answer:
                assert answer.read() == (folder / file.file).read_bytes()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/secret.txt", timeout=20)
    finally:
        server.shutdown()
        server.server_close()
        (folder / "secret.txt").unlink()


def test_verify_finds_a_changed_file_beside_a_model(workspace, folder):
    assert verify_workspace(workspace) == []
    labels = folder / "labels.txt"
    before = labels.read_text()
    labels.write_text(before.replace("größe", "kleine"))
    (problem,) = verify_workspace(workspace)
    labels.write_text(before)
    assert problem.where == str(labels) and "not the file that was exported" in problem.what


def test_versions_of_before_have_nothing_beside_them_and_load(tmp_path):
    publish_old(tmp_path / "exports", 1)
    assert read_manifest(tmp_path / "exports" / "v000001").beside == {}
    assert Classifier.load(tmp_path / "exports", "cpu", 1).info.version == 1


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        ([], "beside is not a JSON object"),
        ({"labels": 1}, "beside.labels is not a JSON object"),
        (
            {"labels": {"file": "../../etc/passwd", "bytes": 1, "sha256": "0" * 64}},
            "the plain name of a file",
        ),
        ({"labels": {"file": "labels.txt", "bytes": 1, "sha256": "0"}}, "a SHA-256 in hexadecimal"),
        ({str(number): {} for number in range(100)}, "names 100 files"),
    ],
)
def test_a_manifest_that_names_something_odd_beside_the_model_is_refused(beside, reason):
    facts = manifest_of(tiny_model().SerializeToString()) | {"beside": beside}
    with pytest.raises(BadModel, match=reason):
        Manifest.parse(json.dumps(facts).encode(), "manifest.json")
