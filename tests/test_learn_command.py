"""`learn` on a disk that takes no more: labels that could not be stored are counted, and stored the next time."""

import os
import resource
import subprocess
import sys

import cv2
import pytest

from edge_hpcr.commands import cli
from edge_hpcr.workspace.workspace import Workspace

SETTINGS = ("backbone=reduced_resnet18", "image_size=8", "threads=1", "idle_steps=20")
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]
PATIENCE = 120.0


@pytest.fixture
def photos(tmp_path, digits):
    """Two classes in sub-folders."""
    folder = tmp_path / "photos"
    for digit, name in ((0, "nought"), (1, "eins + one")):
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(digits.train_images[digits.train_labels == digit][:15]):
            cv2.imwrite(str(folder / name / f"{number}.png"), cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return folder


def _learn(workspace, source, *more):
    return ["learn", "--workspace", str(workspace), "--source", str(source), *SMALL, *more]


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
