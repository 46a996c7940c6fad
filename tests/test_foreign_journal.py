"""A journal from outside, such as that of somebody else's backup, must neither read nor remove what is not the workspace's."""

import shutil
import sqlite3
import zipfile
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from workspace_parts import SMALL, label, take

from app.routes import routes
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.workspace.backup import back_up, restore
from edge_hpcr.workspace.recover import verify_workspace
from edge_hpcr.workspace.transfer import export_samples
from edge_hpcr.workspace.workspace import Workspace

SAMPLES = 4  # two are labelled, two wait
PRIVATE = cv2.imencode(".png", np.full((8, 8, 3), 77, np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("template") / "w"
    with Workspace.open(path) as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, disk_bytes=1)
        label(workspace, 2)
        take(workspace, SAMPLES - 2)
    return path


@pytest.fixture(params=["../../private.png", "absolute", "a linked folder", "a linked picture"])
def forged(request, template, tmp_path) -> tuple[Path, Path]:
    """A workspace whose journal names, or leads to, a picture outside for each of its samples; and that picture."""
    path, private = shutil.copytree(template, tmp_path / "w"), tmp_path / "private.png"
    if request.param == "a linked folder":
        private = tmp_path / "elsewhere" / "000001.png"
        private.parent.mkdir()
        shutil.rmtree(path / "images" / "01")
        (path / "images" / "01").symlink_to(private.parent)
        names = {1: "01/000001.png"}
    elif request.param == "a linked picture":
        (path / "images" / "01" / "000001.png").unlink()
        (path / "images" / "01" / "000001.png").symlink_to(private)
        names = {1: "01/000001.png"}
    else:
        name = str(private) if request.param == "absolute" else request.param
        names = dict.fromkeys(range(1, SAMPLES + 1), name)
    private.write_bytes(PRIVATE)
    with closing(sqlite3.connect(path / "journal.sqlite")) as db, db:
        for sample_id, name in names.items():
            values = (name, sha256(PRIVATE), sample_id)
            db.execute("UPDATE samples SET file = ?, digest = ? WHERE id = ?", values)
    return path, private


def test_the_app_neither_serves_nor_removes_it(forged):
    path, private = forged
    with Workspace.open(path) as workspace:
        studio = Studio(workspace)
        studio.start()
        with TestClient(Starlette(routes=routes(studio)), raise_server_exceptions=False) as page:
            answer = page.get("/edge/sample/1")
            assert answer.status_code >= 400 and PRIVATE not in answer.content
        studio.live.wait_until_caught_up(60)
        for remove in (workspace.drop_queued, workspace.forget_images):  # as for room on a full disk
            with suppress(UserError):
                remove(range(1, SAMPLES + 1))
        studio.stop()
    assert private.read_bytes() == PRIVATE


def test_no_export_holds_it_and_verify_names_it(forged, tmp_path):
    path, private = forged
    assert any("sample 1" in problem.what for problem in verify_workspace(path))
    with Workspace.open(path, learning=False) as workspace:
        with pytest.raises(UserError):
            workspace.image(1)
        done = export_samples(workspace, tmp_path / "out.zip")
        assert done.missing >= 1
    with zipfile.ZipFile(tmp_path / "out.zip") as bundle:
        assert all(bundle.read(name) != PRIVATE for name in bundle.namelist())
    assert private.read_bytes() == PRIVATE


def test_no_backup_carries_it_on(forged, tmp_path):
    path, private = forged
    with suppress(UserError):
        back_up(path, tmp_path / "b.zip")
        restore(tmp_path / "b.zip", tmp_path / "copy")
    for left in (tmp_path / "copy").rglob("*.png"):
        assert left.read_bytes() != PRIVATE
    assert private.read_bytes() == PRIVATE


@pytest.mark.parametrize("part", ["images", "checkpoints", "benchmarks", "lock", "journal.sqlite"])
def test_a_workspace_in_which_a_part_is_a_link_is_refused_and_nothing_outside_changes(
    template, tmp_path, part
):
    path, outside = shutil.copytree(template, tmp_path / "w"), tmp_path / "outside"
    (path / "benchmarks").mkdir()
    (path / part).rename(outside)
    (path / part).symlink_to(outside)
    before = [(file, file.read_bytes()) for file in (outside, *outside.rglob("*")) if file.is_file()]
    doors = (
        Workspace.open,
        partial(Workspace.open, learning=False),
        verify_workspace,
        lambda path: back_up(path, tmp_path / "b.zip"),
    )
    for door in doors:
        with pytest.raises(UserError, match="is a link"):
            door(path)
    assert all(file.read_bytes() == content for file, content in before)
    assert not (tmp_path / "b.zip").exists()
