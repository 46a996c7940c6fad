"""Variants in 8 and 16 bits: measured, kept only if they are worth it, and otherwise the reason is told."""

import copy
import json
import logging
from dataclasses import replace

import numpy as np
import onnx
import pytest
from export_parts import confused, first, with_template

from export.device.model import Classifier
from export.publish.publish import publish
from export.publish.quantise import MAKERS, make_fp16, make_int8, measured_speedup, quantised, to_float16
from export.publish.republish import load_template, republish
from export.publish.running import RunningModel
from export.publish.snapshot import HeldOutSamples
from export.publish.to_onnx import file_facts


@pytest.fixture(scope="module")
def eight_bits() -> onnx.ModelProto:
    return quantised(first().exported.model, first().snapshot.images)


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    return {each.name: each.data_type for each in model.graph.initializer}


def test_convolutions_are_quantised_with_a_scale_for_each_channel(eight_bits):
    shapes = {each.name: list(each.dims) for each in eight_bits.graph.initializer}
    weights = {
        name
        for name, kind in types_of(eight_bits).items()
        if kind == onnx.TensorProto.INT8 and name.endswith("_quantized")
    }
    convolutions = [node for node in eight_bits.graph.node if node.op_type == "Conv"]
    assert len(weights) == len(convolutions) == 20
    dequantised = {
        node.input[0]: node for node in eight_bits.graph.node if node.op_type == "DequantizeLinear"
    }
    for name in weights:
        assert shapes[dequantised[name].input[1]] == [shapes[name][0]]
    assert any(node.op_type == "QuantizeLinear" for node in eight_bits.graph.node)
    assert types_of(eight_bits)["proxies"] == onnx.TensorProto.FLOAT, "the classifier stays as it is"


def test_eight_bits_answer_nearly_as_the_plain_model_and_describe_themselves_alike(eight_bits):
    images = first().snapshot.held_out.images
    plain = RunningModel(first().model.read_bytes(), "plain")(images)[0]
    small = RunningModel(eight_bits.SerializeToString(), "small")(images)[0]
    assert (plain.argmax(1) == small.argmax(1)).all()
    assert np.abs(plain - small).max() > 1e-4, "it is another model"
    metadata = [
        {each.key: each.value for each in m.metadata_props} for m in (eight_bits, first().exported.model)
    ]
    versions = [json.loads(each.pop("versions")) for each in metadata]
    assert metadata[0] == metadata[1]
    assert versions[0] == {**versions[1], "opset": 13, "ir": 7}
    assert (eight_bits.opset_import[0].version, eight_bits.ir_version) == (13, 7)


@pytest.mark.slow
def test_int8_is_kept_exactly_when_it_is_faster_and_accurate_enough(tmp_path):
    (tmp_path / "model.onnx").write_bytes(first().model.read_bytes())
    entry = make_int8(tmp_path / "model.onnx", first().exported, first().snapshot)
    right, still_right = (
        round(60 * share) for share in (first().exported.accuracy.held_out, entry["accuracy"])
    )
    assert entry["samples"] == 60
    # One sample of 60 is more than a point.
    assert (tmp_path / "model.int8.onnx").exists() == (entry["speedup"] > 1 and still_right >= right)
    assert ("sha256" in entry) == (tmp_path / "model.int8.onnx").exists() == (entry.get("kept") is not False)


@pytest.mark.slow
def test_int8_that_loses_accuracy_is_dropped_with_the_figure(tmp_path):
    """Calibrated on black images alone, everything brighter is cut off."""
    (tmp_path / "model.onnx").write_bytes(first().model.read_bytes())
    blind = replace(first().snapshot, images=np.zeros((8, 8, 8, 3), np.uint8))
    entry = make_int8(tmp_path / "model.onnx", first().exported, blind)
    assert entry["kept"] is False and entry["accuracy"] < first().exported.accuracy.held_out - 0.01
    assert "of held-out accuracy, where 1% is allowed" in entry["reason"]
    assert not (tmp_path / "model.int8.onnx").exists()


def test_int8_is_not_judged_on_too_few_samples(tmp_path):
    samples = first().snapshot.held_out
    few = replace(first().snapshot, held_out=HeldOutSamples(samples.images[:19], samples.class_ids[:19]))
    entry = make_int8(tmp_path / "model.onnx", first().exported, few)
    assert entry == {
        "kept": False,
        "reason": "19 held-out samples: at least 20 are needed to see what it loses",
    }


def test_a_slower_model_is_measured_as_slower():
    class FourTimes(RunningModel):
        def __call__(self, images):
            for _ in range(4):
                outputs = super().__call__(images)
            return outputs

    data, image = first().model.read_bytes(), first().snapshot.images[:1]
    plain, slow = RunningModel(data, "plain"), FourTimes(data, "slow")
    assert measured_speedup(plain, slow, image) < 0.8
    assert measured_speedup(slow, plain, image) > 1.25


@pytest.mark.slow
def test_nothing_is_printed_and_logging_is_left_as_it_was(capfd):
    root = logging.getLogger()
    before = (list(root.handlers), list(root.filters), root.level)
    quantised(first().exported.model, first().snapshot.images[:16])
    assert (list(root.handlers), list(root.filters), root.level) == before
    assert capfd.readouterr() == ("", "")


def test_sixteen_bits_keep_the_contract_at_half_the_size(tmp_path):
    (tmp_path / "model.onnx").write_bytes(first().model.read_bytes())
    entry = make_fp16(tmp_path / "model.onnx", first().exported, first().snapshot)
    path = tmp_path / "model.fp16.onnx"
    assert (entry["file"], entry["for"]) == (path.name, "cuda")
    assert entry["max_score_difference"] < 0.01
    assert path.stat().st_size < 0.55 * first().model.stat().st_size
    kinds = types_of(onnx.load_model(path))
    assert kinds["backbone.stem.weight"] == onnx.TensorProto.FLOAT16
    assert kinds["proxies"] == kinds["head.weight"] == onnx.TensorProto.FLOAT
    plain, half = (Classifier.load(each, "cpu", 1) for each in (first().model, path))
    images = list(first().snapshot.held_out.images)
    ours, theirs = plain.predict(images), half.predict(images)
    assert [r.top[0].id for r in ours] == [r.top[0].id for r in theirs]


def test_sixteen_bits_that_overflow_are_dropped_with_the_reason(tmp_path):
    network = copy.deepcopy(first().snapshot.network)
    network.backbone.stem_bn.weight.mul_(1e6)
    snapshot = replace(first().snapshot, network=network)
    template = load_template(first().folder / "template", snapshot)
    exported = republish(snapshot, template, tmp_path / "model.onnx")
    entry = make_fp16(tmp_path / "model.onnx", exported, snapshot)
    assert entry["kept"] is False and "scores differ by up to" in entry["reason"]
    assert not (tmp_path / "model.fp16.onnx").exists()


@pytest.mark.slow
def test_the_model_itself_is_left_alone():
    before = first().exported.model.SerializeToString()
    to_float16(first().exported.model)
    quantised(first().exported.model, first().snapshot.images[:16])
    assert first().exported.model.SerializeToString() == before


@pytest.mark.slow
def test_a_version_carries_its_variants_and_the_reasons_for_those_it_lacks(tmp_path):
    exports = with_template(tmp_path / "exports")
    samples = first().snapshot.held_out
    few = replace(first().snapshot, held_out=HeldOutSamples(samples.images[:3], samples.class_ids[:3]))
    published = publish(exports, few, variants=("int8", "fp16"))
    assert set(published.manifest.variants) == {"fp16"}
    assert "at least 20" in published.manifest.missing_variants["int8"]
    assert Classifier.load(exports, "cpu", 1, "fp16").variant == "fp16"
    assert Classifier.load(exports, "cpu", 1, "int8").variant_note.endswith("to see what it loses")
    assert json.loads((published.folder / "manifest.json").read_text())["variants"]["fp16"]["samples"] == 3


def test_a_variant_that_a_device_would_refuse_is_left_out_with_the_reason(tmp_path, monkeypatch):
    def make_sixteenths(model, exported, snapshot, folder):
        """Scores that add up to a sixteenth of what they should."""
        changed = onnx.load_model(model)
        softmax = next(node for node in changed.graph.node if "scores" in node.output)
        softmax.output[0] = "before"
        changed.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(1 / 16, np.float32), "sixteenth")
        )
        changed.graph.node.append(onnx.helper.make_node("Mul", ["before", "sixteenth"], ["scores"]))
        path = model.with_name("model.int8.onnx")
        path.write_bytes(changed.SerializeToString())
        return file_facts(path)

    monkeypatch.setitem(MAKERS, "int8", make_sixteenths)
    published = publish(with_template(tmp_path / "exports"), first().snapshot, variants=("int8",))
    reason = published.manifest.missing_variants["int8"]
    assert reason == (
        "a device would refuse it: model.int8.onnx: the scores of a test image are no probabilities"
    )
    assert not (published.folder / "model.int8.onnx").exists()
    assert Classifier.load(tmp_path / "exports", "cpu", 1, "int8").variant == "fp32"


def test_a_refused_version_leaves_no_variant_behind(tmp_path):
    exports = with_template(tmp_path / "exports")
    publish(exports, first().snapshot, variants=())
    with pytest.raises(Exception, match="is not published"):
        publish(exports, confused(first().snapshot), variants=("fp16",))
    assert not list(exports.rglob("*fp16*"))
