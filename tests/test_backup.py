"""A workspace as one file: taken while it learns, restored whole or not at all."""

import json
import os
import shutil
import sqlite3
import tempfile
import time
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from process_parts import started
from workspace_parts import SMALL, label, write_checkpoint

from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.workspace.backup import INDEX, back_up, restore
from edge_hpcr.workspace.recover import verify_workspace
from edge_hpcr.workspace.transfer import LEFT_SECONDS, UNFINISHED
from edge_hpcr.workspace.workspace import Workspace


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
    return not verify_workspace(path)


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


def test_an_image_that_is_missing_in_the_workspace_is_said_and_the_rest_is_copied(path, tmp_path, capsys):
    (path / "images" / "05" / "000005.png").unlink()
    (path / "images" / "06" / "000006.png").write_bytes(b"damaged")
    assert main(["backup", str(path), str(tmp_path / "b.zip")]) == 1
    assert "2 images of the workspace itself missing or damaged" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "b.zip"), str(tmp_path / "copy")]) == 1
    assert len(list((tmp_path / "copy" / "images").glob("*/*.png"))) == 10


def test_a_workspace_whose_only_checkpoint_is_damaged_is_copied_without_it(path, tmp_path):
    shutil.rmtree(path / "checkpoints" / "step-000000002")
    (path / "checkpoints" / "step-000000001" / "memory.safetensors").write_bytes(b"damaged")
    held = back_up(path, tmp_path / "b.zip")
    assert (held.checkpoint, held.labels) == (None, 12)
    assert restore(tmp_path / "b.zip", tmp_path / "copy") == held and whole(tmp_path / "copy")


def test_files_that_no_workspace_has_are_left_out_and_the_rest_is_restored(path, tmp_path):
    for name in ("12:30.json", ".DS_Store"):
        (path / "benchmarks" / "run" / name).write_text("{}")
    held = back_up(path, tmp_path / "b.zip")
    assert restore(tmp_path / "b.zip", tmp_path / "copy") == held
    assert [each.name for each in (tmp_path / "copy" / "benchmarks" / "run").iterdir()] == ["result.json"]


# While it learns --------------------------------------------------------------------------------------------------

LEARN = """
import sys
from edge_hpcr.learner import checkpoint
from edge_hpcr.workspace.workspace import Workspace
sys.path.insert(0, "tests")
from workspace_parts import take, write_checkpoint
workspace = Workspace.open(sys.argv[1])
journal = workspace.journal
journal._db.execute("PRAGMA synchronous = OFF")  # quicker: much happens while somebody copies
mug = journal.class_named("mug")
for number in range(1_000_000):
    ids = take(workspace, 5)
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


# What is refused --------------------------------------------------------------------------------------------------


def test_where_something_is_already_nothing_is_written(path, tmp_path):
    (tmp_path / "there.zip").write_bytes(b"mine")
    with pytest.raises(UserError):
        back_up(path, tmp_path / "there.zip")
    with pytest.raises(UserError):
        back_up(path, path / "b.zip")
    with pytest.raises(UserError):
        back_up(tmp_path / "nowhere", tmp_path / "b.zip")
    back_up(path, tmp_path / "b.zip")
    with pytest.raises(UserError):
        restore(tmp_path / "b.zip", path)
    (tmp_path / "empty").mkdir()
    assert restore(tmp_path / "b.zip", tmp_path / "empty").labels == 12


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), cut=st.booleans())
def test_a_backup_that_was_cut_short_or_changed_is_refused_or_restores_the_same(template, share, cut):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        back_up(template, folder / "b.zip")
        content = bytearray((folder / "b.zip").read_bytes())
        place = int(len(content) * share)
        if cut:
            del content[place:]
        else:
            content[place] ^= 0xFF
        (folder / "b.zip").write_bytes(content)
        try:
            restore(folder / "b.zip", folder / "copy")
        except UserError as error:
            refusal = str(error)
        else:  # of what nobody reads, such as a time in the zip
            refusal = ""
            assert not cut
            assert files(folder / "copy", "journal").items() <= files(template).items()
        assert "\n" not in refusal and (folder / "copy").exists() != bool(refusal)
        assert not list(folder.glob(".*"))


def rewrite(source: Path, target: Path, change, packing: int = zipfile.ZIP_DEFLATED) -> Path:
    """The backup with another list of files, or other files."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        contents = {name: old.read(name) for name in old.namelist()}
        index = json.loads(contents[INDEX])
        change(index, contents)
        contents[INDEX] = json.dumps(index).encode()
        for name, content in contents.items():
            new.writestr(name, content, packing)
    return target


def test_what_a_killed_command_has_left_goes_with_the_next(path, tmp_path):
    old, running, own = (
        tmp_path / f".{name}" for name in (f"monday.zip{UNFINISHED}", f"x{UNFINISHED}", "mine.writing")
    )
    for command in (back_up, restore):
        old.mkdir()
        (old / "half").write_bytes(b"half")
        for each in (old / "half", old):
            os.utime(each, (time.time() - 2 * LEFT_SECONDS,) * 2)
        running.write_bytes(b"of a command that runs")
        own.write_bytes(b"of nobody's business")
        back_up(path, tmp_path / "b.zip") if command == back_up else restore(
            tmp_path / "b.zip", tmp_path / "c"
        )
        assert {*tmp_path.glob(".*")} == {running, own}


def add(name: str, content: bytes = b"x", size: int | None = None):
    def change(index: dict, contents: dict) -> None:
        index["bytes"] += (len(content) if size is None else size) - len(contents.get(name, b""))
        contents[name] = content

    return change


def put(**facts: object):
    return lambda index, contents: index.update(facts)


def test_a_backup_of_an_earlier_version_with_its_list_of_files_is_restored(path, tmp_path):
    held = back_up(path, tmp_path / "b.zip")
    listed = put(format=1, files={"settings.json": [2, "0" * 64]})
    assert restore(rewrite(tmp_path / "b.zip", tmp_path / "old.zip", listed), tmp_path / "copy") == held


def name_outside(index: dict, contents: dict) -> None:
    """The journal gives a sample a file that lies outside of the workspace."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(contents["journal.sqlite"])
        with closing(sqlite3.connect(file.name)) as db, db:
            db.execute("UPDATE samples SET file = '../../../x' WHERE id = 1")
        add("journal.sqlite", Path(file.name).read_bytes())(index, contents)


HOSTILE = {
    "a file above": add("../evil"),
    "a bomb": add("benchmarks/bomb", b"0" * 50_000_000, 10),
    "another format": put(format=99),
    "counts that are none": put(labels="many\nlabels"),
    "fewer pictures than it says": lambda index, contents: contents.pop("images/01/000001.png"),
    "a file that is not there": lambda index, contents: contents.pop("settings.json"),
    "a journal that names a file outside": name_outside,
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_backup_is_refused_in_one_line_and_leaves_nothing(path, tmp_path, change):
    back_up(path, tmp_path / "good.zip")
    bad = rewrite(tmp_path / "good.zip", tmp_path / "bad.zip", change)
    with pytest.raises(UserError) as refused:
        restore(bad, tmp_path / "copy")
    assert "\n" not in str(refused.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.zip", "good.zip", "w"]


def test_a_backup_whose_packing_could_fill_the_memory_is_refused(path, tmp_path):
    back_up(path, tmp_path / "good.zip")
    bad = rewrite(tmp_path / "good.zip", tmp_path / "bad.zip", put(), zipfile.ZIP_LZMA)
    with pytest.raises(UserError, match="unusual"):
        restore(bad, tmp_path / "copy")
