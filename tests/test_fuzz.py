"""Damaged input for everything that reads from outside, a few examples each; `make fuzz` tries for minutes."""

import time

import pytest
from hypothesis import strategies as st

from benchmarks import fuzz
from benchmarks.fuzz import TARGETS, Target
from edge_hpcr.commands.cli import main, run
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.verify import verify_workspace

SLOW = {
    "journal files",
    "checkpoints",
    "events of the journal",
    "status.json",
}  # tens of milliseconds an example


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_taken_or_refused_in_a_sentence(name):
    with fuzz.ready(name) as (inputs, parser):
        fuzz.run(inputs, parser, 12 if name in SLOW else 60, number=1)


def test_a_journal_whose_header_says_an_unknown_format_is_restored_as_a_damaged_one(tmp_path):
    # Found by fuzzing: SQLite has no number for this kind of damage.
    path = fuzz._workspace(tmp_path)
    with (path / "journal.sqlite").open("r+b") as file:
        file.seek(47)
        file.write(b"\xff")
    assert any("unsupported file format" in str(problem) for problem in verify_workspace(path))
    with Workspace.open(path) as workspace:
        assert "unsupported file format" in workspace.report[0]


def test_a_refusal_that_names_a_file_with_two_lines_is_one_line(capsys):
    assert main(["status", "one\ntwo"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "defects"), [(None, 0), (UserError("no"), 0), (KeyError("x"), 1), (RecursionError(), 1)]
)
def test_an_error_that_is_no_refusal_is_a_defect(monkeypatch, error, defects):
    def parse(data):
        if error is not None:
            raise error

    monkeypatch.setitem(TARGETS, "sizes and settings", Target(st.integers, lambda folder: parse))
    monkeypatch.setattr(fuzz, "AT_ONCE", 5)
    found = fuzz.fuzz_for("sizes and settings", 0.01, 0)
    assert bool(found["defects"]) == bool(defects) and found["examples"] > 0


def test_a_parser_that_hangs_is_a_defect(monkeypatch):
    monkeypatch.setattr(fuzz, "LONGEST_SECONDS", 0.01)
    with pytest.raises(AssertionError, match="too long"):
        fuzz.checked(lambda data: time.sleep(0.05))(b"")


def test_what_was_tried_is_kept_with_its_table(tmp_path, capsys):
    out = tmp_path / "fuzz.json"
    assert run(fuzz.commands, "fuzz", ["--target", "class names", "--seconds", "0.1", "--out", str(out)]) == 0
    assert "class names" in out.with_suffix(".md").read_text()
    assert run(fuzz.commands, "fuzz", ["--target", "dreams"]) == 2
