"""Whatever part of a workspace is damaged: one clear line from every command, and never a traceback."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workspace_parts import SMALL

from edge_hpcr.commands.cli import main
from edge_hpcr.common.files import locked, sha256
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.live.status import describe, gather
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.verify import verify_workspace

ROOT = Path(__file__).parents[1]
COMMANDS = ["status", "status --json", "verify", "samples list --json", "classes list", "label 2 mug", "undo"]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A workspace with three samples, the first of them a mug."""
    path = tmp_path_factory.mktemp("template") / "w"
    with Workspace.open(path) as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, memory_bytes=40_000)
        pictures = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
        workspace.take_many([Taken(picture, "camera 0") for picture in pictures])
        workspace.journal.label([1], workspace.journal.create_class("mug"))
    return path


@pytest.fixture
def path(template, tmp_path) -> Path:
    return shutil.copytree(template, tmp_path / "w")


def edit(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path / "journal.sqlite")) as db, db:
        db.execute(statement, values)


# The journal ------------------------------------------------------------------------------------------------------

NEWER_EVENT = (
    '{"samples": [[1, ["queued", null, false, "sure"], ["labelled", 1, false, "sure"]]], "classes": []}'
)
JOURNALS = {
    "of no bytes": ("", "holds no tables"),
    "without its format": ("DELETE FROM meta WHERE key = 'format'", "does not say its format"),
    "without its numbers": (
        "DELETE FROM meta WHERE key = 'next_sample'",
        "which number the next sample gets",
    ),
    "without facts": ("DROP TABLE meta", "does not say its format"),
    "without samples": ("DROP TABLE samples", "of the table samples is missing"),
    "without a column": ("ALTER TABLE samples DROP COLUMN origin", "column origin of the table samples"),
    "with text for a number": (
        "UPDATE samples SET hash64 = 'many' WHERE id = 2",
        "hash64 of row 2 of samples",
    ),
    "with bytes for a name": ("UPDATE classes SET name = x'ff'", "name of row 1 of classes is no text"),
    "of another format": ("UPDATE meta SET value = 99 WHERE key = 'format'", "format 99, this version"),
    "with a newer event": (
        f"UPDATE events SET body = '{NEWER_EVENT}' WHERE seq = 2",
        "event 2 cannot be read",
    ),
    "with half an event": ("UPDATE events SET body = '[' WHERE seq = 2", "event 2 cannot be read"),
    "with a new state": (
        "UPDATE events SET body = replace(body, 'labelled', 'maybe') WHERE seq = 2",
        "event 2 cannot be read",
    ),
}


@pytest.mark.parametrize("damage", JOURNALS)
def test_a_journal_is_refused_in_one_line_and_verify_says_why(path, template, capsys, damage):
    statement, why = JOURNALS[damage]
    for command in COMMANDS:
        shutil.copy(template / "journal.sqlite", path / "journal.sqlite")
        if statement:
            edit(path, statement)
        else:
            (path / "journal.sqlite").write_bytes(b"")
        name, *rest = command.split()
        code = main([name, str(path), *rest])
        said = capsys.readouterr()
        if name == "verify":
            assert code == 1 and why in said.out
        elif code:
            assert code == 2 and len(said.err.splitlines()) == 1, (command, said.err)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [name for name in JOURNALS if name.startswith("with")])
def test_learn_mends_what_a_journal_has_lost_or_says_what_it_cannot_read(path, capsys, own_signals, damage):
    edit(path, JOURNALS[damage][0])
    code = main(["learn", "--workspace", str(path), "--source", str(path / "images"), "--no-rehearsal"])
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if "event" in damage or "state" in damage:
        assert code == 1 and "event 2 cannot be read" in said
    else:
        assert code == 0 and "the journal is damaged" in said
        with Workspace.open(path) as workspace:
            assert workspace.journal.labels_of([1]) == {1: 1}
        assert [str(problem) for problem in verify_workspace(path) if problem.serious] == []


# The learner's report ---------------------------------------------------------------------------------------------


def report() -> dict[str, Any]:
    arrivals, held_out = TestThenTrain(), HeldOut()
    arrivals.record(1, 1)
    held_out.record(1, np.ones(2, int), np.array([1, 2]))
    return {
        **{"pid": 1, "at": 1e9, "phase": "learning", "device": "cpu", "step": 3, "applied": 2},
        "labels_waiting": 0,
        "memory": {"samples": 5, "bytes": {"total": 1000}, "budget": 2000},
        "test_then_train": arrivals.summary(),
        "held_out": held_out.summary(),
        "suspicious": [{"sample_id": 1, "class_id": 1, "suggested": 1, "strength": 0.5}],
        "stream": {"name": "camera 0", "phase": "live", "message": "live"},
        "problems": ["a full disk"],
    }


WRONG = [None, True, -1, 0, 1.5, 10**30, "x", "\ud800", [], [[]], {}, {"a": None}, float("nan"), float("inf")]


def variations(whole: Any) -> Iterator[Any]:
    """A value with every part of it, one at a time, replaced by something wrong, or left out."""
    yield from WRONG
    for key in (
        list(whole) if isinstance(whole, dict) else range(len(whole)) if isinstance(whole, list) else ()
    ):
        for changed in variations(whole[key]):
            copy = whole.copy()
            copy[key] = changed
            yield copy
        if isinstance(whole, dict):
            yield {name: value for name, value in whole.items() if name != key}


@pytest.mark.slow
def test_no_report_of_a_learner_can_break_the_status(path):
    tried = 0
    with locked(path / "lock", "busy"):
        for content in variations(json.loads(json.dumps(report()))):
            (path / "status.json").write_text(json.dumps(content))
            status = gather(path)
            assert status["running"] is True and status["labels"] == 1
            assert describe(status) and json.dumps(status, allow_nan=False)
            tried += 1
    assert tried > 500


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"at": 1e999}', b'{"pid": ' + b"9" * 10_000 + b"}"]
)
def test_no_file_in_the_place_of_the_report_can_break_the_status(path, content):
    (path / "status.json").write_bytes(content)
    assert "status.json is damaged" in gather(path)["problems"][0]


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself"])
def test_what_is_no_file_in_the_place_of_the_report_is_said(path, kind):
    place = path / "status.json"
    {
        "folder": place.mkdir,
        "pipe": lambda: os.mkfifo(place),
        "link to itself": lambda: place.symlink_to(place),
    }[kind]()
    assert kind == "link to itself" or "status.json cannot be read" in gather(path)["problems"][0]
    assert describe(gather(path))


# The rest ---------------------------------------------------------------------------------------------------------


def test_a_damaged_variant_of_a_published_model_is_found(path):
    folder = path / "exports" / "v000001"
    folder.mkdir()
    for name in ("model.onnx", "model.int8.onnx"):
        (folder / name).write_bytes(name.encode())
    digests = {name: sha256(folder / name) for name in ("model.onnx", "model.int8.onnx")}
    manifest = {
        "file": "model.onnx",
        "sha256": digests["model.onnx"],
        "variants": {
            "int8": {"file": "model.int8.onnx", "sha256": digests["model.int8.onnx"]},
            "fp16": {"kept": False, "reason": "no faster"},
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert verify_workspace(path) == []
    (folder / "model.int8.onnx").write_bytes(b"damaged")
    (problem,) = verify_workspace(path)
    assert problem.serious and problem.where.endswith("model.int8.onnx")
    assert problem.what == "it is not the file that was exported"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["samples W list", "samples W list --json", "status W", "verify W", "--help", "data list"]
)
def test_a_reader_that_goes_away_ends_every_command_quietly(path, command):
    words = [str(path) if word == "W" else word for word in command.split()]
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_hpcr", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    process.stdout.close()  # before it has said anything
    with process:
        assert process.stderr.read() == b""
        assert process.wait(60) in (0, 1)
