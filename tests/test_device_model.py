"""A model on a device: what it answers, what it says of itself, and on which hardware it runs."""

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from device_parts import (
    NAMES,
    frame_of,
    manifest_of,
    metadata_of,
    publish,
    tiny_model,
)

from edge_hpcr.common.errors import UserError
from export.device import providers
from export.device.errors import BadModel
from export.device.model import Classifier

ROOT = Path(__file__).parent.parent


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    publish(tmp_path / "exports", 1)
    return tmp_path / "exports"


def test_the_tiny_models_of_these_tests_are_real_ones():
    onnx.checker.check_model(tiny_model(), full_check=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_gets_the_name_of_its_colour(exports: Path, name: str):
    (result,) = Classifier.load(exports, "cpu", 1).predict([frame_of(name)])
    assert result.top[0].name == name
    assert not result.unknown
    assert result.similarity == pytest.approx(1.0, abs=1e-3)


def test_the_best_come_first_with_ids_and_probabilities(exports: Path):
    (result,) = Classifier.load(exports, "cpu", 1).predict([frame_of("green")], top=4)
    assert result.top[0].id == 11
    confidences = [label.confidence for label in result.top]
    assert confidences == sorted(confidences, reverse=True)
    assert sum(confidences) == pytest.approx(1)


def test_as_many_answers_as_asked_for_and_never_more_than_there_are_classes(exports: Path):
    classifier = Classifier.load(exports, "cpu", 1)
    assert [len(classifier.predict([frame_of("red")], top=n)[0].top) for n in (1, 2, 9)] == [1, 2, 4]


def test_what_is_far_from_every_class_is_unknown(exports: Path):
    black = np.zeros((20, 30, 3), np.uint8)
    (result,) = Classifier.load(exports, "cpu", 1).predict([black])
    assert result.unknown
    assert result.similarity < 0.5


def test_without_a_threshold_nothing_is_unknown(tmp_path: Path):
    metadata = metadata_of() | {"unknown_below": ""}
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_model(metadata=metadata).SerializeToString())
    classifier = Classifier.load(path, "cpu", 1)
    assert classifier.info.unknown_below is None
    assert not classifier.predict([np.zeros((20, 30, 3), np.uint8)])[0].unknown


def test_many_frames_of_many_sizes_at_once_get_the_answers_they_get_alone(exports: Path):
    classifier = Classifier.load(exports, "cpu", 1)
    sizes = [(5, 5), (16, 16), (480, 640), (31, 7)]
    frames = [frame_of(name, *size) for name, size in zip(NAMES, sizes, strict=True)] * 16
    together = classifier.predict(frames)
    assert [result.top[0].name for result in together] == list(NAMES) * 16
    alone = [classifier.predict([frame])[0] for frame in frames]
    assert [r.similarity for r in together] == pytest.approx([r.similarity for r in alone], abs=1e-5)


def test_no_frames_get_no_answers(exports: Path):
    assert Classifier.load(exports, "cpu", 1).predict([]) == []


def test_one_class_is_enough(tmp_path: Path):
    publish(tmp_path / "exports", 1, names=("blue",))
    (result,) = Classifier.load(tmp_path / "exports", "cpu", 1).predict([frame_of("blue")])
    assert [(label.name, label.confidence) for label in result.top] == [("blue", 1.0)]


def test_the_metadata_are_told(exports: Path):
    info = Classifier.load(exports, "cpu", 1).info
    assert (info.version, info.step, info.height, info.width) == (1, 100, 16, 16)
    assert [each.name for each in info.classes] == list(NAMES)
    assert (info.unknown_below, info.temperature, info.accuracy["held_out"]) == (0.5, 1.5, 0.9)


@pytest.mark.parametrize("part", ["", "v000001", "v000001/model.onnx"])
def test_an_exports_folder_a_version_and_a_file_can_be_loaded(exports: Path, part: str):
    assert Classifier.load(exports / part, "cpu", 1).predict([frame_of("red")])[0].top[0].name == "red"


def test_a_file_beside_its_manifest_must_be_the_one_it_describes(exports: Path):
    path = exports / "v000001" / "model.onnx"
    path.write_bytes(tiny_model(scale=0.1).SerializeToString())
    with pytest.raises(BadModel, match="SHA-256"):
        Classifier.load(path, "cpu", 1)


def test_an_empty_exports_folder_is_refused_with_the_name_of_what_is_missing(tmp_path: Path):
    with pytest.raises(BadModel, match=r"latest\.json: cannot be read: No such file"):
        Classifier.load(tmp_path, "cpu", 1)


def test_a_variant_is_used_where_there_is_one_and_its_lack_is_told(tmp_path: Path):
    plain, small = tiny_model().SerializeToString(), tiny_model(scale=0.15).SerializeToString()
    variant = manifest_of(small)
    manifest = manifest_of(plain) | {
        "variants": {
            "int8": {
                "file": "model.int8.onnx",
                "bytes": len(small),
                "sha256": variant["sha256"],
                "accuracy": 0.9,
            },
            "fp16": {"kept": False, "reason": "no GPU here"},
        }
    }
    folder = publish(tmp_path / "exports", 1, plain, manifest)
    (folder / "model.int8.onnx").write_bytes(small)
    int8 = Classifier.load(tmp_path / "exports", "cpu", 1, variant="int8")
    assert (int8.variant, int8.variant_note) == ("int8", None)
    assert Classifier.load(folder / "model.int8.onnx", "cpu", 1).variant == "int8"
    fp16 = Classifier.load(tmp_path / "exports", "cpu", 1, variant="fp16")
    assert (fp16.variant, fp16.variant_note) == ("fp32", "version 1 has no fp16 variant: no GPU here")
    with pytest.raises(UserError, match="choose one of fp32, int8, fp16"):
        Classifier.load(tmp_path / "exports", "cpu", 1, variant="int4")


def test_two_threads_may_ask_one_model(exports: Path):
    classifier = Classifier.load(exports, "cpu", 1)
    names: list[str] = []

    def ask(name: str) -> None:
        for _ in range(50):
            names.append(classifier.predict([frame_of(name)])[0].top[0].name == name)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("red", "blue")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == [True] * 100


def test_without_a_gpu_the_cpu_runs_and_says_why(exports: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(providers, "_wanted", lambda _: ([providers.CPU], "no NVIDIA driver (none)"))
    classifier = Classifier.load(exports, "auto", 1)
    assert classifier.provider == "CPUExecutionProvider"
    assert classifier.provider_note == "no NVIDIA driver (none)"
    assert Classifier.load(exports, "auto", 1).predict([frame_of("red")])[0].top[0].name == "red"
    with pytest.raises(UserError, match="a GPU is required, and none can be used: no NVIDIA driver"):
        Classifier.load(exports, "auto", 1, require_gpu=True)


def test_a_gpu_that_is_promised_but_does_not_start_is_not_believed(exports: Path, monkeypatch, capfd):
    if "CUDAExecutionProvider" in Classifier.load(exports, "auto", 1).provider:
        pytest.skip("a GPU works here")
    wanted = [providers.TENSORRT, providers.CUDA, providers.CPU]
    monkeypatch.setattr(providers, "_wanted", lambda _: (wanted, None))
    classifier = Classifier.load(exports, "tensorrt", 1)
    assert classifier.provider == "CPUExecutionProvider"
    assert "did not start" in (classifier.provider_note or "")
    assert capfd.readouterr() == ("", ""), "ONNX Runtime's own lines stay away from stdout and stderr"


def test_who_asks_for_the_cpu_hears_nothing_about_gpus(exports: Path):
    assert Classifier.load(exports, "cpu", 1).provider_note is None
