"""The commands for a workspace: what they say, what they change, and one clear line for wrong input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from process_parts import started
from workspace_parts import SMALL

from edge_hpcr.commands.cli import main
from edge_hpcr.common.files import locked
from edge_hpcr.learner import checkpoint
from edge_hpcr.live import status as live_status
from edge_hpcr.live.accuracy import HeldOut, TestThenTrain
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.status import write_status
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.settings import Settings
from edge_hpcr.workspace.transfer import export_samples

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pictures(digits) -> list[np.ndarray]:
    return list(digits.train_images[:20])


@pytest.fixture
def path(tmp_path, pictures) -> Path:
    """A workspace with samples 1 to 3 labelled mug, 4 labelled stapler, and 5 to 8 in the queue."""
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.take_many(
            [Taken(image, f"camera {i}", priority=i / 10) for i, image in enumerate(pictures[:8])]
        )
        workspace.journal.label([1, 2, 3], workspace.journal.create_class("mug", "#1f77b4"))
        workspace.journal.label([4], workspace.journal.create_class("stapler"))
        workspace.journal.add_counts({"queued": 8, "skipped_duplicate": 1234})
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


def test_labels_by_name_in_any_case_by_id_and_for_a_new_class(run, path):
    assert run("label", 5, "MUG") == (0, "labelled 1 sample as mug (class 1)", "")
    assert run("label", "6, 7", "id:2")[:2] == (0, "labelled 2 samples as stapler (class 2)")
    assert run("label", 8, "hex nut", "--create")[0] == 0
    assert in_journal(path) == {"mug": [1, 2, 3, 5], "stapler": [4, 6, 7], "hex nut": [8]}
    assert run("label", "1,4", "mug")[1] == "labelled 1 sample as mug (class 1), 1 of which had been stapler"
    assert run("label", 1, "mug")[1] == "nothing to change: labelled mug already"
    assert run("label", 1, "Hex Nut", "--create")[0] == 0, "a name that exists is used, not made twice"
    assert in_journal(path) == {"mug": [2, 3, 4, 5], "stapler": [6, 7], "hex nut": [1, 8]}


def test_a_label_for_measuring_is_said_to_be_one(run, path):
    with Workspace.open(path, learning=False) as workspace:
        workspace.change_settings(held_out_share=0.9)
    assert "held out" in run("label", 5, "mug")[1]


def test_undo_and_redo_say_what_they_did(run, path):
    run("label", "5,6", "mug")
    assert run("undo")[:2] == (0, "undone: 2 pictures labelled mug")
    assert run("redo")[:2] == (0, "done again: 2 pictures labelled mug")
    run("label", "1", "stapler")
    assert run("undo")[1] == "undone: 1 picture corrected to stapler"
    run("classes", "rename", "mug", "cup")
    assert run("undo")[1] == "undone: class mug renamed to cup"
    run("classes", "merge", "stapler", "mug")
    assert run("undo")[1] == "undone: class stapler merged into mug, with 1 label"
    run("classes", "delete", "mug", "--yes")
    assert run("undo")[1] == "undone: class mug deleted, with 5 labels"
    run("classes", "recolour", "mug", "#d62728")
    assert run("undo")[1] == "undone: another colour for class mug"
    run("classes", "add", "new")
    assert run("undo")[1] == "undone: class new made"
    assert run("redo")[1] == "done again: class new made"
    with Workspace.open(path) as workspace:
        workspace.journal.delete_samples([1])
        workspace.forget_images([1])
    assert run("undo")[1] == "undone: 1 picture deleted; 1 sample could not come back, as the image is gone"
    code, said, problem = run("redo")
    assert (code, said) == (0, "done again: 1 picture deleted")
    code, said, problem = run("redo")
    assert (code, said) == (2, "") and "nothing to redo" in problem


# Classes ----------------------------------------------------------------------------------------------------------


def test_classes_are_listed_added_renamed_recoloured_merged_and_deleted(run, path):
    assert run("classes", "list")[1].splitlines() == [
        "id  name     colour      labels    held out",
        "   1  mug      #1f77b4          3           0",
        "   2  stapler                   1           0",
    ]
    assert run("classes", "add", "hex nut", "--colour", "#00ff00")[1] == "made class 3: hex nut"
    assert run("classes", "rename", "id:3", "  Hex Nut ")[1] == "class 3: hex nut is now Hex Nut"
    assert run("classes", "recolour", "hex nut", "#0000ff")[1] == "class 3: Hex Nut is now #0000ff"
    listed = json.loads(run("classes", "list", "--json")[1])
    assert listed[2] == {"id": 3, "name": "Hex Nut", "colour": "#0000ff", "labels": 0, "held_out": 0}
    assert "1 label moved" in run("classes", "merge", "stapler", "MUG")[1]
    assert in_journal(path) == {"mug": [1, 2, 3, 4], "Hex Nut": []}
    assert run("classes", "delete", "mug", "--yes")[1].startswith("deleted mug (class 1) with 4 labels")
    assert in_journal(path) == {"Hex Nut": []}


@pytest.mark.slow
def test_a_deletion_is_asked_for_on_a_terminal_and_needs_yes_elsewhere(run, path, monkeypatch, tmp_path):
    (tmp_path / "no input").touch()
    with (tmp_path / "no input").open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        code, said, problem = run("classes", "delete", "mug")
    assert (code, said) == (2, "")
    assert "mug (class 1) with 3 labels" in problem and "--yes" in problem
    for answer, code, left in ((b"n\n", 1, 2), (b"\x04", 1, 2), (b"y\n", 0, 1)):
        terminal, its_end = os.openpty()
        with started("-m", "edge_hpcr", "classes", path, "delete", "mug", stdin=its_end) as process:
            os.write(terminal, answer)
            said, _ = process.communicate(timeout=60)
        os.close(its_end)
        os.close(terminal)
        assert process.returncode == code
        assert "3 labels" in said
        assert len(in_journal(path)) == left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["label", "99", "mug"], "unknown sample 99"),
        (["label", "5,x", "mug"], "'x' is not a sample's number"),
        (["label", "", "mug"], "not a sample's number"),
        (["label", "9" * 18, "mug"], "unknown sample"),
        (["label", "5", "mgu"], "unknown class 'mgu': close names are mug; --create"),
        (["label", "5", "xyz"], "there are mug, stapler; --create"),
        (["label", "5", "id:7"], "no class has the id 7"),
        (["label", "5", " "], "empty class name"),
        (["label", "99", "new", "--create"], "unknown sample 99"),
        (["label", "5", "a\nb", "--create"], "control characters"),
        (["classes", "add", "Mug"], "differs only in case from 'mug'"),
        (["classes", "add", "x", "--colour", "red"], "#1f77b4"),
        (["classes", "rename", "mug", "stapler"], "exists already"),
        (["classes", "recolour", "mug", "blue"], "#1f77b4"),
        (["classes", "merge", "mug", "MUG"], "cannot be merged into itself"),
        (["classes", "delete", "cup", "--yes"], "unknown class 'cup'.*classes W add"),
        (["samples", "list", "--class", "cup"], "unknown class 'cup'"),
        (["samples", "import", "nowhere"], "no such folder or zip"),
        (["samples", "export", "{path}/images"], "workspace itself"),
    ],
)
def test_wrong_input_is_one_line_and_changes_nothing(run, path, arguments, message):
    before = in_journal(path)
    command, *rest = [part.replace("{path}", str(path)) for part in arguments]
    code, said, problem = run(command, *rest)
    assert (code, said) == (2, "")
    assert re.search(message, problem) and len(problem.splitlines()) == 1
    assert in_journal(path) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["verify"],
        ["undo"],
        ["redo"],
        ["label", "1", "mug"],
        ["classes", "list"],
        ["samples", "list"],
        ["samples", "export", "x.zip"],
    ],
)
def test_no_workspace_is_made_by_asking_for_one(tmp_path, capsys, arguments):
    command, *rest = arguments
    assert main([command, str(tmp_path / "nowhere"), *rest]) == 2
    assert "no workspace at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# Samples ----------------------------------------------------------------------------------------------------------


def test_samples_are_listed_by_queue_and_by_class(run):
    assert run("samples", "list", "--queue")[1].splitlines() == [
        "sample  state    class    image    origin    by",
        *[f"       {i}  queued            8 x 8    camera {i - 1}" for i in (8, 7, 6, 5)],
    ]
    rows = json.loads(run("samples", "list", "--class", "Mug", "--json")[1])
    assert [(row["id"], row["state"], row["class"], row["class_id"], row["author"]) for row in rows] == [
        (i, "labelled", "mug", 1, "local") for i in (1, 2, 3)
    ]
    lines = run("samples", "list", "--limit", 2)[1].splitlines()
    assert len(lines) == 4 and "--limit" in lines[-1]
    assert len(json.loads(run("samples", "list", "--json")[1])) == 8
    run("classes", "delete", "stapler", "--yes")
    assert len(json.loads(run("samples", "list", "--json")[1])) == 7
    assert run("samples", "list", "--class", "mug", "--limit", 3)[1].count("\n") == 3, (
        "no more than there are"
    )


def test_samples_go_out_and_into_a_new_workspace(run, path, tmp_path, capsys):
    assert run("samples", "export", tmp_path / "out.zip")[1].startswith("exported 4 samples of 2 classes")
    assert run("samples", "export", tmp_path / "out.zip")[0] == 2
    new = str(tmp_path / "new")
    assert main(["samples", new, "import", str(tmp_path / "out.zip")]) == 0
    assert capsys.readouterr().out == "imported 4 samples, made 2 classes\n"
    (tmp_path / "more" / "cup").mkdir(parents=True)
    (tmp_path / "more" / "cup" / "1.png").write_bytes(b"no image")
    assert main(["samples", new, "import", str(tmp_path / "more")]) == 0
    said = capsys.readouterr()
    assert said.out == "imported 0 samples, made 0 classes\n"
    assert "1.png cannot be used as an image" in said.err and "1 bad file: see" in said.err
    assert main(["samples", new, "import", str(tmp_path / "out.zip")]) == 0
    assert "here already: 4 files" in capsys.readouterr().out
    assert main(["verify", new]) == 0


@pytest.mark.slow
def test_everything_but_an_import_works_beside_a_process_that_learns(run, path, tmp_path):
    with Workspace.open(path) as learning:
        export_samples(learning, tmp_path / "out.zip")
        code, said, problem = run("samples", "import", tmp_path / "out.zip")
        assert (code, said) == (2, "")
        assert f"in use by process {os.getpid()}" in problem and len(problem.splitlines()) == 1
        for arguments in (
            ("status",),
            ("label", 5, "mug"),
            ("classes", "add", "new"),
            ("samples", "list"),
            ("samples", "export", tmp_path / "beside"),
            ("undo",),
            ("redo",),
            ("verify",),
        ):
            assert run(*arguments)[0] == 0, arguments


# Status -----------------------------------------------------------------------------------------------------------

FIELDS = {
    *("workspace", "doing", "running", "pid", "device", "seconds_since_report", "step", "labels"),
    *("held_out_labels", "classes", "events", "events_waiting", "memory", "held_out", "test_then_train"),
    *("queue", "checkpoint", "disk", "counters", "problems", "alarms", "suspicious", "stream"),
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
        "test_then_train": measured()[0].summary(),
        "held_out": held_out.summary(),
        "suspicious": [],
        "stream": None,
        "problems": [],
    } | changes


def ended_process() -> int:
    with started("-c", "") as process:
        process.wait()
    return process.pid


def test_the_status_of_a_workspace_in_which_nothing_was_learned(run):
    status = json.loads(run("status", "--json")[1])
    assert set(status) == FIELDS
    assert (status["doing"], status["running"], status["pid"], status["step"]) == (
        "not running",
        False,
        None,
        None,
    )
    assert (status["labels"], status["classes"], status["events"], status["events_waiting"]) == (4, 2, 4, 4)
    assert status["memory"] == {"samples": None, "bytes": None, "budget": Settings().memory_bytes}
    assert status["held_out"] == {
        "accuracy": None,
        "samples": 0,
        "few": True,
        "step": None,
        "classes": {},
        "confusion": [],
    }
    assert status["queue"]["samples"] == 4 and status["disk"]["images"] == 8
    assert status["counters"] == {"queued": 8, "skipped_duplicate": 1234}
    text = run("status")[1]
    assert "not running (4 events to learn)" in text
    assert "4 in 2 classes, 0 held out" in text
    assert "1,234 skipped as duplicate" in text


def test_the_status_of_a_learner_that_runs(run, path):
    held_out = measured()[1]
    write_status(path / "status.json", report("learning", os.getpid(), held_out, problems=["a full disk"]))
    with locked(path / "lock", "busy"):
        status, text = json.loads(run("status", "--json")[1]), run("status")[1]
    assert set(status) == FIELDS
    assert (status["doing"], status["running"], status["pid"]) == ("learning", True, os.getpid())
    assert status["memory"] == {"samples": 570, "bytes": 1_000_000, "budget": 2_000_000}
    assert {k: status["held_out"][k] for k in ("accuracy", "samples", "few", "step")} == {
        "accuracy": 0.75,
        "samples": 40,
        "few": False,
        "step": 12,
    }
    assert sum(count for _, _, count in status["held_out"]["confusion"]) == 40
    assert status["test_then_train"] == {
        "accuracy": 0.75,
        "labels": 4,
        "recent_accuracy": 0.75,
        "recent_labels": 4,
        "classes": status["test_then_train"]["classes"],
    }
    assert sum(part["labels"] for part in status["test_then_train"]["classes"].values()) == 4
    assert all(type(part["labels"]) is int for part in status["test_then_train"]["classes"].values())
    lines = {line[:17].strip(): line[17:] for line in text.splitlines()}
    assert lines["doing"] == f"learning (process {os.getpid()}, on cpu, step 12, 1 events to learn)"
    assert lines["memory"] == "▓▓▓▓░░░░ 1.00 MB of 2.00 MB, 570 samples"
    assert lines["held-out"] == "75 % (n=40)"
    assert lines["test-then-train"] == "75 % (n=4, few samples), lately 75 % (n=4, few samples)"
    assert lines["problem"] == "a full disk"


def test_a_learner_that_says_nothing_any_more_is_not_believed(run, path):
    old = report("learning", os.getpid(), HeldOut(), at=time.time() - 3600)
    write_status(path / "status.json", old)
    with locked(path / "lock", "busy"):
        assert json.loads(run("status", "--json")[1])["doing"] == "silent"
        assert "no sign of life for 60 min" in run("status")[1]
    write_status(path / "status.json", report("failed", os.getpid(), HeldOut(), at=time.time() - 3600))
    failed = json.loads(run("status", "--json")[1])
    assert (failed["doing"], failed["running"]) == ("failed", False)


def test_the_lock_says_whether_a_learner_runs_and_not_a_process_number(run, path):
    # In another container the learner's number belongs to nobody, or to somebody else.
    write_status(path / "status.json", report("learning", ended_process(), HeldOut()))
    with locked(path / "lock", "busy"):
        there = json.loads(run("status", "--json")[1])
    write_status(path / "status.json", report("learning", os.getpid(), HeldOut()))
    gone = json.loads(run("status", "--json")[1])
    assert (there["doing"], there["running"]) == ("learning", True)
    assert (gone["doing"], gone["running"], gone["pid"]) == ("not running", False, None)


@pytest.mark.parametrize(
    "content",
    [
        "{half",
        "[]",
        "null",
        "{}",
        b"\xff\xfe",
        {"at": "noon"},
        {"memory": None},
        {"held_out": 7},
        {"problems": 3},
    ],
)
def test_a_damaged_report_is_a_problem_that_is_said_and_the_rest_is_still_told(run, path, content):
    if isinstance(content, dict):
        content = json.dumps(report("learning", 1, HeldOut()) | content)
    (path / "status.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    for held, doing in ((True, "running"), (False, "not running")):
        with locked(path / "lock", "busy") if held else nullcontext():
            code, out, _ = run("status", "--json")
            assert code == 0 and run("status")[0] == 0
        status = json.loads(out)
        assert (status["doing"], status["running"], status["labels"]) == (doing, held, 4)
        if held or len(content) < 100:
            assert "status.json is damaged" in status["problems"][0]


LOOK_AS_NOBODY = """
import json, os, sys
from pathlib import Path
from edge_hpcr.live.status import gather
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps(gather(Path(sys.argv[1]))))
"""


@pytest.mark.slow
def test_a_report_and_a_lock_that_cannot_be_read_are_said(path):
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        Path(name).chmod(0o755)
        copy = shutil.copytree(path, Path(name) / "w")
        for part in copy.rglob("*"):  # as a group that shares the workspace has it
            part.chmod(0o755)
        for part in ("status.json", "lock"):
            (copy / part).touch()
            (copy / part).chmod(0)
        copy.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", LOOK_AS_NOBODY, str(copy)], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert (status["doing"], status["running"], status["labels"]) == ("unknown", None, 4)
    assert "lock cannot be read" in status["problems"][0]
    assert "status.json cannot be read: Permission denied" in status["problems"][1]


def test_without_a_learner_the_newest_checkpoint_speaks(run, path):
    arrivals, held_out = measured()
    memory = {"samples": 570, "bytes": {"total": 1_000_000}, "budget": 2_000_000}
    notes = {
        "test_then_train": arrivals.state(),
        "held_out": held_out.state(),
        "memory": memory,
        "suspicious": [],
    }
    for step, applied in ((5, 1), (12, 3)):
        folder = path / "checkpoints" / f"step-{step:09d}-event-{applied:09d}"
        checkpoint.write(folder, {}, {"step": step, "notes": {**notes, "applied": applied}})
    status = json.loads(run("status", "--json")[1])
    assert (status["doing"], status["step"], status["events_waiting"]) == ("not running", 12, 1)
    assert {k: status["held_out"][k] for k in ("accuracy", "samples", "few", "step")} == {
        "accuracy": 0.75,
        "samples": 40,
        "few": False,
        "step": 12,
    }
    assert sum(count for _, _, count in status["held_out"]["confusion"]) == 40
    assert status["checkpoint"]["name"] == "step-000000012-event-000000003"
    assert 0 <= status["checkpoint"]["seconds_ago"] < 60
    assert status["memory"] == {"samples": 570, "bytes": 1_000_000, "budget": 2_000_000}
    (path / "checkpoints" / "step-000000012-event-000000003" / "checkpoint.json").write_text("{}")
    status = json.loads(run("status", "--json")[1])
    assert status["step"] == 5
    assert "step-000000012" in status["problems"][0]
    assert "problem" in run("status")[1]


@pytest.mark.slow
def test_a_real_learner_is_seen_while_it_runs_and_after_it_has_stopped(run, path):
    with Workspace.open(path) as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, memory_bytes=100_000, device="cpu")
        live = LiveLearner(workspace)
        live.start()
        try:
            assert live.wait_until_caught_up(60)
            while not (path / "status.json").exists():
                assert not live.failed
            running = json.loads(run("status", "--json")[1])
        finally:
            live.stop()
    assert (running["running"], running["pid"], running["device"]) == (True, os.getpid(), "cpu")
    report = json.loads((path / "status.json").read_text())
    write_status(path / "status.json", report | {"pid": ended_process()})
    stopped = json.loads(run("status", "--json")[1])
    assert (stopped["doing"], stopped["running"], stopped["events_waiting"]) == ("not running", False, 0)
    assert stopped["memory"]["samples"] == 4 and 0 < stopped["memory"]["bytes"] <= 100_000
    # The first labels of a class are no test of it; which those are depends on how many were learned at once.
    assert stopped["test_then_train"]["labels"] == report["test_then_train"]["labels"] < 4
    assert stopped["step"] == report["step"]
    assert stopped["checkpoint"]["applied"] == 4
    (path / "status.json").unlink()
    from_disk = json.loads(run("status", "--json")[1])
    for name in ("step", "test_then_train", "held_out", "labels", "events_waiting"):
        assert from_disk[name] == stopped[name]


def test_every_field_of_the_status_is_documented(run):
    status = json.loads(run("status", "--json")[1])
    names = [*status, *(part for value in status.values() if isinstance(value, dict) for part in value)]
    gate = {"queued", "skipped_duplicate"}
    assert [name for name in names if not re.search(rf"\b{name}\b", live_status.FIELDS)] == []
    assert gate <= set(names)


@pytest.mark.slow
def test_no_command_needs_torch(path, tmp_path):
    code = (
        "import sys; from edge_hpcr.commands.cli import main; w, out = sys.argv[1:]; "
        "print(main(['status', w]), main(['label', w, '5', 'mug']), main(['verify', w]), "
        "main(['samples', w, 'export', out]), main(['samples', w, 'import', out]), 'torch' in sys.modules)"
    )
    program = [sys.executable, "-c", code, str(path), str(tmp_path / "out.zip")]
    process = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert process.stdout.splitlines()[-1] == "0 0 0 0 0 False"


# Verify -----------------------------------------------------------------------------------------------------------


def test_verify_says_what_is_wrong_and_what_to_do(run, path):
    code, said, problem = run("verify")
    assert (code, problem) == (0, "")
    assert "is whole: 4 labels in 2 classes, 8 images" in said
    assert json.loads(run("verify", "--json")[1]) == {"whole": True, "problems": []}
    orphan = path / "images" / "00" / "000900.png"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"x")
    os.utime(orphan, (0, 0))
    code, said, _ = run("verify")
    assert code == 0 and "belong to no sample" in said, "untidy is not broken"
    (path / "images" / "02" / "000002.png").write_bytes(b"damaged")
    code, said, _ = run("verify")
    assert code == 1
    assert any("sample 2" in line and "delete sample 2" in line for line in said.splitlines())
    answer = json.loads(run("verify", "--json")[1])
    assert answer["whole"] is False
    assert {problem["serious"] for problem in answer["problems"]} == {True, False}
    assert set(answer["problems"][0]) == {"where", "what", "what_to_do", "serious"}


# The program ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "label", "classes", "samples", "undo", "redo", "verify"])
def test_every_command_teaches_with_examples(command, capsys):
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert "examples:" in said and said.count(f"python -m edge_hpcr {command}") >= 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["classes", "w"],
        ["classes", "w", "paint"],
        ["label", "w", "1"],
        ["samples", "w", "list", "--limit", "0"],
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.slow
def test_an_import_that_is_interrupted_says_that_it_goes_on(tmp_path, pictures):
    from PIL import Image

    for number in range(2000):
        folder = tmp_path / "in" / str(number % 4)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[number % 20] ^ np.uint8(number // 20)).save(folder / f"{number}.png")
    command = ("-m", "edge_hpcr", "samples", tmp_path / "w", "import", tmp_path / "in")
    with started(*command) as process:
        while process.poll() is None and not any((tmp_path / "w" / "images").glob("*/*.png")):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        said, problem = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, "")
    assert "the same command goes on" in problem and "Traceback" not in problem


@pytest.mark.slow
def test_names_that_a_terminal_cannot_show_do_no_harm(run, path):
    run("classes", "add", "Größe 日本")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-m", "edge_hpcr", "classes", str(path), "list"]
    process = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60)
    assert process.returncode == 0
    assert "Gr\\xf6\\xdfe" in process.stdout
