"""Every way in which a workspace can be wrong is found, and a whole one has nothing wrong with it."""

import json
import os
import re
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from process_parts import started
from workspace_parts import write_checkpoint

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.verify import verify_workspace, workspace_facts

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Two classes, twelve labels (the first, number 3, may lose its image), two queued, two checkpoints."""
    path = tmp_path_factory.mktemp("template") / "w"
    with Workspace.open(path) as workspace:
        images = np.random.default_rng(0).integers(0, 256, (14, 8, 8, 3), np.uint8)
        ids = workspace.take_many([Taken(image, "camera 0") for image in images])
        mug, cup = workspace.journal.create_class("mug"), workspace.journal.create_class("cup")
        for number, sample in enumerate(ids[:12]):
            workspace.journal.label([sample], (mug, cup)[number % 2])
        workspace.journal.label(ids[:1], cup)
        write_checkpoint(workspace.path, 100, applied=5)
        write_checkpoint(workspace.path, 200, applied=15)
        workspace.forget_images(ids[1:2])
    return path


@pytest.fixture
def workspace(template, tmp_path):
    with Workspace.open(shutil.copytree(template, tmp_path / "w")) as workspace:
        yield workspace


def found(workspace: Workspace) -> str:
    return "\n".join(map(str, verify_workspace(workspace.path)))


def edit(workspace: Workspace, statement: str) -> None:
    with closing(sqlite3.connect(workspace.layout.journal)) as db:
        db.execute(statement)
        db.commit()


def test_a_whole_workspace_has_nothing_wrong_with_it_and_its_facts_are_counted(workspace):
    assert verify_workspace(workspace.path) == []
    facts = workspace_facts(workspace.path)
    assert (facts.events, facts.classes, facts.counts.labels, facts.counts.queued) == (15, 2, 12, 2)
    assert facts.counts.images == 13
    assert facts.checkpoints == ["step-000000100", "step-000000200"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE samples SET class_id = 2 WHERE id = 3", "sample 3 is .*class_id=2.*its events say .*class_id=1"),
        ("UPDATE samples SET held_out = 1 - held_out WHERE id = 3", "sample 3 is"),
        ("DELETE FROM samples WHERE id = 3", "sample 3 is None, its events say"),
        ("UPDATE samples SET state = 'dismissed' WHERE id = 13", "sample 13 is .*dismissed"),
        ("UPDATE classes SET name = 'x' WHERE id = 1", "class 1 is .*name='x'"),
        ("UPDATE classes SET state = 'deleted' WHERE id = 1", "labelled with class 1, which is not live"),
        ("INSERT INTO classes (id, name, folded, state) VALUES (9, 'x', 'x', 'live')", "class 9 is"),
        ("DELETE FROM events WHERE seq = 7", "event 8 follows event 6: those between are missing"),
        ("DELETE FROM events WHERE seq = 15", "sample 1 is"),
        ("UPDATE events SET body = '{' WHERE seq = 7", "event 7 cannot be read"),
        ("UPDATE events SET body = '{}' WHERE seq = 7", "event 7 cannot be read"),
        ("UPDATE events SET body = replace(body, 'queued', 'deleted') WHERE seq = 7", "event 7 does not follow"),
        ("DELETE FROM actions WHERE seq = 7", "what can be undone differs"),
        ("UPDATE actions SET undone = 1 WHERE seq = 15", "what can be redone differs"),
        ("UPDATE samples SET class_id = 77 WHERE id = 3", "refers to a row of classes that is missing"),
    ],
)  # fmt: skip
def test_tables_that_differ_from_the_events_are_found(workspace, statement, message):
    edit(workspace, statement)
    assert any(p.serious for p in verify_workspace(workspace.path))
    assert re.search(message, found(workspace))


def test_a_damaged_journal_is_found(workspace):
    workspace.journal.close()
    content = bytearray(workspace.layout.journal.read_bytes())
    content[4096 * 2 : 4096 * 4] = b"\xa5" * 8192
    workspace.layout.journal.write_bytes(content)
    assert "start `learn` on the workspace, which restores" in found(workspace)


def test_a_missing_and_a_damaged_image_are_found(workspace):
    first, second = workspace.journal.sample(5), workspace.journal.sample(14)
    workspace.files.remove([first.file])
    path = workspace.layout.images / second.file
    path.write_bytes(path.read_bytes() + b"x")
    text = found(workspace)
    assert "the image of sample 5 (labelled) is missing or damaged; delete sample 5" in text
    assert "the image of sample 14 (queued) is missing or damaged" in text


def test_many_problems_of_a_kind_are_counted_and_not_listed(workspace):
    workspace.files.remove(list(workspace.files.names()))
    problems = verify_workspace(workspace.path)
    assert len(problems) == 11
    assert "and 3 more like these" in problems[-1].what


def test_an_image_of_no_sample_is_untidy_once_it_is_old_and_never_serious(workspace):
    stored = workspace.files.write(999, np.zeros((8, 8, 3), np.uint8))
    assert verify_workspace(workspace.path) == []  # it may be on its way
    os.utime(workspace.layout.images / stored.file, (0, time.time() - 120))
    (problem,) = verify_workspace(workspace.path)
    assert not problem.serious and "1 files belong to no sample, 99/000999.png" in problem.what


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queue_samples": 1}, "the queue: 2 samples where 1 are allowed"),
        ({"queue_bytes": 300}, "the queue: .* where 300 B are allowed"),
        ({"disk_bytes": 1000}, "all images: .* where 1.00 KB are allowed"),
        ({"memory_bytes": 100}, "the replay memory of step-000000100: .* where 100 B are allowed"),
        ({"disk_bytes": 1000, "archive": True}, ""),
    ],
)
def test_whatever_exceeds_its_budget_is_found(workspace, changes, message):
    assert workspace.journal.counts().held_out > 0
    workspace.change_settings(**changes)
    assert re.search(message, found(workspace))
    assert bool(verify_workspace(workspace.path)) == bool(message)


def test_a_checkpoint_that_is_damaged_or_ahead_of_the_journal_is_found(workspace):
    ahead = write_checkpoint(workspace.path, 300, applied=16)
    broken = write_checkpoint(workspace.path, 400, applied=15)
    (broken / "memory.safetensors").write_bytes(b"short")
    (workspace.layout.checkpoints / "step-000000500.writing").mkdir()  # a crash left it; it is no checkpoint
    problems = {Path(p.where).name: p.what for p in verify_workspace(workspace.path)}
    assert problems[ahead.name] == "it has learned event 16, and the journal ends with 15"
    assert "it cannot be used (damaged checkpoint" in problems[broken.name]
    assert len(problems) == 2


def test_an_image_that_a_restart_from_the_oldest_checkpoint_needs_is_missed(workspace):
    workspace.forget_images([1])  # labelled before event 5, and only corrected after it
    assert verify_workspace(workspace.path) == []
    workspace.forget_images([7])
    (problem,) = verify_workspace(workspace.path)
    assert "sample 7 was labelled after event 5, the oldest checkpoint, and has no image" in problem.what
    checkpoint.remove(workspace.layout.checkpoint_folders()[0])
    assert verify_workspace(workspace.path) == []


def test_an_export_that_is_not_what_its_manifest_says_is_found(workspace):
    folder = workspace.layout.exports / "v1"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"model")
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"file": "model.onnx", "sha256": sha256(folder / "model.onnx")}))
    assert verify_workspace(workspace.path) == []
    (folder / "model.onnx").write_bytes(b"other")
    assert "it is not the file that was exported; export again" in found(workspace)
    (folder / "model.onnx").unlink()
    assert "manifest.json: cannot be read" in found(workspace)
    manifest.write_text("[")
    assert "manifest.json: cannot be read" in found(workspace)


def test_what_is_no_workspace_is_refused(tmp_path):
    with pytest.raises(UserError, match="no workspace at"):
        verify_workspace(tmp_path / "w")


LEARN = """
import sys
import numpy as np
from edge_hpcr.workspace.folder import Workspace
workspace = Workspace.open(sys.argv[1])
workspace.journal._db.execute("PRAGMA synchronous = OFF")  # quicker: much happens while somebody verifies
mug = workspace.journal.create_class("mug")
rng = np.random.default_rng(0)
while True:
    sample = workspace.take(rng.integers(0, 256, (8, 8, 3), np.uint8), "camera 0")
    if sample % 3 == 0:
        workspace.journal.label([sample], mug)
        print(sample, flush=True)
    queued = workspace.journal.queued()
    workspace.drop_queued([row.id for row in queued[5:]])
"""


@pytest.mark.slow
def test_a_workspace_is_verified_while_another_process_works_in_it_and_after_it_was_killed(tmp_path):
    with started("-c", LEARN, tmp_path / "w") as process:
        for _ in range(5):
            for _ in range(5):
                process.stdout.readline()
            assert verify_workspace(tmp_path / "w") == []
        assert process.poll() is None
    assert verify_workspace(tmp_path / "w") == []
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.report == []
        assert workspace.journal.counts().labels >= 25
    assert verify_workspace(tmp_path / "w") == []
