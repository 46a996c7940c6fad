"""Labelled samples out of a workspace and into another one: nothing lost, nothing doubled, nothing trusted."""

import io
import os
import shutil
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from workspace_parts import make_zip, png

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import Frame
from edge_hpcr.workspace import transfer
from edge_hpcr.workspace.recover import verify_workspace
from edge_hpcr.workspace.transfer import Exported, export_samples, import_samples
from edge_hpcr.workspace.workspace import Workspace

ODD_NAMES = ["mug", "mug_", "mug/", "nuts/bolts", "..", "50%", "Größe ✓ 日本", "a" * 100, "classes.json"]


def make_folder(root: Path, classes: dict[str, int], start: int = 0) -> Path:
    value = start
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number}.png").write_bytes(png(value))
            value += 1
    return root


def contents(workspace: Workspace) -> list[tuple[str, bytes]]:
    """Class and pixels of every labelled sample."""
    names = {row.id: row.name for row in workspace.journal.classes()}
    rows = workspace.journal.samples(state="labelled")
    return sorted((names[row.class_id], workspace.image(row.id).tobytes()) for row in rows)


@pytest.fixture
def other(tmp_path):
    with Workspace.open(tmp_path / "other") as opened:
        yield opened


@pytest.fixture
def odd(workspace):
    """A class for each odd name, with two samples each."""
    images = [np.full((8, 8, 3), 10 * number, np.uint8) for number in range(2 * len(ODD_NAMES))]
    ids = workspace.take_many([Frame(image, "camera 0") for image in images])
    for number, name in enumerate(ODD_NAMES):
        class_id = workspace.journal.create_class(name)
        workspace.journal.label(ids[2 * number : 2 * number + 2], class_id)
    return workspace


# Export -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_import_of_an_export_restores_names_and_images(odd, other, tmp_path):
    target = "deep/er/out.zip"
    done = export_samples(odd, tmp_path / target)
    assert done == Exported(samples=2 * len(ODD_NAMES), classes=len(ODD_NAMES), missing=0)
    result = import_samples(other, tmp_path / target)
    assert (result.samples, result.classes, result.known, result.bad) == (18, 9, 0, 0)
    assert contents(other) == contents(odd)
    assert {row.name for row in other.journal.classes()} == {*ODD_NAMES}
    assert sorted(path.name for path in tmp_path.iterdir() if "writing" in path.name) == []


def test_an_export_counts_what_has_no_image_any_more(workspace, tmp_path):
    mug = workspace.journal.create_class("mug")
    ids = workspace.take_many(
        [Frame(np.full((8, 8, 3), i, np.uint8), f"camera, {i}", digest=f"d{i}") for i in range(13)]
    )
    for sample_id in ids[:12]:
        workspace.journal.label([sample_id], mug)
    workspace.forget_images(ids[:2])
    damaged = workspace.journal.sample(ids[2])
    (workspace.layout.images / damaged.file).write_bytes(b"damaged")
    seen: list[tuple[int, int]] = []
    done = export_samples(workspace, tmp_path / "out.zip", lambda *numbers: seen.append(numbers))
    assert done == Exported(samples=9, classes=1, missing=3)
    assert seen[-1] == (12, 12)
    with zipfile.ZipFile(tmp_path / "out.zip") as bundle:
        assert bundle.namelist() == [f"mug/{i:06d}.png" for i in ids[3:12]]


@pytest.mark.parametrize("target", ["folder", "there.zip", "w/images/x.zip"])
def test_an_export_never_overwrites_and_never_goes_into_the_workspace(odd, tmp_path, target):
    (tmp_path / "there.zip").write_bytes(b"mine")
    with pytest.raises(UserError):
        export_samples(odd, tmp_path / target)
    assert (tmp_path / "there.zip").read_bytes() == b"mine"
    assert [path for path in tmp_path.rglob("*") if "writing" in path.name] == []


def test_an_export_that_fails_leaves_nothing(odd, tmp_path):
    def fail(done: int, total: int) -> None:
        if done == 5:
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError):
        export_samples(odd, tmp_path / "out.zip", fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w"]


# Import -----------------------------------------------------------------------------------------------------------


def test_bad_files_are_left_out_with_a_reason_and_the_rest_comes_in(workspace, tmp_path, caplog):
    root = make_folder(tmp_path / "in", {"mug": 2})
    (root / "mug" / "text.png").write_bytes(b"hello")
    (root / "mug" / "cut.png").write_bytes(png(9)[:60])
    (root / "top.png").write_bytes(png(3))
    (root / "classes.json").write_text('{"0": "somebody else\'s"}')
    (root / "mug" / "link.png").symlink_to("/etc/hostname")
    (root / "away").symlink_to(root / "mug")
    (root / ("x" * 101)).mkdir()
    (root / ("x" * 101) / "1.png").write_bytes(png(5))
    (root / "mug" / ".hidden.png").write_bytes(b"left out")
    os.mkfifo(root / "mug" / "pipe.png")
    result = import_samples(workspace, root)
    assert (result.samples, result.known) == (2, 0)
    for name in ("text.png", "cut.png", "classes.json", "link.png", "away", "1.png", "pipe.png"):
        assert sum(f"/{name}" in line for line in caplog.messages) == 1
    assert result.bad == len(result.reasons) == len(caplog.messages) == 7 and result.queued == 1, (
        "top.png waits for a label"
    )
    assert any("101 characters" in line for line in caplog.messages)
    assert all("\n" not in reason for reason in result.reasons)
    assert verify_workspace(workspace.path) == []


def test_the_same_again_adds_nothing(odd, tmp_path):
    before = contents(odd), odd.journal.last_seq
    export_samples(odd, tmp_path / "out.zip")
    result = import_samples(odd, tmp_path / "out.zip")
    assert (result.samples, result.known) == (0, 18), "an image that came from here is known too"
    assert (contents(odd), odd.journal.last_seq) == before
    root = make_folder(tmp_path / "in", {"mug": 3}, start=250)
    shutil.copy(root / "mug" / "0.png", root / "mug" / "copy.png")
    first, second = import_samples(odd, root), import_samples(odd, root)
    assert (first.samples, first.known) == (3, 1)
    assert (second.samples, second.known) == (0, 4)
    odd.journal.delete_samples([row.id for row in odd.journal.samples(class_id=1)[-1:]])
    third = import_samples(odd, root)
    assert (third.samples, third.known) == (0, 4)


# Zips -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../mug/1.png", "/mug/1.png", "C:\\mug\\1.png"])
def test_a_zip_that_leads_out_of_itself_is_refused(workspace, tmp_path, name):
    path = make_zip(tmp_path / "in.zip", {"mug/0.png": png(0), name: png(1)})
    with pytest.raises(UserError):
        import_samples(workspace, path)
    assert workspace.journal.counts().labels == 0


def patched(content: bytes, signature: bytes, place: int, value: bytes) -> bytes:
    """A zip in which something is overwritten behind each of these signatures."""
    changed = bytearray(content)
    at = -1
    while (at := content.find(signature, at + 1)) >= 0:
        changed[at + place : at + place + len(value)] = value
    return bytes(changed)


def test_limits_count_what_is_really_unpacked(workspace, tmp_path, monkeypatch):
    entries = {f"mug/{number}.png": png(number) + bytes(4_000_000) for number in range(4)}
    path = make_zip(tmp_path / "in.zip", entries, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    # The sizes that the archive states are small, and wrong.
    lying = patched(path.read_bytes(), b"PK\1\2", 24, struct.pack("<I", 200))
    (tmp_path / "lying.zip").write_bytes(lying)
    monkeypatch.setattr(transfer, "MAX_BYTES", 3_000_000)
    result = import_samples(workspace, path)
    assert (result.samples, result.bad) == (0, 4)
    assert "more than 3,000,000 bytes" in result.reasons[0]
    assert import_samples(workspace, tmp_path / "lying.zip").samples == 0


@settings(max_examples=30, deadline=None)
@given(
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
)
def test_a_damaged_zip_gives_what_is_whole_or_one_line_and_never_a_wrong_image(cut, flips):
    good = {np.array(Image.open(io.BytesIO(png(number, 32)))).tobytes() for number in range(3)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        entries = {f"mug/{number}.png": png(number, 32) for number in range(3)}
        content = bytearray(make_zip(folder / "in.zip", entries, zipfile.ZIP_DEFLATED).read_bytes())
        del content[max(1, int(cut * 2 * len(content))) :]  # whole in half of the cases
        for place, value in flips:
            content[int(place * len(content))] = value
        (folder / "in.zip").write_bytes(content)
        refusal = ""
        with Workspace.open(folder / "w") as workspace:
            try:
                import_samples(workspace, folder / "in.zip")
            except UserError as error:
                refusal = str(error)
            assert "\n" not in refusal and {pixels for _, pixels in contents(workspace)} <= good
