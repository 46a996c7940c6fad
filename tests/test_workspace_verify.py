"""Every way in which a workspace can be wrong is found, and a whole one has nothing wrong with it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from workspace_parts import take, write_checkpoint

from edge_hpcr.workspace.recover import verify_workspace
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Two classes, twelve labels (the first, number 3, may lose its image), two queued, two checkpoints."""
    path = tmp_path_factory.mktemp("template") / "w"
    with Workspace.open(path) as workspace:
        ids = take(workspace, 14)
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


def test_a_whole_workspace_has_nothing_wrong_with_it(workspace):
    assert verify_workspace(workspace.path) == []


def test_an_event_that_cannot_be_read_is_found(workspace):
    with closing(sqlite3.connect(workspace.layout.journal)) as db, db:
        db.execute("UPDATE events SET body = '{}' WHERE seq = 7")
    assert "event 7 cannot be read" in found(workspace)


def test_a_missing_and_a_damaged_image_are_found(workspace):
    first, second = workspace.journal.sample(5), workspace.journal.sample(14)
    workspace.files.remove([first.file])
    path = workspace.layout.images / second.file
    path.write_bytes(path.read_bytes() + b"x")
    text = found(workspace)
    assert "the image of sample 5 (labelled) is missing or damaged; delete sample 5" in text
    assert "the image of sample 14 (queued) is missing or damaged" in text


def test_a_checkpoint_that_is_damaged_or_ahead_of_the_journal_is_found(workspace):
    ahead = write_checkpoint(workspace.path, 300, applied=16)
    broken = write_checkpoint(workspace.path, 400, applied=15)
    (broken / "memory.safetensors").write_bytes(b"short")
    (workspace.layout.checkpoints / "step-000000500.writing").mkdir()  # a crash left it; it is no checkpoint
    problems = {Path(p.where).name: p.what for p in verify_workspace(workspace.path)}
    assert problems[ahead.name] == "it has learned event 16, and the journal ends with 15"
    assert "it cannot be used (damaged checkpoint" in problems[broken.name]
    assert len(problems) == 2
