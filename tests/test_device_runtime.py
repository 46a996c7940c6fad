"""`python -m export.runtime` as a user starts it: real processes, real pipes, a real page."""

import subprocess
import sys
from pathlib import Path

import pytest
from device_parts import NAMES, add, command, running_device
from process_parts import ROOT

from export.runtime import tell


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for place, name in enumerate(NAMES):
        add(folder, f"{place}.png", name)
    return folder


@pytest.mark.slow
def test_when_nobody_reads_the_results_any_more_it_ends_quietly(exports: Path, images: Path):
    with running_device("--models", exports, "--source", f"watch:{images}") as process:
        for _ in NAMES:
            process.stdout.readline()
        process.stdout.close()
        add(images, "9.png", "red")
        assert process.wait(60) == 0
        errors = process.stderr.read()
    assert "Traceback" not in errors and "BrokenPipe" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_results_that_cannot_be_written_are_one_line_and_exit_code_1(exports: Path, images: Path):
    with Path("/dev/full").open("w") as full:
        arguments = command("--models", exports, "--source", images)
        done = subprocess.run(arguments, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert "No space left" in done.stderr.splitlines()[1] and len(done.stderr.splitlines()) == 2


def test_what_is_told_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]):
    tell("a\x1b[2Jb\rc\nd\u2028e \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}")
    assert capsys.readouterr().err == "export.runtime: a [2Jb c d e \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\n"


LEAVE = """
import sys, threading
import numpy as np
from export.device.model import Classifier
from export.runtime import leave
classifier, begun = Classifier.load(sys.argv[1], "cpu", 1), threading.Event()
def run():
    while True:
        classifier.predict_prepared(np.zeros((64, 16, 16, 3), np.uint8))
        begun.set()
for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
begun.wait()
print("done")
leave(3)
"""


@pytest.mark.slow
def test_the_end_while_other_threads_are_in_a_model_is_no_crash(exports: Path):
    arguments = [sys.executable, "-c", LEAVE, str(exports)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", "")
