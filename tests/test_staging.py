"""A staged roll-out: a version for named devices first, then for all, and back in one action."""

import json
from pathlib import Path

import pytest
from device_parts import publish as publish_tiny
from export_parts import Teaching, first, later, with_template

from edge_hpcr.common.errors import UserError
from export import __main__ as command
from export.publish.policy import Policy, Refused
from export.publish.publish import publish, unchanged
from export.publish.staging import FILE, check_devices, staged
from export.publish.versions import (
    latest_version,
    release,
    roll_to,
    rollback,
    rolled_back,
    rollforward,
    stage,
    versions,
)


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    """Versions 1 to 3, of which 2 is current."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "settings.json").write_text("{}")
    for version in (1, 3, 2):
        publish_tiny(tmp_path / "w" / "exports", version)
    return tmp_path / "w" / "exports"


def export(*arguments: object) -> int:
    return command.main([str(each) for each in arguments])


def test_a_version_goes_to_named_devices_and_then_to_all(exports: Path):
    assert stage(exports, 3, ["cam-1", "cam-2"]).version == 3
    tried = staged(exports)
    assert tried is not None and (tried.version, tried.devices) == (3, ("cam-1", "cam-2"))
    assert json.loads(tried.latest)["folder"] == "v000003"
    assert latest_version(exports) == 2, "for everybody else"
    assert release(exports).version == 3
    assert (latest_version(exports), staged(exports), rolled_back(exports)) == (3, None, None)
    with pytest.raises(UserError, match="no version is on trial"):
        release(exports)


def test_a_rollback_takes_the_trial_back_and_publishing_by_itself_waits(exports: Path):
    stage(exports, 3, ["cam-1"])
    assert rollback(exports).version == 2
    assert (latest_version(exports), staged(exports), rolled_back(exports)) == (2, None, 3)
    assert rollforward(exports).version == 3, "all get what was on trial"


@pytest.mark.parametrize("act", [lambda exports: rollback(exports, 1), lambda exports: roll_to(exports, 1)])
def test_a_rollback_to_a_version_is_for_all_and_ends_the_trial(exports: Path, act):
    stage(exports, 3, ["cam-1"])
    act(exports)
    assert (latest_version(exports), staged(exports)) == (1, None)
    assert rolled_back(exports) == 2


def test_an_older_version_that_is_released_is_a_rollback(exports: Path):
    stage(exports, 1, ["cam-1"])
    release(exports)
    assert (latest_version(exports), rolled_back(exports)) == (1, 2)


def test_what_cannot_be_staged_is_refused(exports: Path):
    with pytest.raises(UserError, match="is the current one"):
        stage(exports, 2, ["cam-1"])
    with pytest.raises(UserError, match="version 9 is damaged"):
        stage(exports, 9, ["cam-1"])
    (exports / "v000003" / "model.onnx").write_bytes(b"x")
    with pytest.raises(UserError, match="version 3 is damaged"):
        stage(exports, 3, ["cam-1"])
    assert staged(exports) is None


@pytest.mark.parametrize("text", ["", " , ", "a/b", "a b", "x" * 65])
def test_names_of_devices_are_checked(text: str):
    with pytest.raises(UserError, match="device"):
        check_devices(text)
    assert check_devices("a, b,a") == ("a", "b")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": 9}', '{"format": 1, "version": "x"}', '{"format": 1, "version": 3}'],
)
def test_a_damaged_file_stages_nothing(exports: Path, content: str):
    stage(exports, 3, ["cam-1"])
    (exports / FILE).write_text(content)
    assert staged(exports) is None


@pytest.mark.slow
def test_a_new_version_may_be_published_for_some_devices_and_stays_while_it_is_tried(tmp_path: Path):
    exports, snapshot = with_template(tmp_path / "exports"), first().snapshot
    with pytest.raises(UserError, match="publish one for all devices before"):
        publish(exports, snapshot, devices=["cam-1"])
    publish(exports, snapshot, variants=())
    tried = publish(exports, later(snapshot), variants=(), devices=["cam-1"])
    assert (latest_version(exports), staged(exports).version) == (1, 2)
    with pytest.raises(Refused, match="version 2 is on trial on 1 device"):
        publish(exports, later(snapshot, 2), variants=(), by_hand=False)
    assert unchanged(exports, later(snapshot)) == 2
    again = publish(exports, later(snapshot, 2), Policy(keep=1), (), devices=["cam-1"])
    assert [each.version for each in versions(exports)] == [1, 3], "the current one, and the one on trial"
    assert tried.manifest.version == 2 and again.manifest.version == 3
    publish(exports, later(snapshot, 3), Policy(keep=2), ())
    assert (latest_version(exports), staged(exports)) == (4, None), "by hand is for all, and ends the trial"


def test_the_commands_stage_list_release_and_roll_back(exports: Path, capsys: pytest.CaptureFixture[str]):
    workspace = ("--workspace", exports.parent)
    assert export("stage", 3, *workspace, "--devices", "cam-1,cam-2") == 0
    assert "version 3 is on trial on cam-1, cam-2" in capsys.readouterr().out
    assert export("list", *workspace) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line[:8].split() for line in said[:3]] == [["1"], ["*", "2"], ["+", "3"]]
    assert export("list", *workspace, "--json") == 0
    assert json.loads(capsys.readouterr().out)["staged"]["devices"] == ["cam-1", "cam-2"]
    assert export("release", *workspace) == 0
    assert "version 3 is current" in capsys.readouterr().out
    assert export("stage", 2, *workspace, "--devices", "cam-1", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"latest": 3, "staged": 2, "devices": ["cam-1"]}
    assert export("rollback", *workspace, "1") == 0
    assert staged(exports) is None and latest_version(exports) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("stage", "3", "--devices", "a/b"), "an id has"),
        (("stage", "2", "--devices", "a"), "is the current one"),
        (("stage", "3"), "--devices"),
        (("release",), "no version is on trial"),
    ],
)
def test_wrong_input_is_one_line(exports: Path, capsys, arguments: tuple[str, ...], complaint: str):
    assert export(arguments[0], "--workspace", exports.parent, *arguments[1:]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


@pytest.mark.slow
def test_without_a_number_what_has_been_learned_is_published_for_these_devices(tmp_path: Path, capsys):
    path = tmp_path / "w"
    for digit, asked in ((0, ()), (1, ("stage", "--devices", "cam-1"))):
        one = Teaching(path)
        one.teach(digit)
        one.close()
        assert export(*asked[:1], "--workspace", path, *asked[1:]) == 0
    assert (latest_version(path / "exports"), staged(path / "exports").version) == (1, 2)
    said = capsys.readouterr().out
    assert "published version 2" in said and "on trial on cam-1: `release` gives it to all" in said
    assert export("stage", "--workspace", path, "--devices", "cam-2") == 0
    said = capsys.readouterr().out
    assert "version 2 holds step" in said and "version 2 is on trial on cam-2" in said
    assert staged(path / "exports").devices == ("cam-2",), "nothing is new, and others try it"
    assert export("release", "--workspace", path) == 0
    assert export("stage", "--workspace", path, "--devices", "cam-2") == 2
    assert "version 2 is the current one, which all devices have" in capsys.readouterr().err
