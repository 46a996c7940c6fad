"""Which folders name the classes, the same for imports and for `learn --labels folders`; and an import that is taken back."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from workspace_parts import labels, make_zip, png

from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import EndOfStream, Frame, open_stream
from edge_hpcr.workspace import transfer
from edge_hpcr.workspace.queries import history, taken_back_text
from edge_hpcr.workspace.recover import verify_workspace
from edge_hpcr.workspace.selection import DRAWN, UNKNOWN
from edge_hpcr.workspace.transfer import import_samples, look_at

NAMES = [
    *(f"dataset/dog/{n}.png" for n in range(3)),
    *(f"dataset/cat/{n}.png" for n in range(2)),
    *("dataset/read.me", "dataset/cat/notes.txt"),
]
CASES = [  # files, classes
    (NAMES, {"dog": 3, "cat": 2}),
    # Classes that are called like parts of a data set: pictures of trains, and of tests.
    (["train/1.png", "test/2.png"], {"train": 1, "test": 1}),
    # Folders around everything, and in a class.
    (["a/b/dog/1.png", "a/b/cat/2.png"], {"dog": 1, "cat": 1}),
    (["dog/1.png", "dog/big/2.png"], {"dog": 2}),
]


def contents(names):
    return {name: png(number) if name.endswith("png") else b"text" for number, name in enumerate(names)}


def unpacked(path: Path, names) -> Path:
    for name, content in contents(names).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize(("names", "classes"), CASES)
def test_a_zip_a_folder_and_a_source_with_labels_agree_on_the_classes(workspace, tmp_path, names, classes):
    folder = unpacked(tmp_path / "in", names)
    path = make_zip(tmp_path / "in.zip", contents(names))
    assert look_at(workspace.path, folder).classes == look_at(workspace.path, path).classes == classes
    import_samples(workspace, path)
    assert labels(workspace) == classes
    shown: dict[str, int] = {}
    with open_stream(str(folder), "folders", lambda path, reason: None) as stream, suppress(EndOfStream):
        while True:
            frame = stream.read(5.0)
            if frame is not None and frame.label is not None:
                shown[frame.label] = shown.get(frame.label, 0) + 1
    assert shown == classes


def test_parts_of_a_data_set_are_not_taken_for_classes(workspace, tmp_path):
    names = ["data/train/dog/1.png", "data/train/cat/2.png", "data/test/dog/3.png"]
    folder = unpacked(tmp_path / "in", names)
    with pytest.raises(UserError, match="test and train"):
        look_at(workspace.path, folder)
    with pytest.raises(UserError, match="test and train"):
        open_stream(str(folder), "folders")
    assert look_at(workspace.path, folder / "data" / "train").classes == {"dog": 1, "cat": 1}


def test_what_was_found_is_said_in_a_sentence_and_nothing_is_changed(workspace, tmp_path):
    found = look_at(workspace.path, make_zip(tmp_path / "in.zip", contents(NAMES)))
    assert str(found) == ("2 classes, 5 pictures, 2 files skipped")
    assert workspace.journal.last_seq == 0


def test_an_import_is_one_action_that_is_taken_back_and_brought_again(workspace, tmp_path):
    journal = workspace.journal
    own = journal.create_class("dog")
    mine = workspace.take(np.zeros((8, 8, 3), np.uint8), "camera 0")
    journal.label([mine], own)
    before = labels(workspace)
    import_samples(workspace, unpacked(tmp_path / "in", NAMES))
    assert labels(workspace) == {"dog": 4, "cat": 2}
    assert next(history(journal)).text == "import of 5 pictures, with 1 new class: dog 3, cat 2"
    told = taken_back_text(journal, journal.undo())
    assert told == "import of 5 pictures, with 1 new class: dog 3, cat 2"
    assert labels(workspace) == before and journal.counts().queued == 0, "nobody asked to label them by hand"
    journal.redo()
    assert labels(workspace) == {"dog": 4, "cat": 2}
    journal.undo()
    again = import_samples(workspace, tmp_path / "in")
    assert (again.samples, again.known) == (5, 0), "the same again takes them up again"
    assert labels(workspace) == {"dog": 4, "cat": 2}
    assert not verify_workspace(workspace.path)


def test_labels_that_are_given_at_once_are_one_action(workspace):
    mug = workspace.journal.create_class("mug")
    ids = workspace.take_many([Frame(np.full((8, 8, 3), i, np.uint8), "camera 0") for i in range(3)])
    assert len(workspace.journal.label_each((i, mug) for i in ids)) == 3
    assert next(history(workspace.journal)).text == "3 pictures labelled mug"
    workspace.journal.label_each([(ids[0], workspace.journal.create_class("cup"))])
    assert next(history(workspace.journal)).text == "1 picture corrected to cup"
    workspace.journal.undo()
    workspace.journal.undo()
    assert len(workspace.journal.undo().moves) == 3 and workspace.journal.counts().queued == 3


def test_of_loose_pictures_some_are_drawn_for_measuring_by_chance(workspace, tmp_path, monkeypatch):
    draws = iter([0.9, 0.0])
    monkeypatch.setattr(transfer, "random", SimpleNamespace(random=lambda: next(draws)))
    done = import_samples(workspace, unpacked(tmp_path / "in", ["1.png", "2.png"]))
    assert (done.samples, done.queued) == (0, 2) and labels(workspace) == {}
    assert [row.priority for row in workspace.journal.queued()] == [DRAWN, UNKNOWN]
