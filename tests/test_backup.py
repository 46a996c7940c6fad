"""A workspace as one file: taken while it learns, restored whole or not at all."""

import json
import os
import shutil
import sqlite3
import time
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from process_parts import started
from workspace_parts import SMALL, write_checkpoint

from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.backup import INDEX, back_up, restore
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.verify import verify_workspace

RNG = np.random.default_rng(0)


def label(workspace: Workspace, count: int) -> list[int]:
    images = RNG.integers(0, 256, (count, 8, 8, 3), np.uint8)
    ids = workspace.take_many([Taken(image, "camera 0") for image in images])
    workspace.journal.label_each((i, workspace.journal.class_named("mug")) for i in ids)
    return ids


def publish(path: Path, version: int) -> None:
    folder = path / "exports" / f"v{version:06d}"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"model")
    (folder / "manifest.json").write_text(json.dumps({"file": "model.onnx", "sha256": sha256(b"model")}))
    (path / "exports" / "latest.json").write_text(json.dumps({"version": version, "folder": folder.name}))


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Twelve labels, two checkpoints, a published model and the result of a benchmark."""
    path = tmp_path_factory.mktemp("template") / "w"
    with Workspace.open(path) as workspace:
        workspace.change_settings(**SMALL, queue_samples=77)
        label(workspace, 12)
        for step, applied in ((1, 3), (2, 13)):
            write_checkpoint(path, step, applied, fingerprint=workspace.journal.fingerprint(applied))
    publish(path, 1)
    (path / "benchmarks" / "run").mkdir(parents=True)
    (path / "benchmarks" / "run" / "result.json").write_text("{}")
    return path


@pytest.fixture
def path(template, tmp_path) -> Path:
    return shutil.copytree(template, tmp_path / "w")


def files(path: Path, *without: str) -> dict[str, bytes]:
    found = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in found.items() if not name.startswith(without)}


def whole(path: Path) -> bool:
    return not [problem for problem in verify_workspace(path) if problem.serious]


def test_a_restored_workspace_holds_all_that_the_first_one_held(path, tmp_path, capsys):
    assert main(["backup", str(path), str(tmp_path / "b.zip")]) == 0
    assert "12 labels, 12 images, 13 events, checkpoint step-000000002" in capsys.readouterr().out
    assert main(["restore", str(tmp_path / "b.zip"), str(tmp_path / "copy")]) == 0
    assert "every checksum is right" in capsys.readouterr().out
    left_out = ("lock", "taking.lock", "journal", "checkpoints/step-000000001")
    assert files(tmp_path / "copy", "journal") == files(path, *left_out)
    assert whole(tmp_path / "copy")
    with Workspace.open(tmp_path / "copy") as copy, Workspace.open(path) as first:
        assert copy.report == [] and copy.settings == first.settings
        assert copy.journal.events_after(0) == first.journal.events_after(0)
    assert (tmp_path / "b.zip").stat().st_mode & 0o777 == 0o600, "settings may hold a password"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["b.zip", "copy", "w"], "nothing else is left"


def test_nobody_else_can_read_the_journal_while_it_is_copied(path, tmp_path):
    modes = set()
    before = os.umask(0o022)  # which an open workspace has narrowed
    try:
        back_up(path, tmp_path / "b.zip", lambda *_: modes.update(_modes(tmp_path)))
    finally:
        os.umask(before)
    assert modes == {0o600}


def _modes(folder: Path) -> set[int]:
    return {file.stat().st_mode & 0o777 for file in folder.iterdir() if file.is_file()}


def test_an_image_that_is_missing_in_the_workspace_is_said_and_the_rest_is_copied(path, tmp_path, capsys):
    (path / "images" / "05" / "000005.png").unlink()
    (path / "images" / "06" / "000006.png").write_bytes(b"damaged")
    assert main(["backup", str(path), str(tmp_path / "b.zip")]) == 1
    assert "2 images of the workspace itself missing or damaged" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "b.zip"), str(tmp_path / "copy")]) == 1
    assert len(list((tmp_path / "copy" / "images").glob("*/*.png"))) == 10


# While it learns --------------------------------------------------------------------------------------------------

LEARN = """
import sys
import numpy as np
from edge_hpcr.workspace.folder import Taken, Workspace
sys.path.insert(0, "tests")
from workspace_parts import write_checkpoint
from edge_hpcr.learner import checkpoint
workspace = Workspace.open(sys.argv[1])
journal = workspace.journal
journal._db.execute("PRAGMA synchronous = OFF")  # quicker: much happens while somebody copies
mug = journal.class_named("mug")
rng = np.random.default_rng(0)
for number in range(1_000_000):
    images = rng.integers(0, 256, (5, 8, 8, 3), np.uint8)
    ids = workspace.take_many([Taken(image, "camera 0") for image in images])
    journal.label_each((i, mug) for i in ids[:2])
    workspace.drop_queued(ids[2:])
    if number % 5 == 0:  # as a learner saves itself, and then makes room
        applied = journal.last_seq
        write_checkpoint(workspace.path, number, applied, fingerprint=journal.fingerprint(applied))
        for folder in workspace.layout.checkpoint_folders()[:-1]:
            checkpoint.remove(folder)
        workspace.forget_images([row.id for row in journal.samples(has_image=True, state="labelled")][:-20], applied)
    print(ids[1], flush=True)
"""


@pytest.mark.slow
def test_what_is_copied_while_much_changes_is_of_one_moment(tmp_path):
    path = tmp_path / "w"
    with started("-c", LEARN, path) as process:
        for number in range(8):
            for _ in range(7):
                acknowledged = int(process.stdout.readline())
            held = back_up(path, tmp_path / f"{number}.zip")
            assert held.missing == 0
            copy = tmp_path / f"copy {number}"
            assert restore(tmp_path / f"{number}.zip", copy) == held
            assert [str(problem) for problem in verify_workspace(copy)] == []
            with Workspace.open(copy) as opened:
                assert opened.report == []
                assert opened.journal.labels_of([acknowledged]) == {acknowledged: 1}
        assert process.poll() is None, process.stderr.read()


@pytest.mark.slow
def test_a_backup_of_a_real_learner_goes_on_where_it_was(tmp_path):
    options = ["--source", "digits", "--labels", "folders", "--fps", "30"]  # it never ends
    settings = {**SMALL, "checkpoint_steps": 5, "threads": 1, "memory_bytes": 100_000, "idle_steps": 0}
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with started("-m", "edge_hpcr", "learn", "--workspace", tmp_path / "w", *options, *sets) as process:
        while not list((tmp_path / "w" / "checkpoints").glob("step-*-event-*[0-9]")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        for number in range(3):
            back_up(tmp_path / "w", tmp_path / f"{number}.zip")
        assert process.poll() is None, "it was still labelling"
    held = restore(tmp_path / "2.zip", tmp_path / "copy")
    assert held.labels > 0 and held.missing == 0 and held.checkpoint is not None
    assert whole(tmp_path / "copy")
    with Workspace.open(tmp_path / "copy") as workspace:
        assert workspace.report == []
        live = LiveLearner(workspace)
        assert live.learner.step > 0, "it starts from the checkpoint"
        live.start()
        assert live.wait_until_caught_up(60), live.problems
        live.stop()
        assert live.follower.applied == held.events


# What is refused --------------------------------------------------------------------------------------------------


def test_where_something_is_already_nothing_is_written(path, tmp_path):
    (tmp_path / "there.zip").write_bytes(b"mine")
    with pytest.raises(UserError, match="exists already: name a new file"):
        back_up(path, tmp_path / "there.zip")
    with pytest.raises(UserError, match="lies in the workspace itself"):
        back_up(path, path / "b.zip")
    with pytest.raises(UserError, match="no workspace at"):
        back_up(tmp_path / "nowhere", tmp_path / "b.zip")
    back_up(path, tmp_path / "b.zip")
    with pytest.raises(UserError, match="exists already: name a new or empty folder"):
        restore(tmp_path / "b.zip", path)
    (tmp_path / "empty").mkdir()
    assert restore(tmp_path / "b.zip", tmp_path / "empty").labels == 12


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_backup_that_was_cut_short_or_changed_is_refused_and_leaves_nothing(path, tmp_path, share):
    back_up(path, tmp_path / "b.zip")
    content = bytearray((tmp_path / "b.zip").read_bytes())
    place = int(len(content) * share)
    (tmp_path / "short.zip").write_bytes(content[:place])
    content[place] ^= 0xFF
    (tmp_path / "changed.zip").write_bytes(content)
    with pytest.raises(UserError, match="no whole backup"):
        restore(tmp_path / "short.zip", tmp_path / "copy")
    try:
        restore(tmp_path / "changed.zip", tmp_path / "copy")
    except UserError:
        assert not (tmp_path / "copy").exists()
    else:  # of what nobody reads, such as a time in the zip
        assert files(tmp_path / "copy", "journal").items() <= files(path).items()
    assert not list(tmp_path.glob(".*"))


def rewrite(source: Path, target: Path, change) -> Path:
    """The backup with another list of files, or other files."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        contents = {name: old.read(name) for name in old.namelist()}
        index = json.loads(contents[INDEX])
        change(index, contents)
        contents[INDEX] = json.dumps(index).encode()
        for name, content in contents.items():
            new.writestr(name, content, zipfile.ZIP_DEFLATED)
    return target


def add(name: str, content: bytes = b"x", size: int | None = None):
    def change(index: dict, contents: dict) -> None:
        index["files"][name] = [len(content) if size is None else size, sha256(content)]
        contents[name] = content

    return change


def put(**facts: object):
    return lambda index, contents: index.update(facts)


HOSTILE = [
    (add("../evil"), "no file of a workspace"),
    (add("/etc/evil"), "no file of a workspace"),
    (add("images/../../evil"), "no file of a workspace"),
    (add("images\\..\\evil"), "no file of a workspace"),
    (add("exports/" + "a/" * 9 + "b"), "no file of a workspace"),
    (add("evil.py"), "no file of a workspace"),
    (add("lock"), "no file of a workspace"),
    (add("images/01/bomb.png", b"0" * 50_000_000, 10), "images/01/bomb.png is not what was backed up"),
    (add("images/01/huge.png", b"x", 10**18), "are free"),
    (add("images/01/less.png", b"x", -1), "no whole backup"),
    (put(made_by="somebody"), "was not made by `backup`"),
    (put(format=99), "use .*a newer version"),
    (put(format=None), "format None"),
    (put(files=[]), "does not list its files"),
    (put(files={}), "does not list its files"),
    (put(files={"journal.sqlite": 5}), "has no size"),
    (lambda index, contents: contents.pop("settings.json"), "no whole backup"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_a_hostile_backup_is_refused_in_one_line_and_leaves_nothing(path, tmp_path, change, message):
    back_up(path, tmp_path / "good.zip")
    bad = rewrite(tmp_path / "good.zip", tmp_path / "bad.zip", change)
    with pytest.raises(UserError, match=message) as refused:
        restore(bad, tmp_path / "copy")
    assert "\n" not in str(refused.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.zip", "good.zip", "w"]


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_backup_is_refused(tmp_path, content, capsys):
    (tmp_path / "b.zip").write_bytes(content)
    for source in (tmp_path / "b.zip", tmp_path / "nowhere.zip", tmp_path):
        assert main(["restore", str(source), str(tmp_path / "copy")]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "copy").exists()


def test_a_journal_that_is_damaged_is_not_backed_up(path, tmp_path):
    with closing(sqlite3.connect(path / "journal.sqlite")) as db, db:
        db.execute("DROP TABLE samples")
    with pytest.raises(UserError, match="start `learn`"):
        back_up(path, tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists() and not list(tmp_path.glob(".*"))
