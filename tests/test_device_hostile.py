"""More than 100 damaged or hostile models: each is refused with one line, and the old model goes on answering."""

import base64
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_parts import NAMES, SIZE, frame_of, manifest_of, metadata_of, point_at, publish, tiny_model
from onnx import ModelProto, TensorProto, helper, numpy_helper

from export.device import model as model_file
from export.device.hot_swap import HotSwap
from export.device.manifest import FORMAT
from export.device.model_source import Loading, LocalModels
from export.device.one_file import MOST_FIELDS, check_one_file

Case = Callable[[Path], None]  # publishes something bad as version 2
CASES: dict[str, Case] = {}


def good() -> bytes:
    return tiny_model(2).SerializeToString()


def damaged(change: Callable[[bytes], bytes], honest: bool) -> Case:
    """A file that was changed; with `honest` the manifest is that of the whole one, otherwise it goes along."""

    def case(exports: Path) -> None:
        data = change(good())
        publish(exports, 2, data, manifest_of(good() if honest else data, 2))

    return case


def model_case(change: Callable[[ModelProto], Any]) -> Case:
    """A model of another making, with a manifest that fits the file."""

    def case(exports: Path) -> None:
        model = tiny_model(2)
        changed = change(model)
        if not isinstance(changed, bytes):
            changed = (changed if isinstance(changed, ModelProto) else model).SerializeToString()
        data = changed
        publish(exports, 2, data, manifest_of(data, 2))

    return case


def metadata_case(**changes: str | None) -> Case:
    def case(exports: Path) -> None:
        metadata = {key: value for key, value in (metadata_of(2) | changes).items() if value is not None}
        data = tiny_model(2, metadata=metadata).SerializeToString()
        publish(exports, 2, data, manifest_of(data, 2))

    return case


def manifest_case(**changes: Any) -> Case:
    """A manifest that lies, though latest.json vouches for it."""

    def case(exports: Path) -> None:
        publish(exports, 2, good(), manifest_of(good(), 2) | changes)

    return case


def text_case(name: str, text: bytes) -> Case:
    """manifest.json or latest.json with these bytes."""

    def case(exports: Path) -> None:
        folder = publish(exports, 2)
        if name == "latest.json":
            (exports / name).write_bytes(text)
        else:
            (folder / name).write_bytes(text)
            point_at(exports, 2, text)

    return case


def latest_case(**changes: Any) -> Case:
    def case(exports: Path) -> None:
        publish(exports, 2)
        path = exports / "latest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return case


def flipped(seed: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        place = random.Random(seed).randrange(8 * len(data))
        changed[place // 8] ^= 1 << place % 8
        return bytes(changed)

    return flip


def swapped_for_link(name: str) -> Case:
    def case(exports: Path) -> None:
        folder = publish(exports, 2)
        (folder / name).rename(exports.parent / name)
        (folder / name).symlink_to(exports.parent / name)

    return case


def linked_folder(exports: Path) -> None:
    publish(exports, 2).rename(exports.parent / "elsewhere")
    (exports / "v000002").symlink_to(exports.parent / "elsewhere")


def replaced_by(make: Callable[[Path], Any]) -> Case:
    def case(exports: Path) -> None:
        path = publish(exports, 2) / "model.onnx"
        path.unlink()
        make(path)

    return case


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def vanishing(name: str) -> Case:
    return lambda exports: (publish(exports, 2) / name).unlink()


# Models of another making -------------------------------------------------------------------------------------------


def io_shape(
    which: str, place: int, shape: list[Any], kind: int | None = None
) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        values = model.graph.input if which == "input" else model.graph.output
        old = values[place]
        kind_now = kind or old.type.tensor_type.elem_type
        values[place].CopyFrom(helper.make_tensor_value_info(old.name, kind_now, shape))

    return change


def renamed(which: str, name: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            node.input[:] = [name if each == which else each for each in node.input]
            node.output[:] = [name if each == which else each for each in node.output]
        for value in (*model.graph.input, *model.graph.output):
            value.name = name if value.name == which else value.name

    return change


def third_output(model: ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", len(NAMES)]))


def second_input(model: ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))


def weights_all(value: float) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        shape = numpy_helper.to_array(model.graph.initializer[0]).shape
        weights = np.full(shape, value, np.float32)
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "weights"))

    return change


def without_softmax(model: ModelProto) -> None:
    model.graph.node[3].CopyFrom(helper.make_node("Identity", ["logits"], ["scores"]))


def unknown_operator(model: ModelProto) -> None:
    model.graph.node[3].CopyFrom(helper.make_node("RunShell", ["logits"], ["scores"], domain="evil"))
    model.opset_import.append(helper.make_opsetid("evil", 1))


def weights_elsewhere(model: ModelProto) -> None:
    tensor = model.graph.initializer[0]
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "pyproject.toml"), ("length", str(size))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def turned_round(model: ModelProto) -> bytes:
    """The same entry of the same tensor with its value before its key, which protobuf reads alike."""
    weights_elsewhere(model)
    usual = b"\x0a\x08location\x12\x0epyproject.toml"
    data = model.SerializeToString()
    assert data.count(usual) == 1
    return data.replace(usual, b"\x12\x0epyproject.toml\x0a\x08location")


def in_an_attribute(model: ModelProto) -> None:
    weights_elsewhere(model)
    weights = model.graph.initializer[0]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["weights"], value=weights))
    del model.graph.initializer[0]


def bytes_for(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert old in data and len(old) == len(new)
        return data.replace(old, new)

    return change


def slow_constants(model: ModelProto) -> None:
    """Work of minutes that does not depend on the image: folded at loading, nobody could end it."""
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([600, 600], np.int64), "shape"))
    graph.node[3].output[0] = "small"
    graph.node.append(helper.make_node("ConstantOfShape", ["shape"], ["c0"]))
    for place in range(5_000):
        graph.node.append(helper.make_node("MatMul", [f"c{place}"] * 2, [f"c{place + 1}"]))
    graph.node.append(helper.make_node("ReduceSum", ["c5000"], ["sum"], keepdims=0))
    graph.node.append(helper.make_node("Add", ["small", "sum"], ["scores"]))


def endless(model: ModelProto) -> None:
    scalar = [helper.make_tensor_value_info("turn", TensorProto.INT64, [])]
    ins = [("go", TensorProto.BOOL, []), ("value", TensorProto.FLOAT, None)]
    outs = [("go_on", TensorProto.BOOL, []), ("value_on", TensorProto.FLOAT, None)]
    body = helper.make_graph(
        [helper.make_node("Identity", [a[0]], [b[0]]) for a, b in zip(ins, outs, strict=True)],
        "body",
        scalar + [helper.make_tensor_value_info(*each) for each in ins],
        [helper.make_tensor_value_info(*each) for each in outs],
    )
    model.graph.initializer.append(helper.make_tensor("true", TensorProto.BOOL, [], [True]))
    model.graph.node[1].output[0] = "before"
    model.graph.node.insert(2, helper.make_node("Loop", ["", "true", "before"], ["feature"], body=body))


def enormous(model: ModelProto) -> None:
    """A few hundred bytes that ask for 4 TB."""
    shape = numpy_helper.from_array(np.array([10**6, 10**6], np.int64), "shape")
    model.graph.initializer.append(shape)
    model.graph.node[3].output[0] = "small"
    model.graph.node.append(helper.make_node("ConstantOfShape", ["shape"], ["zeros"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["small", "sum"], ["scores"]))


# The list -----------------------------------------------------------------------------------------------------------

for part in range(16):
    CASES[f"cut to {part} sixteenths"] = damaged(
        lambda data, p=part: data[: len(data) * p // 16], honest=True
    )
for part in range(1, 12):
    CASES[f"cut to {part} twelfths, and the manifest with it"] = damaged(
        lambda data, p=part: data[: len(data) * p // 12], honest=False
    )
for seed in range(20):
    CASES[f"bit flipped, seed {seed}"] = damaged(flipped(seed), honest=True)
for seed in range(5):
    CASES[f"noise, seed {seed}"] = damaged(
        lambda data, s=seed: random.Random(s).randbytes(len(data)), honest=False
    )
CASES["a byte more"] = damaged(lambda data: data + b"\0", honest=True)
CASES["ORT's own format"] = damaged(lambda data: b"\x18\0\0\0ORTM" + data, honest=False)

NARROW, WIDE, FREE = ["N", SIZE, SIZE, 3], ["N", SIZE, SIZE, 4], ["N", "H", "W", 3]
CASES |= {
    "one image only": model_case(io_shape("input", 0, [1, SIZE, SIZE, 3])),
    "four channels": model_case(io_shape("input", 0, WIDE)),
    "channels first": model_case(io_shape("input", 0, ["N", 3, SIZE, SIZE])),
    "size left open": model_case(io_shape("input", 0, FREE)),
    "float images": model_case(io_shape("input", 0, NARROW, TensorProto.FLOAT)),
    "another size": model_case(io_shape("input", 0, ["N", SIZE + 1, SIZE, 3])),
    "five scores": model_case(io_shape("output", 0, ["N", 5])),
    "no rank": model_case(io_shape("output", 0, ["N"])),
    "feature of four": model_case(io_shape("output", 1, ["N", 4])),
    "input of another name": model_case(renamed("image", "picture")),
    "output of another name": model_case(renamed("scores", "logit")),
    "third output": model_case(third_output),
    "second input": model_case(second_input),
    "answers not a number": model_case(weights_all(float("nan"))),
    "answers infinite": model_case(weights_all(float("inf"))),
    "no probabilities": model_case(without_softmax),
    "operator nobody knows": model_case(unknown_operator),
    "weights in another file": model_case(weights_elsewhere),
    "weights in another file, written otherwise": model_case(turned_round),
    "weights in another file, of a constant": model_case(in_an_attribute),
    "metadata not UTF-8": damaged(bytes_for(b"06:00:00Z", b"06:00:00\xff"), honest=False),
    "output's name not UTF-8": damaged(bytes_for(b"feature", b"featur\xff"), honest=False),
    "dimension's name not UTF-8": damaged(bytes_for(b"\x12\x01N", b"\x12\x01\xff"), honest=False),
    "constants that take minutes": model_case(slow_constants),
    "runs for ever": model_case(endless),
    "asks for 4 TB": model_case(enormous),
    "fewer classes than scores": model_case(lambda model: tiny_model(2, NAMES[:3], metadata=metadata_of(2))),
}
for missing in metadata_of():
    CASES[f"no {missing} in the metadata"] = metadata_case(**{missing: None})

HUGE = "9" * 400
FAR_TOO_LONG = "9" * 10_000
DEEP = "[" * 100_000
CLASSES = json.loads(metadata_of()["classes"])
CASES |= {
    "metadata of a new format": metadata_case(format=str(FORMAT + 1)),
    "metadata of a format with a third output": metadata_case(format="2"),
    "metadata of another version": metadata_case(version="3"),
    "version not a number": metadata_case(version="two"),
    "version huge": metadata_case(version=HUGE),
    "version longer than Python converts": metadata_case(version=FAR_TOO_LONG),
    "step negative": metadata_case(step="-1"),
    "step a fraction": metadata_case(step="1.5"),
    "step true": metadata_case(step="true"),
    "threshold NaN": metadata_case(unknown_below="NaN"),
    "threshold 2": metadata_case(unknown_below="2"),
    "threshold 1e999": metadata_case(unknown_below="1e999"),
    "threshold other than the manifest's": metadata_case(unknown_below="0.4"),
    "temperature 0": metadata_case(temperature="0"),
    "temperature infinite": metadata_case(temperature="Infinity"),
    "image a billion wide": metadata_case(image='{"height": 16, "width": 1000000000, "resize": "x"}'),
    "image without sides": metadata_case(image='{"resize": "centre-square-area"}'),
    "image a list": metadata_case(image="[16, 16]"),
    "another resize rule": metadata_case(image='{"height": 16, "width": 16, "resize": "stretch"}'),
    "feature size huge": metadata_case(feature_size=HUGE),
    "feature size wrong": metadata_case(feature_size="4"),
    "accuracy a number": metadata_case(accuracy="0.9"),
    "classes not JSON": metadata_case(classes="red, green"),
    "classes deeply nested": metadata_case(classes=DEEP),
    "no classes": metadata_case(classes="[]"),
    "one class too many": metadata_case(classes=json.dumps([*CLASSES, {"id": 99, "name": "x"}])),
    "class id twice": metadata_case(classes=json.dumps([*CLASSES[:3], CLASSES[0]])),
    "class without a name": metadata_case(classes=json.dumps([*CLASSES[:3], {"id": 99, "name": ""}])),
    "class name with an escape sequence": metadata_case(
        classes=json.dumps([*CLASSES[:3], {"id": 13, "name": "\x1b[2J"}])
    ),
    "class names other than the manifest's": metadata_case(
        classes=json.dumps([*CLASSES[:3], {"id": 13, "name": "grey"}])
    ),
    "proxies not base64": metadata_case(proxies="!!!!"),
    "proxies too few": metadata_case(proxies=base64.b64encode(b"\0" * 8).decode()),
    "proxies zero": metadata_case(proxies=base64.b64encode(b"\0" * 24).decode()),
    "proxies NaN": metadata_case(proxies=base64.b64encode(b"\xff\x7f" * 12).decode()),
}

for place, name in enumerate(
    ["../v000001/model.onnx", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "model.onnx\0", "x" * 300, None, 7]
):
    CASES[f"file outside the folder, {place}"] = manifest_case(file=name)
CASES |= {
    "hash of something else": manifest_case(sha256="0" * 64),
    "hash no hash": manifest_case(sha256="../../x"),
    "size wrong": manifest_case(bytes=17),
    "size beyond the limit": manifest_case(bytes=10**12),
    "size negative": manifest_case(bytes=-1),
    "manifest of another version": manifest_case(version=3),
    "manifest of another step": manifest_case(step=7),
    "manifest of a new format": manifest_case(format=FORMAT + 1),
    "manifest without classes": manifest_case(classes=[]),
    "manifest of 65,536 classes": manifest_case(classes=[{"id": i, "name": "x"} for i in range(65_536)]),
    "manifest of another size": manifest_case(
        image={"height": 32, "width": 32, "resize": "centre-square-area"}
    ),
    "manifest of a huge size": manifest_case(
        image={"height": 1025, "width": 16, "resize": "centre-square-area"}
    ),
    "manifest threshold missing": manifest_case(unknown_below=None),
    "manifest feature size wrong": manifest_case(feature_size=160),
    "parity failed": manifest_case(parity={"images": 64, "max_score_difference": 0.2, "same_answer": 50}),
    "parity unknown": manifest_case(parity=None),
    "parity not a number": manifest_case(parity={"images": 64, "max_score_difference": "none"}),
    "manifest HTML": text_case("manifest.json", b"<!doctype html><title>Welcome</title>"),
    "manifest empty": text_case("manifest.json", b""),
    "manifest a list": text_case("manifest.json", b"[]"),
    "manifest not UTF-8": text_case("manifest.json", b'{"format": "\xff"}'),
    "manifest deeply nested": text_case("manifest.json", DEEP.encode()),
    "manifest huge number": text_case("manifest.json", b'{"format":1,"version":' + b"9" * 9000 + b"}"),
    "latest HTML": text_case("latest.json", b"<html>"),
    "latest empty": text_case("latest.json", b""),
    "latest half": text_case("latest.json", b'{"format": 1, "vers'),
    "latest a megabyte": text_case("latest.json", b" " * 1_000_000),
    "latest outside": latest_case(folder="../elsewhere"),
    "latest absolute": latest_case(folder="/tmp"),
    "latest nowhere": latest_case(folder="v000009"),
    "latest of another version": latest_case(version=1),
    "latest of another hash": latest_case(manifest_sha256="0" * 64),
    "latest of a new format": latest_case(format=True),
    "model a link": swapped_for_link("model.onnx"),
    "manifest a link": swapped_for_link("manifest.json"),
    "version folder a link": linked_folder,
    "model a named pipe": replaced_by(os.mkfifo),
    "model a folder": replaced_by(Path.mkdir),
    "model of 600 MB": replaced_by(lambda path: sparse(path, 600_000_000)),
    "model absent": vanishing("model.onnx"),
    "manifest absent": vanishing("manifest.json"),
}


def test_there_are_more_than_a_hundred():
    assert len(CASES) > 100


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[HotSwap, Path, list[str]]:
    monkeypatch.setattr(model_file, "LONGEST_CHECK_SECONDS", 0.5)
    exports = tmp_path / "exports"
    publish(exports, 1)
    said: list[str] = []
    swap = HotSwap(LocalModels(exports), Loading("cpu", 1), said.append)
    swap.first()
    said.clear()
    return swap, exports, said


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_bad_model_is_refused_once_and_the_old_one_goes_on(running, name: str):
    swap, exports, said = running
    old = swap.classifier
    CASES[name](exports)
    assert not swap.look()
    assert not swap.look()
    assert len(said) == 1, said
    assert said[0].endswith("v1 goes on") and "\n" not in said[0]
    assert swap.classifier is old
    assert old.predict([frame_of("blue")])[0].top[0].name == "blue"


def test_after_a_bad_model_a_good_one_is_taken(running):
    swap, exports, _ = running
    CASES["bit flipped, seed 0"](exports)
    assert not swap.look()
    publish(exports, 3)
    assert swap.look()
    assert swap.classifier.info.version == 3


def test_a_bad_model_that_is_repaired_is_tried_again(running):
    swap, exports, said = running
    CASES["cut to 3 sixteenths"](exports)
    assert not swap.look()
    assert "cut short or changed" in said[0]
    (exports / "v000002" / "model.onnx").write_bytes(good())
    assert swap.look()
    assert swap.classifier.info.version == 2


# Models that are good until a certain frame ---------------------------------------------------------------------------


def nan_when_black(model: ModelProto) -> None:
    model.graph.node[3].output[0] = "small"
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "last"))
    model.graph.node.append(helper.make_node("ReduceMax", ["feature", "last"], ["most"], keepdims=1))
    model.graph.node.append(helper.make_node("Div", ["most", "most"], ["one"]))
    model.graph.node.append(helper.make_node("Mul", ["small", "one"], ["scores"]))


def endless_when_black(model: ModelProto) -> None:
    endless(model)
    model.graph.initializer.append(helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]))
    model.graph.node[2].input[1] = "black"
    model.graph.node.insert(2, helper.make_node("ReduceMax", ["before"], ["most"], keepdims=0))
    model.graph.node.insert(3, helper.make_node("Less", ["most", "half"], ["black"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "complaint"),
    [(nan_when_black, "scores of an image is not a number"), (endless_when_black, "took too long")],
)
def test_a_frame_that_a_model_fails_on_is_told_and_the_next_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[ModelProto], None], complaint: str
):
    monkeypatch.setattr(model_file, "LONGEST_RUN_SECONDS", 0.5)
    model_case(change)(tmp_path / "exports")
    classifier = model_file.Classifier.load(tmp_path / "exports", "cpu", 1)
    with pytest.raises(model_file.BadModel, match=complaint):
        classifier.predict([np.zeros((20, 20, 3), np.uint8)])
    assert classifier.predict([frame_of("green")])[0].top[0].name == "green"


@pytest.mark.slow
def test_more_fields_than_any_model_has_are_not_walked_for_minutes():
    with pytest.raises(model_file.BadModel, match="fields"):
        check_one_file(b"\x08\x01" * (MOST_FIELDS + 1), "model.onnx")
