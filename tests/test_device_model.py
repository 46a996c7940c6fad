"""A model on a device: what it answers, what it says of itself, and on which hardware it runs."""

from pathlib import Path

import numpy as np
import pytest
from device_parts import frame_of, manifest_of, publish, tiny_model

from export.device import model
from export.device.model import Classifier


def test_what_is_far_from_every_class_is_unknown_unless_there_is_no_threshold(exports: Path, tmp_path: Path):
    black = np.zeros((20, 30, 3), np.uint8)
    (result,) = Classifier.load(exports, "cpu", 1).predict([black])
    assert result.unknown and result.similarity < 0.5
    data = tiny_model().SerializeToString()
    folder = publish(tmp_path / "others", 1, data, manifest_of(data) | {"unknown_below": None})
    assert not Classifier.load(folder, "cpu", 1).predict([black])[0].unknown


def test_a_variant_is_used_where_there_is_one_and_its_lack_is_told(tmp_path: Path):
    plain, small = tiny_model().SerializeToString(), tiny_model(scale=0.15).SerializeToString()
    variant = manifest_of(small)
    manifest = manifest_of(plain) | {
        "variants": {
            "int8": {"file": "model.int8.onnx", "bytes": len(small), "sha256": variant["sha256"]},
        }
    }
    folder = publish(tmp_path / "exports", 1, plain, manifest)
    (folder / "model.int8.onnx").write_bytes(small)
    int8 = Classifier.load(tmp_path / "exports", "cpu", 1, variant="int8")
    assert (int8.variant, int8.notes) == ("int8", [])
    assert "has no int4" in Classifier.load(tmp_path / "exports", "cpu", 1, variant="int4").notes[0]


def test_a_gpu_that_is_promised_but_does_not_start_is_not_believed(exports: Path, monkeypatch, capfd):
    if "CUDAExecutionProvider" in Classifier.load(exports, "auto", 1).provider:
        pytest.skip("a GPU works here")
    attempts = [[model.CUDA, model.CPU], [model.CPU]]
    monkeypatch.setattr(model, "_attempts", lambda _: attempts)
    classifier = Classifier.load(exports, "auto", 1)
    assert classifier.provider == "CPUExecutionProvider"
    assert "did not start" in classifier.notes[0]
    assert classifier.predict([frame_of("red")])[0].top[0].name == "red"
    assert capfd.readouterr() == ("", ""), "ONNX Runtime's own lines stay away from stdout and stderr"
