"""Every measurement starts, and those that need little go to their end and keep their result."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from edge_hpcr.commands import cli

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "cli.run(" in path.read_text())

pytestmark = pytest.mark.slow


def test_every_measurement_is_one_of_make_bench_and_says_what_it_does(capsys):
    makefile = (ROOT / "Makefile").read_text()
    assert len(NAMES) >= 8
    for name in NAMES:
        module = "benchmarks" if name == "__main__" else f"benchmarks.{name}"
        commands = importlib.import_module(f"benchmarks.{name}").commands
        assert cli.run(commands, f"python -m {module}", ["--help"]) == 0
        assert "--out FILE" in capsys.readouterr().out, name
        assert f"-m {module} " in makefile or name in ("honesty", "scenes", "verdicts"), name


def test_a_step_is_compared_with_the_plain_one(tmp_path):
    speed = importlib.import_module("benchmarks.speed")
    assert cli.run(speed.commands, "speed", ["--rounds", "1", "--out", str(tmp_path / "speed.json")]) == 0
    kept = json.loads((tmp_path / "speed.json").read_text())
    assert kept["speedup"]["ours"]["median"] > 0
    assert "plain" in (tmp_path / "speed.md").read_text()


def test_kills_and_damage_are_tried_and_counted(tmp_path):
    """In a process of its own, from which each fault is a fork."""
    kinds = "merge,damaged checkpoint"
    arguments = ["--faults", "2", "--kinds", kinds, "--out", tmp_path / "faults.json"]
    command = [sys.executable, "-m", "benchmarks.faults", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads((tmp_path / "faults.json").read_text())
    assert kept["passed"] and set(kept["faults"]) == set(kinds.split(",")), kept["problems"]


def test_damaged_input_is_made_and_read(tmp_path):
    fuzz = importlib.import_module("benchmarks.fuzz")
    found = fuzz.fuzz_for("pictures", 1.0, 0)
    assert found["examples"] > 0 and not found["defects"]
