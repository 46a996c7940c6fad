"""New weights in a known graph give the model that a full export would."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from export_parts import first, make_learner, snapshot_from

from edge_hpcr.learner.calibration import Calibration
from export.publish.republish import FILE, load_template, republish, save_template
from export.publish.running import RunningModel
from export.publish.to_onnx import export_full

pytestmark = pytest.mark.computes


def template(snapshot):
    return load_template(first().folder / "template", snapshot)


@pytest.mark.slow
def test_a_republished_model_answers_as_a_full_export_of_the_same_snapshot(tmp_path, digits):
    """Other weights, two classes more, another temperature, no threshold."""
    learner = make_learner(classes=12, steps=12)
    snapshot = snapshot_from(learner, 0, Calibration(temperature=0.8))
    full = export_full(snapshot, tmp_path / "full.onnx", version=7)
    fast = republish(snapshot, template(snapshot), tmp_path / "fast.onnx", version=7)
    images = digits.test_images[:64]
    outputs = [
        RunningModel((tmp_path / f"{name}.onnx").read_bytes(), name)(images) for name in ("full", "fast")
    ]
    for ours, theirs in zip(*outputs, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-5

    def facts(exported):
        return {each.key: each.value for each in exported.model.metadata_props if each.key != "created"}

    assert facts(full) == facts(fast)
    assert facts(fast)["unknown_below"] == "" and len(json.loads(facts(fast)["classes"])) == 12


@pytest.mark.parametrize(
    "other",
    [{"height": 16}, {"width": 16}, {"backbone": "other"}, {"method": "er"}],
    ids=lambda other: next(iter(other)),
)
def test_the_graph_of_another_network_is_not_used(other):
    assert template(first().snapshot) is not None
    assert template(replace(first().snapshot, **other)) is None


def test_the_graph_of_another_version_of_anything_is_not_used(tmp_path):
    shutil.copytree(first().folder / "template", tmp_path / "kept")
    path = (tmp_path / "kept" / FILE).with_suffix(".json")
    noted = json.loads(path.read_text())
    for name in ("edge_hpcr", "torch", "onnx", "onnxscript"):
        path.write_text(json.dumps({**noted, "facts": {**noted["facts"], name: "0.0.1"}}))
        assert load_template(tmp_path / "kept", first().snapshot) is None
    path.write_text(json.dumps(noted))
    assert load_template(tmp_path / "kept", first().snapshot) is not None


# The last is what version 0.1 kept in a single file.
@pytest.mark.parametrize("contents", [b"", b"[]", b"{}", b"\xff\xfe", b'{"facts": 1, "graph": "QUJD"}'])
def test_a_damaged_template_is_as_good_as_none(tmp_path, contents):
    shutil.copytree(first().folder / "template", tmp_path / "kept")
    (tmp_path / "kept" / FILE).with_suffix(".json").write_bytes(contents)
    assert load_template(tmp_path / "kept", first().snapshot) is None


def test_a_template_with_a_flipped_bit_or_without_its_graph_is_as_good_as_none(tmp_path):
    shutil.copytree(first().folder / "template", tmp_path / "kept")
    graph = tmp_path / "kept" / FILE
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    assert load_template(tmp_path / "kept", first().snapshot) is None
    graph.unlink()
    assert load_template(tmp_path / "kept", first().snapshot) is None


def test_a_graph_whose_weights_cannot_be_named_becomes_no_template(tmp_path):
    model = type(first().exported.model)()
    model.CopyFrom(first().exported.model)
    # As an exporter does that finds two equal biases and keeps one.
    gone = next(each for each in model.graph.initializer if each.name == "backbone.stem.bias")
    model.graph.initializer.remove(gone)
    assert not save_template(tmp_path / "template", model, first().snapshot)
    assert not (tmp_path / "template").exists()


def test_a_template_holds_no_weights():
    assert (first().folder / "template" / FILE).stat().st_size < 100_000 < first().model.stat().st_size
