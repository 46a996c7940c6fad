"""The commands for a workspace: what they say, what they change, and one clear line for wrong input."""

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from process_parts import started

from edge_hpcr.commands.cli import main
from edge_hpcr.common.files import locked
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.live.status import write_status
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def path(tmp_path, digits) -> Path:
    """A workspace with samples 1 to 3 labelled mug, 4 labelled stapler, and 5 to 8 in the queue."""
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.take_many(
            [Frame(image, f"camera {i}", priority=i / 10) for i, image in enumerate(digits.train_images[:8])]
        )
        workspace.journal.label([1, 2, 3], workspace.journal.create_class("mug"))
        workspace.journal.label([4], workspace.journal.create_class("stapler"))
    return tmp_path / "w"


@pytest.fixture
def run(path, capsys):
    """Run `COMMAND W …` for real; gives the exit code and what was said on stdout and stderr."""

    def run_command(command: str, *arguments: object) -> tuple[int, str, str]:
        code = main([command, str(path), *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out.strip(), said.err.strip()

    return run_command


def in_journal(path: Path) -> dict[str, list[int]]:
    with Workspace.open(path, create=False, learning=False) as workspace:
        return {
            row.name: [sample.id for sample in workspace.journal.samples(class_id=row.id)]
            for row in workspace.journal.classes()
        }


# Labels -----------------------------------------------------------------------------------------------------------


def test_labels_by_name_in_any_case_and_for_a_new_class(run, path):
    assert run("label", 5, "MUG") == (0, "labelled 1 sample as mug (class 1)", "")
    assert run("label", "6, 7", "stapler")[:2] == (0, "labelled 2 samples as stapler (class 2)")
    assert run("label", 8, "hex nut", "--create")[0] == 0
    assert in_journal(path) == {"mug": [1, 2, 3, 5], "stapler": [4, 6, 7], "hex nut": [8]}
    assert run("label", "1,4", "mug")[1] == "labelled 1 sample as mug (class 1), 1 of which had been stapler"
    assert run("label", 1, "mug")[1] == "nothing to change: labelled mug already"
    assert run("label", 1, "Hex Nut", "--create")[0] == 0, "a name that exists is used, not made twice"
    assert in_journal(path) == {"mug": [2, 3, 4, 5], "stapler": [6, 7], "hex nut": [1, 8]}


# Status -----------------------------------------------------------------------------------------------------------

FIELDS = {
    *("workspace", "doing", "running", "pid", "device", "seconds_since_report", "step", "labels"),
    *("held_out_labels", "classes", "events", "events_waiting", "memory", "held_out", "test_then_train"),
    *("queue", "checkpoint", "disk", "problems", "alarms", "stream"),
}


def measured() -> tuple[TestThenTrain, HeldOut]:
    arrivals, held_out = TestThenTrain(), HeldOut()
    for right in (False, True, True, True):
        arrivals.record(1, 1 if right else None)
    held_out.record(12, np.ones(40, int), np.repeat([1, 2], [30, 10]))
    return arrivals, held_out


def report(phase: str, pid: int, held_out: HeldOut, **changes: object) -> dict:
    """What a learner says of itself; of the same form as `LiveLearner.status`."""
    return {
        "pid": pid,
        "at": time.time(),
        "phase": phase,
        "device": "cpu",
        "step": 12,
        "applied": 3,
        "labels_waiting": 0,
        "memory": {"samples": 570, "bytes": {"image": 1, "total": 1_000_000}, "budget": 2_000_000},
        "test_then_train": measured()[0].model_dump(),
        "held_out": held_out.model_dump(),
        "stream": None,
        "problems": [],
    } | changes


def ended_process() -> int:
    with started("-c", "") as process:
        process.wait()
    return process.pid


def test_the_status_of_a_learner_that_runs(run, path):
    nothing_learned = json.loads(run("status", "--json")[1])
    assert set(nothing_learned) == FIELDS
    assert (nothing_learned["doing"], nothing_learned["step"]) == ("not running", None)
    assert [nothing_learned[name] for name in ("labels", "classes", "events_waiting")] == [4, 2, 4]
    held_out = measured()[1]
    write_status(path / "status.json", report("learning", os.getpid(), held_out, problems=["a full disk"]))
    with locked(path / "lock", "busy"):
        status, text = json.loads(run("status", "--json")[1]), run("status")[1]
    assert set(status) == FIELDS
    assert (status["doing"], status["running"], status["pid"]) == ("learning", True, os.getpid())
    assert status["memory"] == {"samples": 570, "bytes": 1_000_000, "budget": 2_000_000}
    assert (status["held_out"]["accuracy"], status["held_out"]["samples"]) == (0.75, 40)
    assert "75 % (n=40)" in text and "75 % (n=4, few samples)" in text and "a full disk" in text


def test_the_lock_says_whether_a_learner_runs_and_not_a_process_number(run, path):
    # In another container the learner's number belongs to nobody, or to somebody else.
    write_status(path / "status.json", report("learning", ended_process(), HeldOut()))
    with locked(path / "lock", "busy"):
        there = json.loads(run("status", "--json")[1])
    write_status(path / "status.json", report("learning", os.getpid(), HeldOut()))
    gone = json.loads(run("status", "--json")[1])
    assert (there["doing"], there["running"]) == ("learning", True)
    assert (gone["doing"], gone["running"], gone["pid"]) == ("not running", False, None)


def test_the_report_of_an_earlier_version_is_no_problem(run, path):
    usual = {"accuracy": 1.0, "classes": {}, "curve": []}
    tested = {**usual, "labels": 4, "recent": {"labels": 4, "accuracy": 1.0}}
    measured = {**usual, "samples": 2, "step": 3, "confusion": [[1, 1, 2]]}
    changes = {"test_then_train": tested, "held_out": measured}
    write_status(path / "status.json", report("failed", os.getpid(), HeldOut()) | changes)
    status = json.loads(run("status", "--json")[1])
    assert (status["doing"], status["held_out"]["accuracy"]) == ("failed", 1.0)
    assert status["problems"] == status["alarms"]


# Damage -----------------------------------------------------------------------------------------------------------

COMMANDS = ["status", "verify", "samples list --json", "classes list", "label 2 mug", "undo"]
NEWER_EVENT = (
    '{"samples": [[1, ["queued", null, false, "sure"], ["labelled", 1, false, "sure"]]], "classes": []}'
)
DAMAGES = {
    "DELETE FROM meta": "does not say its format",
    "DROP TABLE meta": "no such table",
    "UPDATE samples SET hash64 = 'many' WHERE id = 2": "not of the right types",
    f"UPDATE events SET body = '{NEWER_EVENT}' WHERE seq = 2": "event 2 cannot be read",
}


@pytest.mark.parametrize("statement", DAMAGES)
def test_a_damaged_journal_is_refused_in_one_line_and_verify_says_why(path, run, statement):
    with closing(sqlite3.connect(path / "journal.sqlite")) as db, db:
        db.execute(statement)
    for command in COMMANDS:
        code, out, err = run(*command.split())
        if command == "verify":
            assert code == 1 and DAMAGES[statement] in out
        elif code:
            assert code == 2 and len(err.splitlines()) == 1, (command, err)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b'{"at": 1e999}'])
def test_what_is_no_report_of_a_learner_is_as_none(path, run, content):
    (path / "status.json").write_bytes(content)
    status = json.loads(run("status", "--json")[1])
    assert (status["doing"], status["problems"]) == ("not running", [])
