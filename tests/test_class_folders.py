"""Which folders name the classes, the same for imports and for `learn --labels folders`; and an import that is taken back."""

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from test_transfer import labels, make_zip, png

from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import EndOfStream, open_stream
from edge_hpcr.stream.class_folders import find_class_folders
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.transfer import import_samples, look_at
from edge_hpcr.workspace.verify import verify_workspace

SPLIT = [
    *(f"dataset/train/dog/{n}.png" for n in range(3)),
    *(f"dataset/train/cat/{n}.png" for n in range(2)),
    *("dataset/test/dog/9.png", "dataset/test/cat/9.png", "dataset/read.me", "dataset/train/notes.txt"),
]
CASES = [  # files, classes
    (SPLIT, {"dog": 3, "cat": 2}),
    (["Training/dog/1.png", "Validation/dog/2.png", "Validation/cat/3.png"], {"dog": 1}),
    (["val/dog/1.png", "test/dog/2.png"], {"dog": 2}),  # none of them is for training: all are used
    (["train/dog/1.png", "test/2.png", "test/3.png"], {"dog": 1}),  # a test without answers
    # Classes that are called like splits: pictures of trains, and of tests.
    (["train/1.png", "bus/2.png"], {"train": 1, "bus": 1}),
    (["train/1.png", "test/2.png"], {"train": 1, "test": 1}),
    (["train/ice/1.png", "bus/red/2.png"], {"train": 1, "bus": 1}),
    # Folders around everything, and in a class.
    (["a/b/dog/1.png", "a/b/cat/2.png"], {"dog": 1, "cat": 1}),
    (["a/read.me", "a/dog/1.png", "a/cat/2.png", "read.me"], {"dog": 1, "cat": 1}),
    (["dog/big/1.png", "cat/2.png"], {"dog": 1, "cat": 1}),
    (["dog/1.png", "dog/big/2.png"], {"dog": 2}),
]


@pytest.fixture
def workspace(tmp_path):
    with Workspace.open(tmp_path / "w") as opened:
        yield opened


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


def test_what_was_found_is_said_in_a_sentence_and_a_split_can_be_chosen(workspace, tmp_path):
    path = make_zip(tmp_path / "in.zip", contents(SPLIT))
    found = look_at(workspace.path, path)
    assert str(found) == (
        "2 classes, 5 pictures, 2 files skipped; train/ and test/ look like splits: train is used"
    )
    assert workspace.journal.last_seq == 0 and not (workspace.layout.quarantine / "quarantine.jsonl").exists()
    assert look_at(workspace.path, path, split="test").classes == {"cat": 1, "dog": 1}
    assert look_at(workspace.path, path, split="all").classes == {"dog": 4, "cat": 3}
    with pytest.raises(UserError, match="split dev: choose one of train, test or all"):
        look_at(workspace.path, path, split="dev")
    with pytest.raises(UserError, match="split train: there are no folders like train/ and test/ in it"):
        find_class_folders([("dog", "1.png")], "train")
    import_samples(workspace, path, split="test")
    assert labels(workspace) == {"cat": 1, "dog": 1}


def test_a_source_with_labels_says_which_split_it_shows(tmp_path):
    folder = unpacked(tmp_path / "in", SPLIT)
    with open_stream(str(folder), "folders", lambda path, reason: None) as stream:
        stream.read(5.0)
        assert "train/ and test/ look like splits: train is used" in stream.state().message


# Taking an import back --------------------------------------------------------------------------------------------


def test_an_import_is_taken_back_in_one_step_and_the_step_itself_can_be_undone(workspace, tmp_path):
    journal = workspace.journal
    own = journal.create_class("dog")
    mine = workspace.take(np.zeros((8, 8, 3), np.uint8), "camera 0")
    journal.label([mine], own)
    before = labels(workspace)
    result = import_samples(workspace, unpacked(tmp_path / "in", SPLIT))
    assert labels(workspace) == {"dog": 4, "cat": 2} and journal.last_import() == result.number
    told = journal.take_back_import(result.number)
    assert str(told) == "import undone: 5 labels and 1 class taken back"
    assert labels(workspace) == before and journal.counts().queued == 0, "nobody asked to label them by hand"
    assert journal.last_import() is None
    journal.undo()
    assert labels(workspace) == {"dog": 4, "cat": 2}
    journal.redo()
    assert labels(workspace) == before
    again = import_samples(workspace, tmp_path / "in")
    assert (again.samples, again.known) == (5, 0), "the same again takes them up again"
    assert labels(workspace) == {"dog": 4, "cat": 2}
    assert not verify_workspace(workspace.path)


def test_what_was_changed_since_an_import_stays_when_it_is_taken_back(workspace, tmp_path):
    journal = workspace.journal
    result = import_samples(workspace, unpacked(tmp_path / "in", SPLIT))
    dog, cat = journal.class_id("dog"), journal.class_id("cat")
    changed = journal.samples(class_id=dog)[0].id
    journal.label([changed], cat)
    told = journal.take_back_import(result.number)
    assert (
        str(told) == "import undone: 4 labels and 1 class taken back; 1 sample changed since stay as they are"
    )
    assert labels(workspace) == {"cat": 1}
    with pytest.raises(UserError, match="nothing of that import is left as it was imported"):
        journal.take_back_import(result.number)


def test_the_command_line_looks_imports_a_split_and_takes_it_back(tmp_path, capsys):
    path = make_zip(tmp_path / "in.zip", contents(SPLIT), zipfile.ZIP_DEFLATED)
    place = tmp_path / "new"
    assert cli.main(["samples", str(place), "import", str(path), "--look"]) == 0
    assert "found 2 classes, 5 pictures" in capsys.readouterr().out and not place.exists()
    assert cli.main(["samples", str(place), "import", str(path), "--split", "test"]) == 0
    told = capsys.readouterr()
    assert "test is used" in told.err and told.out == "imported 2 samples, made 2 classes\n"
    assert cli.main(["undo", str(place), "--import"]) == 0
    assert capsys.readouterr().out == "import undone: 2 labels and 2 classes taken back\n"
    assert cli.main(["undo", str(place), "--import"]) == 2
    assert cli.main(["undo", str(place)]) == 0
    assert "undone: import taken back, with 2 labels" in capsys.readouterr().out
    with Workspace.open(place, learning=False) as workspace:
        assert labels(workspace) == {"cat": 1, "dog": 1}
