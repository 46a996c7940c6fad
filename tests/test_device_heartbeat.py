"""The file that tells whether a device is at work."""

import os
import time
from pathlib import Path

import pytest
from device_parts import publish
from test_device_runtime import USUAL, add, line_of, running_device

from edge_hpcr.common.errors import UserError
from export.device.errors import BadModel
from export.device.heartbeat import Heartbeat, main
from export.device.model import Classifier
from export.device.runtime import main as runtime


def test_there_is_no_sign_of_life_before_the_first_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "heartbeat"
    path.touch()
    heartbeat = Heartbeat(path, print)
    assert main([str(path)]) == 1, "the file of an earlier runtime says nothing of this one"
    assert "no frame has been answered yet" in capsys.readouterr().out
    heartbeat.beat()
    assert main([str(path)]) == 0
    assert "last sign of life 0 s ago" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [-61, 61])
def test_an_old_beat_is_none_and_one_from_the_future_neither(tmp_path: Path, seconds: int):
    path = tmp_path / "heartbeat"
    path.touch()
    os.utime(path, (then := time.time() + seconds, then))
    assert main([str(path)]) == 1
    assert main([str(path), "--most", "100"]) == 0


def test_a_beat_a_second_is_enough(tmp_path: Path):
    path = tmp_path / "heartbeat"
    heartbeat = Heartbeat(path, print)
    heartbeat.beat()
    path.unlink()
    heartbeat.beat()
    assert not path.exists()


def test_what_is_wrong_beside_the_frames_is_in_the_file_until_it_is_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("export.device.heartbeat.EVERY_SECONDS", 0.0)
    path = tmp_path / "heartbeat"
    heartbeat = Heartbeat(path, print)
    heartbeat.beat("the broker is away")
    assert main([str(path)]) == 0, "frames are answered"
    assert capsys.readouterr().out == "last sign of life 0 s ago; problem: the broker is away\n"
    Heartbeat(path, print)  # the next start takes the file as its own
    heartbeat.beat("the broker is away")
    heartbeat.beat(None)
    assert path.read_text() == ""


def test_a_place_that_cannot_be_written_is_told_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(UserError, match=r"--heartbeat .*nowhere"):
        Heartbeat(tmp_path / "nowhere" / "heartbeat", print)
    publish(tmp_path / "exports", 1)
    places = ["--models", str(tmp_path / "exports"), "--source", str(tmp_path)]
    assert runtime([*USUAL, *places, "--heartbeat", str(tmp_path / "nowhere" / "heartbeat")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--heartbeat" in line


def test_a_file_with_something_in_it_is_somebody_elses(tmp_path: Path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UserError, match="it is not empty"):
        Heartbeat(tmp_path / "notes", print)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_place_that_is_lost_later_is_told_once_and_stops_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("export.device.heartbeat.EVERY_SECONDS", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    said: list[str] = []
    heartbeat = Heartbeat(folder / "heartbeat", said.append)
    folder.rmdir()
    heartbeat.beat()
    heartbeat.beat()
    assert len(said) == 1
    folder.mkdir()
    heartbeat.beat()
    assert main([str(folder / "heartbeat")]) == 0


def test_a_model_that_fails_is_no_sign_of_life_and_skipped_frames_are(tmp_path: Path, monkeypatch, capsys):
    publish(tmp_path / "exports", 1)
    (tmp_path / "photos").mkdir()
    add(tmp_path / "photos", "0.png", "red")
    path = tmp_path / "heartbeat"
    arguments = ["--models", str(tmp_path / "exports"), "--source", str(tmp_path / "photos"), "--cpu"]
    arguments += ["--heartbeat", str(path), "--every", "2"]

    def fail(*arguments: object) -> None:
        raise BadModel("the GPU is gone")

    with monkeypatch.context() as broken:
        broken.setattr(Classifier, "predict_prepared", fail)
        broken.setattr(Classifier, "_check_run", lambda self, count: None)
        assert runtime(arguments) == 0
        assert not path.exists()
        add(tmp_path / "photos", "1.png", "red")
        assert runtime(arguments) == 0
        assert path.exists(), "the second frame was to be skipped, and was"
    assert "the GPU is gone" in capsys.readouterr().err


@pytest.mark.slow
def test_a_watched_folder_to_which_nothing_comes_is_well(tmp_path: Path):
    publish(tmp_path / "exports", 1)
    (tmp_path / "photos").mkdir()
    path = tmp_path / "heartbeat"
    with running_device(
        "--models", tmp_path / "exports", "--source", tmp_path / "photos", "--watch", "--heartbeat", path
    ) as process:
        line_of(process.stderr, "model v1")
        deadline = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
