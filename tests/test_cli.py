"""The command line: help that teaches, and one clear line for wrong input."""

import subprocess
import sys

import numpy as np
import pytest

from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import parse_bytes
from edge_hpcr.workspace.workspace import Workspace

DIGITS = ["bench", "--dataset", "digits"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        # unknown names list the known ones
        ([*DIGITS, "--set", "gamma=3"], "alpha"),
        # what contradicts itself, or is of another type
        ([*DIGITS, "--buffer", "200", "--budget", "1MB"], "both a buffer and a budget"),
        ([*DIGITS, "--backbone", "efficientnet_lite0", "--codec", "raw"], "latent"),
        ([*DIGITS, "--set", "lr=fast"], "float"),
        ([*DIGITS, "--budget", "1KB"], "1000 bytes"),
    ],
)
def test_wrong_input_is_one_line_on_stderr_and_exit_code_2(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.strip().splitlines()
    assert words in line


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert main(["bench", "--dataset", "digits", "--out", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


IMPORTS = """
import sys
from edge_hpcr.commands.cli import main
for command in ("--help", "--version", "status W", "classes W add mug", "classes W list", "label W 1 mug", "verify W",
                "samples W export OUT", "samples W import OUT"):
    assert main([{"W": sys.argv[1], "OUT": sys.argv[2]}.get(word, word) for word in command.split()]) == 0, command
    assert not {"torch", "gradio", "pandas"} & set(sys.modules), command
"""


@pytest.mark.slow
def test_help_and_the_commands_for_a_workspace_wait_for_no_large_library(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.take(np.zeros((8, 8, 3), np.uint8), "camera 0")
    arguments = [sys.executable, "-c", IMPORTS, str(tmp_path / "w"), str(tmp_path / "out.zip")]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("text", "size"), [("2MB", 2_000_000), ("1.5 kb", 1500), ("1MiB", 2**20), ("77", 77), ("3 GB", 3 * 10**9)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-2MB", "2XB", "0", "1e3"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(UserError, match="size"):
        parse_bytes(text)
