"""Labelled samples out of a workspace and into another one: nothing lost, nothing doubled, nothing trusted."""

import csv
import io
import itertools
import json
import os
import random
import shutil
import signal
import struct
import threading
import time
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from process_parts import started

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.stream.decode import decode_image, read_bytes
from edge_hpcr.workspace import labelled_files
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.transfer import (
    IMAGES_AT_ONCE,
    LONGEST_FOLDER,
    Exported,
    export_samples,
    folder_names,
    import_samples,
)
from edge_hpcr.workspace.verify import verify_workspace

ROOT = Path(__file__).parents[1]
ODD_NAMES = [
    "mug",
    "nuts/bolts",
    "..",
    "CON",
    "mug_",
    "mug/",
    "Größe ✓ 日本",
    "a" * 100,
    "classes.json",
    "__MACOSX",
]


def png(value: int, side: int = 8) -> bytes:
    """A small image that is like no other: its values tell which one it is."""
    pixels = np.full((side, side, 3), value % 256, np.uint8)
    pixels[0, 0] = divmod(value, 256)[0] % 256, value % 7, 3
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def noise(value: int) -> bytes:
    """An image that does not even look like any other, so that it may be held out by itself."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(value).integers(0, 256, (16, 16, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def make_folder(
    root: Path, classes: dict[str, int], start: int = 0, picture: Callable[[int], bytes] = png
) -> Path:
    value = start
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number}.png").write_bytes(picture(value))
            value += 1
    return root


def make_zip(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as bundle:
        for name, content in entries.items():
            bundle.writestr(zipfile.ZipInfo(name), content, compression)
    return path


def picture_in(path: Path) -> np.ndarray:
    return decode_image(read_bytes(path), str(path))


def labels(workspace: Workspace) -> dict[str, int]:
    return {row.name: row.labels for row in workspace.journal.classes()}


def contents(workspace: Workspace) -> list[tuple[str, bytes]]:
    """Class and pixels of every labelled sample."""
    names = {row.id: row.name for row in workspace.journal.classes()}
    rows = workspace.journal.samples(state="labelled")
    return sorted((names[row.class_id], workspace.image(row.id).tobytes()) for row in rows)


def quarantined(workspace: Workspace) -> list[dict]:
    text = (workspace.layout.quarantine / "quarantine.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def workspace(tmp_path):
    with Workspace.open(tmp_path / "w") as opened:
        yield opened


@pytest.fixture
def other(tmp_path):
    with Workspace.open(tmp_path / "other") as opened:
        yield opened


@pytest.fixture
def odd(workspace):
    """A class for each odd name, with two samples each."""
    images = [np.full((8, 8, 3), 10 * number, np.uint8) for number in range(2 * len(ODD_NAMES))]
    ids = workspace.take_many([Taken(image, "camera 0") for image in images])
    for number, name in enumerate(ODD_NAMES):
        class_id = workspace.journal.create_class(name, f"#{number:06x}")
        workspace.journal.label(ids[2 * number : 2 * number + 2], class_id)
    workspace.journal.create_class("still empty", "#abcdef")
    return workspace


# Export -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("target", ["out", "out.zip", "OUT.ZIP", "deep/er/out", "deep/er/out.zip"])
def test_an_import_of_an_export_restores_names_colours_and_images(odd, other, tmp_path, target):
    done = export_samples(odd, tmp_path / target)
    assert done == Exported(samples=2 * len(ODD_NAMES), classes=len(ODD_NAMES) + 1, missing=0)
    result = import_samples(other, tmp_path / target)
    assert (result.samples, result.classes, result.known, result.bad) == (20, 11, 0, 0)
    assert contents(other) == contents(odd)
    assert [(row.name, row.colour) for row in other.journal.classes()] == [
        (row.name, row.colour) for row in odd.journal.classes()
    ]
    assert sorted(path.name for path in tmp_path.iterdir() if "writing" in path.name) == []


def test_an_export_has_a_folder_with_images_for_each_class_and_no_empty_one(odd, tmp_path):
    export_samples(odd, tmp_path / "out")
    folders = [entry for entry in (tmp_path / "out").iterdir() if entry.is_dir()]
    assert len(folders) == len(ODD_NAMES), "other programs refuse a class without images"
    for folder in folders:
        assert [picture_in(path).shape for path in folder.iterdir()] == [(8, 8, 3), (8, 8, 3)]


def test_an_export_lists_what_it_cannot_hold_as_images(workspace, tmp_path):
    mug = workspace.journal.create_class("mug")
    ids = workspace.take_many(
        [Taken(np.full((8, 8, 3), i, np.uint8), f"camera, {i}", f"d{i}") for i in range(13)]
    )
    for sample_id in ids[:12]:
        workspace.journal.label([sample_id], mug)
    held_out = {row.id for row in workspace.journal.samples(held_out=True)}
    assert held_out
    workspace.forget_images(ids[:2])
    damaged = workspace.journal.sample(ids[2])
    (workspace.layout.images / damaged.file).write_bytes(b"damaged")
    seen: list[tuple[int, int]] = []
    done = export_samples(workspace, tmp_path / "out", lambda *numbers: seen.append(numbers))
    assert done == Exported(samples=9, classes=1, missing=3)
    assert seen[-1] == (12, 12)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "samples.csv").read_text())))
    assert [int(row["sample"]) for row in rows] == ids[:12], "the queued one has no label"
    assert {int(row["sample"]) for row in rows if row["held_out"] == "1"} == held_out
    assert [row["file"] for row in rows[:4]] == ["", "", "", f"mug/{ids[3]:06d}.png"]
    assert (rows[3]["origin"], rows[3]["source_digest"]) == ("camera, 3", "d3")
    assert len(list((tmp_path / "out" / "mug").iterdir())) == 9


@pytest.mark.parametrize("target", ["full", "there.zip", "file", "w/inside", "w/images/x.zip", "file/below"])
def test_an_export_never_overwrites_and_never_goes_into_the_workspace(odd, tmp_path, target):
    (tmp_path / "full").mkdir()
    for name in ("full/mine", "there.zip", "file"):
        (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(UserError, match=r"exists already|workspace itself|cannot write"):
        export_samples(odd, tmp_path / target)
    assert {(tmp_path / name).read_bytes() for name in ("full/mine", "there.zip", "file")} == {b"mine"}
    assert [path for path in tmp_path.rglob("*") if "writing" in path.name] == []


def test_an_export_that_fails_leaves_nothing(odd, tmp_path):
    def fail(done: int, total: int) -> None:
        if done == 5:
            raise OSError(28, "No space left on device")

    for target in ("out", "out.zip"):
        with pytest.raises(UserError, match="No space left"):
            export_samples(odd, tmp_path / target, fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w"]


def test_an_export_takes_the_place_of_an_empty_folder_and_of_a_killed_one(odd, tmp_path):
    (tmp_path / "out").mkdir()
    leftover = tmp_path / ".out.edge_hpcr-writing" / "mug"
    leftover.mkdir(parents=True)
    (leftover / "999999.png").write_bytes(b"half")
    export_samples(odd, tmp_path / "out")
    assert len(list((tmp_path / "out").rglob("*.png"))) == 20
    assert not leftover.parent.exists()


def test_a_folder_that_somebody_fills_meanwhile_is_left_alone(odd, tmp_path):
    target = tmp_path / "out"

    def fill(done: int, total: int) -> None:
        if done == total:
            target.mkdir()
            (target / "mine").write_bytes(b"mine")

    with pytest.raises(UserError, match="cannot write the export"):
        export_samples(odd, target, fill)
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_nothing_to_export_is_said(workspace, tmp_path):
    workspace.take(np.zeros((8, 8, 3), np.uint8), "queued")
    with pytest.raises(UserError, match="no sample"):
        export_samples(workspace, tmp_path / "out")


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.text(min_size=1, max_size=100) | st.text("aAß./ ", min_size=1, max_size=3),
        max_size=12,
        unique=True,
    )
)
def test_folder_names_are_good_everywhere(names):
    folders = folder_names(dict(enumerate(names, 1)))
    assert list(folders) == list(range(1, len(names) + 1))
    alike = {unicodedata.normalize("NFKC", folder).casefold() for folder in folders.values()}
    assert len(alike) == len(names)
    for folder in folders.values():
        assert folder == folder.strip(" .")
        assert folder.isprintable() and not set(folder) & set('<>:"/\\|?*')
        assert 1 <= len(folder.encode()) <= LONGEST_FOLDER + 8
        assert folder.partition(".")[0].casefold() not in ("con", "nul", "com1", "lpt9")


# Import -----------------------------------------------------------------------------------------------------------


def test_classes_take_turns_so_that_none_comes_in_one_long_row(workspace, tmp_path):
    make_folder(tmp_path / "in", {"a": 25, "b": 12, "c": 1}, picture=noise)
    result = import_samples(workspace, tmp_path / "in")
    assert (result.samples, result.classes, result.bad) == (38, 3, 0)
    events = [event for event in workspace.journal.events_after(0) if event.kind == "label"]
    names = {row.id: row.name for row in workspace.journal.classes()}
    runs = itertools.groupby(names[event.moves[0].now] for event in events)
    turns = [("a", 1), ("b", 1), ("c", 1), *[("a", 1), ("b", 1)] * 11, ("a", 13)]
    assert [(name, len(list(run))) for name, run in runs] == turns
    assert all(len(event.moves) == 1 for event in events), "each may be held out by itself"
    assert workspace.journal.counts().held_out == 4
    origins = [row.origin for row in workspace.journal.samples(class_id=1)]
    assert origins == [str(tmp_path / "in" / "a" / f"{i}.png") for i in range(25)], "in natural order"
    assert all(row.hash64 for row in workspace.journal.samples(class_id=1))


def test_an_existing_class_is_used_in_any_case_and_only_needed_ones_are_made(workspace, tmp_path):
    workspace.journal.create_class("Mug")
    make_folder(tmp_path / "in", {"MUG": 2, "mug": 1, "only bad": 0})
    (tmp_path / "in" / "mug" / "0.png").write_bytes(png(200))
    (tmp_path / "in" / "only bad" / "x.png").write_bytes(b"no image")
    result = import_samples(workspace, tmp_path / "in")
    assert (result.samples, result.classes, result.bad) == (3, 0, 1)
    assert labels(workspace) == {"Mug": 3}


def test_bad_files_go_to_quarantine_with_a_reason_and_the_rest_comes_in(workspace, tmp_path):
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
    reasons = {Path(line["path"]).name: line["reason"] for line in quarantined(workspace)}
    assert set(reasons) == {
        *("text.png", "cut.png", "top.png", "classes.json", "link.png", "away", "1.png", "pipe.png")
    }
    assert result.bad == len(result.reasons) == 8
    assert "no folder" in reasons["top.png"] and "link" in reasons["link.png"]
    assert "101 characters" in reasons["1.png"]
    assert all("\n" not in reason for reason in result.reasons)
    assert verify_workspace(workspace.path) == []


def test_the_same_again_adds_nothing(odd, tmp_path):
    before = contents(odd), odd.journal.last_seq
    export_samples(odd, tmp_path / "out.zip")
    result = import_samples(odd, tmp_path / "out.zip")
    assert (result.samples, result.known) == (0, 20), "an image that came from here is known too"
    assert (contents(odd), odd.journal.last_seq) == before
    root = make_folder(tmp_path / "in", {"mug": 3}, start=250)
    shutil.copy(root / "mug" / "0.png", root / "mug" / "copy.png")
    first, second = import_samples(odd, root), import_samples(odd, root)
    assert (first.samples, first.known) == (3, 1)
    assert (second.samples, second.known, second.deleted) == (0, 4, 0)
    odd.journal.delete_samples([row.id for row in odd.journal.samples(class_id=1)[-1:]])
    third = import_samples(odd, root)
    assert (third.samples, third.known) == (0, 4)
    assert third.deleted == 1


def test_a_sample_that_waits_in_the_queue_gets_the_label(workspace, tmp_path):
    root = make_folder(tmp_path / "in", {"mug": 2})
    for path in root.glob("mug/*"):
        workspace.take(decode_image(path.read_bytes(), path.name), "a folder", sha256(path.read_bytes()))
    assert workspace.journal.counts().queued == 2
    result = import_samples(workspace, root)
    assert (result.samples, result.known) == (2, 0)
    counts = workspace.journal.counts()
    assert (counts.labels, counts.queued, counts.images) == (2, 0, 2)


def test_an_import_can_be_stopped_and_goes_on(workspace, tmp_path):
    root = make_folder(tmp_path / "in", {"a": 30, "b": 30})
    stop = threading.Event()
    result = import_samples(workspace, root, lambda done, total: stop.set(), stop)
    assert result.samples == IMAGES_AT_ONCE
    seen: list[tuple[int, int]] = []
    assert import_samples(workspace, root, lambda *n: seen.append(n)).samples == 60 - IMAGES_AT_ONCE
    assert seen[-1] == (60, 60)
    assert labels(workspace) == {"a": 30, "b": 30}


IMPORT = """
import sys
from pathlib import Path
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.transfer import import_samples
with Workspace.open(sys.argv[1]) as workspace:
    import_samples(workspace, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_imports_lose_and_double_nothing(tmp_path):
    root = make_folder(tmp_path / "in", {"a": 90, "b": 60, "c": 30})
    expected = sorted((path.parent.name, picture_in(path).tobytes()) for path in root.rglob("*.png"))
    for images in (5, 47, 122):
        with started("-c", IMPORT, tmp_path / "w", root) as process:
            while sum(1 for _ in (tmp_path / "w" / "images").glob("*/*.png")) < images:
                assert process.poll() is None
                time.sleep(0.001)
        assert process.returncode == -signal.SIGKILL
    with Workspace.open(tmp_path / "w") as workspace:
        import_samples(workspace, root)
        assert contents(workspace) == expected
        assert workspace.journal.counts().queued == 0
    assert verify_workspace(tmp_path / "w") == []


def test_an_import_may_run_beside_the_process_that_learns(workspace, tmp_path):
    root = make_folder(tmp_path / "in", {"a": 2})
    with Workspace.open(workspace.path, learning=False) as second:
        assert import_samples(second, root).samples == 2
    assert labels(workspace) == {"a": 2}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "no such folder or zip"),
        ("text.zip", "no whole zip"),
        ("empty", "holds no files"),
        ("w", "workspace itself"),
        ("w/images", "workspace itself"),
        ("pipe", "no whole zip"),
    ],
)
def test_a_source_that_is_none_is_refused_in_one_line(workspace, tmp_path, source, message):
    (tmp_path / "text.zip").write_bytes(b"PK no zip")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=message) as refused:
        import_samples(workspace, tmp_path / source)
    assert "\n" not in str(refused.value)


def test_a_damaged_list_of_classes_is_refused_and_nothing_is_imported(odd, other, tmp_path):
    export_samples(odd, tmp_path / "out")
    listed = tmp_path / "out" / "classes.json"
    good = json.loads(listed.read_text())
    for changes in ({"classes": [{"folder": "mug"}]}, {"classes": 7}, {"format": 2}):
        listed.write_text(json.dumps(good | changes))
        with pytest.raises(UserError, match=r"classes\.json"):
            import_samples(other, tmp_path / "out")
    assert other.journal.counts().labels == 0


# Zips -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # as it should be
        (["mug/1.png", "cup/2.png"], {"cup": 1, "mug": 1}),
        # all in one folder more
        (["data/mug/1.png", "data/cup/2.png"], {"cup": 1, "mug": 1}),
        (["data/read.me", "data/mug/1.png", "data/cup/2.png"], {"cup": 1, "mug": 1}),
        # one class alone, with or without folders in it
        (["mug/1.png", "mug/2.png"], {"mug": 2}),
        (["mug/1.png", "mug/blue/2.png"], {"mug": 2}),
        # as Windows and macOS pack
        (["mug\\1.png", "cup\\2.png"], {"cup": 1, "mug": 1}),
        (["data/mug/1.png", "__MACOSX/data/mug/._1.png", "data/.DS_Store"], {"mug": 1}),
    ],
)
def test_zips_are_read_as_people_pack_them(workspace, tmp_path, entries, expected):
    path = make_zip(tmp_path / "in.zip", {name: png(number) for number, name in enumerate(entries)})
    import_samples(workspace, path)
    assert {name: labels(workspace)[name] for name in sorted(labels(workspace))} == expected


@pytest.mark.parametrize(
    "name", ["../mug/1.png", "mug/../../1.png", "/mug/1.png", "\\mug\\1.png", "C:\\mug\\1.png"]
)
def test_a_zip_that_leads_out_of_itself_is_refused(workspace, tmp_path, name):
    path = make_zip(tmp_path / "in.zip", {"mug/0.png": png(0), name: png(1)})
    with pytest.raises(UserError, match="leads out"):
        import_samples(workspace, path)
    assert workspace.journal.counts().labels == 0


def test_links_in_a_zip_are_bad_files(workspace, tmp_path):
    link = zipfile.ZipInfo("mug/link.png")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as bundle:
        bundle.writestr(link, png(1))
        bundle.writestr("mug/1.png", png(2))
    result = import_samples(workspace, tmp_path / "in.zip")
    assert (result.samples, result.bad) == (1, 1)
    assert "link" in result.reasons[0]


def patched(content: bytes, signature: bytes, place: int, value: bytes) -> bytes:
    """A zip in which something is overwritten behind each of these signatures."""
    changed = bytearray(content)
    at = -1
    while (at := content.find(signature, at + 1)) >= 0:
        changed[at + place : at + place + len(value)] = value
    return bytes(changed)


def test_an_encrypted_or_oddly_packed_zip_is_refused(workspace, tmp_path):
    content = make_zip(tmp_path / "in.zip", {"mug/1.png": png(1)}).read_bytes()
    (tmp_path / "in.zip").write_bytes(patched(content, b"PK\1\2", 8, b"\1"))
    with pytest.raises(UserError, match="encrypted"):
        import_samples(workspace, tmp_path / "in.zip")
    make_zip(tmp_path / "lzma.zip", {"mug/1.png": png(1)}, zipfile.ZIP_LZMA)
    with pytest.raises(UserError, match="unpack it"):
        import_samples(workspace, tmp_path / "lzma.zip")
    make_zip(tmp_path / "long.zip", {f"mug/{'x' * 300}.png": png(1)})
    with pytest.raises(UserError, match="no name of a file"):
        import_samples(workspace, tmp_path / "long.zip")


def test_limits_count_what_is_really_unpacked(workspace, tmp_path, monkeypatch):
    entries = {f"mug/{number}.png": png(number) + bytes(4_000_000) for number in range(4)}
    path = make_zip(tmp_path / "in.zip", entries, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    # The sizes that the archive states are small, and wrong.
    lying = patched(path.read_bytes(), b"PK\1\2", 24, struct.pack("<I", 200))
    (tmp_path / "lying.zip").write_bytes(lying)
    monkeypatch.setattr(labelled_files, "MAX_BYTES", 3_000_000)
    result = import_samples(workspace, path)
    assert (result.samples, result.bad) == (0, 4)
    assert "more than 3,000,000 bytes" in result.reasons[0]
    assert import_samples(workspace, tmp_path / "lying.zip").samples == 0
    monkeypatch.setattr(labelled_files, "MOST_BYTES", 5_000_000)
    with pytest.raises(UserError, match="unpacks to more than 5,000,000"):
        import_samples(workspace, path)
    monkeypatch.setattr(labelled_files, "MOST_ENTRIES", 3)
    with pytest.raises(UserError, match="4 entries"):
        import_samples(workspace, path)


def test_a_damaged_zip_gives_what_is_whole_or_one_line_and_never_a_wrong_image(workspace, tmp_path):
    whole = make_zip(
        tmp_path / "in.zip",
        {f"mug/{number}.png": png(number, 32) for number in range(5)},
        zipfile.ZIP_DEFLATED,
    ).read_bytes()
    good = {np.array(Image.open(io.BytesIO(png(number, 32)))).tobytes() for number in range(5)}
    rng = random.Random(1)
    refused: list[str] = []
    for _ in range(150):
        content = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
        for _ in range(rng.choice([1, 1, 8])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        (tmp_path / "in.zip").write_bytes(content)
        try:
            import_samples(workspace, tmp_path / "in.zip")
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > 20 and not any("\n" in message for message in refused)
    assert {pixels for _, pixels in contents(workspace)} <= good


def test_large_images_are_kept_small(workspace, tmp_path):
    (tmp_path / "in" / "mug").mkdir(parents=True)
    Image.effect_noise((1500, 900), 80).convert("RGB").save(tmp_path / "in" / "mug" / "large.jpg")
    import_samples(workspace, tmp_path / "in")
    (row,) = workspace.journal.samples()
    assert (row.width, row.height) == (512, 307)
