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


def measure(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done


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
    measure("speed", "--rounds", 2, "--out", tmp_path / "speed.json")
    kept = json.loads((tmp_path / "speed.json").read_text())
    assert kept["speedup"]["ours"]["median"] > 0
    assert "plain" in (tmp_path / "speed.md").read_text()


def test_kills_and_damage_are_tried_and_counted(tmp_path):
    kinds = "merge,damaged checkpoint"
    done = measure("faults", "--faults", 4, "--kinds", kinds, "--out", tmp_path / "faults.json")
    kept = json.loads((tmp_path / "faults.json").read_text())
    assert done.returncode == 0 and kept["passed"] and kept["n"] >= 4, kept["problems"]
    assert set(kept["faults"]) == set(kinds.split(","))


def test_damaged_input_is_made_and_read(tmp_path):
    fuzz = importlib.import_module("benchmarks.fuzz")
    found = fuzz.fuzz_for("pictures", 1.0, 0)
    assert found["examples"] > 0 and not found["defects"]
