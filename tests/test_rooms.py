"""Another workspace opened in the place of the open one: whole, or not at all, and never under somebody's hands."""

import pytest
from workspace_parts import SMALL

from app.actions import perform
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def studio(tmp_path):
    for name in ("one", "two"):
        with Workspace.open(tmp_path / name) as workspace:
            workspace.change_settings(idle_share=0.0, **SMALL)
    made = Studio(Workspace.open(tmp_path / "one"))
    made.start()
    yield made
    made.stop()


@pytest.mark.slow
def test_the_parts_of_the_own_workspace_change_with_it(studio, tmp_path):
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "settings.json").write_text("{}")  # another program's
    assert studio.workspaces() == {"folder": str(tmp_path), "open": "one", "names": ["one", "two"]}
    before, room = studio.own, studio.room.name
    studio.journal.create_class("mug")
    studio.demonstrate()
    assert studio.demonstrates and studio.journal.classes() == []
    shown = studio.workspace.path
    studio.demonstrate()  # by somebody else: the same one
    assert studio.workspace.path == shown
    assert perform(studio, b'{"do": "open_workspace", "name": "two"}').message == "this is two now"
    assert not studio.demonstrates and not shown.exists() and studio.state(fresh=True)["workspace"] == "two"
    assert studio.journal.classes() == [] and before.live.phase == "stopped"
    assert studio.runs.folder == tmp_path / "two" / "benchmarks"
    with pytest.raises(UserError):  # of a page that still shows the workspace before
        perform(studio, b'{"do": "undo"}', room)
    studio.open_workspace("one")
    assert [row.name for row in studio.journal.classes()] == ["mug"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two", "another's", "a/b", ""])
def test_what_cannot_be_opened_changes_nothing(studio, tmp_path, name):
    before = studio.own
    (tmp_path / "two" / "settings.json").write_text("no settings")
    (tmp_path / "another's").mkdir()
    with pytest.raises(UserError):
        studio.open_workspace(name)
    assert studio.own is before and before.live.phase != "stopped"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another's", "one", "two"]
