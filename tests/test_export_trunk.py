"""A network with a trunk is one model; the trunk's work is done once, and no wrong model passes for that."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from export_parts import Teaching, snapshot_with_trunk

from edge_hpcr.learner.codec import LATENT as LATENT_CODEC
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.stream.resize import prepare
from export.device.manifest import ClassLabel
from export.device.model import Classifier
from export.publish import running
from export.publish.policy import Policy
from export.publish.publish import TEMPLATE, publish
from export.publish.quantise import TRUNK, quantised, to_float16
from export.publish.republish import FILE, load_template, republish, save_template, template_facts
from export.publish.running import RunningModel, TwoParts, joined, split
from export.publish.snapshot import Snapshot, images_wanted, snapshot_of, snapshot_of_learner
from export.publish.to_onnx import Exported, ParityFailed, check, export_full, finish, network_outputs, trace

pytestmark = pytest.mark.slow  # a trace takes seconds
computes = pytest.mark.computes


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return snapshot_with_trunk()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trunk")


@pytest.fixture(scope="module")
def exported(snapshot, folder) -> Exported:
    made = export_full(snapshot, folder / "model.onnx", version=1)
    assert save_template(folder / TEMPLATE, made.model, snapshot)
    return made


def test_the_learner_may_use_its_trunk_while_it_is_traced(snapshot):
    trunk, traced, seen = snapshot.network.backbone.trunk, threading.Event(), []

    def learn() -> None:
        images = torch.rand(1, 3, snapshot.height, snapshot.width)
        try:
            while not traced.is_set():
                seen.append(trunk(images).numpy().shape)
        except RuntimeError as error:
            seen.append(error)

    learner = threading.Thread(target=learn)
    learner.start()
    try:
        trace(snapshot)
    finally:
        traced.set()
        learner.join()
    assert set(seen) == {(1, *trunk.latent_shape)}, seen[-1]


def changed(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with other numbers in one of its weights."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    (tensor,) = (each for each in other.graph.initializer if each.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.1, name))
    return other


@computes
def test_one_file_holds_the_trunk_and_keeps_the_contract(snapshot, exported, folder):
    assert [value.name for value in exported.model.graph.input] == ["image"]
    assert [value.name for value in exported.model.graph.output] == ["scores", "feature", "similarity"]
    results = Classifier.load(folder / "model.onnx", "cpu", 1).predict(list(snapshot.images[:8]))
    expected = network_outputs(snapshot, snapshot.images[:8])
    assert [result.top[0].id for result in results] == expected.scores.argmax(1).tolist()
    for result, similarity in zip(results, expected.similarity, strict=True):
        assert result.similarity == pytest.approx(float(similarity), abs=1e-4)


@computes
def test_its_two_parts_answer_as_the_whole_and_can_be_joined_again(snapshot, exported):
    trunk, rest = split(exported.model)
    again = joined(trunk, rest)
    check(again)
    whole, parts = RunningModel(exported.model.SerializeToString(), "whole"), TwoParts(again, "parts")
    for ours, theirs in zip(parts(snapshot.images), whole(snapshot.images), strict=True):
        assert np.abs(ours - theirs).max() < 1e-5


@computes
def test_the_trunk_sees_an_image_once_in_a_process(snapshot, exported, monkeypatch):
    monkeypatch.setattr(running, "_KEPT", running._Latents())
    first = TwoParts(exported.model, "first").inputs(snapshot.images)
    opened = []
    monkeypatch.setattr(running, "open_session", lambda *arguments: opened.append(arguments))
    parts = object.__new__(TwoParts)
    trunk = split(exported.model)[0].SerializeToString()
    parts._trunk, parts._digest, parts._where = trunk, running.sha256(trunk), "second"
    assert np.array_equal(parts.inputs(snapshot.images[::-1]), first[::-1]) and opened == []


def test_latents_are_kept_within_their_limit(monkeypatch):
    monkeypatch.setattr(running, "MOST_KEPT_BYTES", 100)
    latents = running._Latents()
    latents.put({("trunk", str(number)): np.zeros(5, np.float32) for number in range(7)})
    latents.get([("trunk", "2")])
    latents.put({("trunk", "new"): np.zeros(5, np.float32)})
    held = latents.get([("trunk", name) for name in "0123456"] + [("trunk", "new")])
    assert [key[1] for key in held] == ["2", "4", "5", "6", "new"]


@computes
def test_a_template_keeps_the_trunk_and_not_what_learning_changes(snapshot, exported, folder):
    kept = {each.name for each in load_template(folder / TEMPLATE, snapshot).graph.initializer}
    assert {"trunk.0.weight", "trunk.0.bias"} <= kept
    assert not kept & {"backbone.layer.weight", "backbone.layer.bias", "proxies", "head.weight"}


@computes
@pytest.mark.parametrize("name", ["backbone.layer.weight", "proxies", "head.weight", "trunk.0.weight"])
def test_wrong_numbers_are_found_in_the_trunk_and_behind_it(snapshot, exported, tmp_path, name):
    with pytest.raises(ParityFailed, match="differs from the network"):
        finish(changed(exported.model, name), snapshot, tmp_path / "model.onnx", version=1)


@computes
def test_weights_that_were_zero_when_the_network_was_traced_may_learn(snapshot, exported, folder, tmp_path):
    assert not snapshot.network.backbone.layer.bias.any()
    later = snapshot_with_trunk(classes=5, seed=1)
    later.network.backbone.layer.bias.copy_(torch.linspace(-1, 1, 16))
    made = republish(later, load_template(folder / TEMPLATE, later), tmp_path / "model.onnx")
    assert made.parity.max_feature_difference < 1e-4


@computes
def test_the_graph_of_another_trunk_or_of_other_layers_is_not_used(snapshot, exported, folder):
    facts = template_facts(snapshot)
    assert facts["trunk"] == {"sha256": "0" * 64, "latent": [8, 8, 8]}
    assert facts["weights"] == {"layer.weight": [16, 8, 3, 3], "layer.bias": [16]}
    other = snapshot_with_trunk()
    other.network.backbone.trunk.sha256 = "1" * 64
    assert load_template(folder / TEMPLATE, other) is None
    wider = snapshot_with_trunk()
    wider.network.backbone.layer = torch.nn.Conv2d(8, 17, 3)
    assert load_template(folder / TEMPLATE, wider) is None


@computes
def test_eight_bits_of_the_trunk_are_calibrated_once(snapshot, exported, tmp_path):
    first = quantised(exported.model, snapshot.images, tmp_path / TEMPLATE)
    kept = (tmp_path / TEMPLATE / TRUNK).read_bytes()
    # Black images would have given the trunk other scales.
    again = quantised(exported.model, np.zeros_like(snapshot.images), tmp_path / TEMPLATE)
    assert (tmp_path / TEMPLATE / TRUNK).read_bytes() == kept
    assert split(again)[0].SerializeToString() == split(first)[0].SerializeToString()
    check(first)
    types = {each.name: each.data_type for each in first.graph.initializer}
    assert sum(name.endswith("weight_quantized") for name in types) == 2  # one layer of each part
    same = TwoParts(first, "small")(snapshot.images).scores.argmax(1) == TwoParts(exported.model, "plain")(
        snapshot.images
    ).scores.argmax(1)
    assert same.mean() > 0.9
    other = quantised(changed(exported.model, "trunk.0.weight"), snapshot.images, tmp_path / TEMPLATE)
    assert split(other)[0].SerializeToString() != split(first)[0].SerializeToString()


@computes
def test_sixteen_bits_reach_to_the_last_convolution_on_both_sides_of_the_cut(snapshot, exported):
    half = to_float16(exported.model)
    check(half)
    kinds = {each.name: each.data_type for each in half.graph.initializer}
    sixteen = {name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT16}
    assert {"trunk.0.weight", "backbone.layer.weight"} <= sixteen
    assert not sixteen & {"proxies", "head.weight", "temperature"}
    found, expected = TwoParts(half, "half")(snapshot.images), network_outputs(snapshot, snapshot.images)
    assert np.abs(found.scores - expected.scores).max() < 0.01


@computes
def test_a_second_version_is_published_from_the_known_graph(snapshot, exported, folder, tmp_path):
    exports = tmp_path / "exports"
    (exports / TEMPLATE).mkdir(parents=True)
    for name in (FILE, FILE.replace(".onnx", ".json")):
        (exports / TEMPLATE / name).write_bytes((folder / TEMPLATE / name).read_bytes())
    assert not publish(exports, snapshot, variants=()).traced
    published = publish(exports, replace(snapshot, step=9), Policy(most_drop=0.0), variants=())
    assert not published.traced and published.notes == ()
    assert published.manifest.facts["accuracy"] == {"held_out": 1.0, "samples": 40}


def test_fewer_large_images_are_compared():
    assert [images_wanted(side, side) for side in (8, 32, 64, 96, 224)] == [64, 64, 64, 28, 16]


def test_images_come_from_the_workspaces_disk_where_the_memory_holds_latents(tmp_path):
    one = Teaching(tmp_path / "w", backbone="efficientnet_lite0", image_size=32, memory_bytes=1_000_000)
    try:
        photos = np.random.default_rng(0).integers(0, 256, (4, 48, 64, 3), np.uint8)
        for name, taken in (("a", photos[:3]), ("b", photos[3:])):
            class_id = one.journal.create_class(name)
            for photo in taken:
                one.journal.label([one.workspace.take(photo, "test")], class_id)
        assert one.live.wait_until_caught_up(60), one.live.problems
        snapshot = snapshot_of(one.live)
        trained = [row.id for row in one.journal.all_samples(state="labelled", held_out=False)]
        wanted = [prepare(one.workspace.image(i), (32, 32)) for i in sorted(trained)]
        assert sorted(map(bytes, snapshot.images)) == sorted(map(bytes, wanted)) and len(wanted) > 2
    finally:
        one.close()


@pytest.mark.parametrize(
    "backbone",  # the second has the same layers, cut elsewhere: other kernels need not see it, too
    [pytest.param("efficientnet_lite0", marks=computes), "efficientnet_lite0_tuned"],
)
def test_efficientnet_is_exported_with_its_trunk(backbone, tmp_path):
    config = LearnerConfig.recommended(
        backbone, height=32, width=32, memory=MemoryConfig(samples=20, codec=LATENT_CODEC)
    )
    learner = Learner(config, "cpu")
    images = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    learner.observe(images, [0, 0, 0, 1, 1, 1])
    snapshot = snapshot_of_learner(learner, {number: ClassLabel(number, str(number)) for number in (0, 1)})
    assert snapshot.images.shape == (64, 32, 32, 3) and snapshot.images.std() > 50  # noise
    snapshot = replace(snapshot, images=images)
    made = export_full(snapshot, tmp_path / "model.onnx")
    assert made.parity.same_answer == 6
    assert save_template(tmp_path / TEMPLATE, made.model, snapshot)
    small = quantised(made.model, images)
    scaled = {name for node in small.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    layers = [node.input[1] in scaled for node in small.graph.node if node.op_type == "Conv"]
    assert layers == [False] * 8 + [True] * (len(layers) - 8), (
        "stem and two blocks, as far as the third depthwise layer"
    )
    results = Classifier.load(tmp_path / "model.onnx", "cpu", 1).predict(list(images))
    predicted = learner.predict(images, averaged=True)
    for result, scores in zip(results, predicted.scores, strict=True):
        assert result.top[0].confidence == pytest.approx(float(scores.max()), abs=1e-3)
