"""Another workspace opened in the place of the open one: whole, or not at all, and never under somebody's hands."""

import pytest
from workspace_parts import SMALL

from app import rooms
from app.actions import perform
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import Settings


@pytest.fixture
def studio(tmp_path):
    for name in ("one", "two"):
        with Workspace.open(tmp_path / name) as workspace:
            workspace.change_settings(idle_share=0.0, **SMALL)
    made = Studio(Workspace.open(tmp_path / "one"))
    made.start()
    yield made
    made.stop()
    made.own.workspace.close()


@pytest.mark.slow
def test_the_parts_of_the_own_workspace_change_with_it(studio, tmp_path):
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "settings.json").write_text("{}")  # another program's
    assert studio.workspaces() == {"folder": str(tmp_path), "open": "one", "names": ["one", "two"]}
    before, room = studio.own, studio.room_name
    studio.journal.create_class("mug")
    studio.demonstrate()
    assert studio.open_workspace("two").message == "this is two now"
    assert not studio.demonstrates and studio.state(fresh=True)["workspace"] == "two"
    assert studio.journal.classes() == [] and before.live.phase == "stopped"
    assert studio.models.exports == tmp_path / "two" / "exports"
    assert studio.runs.folder == tmp_path / "two" / "benchmarks"
    with pytest.raises(UserError, match="changed to another workspace"):
        perform(studio, b'{"do": "undo"}', room)
    studio.open_workspace("one")
    assert [row.name for row in studio.journal.classes()] == ["mug"]


@pytest.mark.slow
def test_what_cannot_be_opened_changes_nothing(studio, tmp_path, monkeypatch):
    before = studio.own
    (tmp_path / "two" / "settings.json").write_text("no settings")
    for act, problem in (
        (lambda: studio.open_workspace("two"), "are damaged"),
        (lambda: studio.open_workspace("three"), "there is no workspace 'three'"),
        (lambda: studio.open_workspace("one"), "open already"),
        (lambda: studio.new_workspace("one"), "exists already"),
        (lambda: studio.new_workspace(" .. "), "a name that a folder can have"),
        (lambda: studio.new_workspace("a/b"), "a name that a folder can have"),
    ):
        with pytest.raises(UserError, match=problem):
            act()
    assert studio.own is before and before.live.phase != "stopped"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.slow
def test_nobody_acts_while_workspaces_change_and_none_changes_while_somebody_acts(
    studio, tmp_path, monkeypatch
):
    before = studio.own
    monkeypatch.setattr(rooms, "PATIENCE", 0.1)
    with studio.staying(studio.room_name), pytest.raises(UserError, match="something is still under way"):
        studio.open_workspace("two")
    assert studio.own is before
    Workspace.open(tmp_path / "two").close()  # it was let go of
    refused = []

    def acting(path):
        with pytest.raises(UserError) as error:
            perform(studio, b'{"do": "create_class", "name": "mug"}')
        refused.append(str(error.value))

    studio.opened = acting
    studio.open_workspace("two")
    assert refused == [rooms.ANOTHER] and studio.journal.classes() == []
    perform(studio, b'{"do": "create_class", "name": "mug"}', studio.room_name)


@pytest.mark.slow
def test_a_new_workspace_is_made_beside_the_open_one_and_opened(studio, tmp_path):
    studio.journal.create_class("mug")
    assert studio.new_workspace(" three ").message == "this is three now"
    assert studio.workspaces() == {"folder": str(tmp_path), "open": "three", "names": ["one", "three", "two"]}
    assert studio.journal.classes() == [] and studio.live.untaught
    assert studio.own.workspace.settings == Settings()
