"""The history of a workspace: in words, back to any point, imports as one action; all or nothing."""

import signal

import numpy as np
import pytest
from process_parts import started
from test_class_folders import SPLIT, labels, unpacked

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.history import history
from edge_hpcr.workspace.records import import_number
from edge_hpcr.workspace.transfer import import_samples
from edge_hpcr.workspace.verify import verify_workspace


@pytest.fixture
def workspace(tmp_path):
    with Workspace.open(tmp_path / "workspace") as opened:
        yield opened


def taught(workspace, count):
    """A class with so many labels, each an action of its own."""
    mug = workspace.journal.class_named("mug")
    for number in range(count):
        sample = workspace.take(np.full((8, 8, 3), number, np.uint8), "camera 0")
        workspace.journal.label([sample], mug)
    return mug


def told(workspace):
    return [("undone: " if entry.undone else "") + entry.text for entry in history(workspace.journal)]


def test_the_history_tells_every_kind_of_action_in_words_the_newest_first(workspace, tmp_path):
    journal = workspace.journal
    mug = taught(workspace, 2)
    journal.rename_class(mug, "cup")
    journal.recolour_class(mug, "#123456")
    import_samples(workspace, unpacked(tmp_path / "in", SPLIT))
    cat, first = journal.class_id("cat"), journal.samples(class_id=mug)[0].id
    journal.label([first], cat)
    journal.dismiss([workspace.take(np.zeros((8, 8, 3), np.uint8), "camera 0")])
    journal.delete_samples([first])
    journal.merge_classes(cat, mug)
    journal.delete_class(mug)
    journal.undo()
    assert told(workspace) == [
        "undone: class cup deleted, with 3 labels",
        "class cat merged into cup, with 2 labels",
        "1 picture deleted",
        "1 picture dismissed",
        "1 picture corrected to cat",
        "import of 5 pictures, with 2 new classes",
        "another colour for class cup",
        "class mug renamed to cup",
        "1 picture labelled cup",
        "1 picture labelled cup",
        "class mug made",
    ]
    times = [entry.at for entry in history(journal)]
    assert times == sorted(times, reverse=True)


def test_undo_takes_back_a_whole_import_and_redo_brings_it_back_whole(workspace, tmp_path):
    journal = workspace.journal
    taught(workspace, 1)
    result = import_samples(workspace, unpacked(tmp_path / "in", SPLIT))
    assert labels(workspace) == {"mug": 1, "dog": 3, "cat": 2}
    undone = journal.undo()
    assert len(undone.moves) == 5 and len(undone.closed) == 2
    assert labels(workspace) == {"mug": 1} and journal.counts().queued == 0
    journal.redo()
    assert labels(workspace) == {"mug": 1, "dog": 3, "cat": 2}
    assert journal.last_import() == result.number, "its own button still finds it"
    journal.undo()
    journal.undo()
    assert labels(workspace) == {"mug": 0}, "the next undo is about what was before the import"
    journal.redo()
    again = import_samples(workspace, tmp_path / "in")
    assert (again.samples, again.known) == (5, 0), "the same import takes them up again"
    assert not verify_workspace(workspace.path)


def test_a_label_given_during_an_import_divides_it(workspace):
    mug = taught(workspace, 0)
    ids = [workspace.take(np.full((8, 8, 3), number, np.uint8), "in") for number in range(5)]
    for number, sample in enumerate(ids):
        with import_number(None if number == 2 else "one"):
            workspace.journal.label([sample], mug)
    assert told(workspace)[:3] == ["import of 2 pictures", "1 picture labelled mug", "import of 2 pictures"]
    for left in (3, 2, 0):
        workspace.journal.undo()
        assert labels(workspace) == {"mug": left}


def test_undo_to_a_point_takes_back_all_after_it_and_redo_goes_forward_again(workspace, tmp_path):
    journal = workspace.journal
    taught(workspace, 3)
    point = next(history(journal)).seq
    import_samples(workspace, unpacked(tmp_path / "in", SPLIT))
    taught(workspace, 2)
    newest = next(history(journal)).seq
    event = journal.undo_to(point, newest)
    assert labels(workspace) == {"mug": 3} and len(event.moves) == 7
    for expected in ({"mug": 3, "dog": 3, "cat": 2}, {"mug": 4, "dog": 3, "cat": 2}):
        journal.redo()
        assert labels(workspace) == expected
    journal.undo_to(0)
    assert labels(workspace) == {}
    assert all(entry.undone for entry in history(journal))
    assert not verify_workspace(workspace.path)


def test_a_history_that_has_changed_since_it_was_shown_is_not_acted_on(workspace):
    journal = workspace.journal
    taught(workspace, 3)
    newest, before, *_ = [entry.seq for entry in history(journal)]
    taught(workspace, 1)
    for point, seen, problem in (
        (before, newest, "done or undone meanwhile"),
        (journal.last_seq, None, "that is the last action"),
        (journal.last_seq + 1, None, "undone already"),
    ):
        with pytest.raises(UserError, match=problem):
            journal.undo_to(point, seen)
    assert labels(workspace) == {"mug": 4}


def test_a_kill_in_the_middle_of_the_way_back_changes_nothing(tmp_path):
    path = tmp_path / "workspace"
    with Workspace.open(path) as workspace:
        taught(workspace, 6)
        before = told(workspace)
    script = """
import os, signal, sys
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.journal import Journal
record, calls = Journal._record, []
def killed(self, *arguments, **options):
    event = record(self, *arguments, **options)
    calls.append(event)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return event
Journal._record = killed
with Workspace.open(sys.argv[1]) as workspace:
    workspace.journal.undo_to(1)
"""
    with started("-c", script, path) as process:
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
    with Workspace.open(path) as workspace:
        assert labels(workspace) == {"mug": 6} and told(workspace) == before
        workspace.journal.undo_to(1)
        assert labels(workspace) == {"mug": 0}
    assert not verify_workspace(path)
