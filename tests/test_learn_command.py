"""`learn`: a whole workspace from the command line, with real folders, real signals and a second process."""

import fcntl
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time

import cv2
import numpy as np
import pytest
from process_parts import started

from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.live.status import one_line
from edge_hpcr.stream.contract import Stream
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.records import Counts

SMALL = ["--set", "backbone=reduced_resnet18", "--size", "8", "--set", "threads=1", "--set", "idle_steps=20"]
PATIENCE = 120.0


@pytest.fixture
def photos(tmp_path, digits):
    """Two classes in sub-folders, one file that is no image, one outside any class."""
    folder = tmp_path / "photos"
    for digit, name in ((0, "nought"), (1, "eins + one")):
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(digits.train_images[digits.train_labels == digit][:15]):
            cv2.imwrite(str(folder / name / f"{number}.png"), cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    (folder / "nought" / "notes.txt").write_text("not an image")
    cv2.imwrite(str(folder / "stray.png"), np.full((8, 8, 3), 200, np.uint8))
    return folder


def _learn(workspace, source, *more):
    return ["learn", "--workspace", str(workspace), "--source", str(source), *SMALL, *more]


@pytest.mark.slow
def test_a_folder_of_classes_is_learned_to_the_end_and_a_second_time_nothing_is_learned_twice(
    tmp_path, photos, capsys, own_signals
):
    for _ in range(2):
        assert cli.main(_learn(tmp_path / "w", photos, "--labels", "folders")) == 0
        with Workspace.open(tmp_path / "w") as workspace:
            classes = {row.name: row.labels for row in workspace.journal.classes()}
            assert classes == {"nought": 15, "eins + one": 15}
            assert workspace.journal.counts().queued == 1, "the image without a class"
            assert len(workspace.layout.checkpoint_folders()) >= 1
    said = capsys.readouterr()
    assert "30 labels" in said.out and "notes.txt" not in said.out
    assert "1 bad files or frames" in said.err
    assert "notes.txt" in (tmp_path / "w" / "quarantine" / "quarantine.jsonl").read_text()


def test_frames_without_labels_wait_in_the_queue(tmp_path, photos, own_signals):
    assert (
        cli.main(_learn(tmp_path / "w", photos, "--set", "gate_per_second=1000", "--set", "gate_distance=0"))
        == 0
    )
    with Workspace.open(tmp_path / "w") as workspace:
        counts = workspace.journal.counts()
        assert counts.labels == 0 and counts.queued > 15
        assert workspace.journal.counters()["queued"] == counts.queued


@pytest.mark.slow
def test_ctrl_c_saves_and_another_process_may_label_meanwhile(tmp_path):
    workspace = tmp_path / "w"
    command = ["-m", "edge_hpcr", *_learn(workspace, "digits", "--fps", "20")]
    with started(*command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as running:
        _until(lambda: (workspace / "status.json").exists())
        with Workspace.open(workspace, learning=False) as beside:
            journal = beside.journal
            _until(lambda: journal.counts().queued >= 2)
            first = journal.queued()[0].id
            assert cli.main(["label", str(workspace), str(first), "something", "--create"]) == 0
            _until(lambda: _status(workspace).get("step", 0) > 0)
            with pytest.raises(UserError, match=f"in use by process {running.pid}"):
                Workspace.open(workspace)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "1 label ·" in out
    with Workspace.open(workspace) as opened:
        assert opened.journal.sample(first).state == "labelled"
        assert opened.layout.checkpoint_folders()


def _status(workspace):
    return json.loads((workspace / "status.json").read_text())


def _until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--source", "nowhere"], "there is no source 'nowhere'"),
        (["--source", "digits", "--labels", "folder"], "labels"),
        (["--source", "digits", "--seconds", "-1"], "--seconds -1"),
        (["--source", "/usr", "--sources-under", "/var"], "/usr is not below /var"),
        (
            ["--source", "digits", "--sources-under", "/nothing"],
            "--sources-under /nothing: there is no such folder",
        ),
        (["--source", "digits", "--budget", "lots"], "'lots' is not a size"),
        (["--source", "digits", "--set", "speed=1"], "unknown setting 'speed'"),
        (["--source", "digits", "--set", "idle_share=2"], "setting idle_share 2"),
        (
            ["--source", "digits", "--size", "4"],
            "setting image_size 4: with the backbone efficientnet_lite0 give 32",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, capsys, options, says):
    assert cli.main(["learn", "--workspace", str(tmp_path / "w"), *options]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line


@pytest.mark.slow
def test_labels_that_could_not_be_stored_are_counted_and_the_same_command_again_stores_them(
    tmp_path, photos, capsys, own_signals
):
    command = _learn(tmp_path / "w", photos, "--labels", "folders", "--no-rehearsal")

    Workspace.open(tmp_path / "w").close()

    def limit_files():
        # Bytes: enough to open a journal, and less than a transaction with ten labels writes.
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    done = subprocess.run(
        [sys.executable, "-m", "edge_hpcr", *command, "--seconds", "3"],
        preexec_fn=limit_files,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    assert "10 labels could not be stored: make room" in done.stderr and "Traceback" not in done.stderr
    assert cli.main(command) == 0
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.journal.counts().labels == 30


def test_a_folder_that_holds_something_else_is_not_littered(tmp_path, photos, capsys):
    assert cli.main(["learn", "--workspace", str(photos), "--source", "digits"]) == 2
    assert "holds something else" in capsys.readouterr().err
    assert not (photos / "journal.sqlite").exists()


@pytest.mark.slow
def test_a_refused_setting_is_not_kept_and_a_wrong_source_leaves_no_workspace(
    tmp_path, photos, own_signals, capsys
):
    workspace = tmp_path / "w"
    assert cli.main(["learn", "--workspace", str(workspace), "--source", "nowhere"]) == 2
    assert not workspace.exists()
    assert cli.main(_learn(workspace, photos, "--labels", "folders", "--no-rehearsal")) == 0
    assert cli.main(["learn", "--workspace", str(workspace), "--source", str(photos), "--size", "16"]) == 2
    assert cli.main(_learn(workspace, photos, "--no-rehearsal", "--set", "archive=true")) == 0
    with Workspace.open(workspace) as opened:
        assert opened.settings.image_size == 8 and opened.settings.archive is True
    assert "ended" in capsys.readouterr().out


class Camera(Stream):
    """One that is in this phase."""

    name = "rtsp://camera.example:554/hall/stream"
    _dropped = 1234

    def __init__(self, *doing):
        self.doing = doing

    def _doing(self):
        return self.doing

    def read(self, timeout):
        return None

    def close(self):
        pass


def line(camera, width):
    status = {
        "phase": "rehearsing",
        "labels_waiting": 12,
        "memory": {"bytes": {"total": 1_200_000}, "budget": 2_000_000},
        "held_out": HeldOut().summary(),
        "test_then_train": TestThenTrain().summary(),
        "step": 4321,
    }
    return one_line(status, Counts(1320, 48, 7, 0, 0, 0, 0), camera, camera.state().message, width)


@pytest.mark.parametrize(
    ("width", "well", "in_trouble"),
    [
        (40, "rehearsing · 1,320 labels (12 to learn)", "stalled for 7 s, 1,234 dropped"),
        (
            80,
            "rehearsing · 1,320 labels (12 to learn)",
            "stalled for 7 s, 1,234 dropped · rehearsing · 1,320 labels (12 to learn)",
        ),
        (
            200,
            "rehearsing · 1,320 labels (12 to learn) · rtsp://camera.example:554/hall/stream: live, 15 frames/s, "
            "1,234 dropped · held-out: nothing to measure on yet · memory 1.20 MB of 2.00 MB",
            "stalled for 7 s, 1,234 dropped · rehearsing · 1,320 labels (12 to learn) · "
            "rtsp://camera.example:554/hall/stream · held-out: nothing to measure on yet · memory 1.20 MB of 2.00 MB",
        ),
    ],
)
def test_the_status_line_fits_the_terminal_and_begins_with_trouble(width, well, in_trouble):
    assert line(Camera("live", "live, 15 frames/s"), width).startswith(well)
    assert line(Camera("stalled", "stalled for 7 s"), width).startswith(in_trouble)
    for said in (line(Camera(phase, "a message"), width) for phase in ("live", "stalled")):
        assert len(said) <= width
        assert line(Camera("live", "a message"), None).count(" · ") == 7, "a log has all of it"


def test_a_message_longer_than_the_terminal_is_cut_between_words():
    message = "reconnecting: the camera refused the connection, next try in 12 s"
    assert line(Camera("reconnecting", message), 40) == "reconnecting: the camera refused the …"


@pytest.mark.slow
def test_a_camera_that_does_not_answer_is_said_first_on_a_narrow_terminal(tmp_path):
    """The process really writes to a terminal of 40 columns."""
    terminal, its_end = os.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    command = ["-m", "edge_hpcr", *_learn(tmp_path / "w", "http://127.0.0.1:9/camera")]
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    shown = b""
    with started(*command, stderr=its_end, env=environment) as running:
        os.close(its_end)
        while not re.search(rb"\rreconnecting:.*\r", shown):
            shown += os.read(terminal, 1000)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE)
    os.close(terminal)
    status = [each for each in shown.decode().split("\r")[:-1] if each.startswith("reconnecting:")]
    assert {len(each) for each in status} == {39}, "the reason stands in full on a line of its own"
