"""Damaged and hostile models: each is refused with one line, and the old model goes on answering."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_parts import (
    LOAD,
    NAMES,
    SIZE,
    frame_of,
    manifest_of,
    point_at,
    publish,
    tiny_model,
)
from onnx import ModelProto, TensorProto, helper, numpy_helper

from export.device import BadModel
from export.device import model as module
from export.device.health import Health
from export.device.hot_swap import HotSwap, LocalModels
from export.device.manifest import FORMAT, Latest
from export.device.model import Classifier

GOOD = tiny_model(2).SerializeToString()
Case = Callable[[Path], None]  # publishes something bad as version 2


def data_case(change: Callable[[bytes], bytes]) -> Case:
    """Other bytes, with a manifest that fits them."""
    return lambda exports: publish(exports, 2, change(GOOD), manifest_of(change(GOOD), 2)) and None


def model_case(change: Callable[[ModelProto], ModelProto | None]) -> Case:
    """Publishes a model of another making as version 2, with a manifest that fits the file."""

    def case(exports: Path) -> None:
        model = tiny_model(2)
        data = (change(model) or model).SerializeToString()
        publish(exports, 2, data, manifest_of(data, 2))

    return case


def manifest_case(**changes: Any) -> Case:
    """A manifest that lies, though latest.json vouches for it."""
    return lambda exports: publish(exports, 2, GOOD, manifest_of(GOOD, 2) | changes) and None


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


def linked(name: str) -> Case:
    """A link in place of a file, or of the version's folder."""

    def case(exports: Path) -> None:
        path = publish(exports, 2) / name
        path.rename(exports.parent / "elsewhere")
        path.symlink_to(exports.parent / "elsewhere")

    return case


# Models of another making -------------------------------------------------------------------------------------------


def one_image_only(model: ModelProto) -> None:
    shape = [1, SIZE, SIZE, 3]
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("image", TensorProto.UINT8, shape))


def weights_not_a_number(model: ModelProto) -> None:
    weights = np.full((3, len(NAMES)), np.nan, np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "weights"))


def fewer_scores(model: ModelProto) -> None:
    weights = numpy_helper.to_array(model.graph.initializer[0])[:, :3]
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights.copy(), "weights"))


def proxies_not_a_number(model: ModelProto) -> None:
    helper.set_model_props(model, {"proxies": base64.b64encode(b"\xff\x7f" * 12).decode()})


def without_softmax(model: ModelProto) -> None:
    model.graph.node[3].CopyFrom(helper.make_node("Identity", ["logits"], ["scores"]))


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


def nan_when_black(model: ModelProto) -> None:
    model.graph.node[3].output[0] = "small"
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "last"))
    model.graph.node.append(helper.make_node("ReduceMax", ["feature", "last"], ["most"], keepdims=1))
    model.graph.node.append(helper.make_node("Div", ["most", "most"], ["one"]))
    model.graph.node.append(helper.make_node("Mul", ["small", "one"], ["scores"]))


def elsewhere(tensor: TensorProto, location: str, size: int = 48) -> TensorProto:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", str(size)), ("offset", "0")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def weights_elsewhere(location: str) -> Case:
    return model_case(lambda model: elsewhere(model.graph.initializer[0], location) and None)


# The list -----------------------------------------------------------------------------------------------------------

DEEP = "[" * 100_000
IMAGE, CLASSES = manifest_of(GOOD)["image"], manifest_of(GOOD)["classes"][:3]

CASES: dict[str, Case] = {
    "half a model": data_case(lambda data: data[: len(data) // 2]),
    "ORT's own format": data_case(lambda data: b"\x18\0\0\0ORTM" + data),
    "output's name not UTF-8": data_case(lambda data: data.replace(b"feature", b"featur\xff")),
    "one image only": model_case(one_image_only),
    "answers not a number": model_case(weights_not_a_number),
    "no probabilities": model_case(without_softmax),
    "weights in another file": weights_elsewhere("pyproject.toml"),
    "weights in the process's memory": weights_elsewhere("*/_ORT_MEM_ADDR_/*"),
    "runs for ever": model_case(endless),
    "fewer scores than classes": model_case(fewer_scores),
    "threshold NaN": manifest_case(unknown_below=float("nan")),
    "resized by another rule": manifest_case(image=IMAGE | {"resize": "x"}),
    "class name with an escape sequence": manifest_case(classes=[*CLASSES, {"id": 13, "name": "\x1b[2J"}]),
    "proxies NaN": model_case(proxies_not_a_number),
    "no proxies": model_case(lambda model: helper.set_model_props(model, {})),
    "file anywhere": manifest_case(file="/etc/passwd"),
    "hash of something else": manifest_case(sha256="0" * 64),
    "size beyond the limit": manifest_case(bytes=10**12),
    "manifest of a new format": manifest_case(format=FORMAT + 1),
    "manifest HTML": text_case("manifest.json", b"<!doctype html><title>Welcome</title>"),
    "manifest deeply nested": text_case("manifest.json", DEEP.encode()),
    "latest a megabyte": text_case("latest.json", b" " * 1_000_000),
    "latest outside": text_case("latest.json", Latest(2, "../elsewhere", "0" * 64).to_bytes()),
    "latest of another hash": text_case("latest.json", Latest(2, "v000002", "0" * 64).to_bytes()),
    "model a link": linked("model.onnx"),
    "version folder a link": linked("."),
}


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[HotSwap, Path, list[str]]:
    monkeypatch.setattr(module, "LONGEST_CHECK_SECONDS", 0.5)
    exports = tmp_path / "exports"
    publish(exports, 1)
    said: list[str] = []
    swap = HotSwap(LocalModels(exports), LOAD, Health("test", said.append))
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
    assert said[0].endswith("v1 stays in use") and "\n" not in said[0]
    assert swap.classifier is old
    assert old.predict([frame_of("blue")])[0].top[0].name == "blue"


def test_a_bad_model_that_is_repaired_is_tried_again_and_a_later_good_one_taken(running):
    swap, exports, said = running
    folder = publish(exports, 2)
    (folder / "model.onnx").write_bytes(GOOD[:-99])
    assert not swap.look() and len(said) == 1
    (folder / "model.onnx").write_bytes(GOOD)
    assert swap.look()
    assert swap.classifier.info.version == 2
    publish(exports, 3, b"no model", manifest_of(GOOD, 3))
    assert not swap.look()
    publish(exports, 4)
    assert swap.look()


def test_a_frame_that_a_model_fails_on_is_told_and_the_next_is_answered(tmp_path: Path):
    model_case(nan_when_black)(tmp_path / "exports")
    classifier = Classifier.load(tmp_path / "exports", "cpu", 1)
    with pytest.raises(BadModel):
        classifier.predict([np.zeros((20, 20, 3), np.uint8)])
    assert classifier.predict([frame_of("green")])[0].top[0].name == "green"
