"""The command line: help that teaches, and one clear line for wrong input."""

import re
import subprocess
import sys

import pytest

from edge_hpcr.bench.presets import PRESETS, preset
from edge_hpcr.commands.bench import configure
from edge_hpcr.commands.cli import COMMANDS, HELP_WIDTH, main
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import format_bytes, parse_bytes
from edge_hpcr.learner import methods
from edge_hpcr.workspace.folder import Workspace


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # unknown names list the known ones
        (["bench", "--dataset", "imagenet"], "unknown dataset 'imagenet'.*digits.*cifar10"),
        (["bench", "--dataset", "digits", "--method", "sgd"], "unknown method 'sgd'.*hpcr.*finetune"),
        (["bench", "--preset", "paper/cifar10-300"], "unknown preset.*paper/cifar10-200"),
        (["bench"], "name a dataset"),
        (["bench", "--preset", "paper/cifar10-200", "--dataset", "digits"], "contradicts"),
        (
            ["bench", "--dataset", "digits", "--seed", "1", "--seeds", "2"],
            "--seed is not allowed with --seeds",
        ),
        (
            ["bench", "--dataset", "digits", "--buffer", "9", "--budget", "1MB"],
            "--budget is not allowed with",
        ),
        (["bench", "--dataset", "digits", "--backbone", "vgg"], "unknown backbone 'vgg'.*efficientnet_lite0"),
        (
            ["bench", "--dataset", "digits", "--backbone", "efficientnet_lite0", "--codec", "raw"],
            "codec raw.*latent",
        ),
        # settings
        (["bench", "--dataset", "digits", "--set", "gamma=3"], "no such setting.*alpha"),
        (["bench", "--dataset", "digits", "--set", "gamma"], "KEY=VALUE"),
        (["bench", "--dataset", "digits", "--set", "lr=fast"], "lr is a float"),
        (["bench", "--dataset", "digits", "--set", "optimiser=rmsprop"], "unknown optimiser.*sgd, adam"),
        (["bench", "--dataset", "digits", "--set", "schedule=linear"], "schedule.*reciprocal.*cosine"),
        (["bench", "--dataset", "digits", "--set", "distil=never"], "distil.*older.*always"),
        (["bench", "--dataset", "digits", "--set", "batch_norm=none"], "batch_norm.*separate.*joint"),
        (["bench", "--dataset", "digits", "--set", "ema_decay=2"], "ema_decay"),
        (["bench", "--dataset", "digits", "--codec", "gif"], "codec 'gif'.*raw"),
        (["bench", "--dataset", "digits", "--budget", "lots"], "'lots' is not a size"),
        (["bench", "--dataset", "digits", "--budget", "1KB"], "budget|memory of 1000 bytes"),
        (["bench", "--dataset", "digits", "--tasks", "3"], "3 tasks.*1, 2, 5, 10"),
        (["bench", "--dataset", "digits", "--device", "tpu"], "unknown device 'tpu'"),
        (["bench", "--dataset", "digits", "--set", "alpha=hello"], "alpha is a float"),
        (["bench", "--dataset", "digits", "--set", "alpha=-1"], "alpha -1.*not negative"),
        (["bench", "--dataset", "digits", "--set", "cycle=0.5"], "cycle is a int"),
        (["bench", "--dataset", "digits", "--set", "precision=[1]"], "precision is a str"),
        (["bench", "--dataset", "digits", "--set", "tau=None"], "tau is a float"),
        (["bench", "--dataset", "digits", "--budget", "9" * 400], "more bytes than any machine"),
        (["bench", "--dataset", "digits", "--budget", ""], "not a size"),
        # data that is not there: the command that gets it
        (["bench", "--dataset", "cifar10", "--root", "nowhere"], "data get cifar10 --root nowhere"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_wrong_input_is_one_line_on_stderr_and_exit_code_2(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.strip().splitlines()
    assert re.search(message, line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing command"),
        (["brench"], "no such command 'brench'. Did you mean 'bench'?"),
        (["bench", "--limit", "abc"], "--limit 'abc' should be a whole number"),
        (["bench", "--tasks", "0"], "--tasks '0' should be greater than or equal to 1"),
        (["bench", "--seed", "-1"], "--seed '-1' should be"),
        (["bench", "--seed", "1.5"], "--seed '1.5' should be a whole number"),
        (["learn", "--workspace", "w", "--source", "0", "--fps", "x"], "--fps 'x' should be a number"),
        (["bench", "--colour"], "no such option: --colour"),
        (["learn", "--source", "0"], "missing option '--workspace'"),
        (["status"], "missing argument 'W'"),
        (["app", "--port", "99999"], "--port '99999' should be less than or equal to 65535"),
        (["export", "rollback", "x"], "version 'x' should be a whole number"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_line_too(arguments, message, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("edge_hpcr: ") and message in line
    assert "--help" in line


def test_many_settings_make_no_name_that_is_too_long():
    settings = [part for i in range(60) for part in ("--set", f"alpha=0.{i:03}")]
    (run,) = configure(["--dataset", "digits", *settings])
    assert len(run.name) < 150


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert main(["bench", "--dataset", "digits", "--out", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.slow
def test_the_module_runs_as_a_program_and_keeps_its_exit_codes():
    program = [sys.executable, "-m", "edge_hpcr"]
    wrong = subprocess.run([*program, "bench", "--dataset", "nothing"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("edge_hpcr: unknown dataset")
    assert "Traceback" not in wrong.stderr
    helped = subprocess.run([*program, "bench", "--help"], capture_output=True, text=True)
    assert helped.returncode == 0
    assert "examples:" in helped.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [*COMMANDS, "device"])
def test_every_command_explains_itself(command, capsys):
    if command == "device":  # argparse, which ends the process by itself
        ended = subprocess.run(
            [sys.executable, "-m", "edge_hpcr", command, "--help"], capture_output=True, text=True, check=True
        )
        shown = ended.stdout
    else:
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
    assert len(shown.splitlines()) > 5
    assert main(["--help"]) == 0
    assert re.search(f"^  {command} +[a-z]", capsys.readouterr().out, re.MULTILINE)


IMPORTS = """
import sys
from edge_hpcr.commands.cli import main
assert main(sys.argv[1:]) == 0
print(sorted({"torch", "gradio", "pandas"} & set(sys.modules)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["status", "W"],
        ["classes", "W", "list"],
        ["learn", "--help"],
        ["app", "--help"],
    ],
)
def test_help_and_status_wait_for_no_large_library(tmp_path, arguments):
    with Workspace.open(tmp_path / "w"):
        pass
    command = [each.replace("W", str(tmp_path / "w")) for each in arguments]
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTS, *command], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("width", [50, 80, 200])
def test_help_fits_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["data", "get", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= min(width, HELP_WIDTH)


def test_presets_are_the_papers_settings():
    assert len([name for name in PRESETS if name.startswith("paper/")]) == 12
    assert preset("paper/cifar10-200").buffer == 200
    assert methods.method_class("hpcr").papers_options("cifar10") == {"alpha": 0.01}
    assert preset("paper/tiny_imagenet-4000").dataset == "tiny_imagenet"
    ocm = preset("paper-ocm/cifar100-1000").learner_options
    assert ocm == {"nf": 64, "replay": 64, "optimiser": "adam", "lr": 0.001}


@pytest.mark.parametrize(
    ("text", "size"), [("2MB", 2_000_000), ("1.5 kb", 1500), ("1MiB", 2**20), ("77", 77), ("3 GB", 3 * 10**9)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-2MB", "2XB", "0", "1e3"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(UserError, match=r"size|no bytes"):
        parse_bytes(text)


def test_sizes_are_written_shortly():
    assert [format_bytes(n) for n in (12, 3424, 2_593_600, 4 * 10**9)] == [
        "12 B",
        "3.42 KB",
        "2.59 MB",
        "4.00 GB",
    ]
