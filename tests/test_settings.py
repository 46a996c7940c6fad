"""A workspace's settings: every bad value is refused by name, and what is saved is whole."""

import json
from pathlib import Path

import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.formats import Format
from edge_hpcr.live import status
from edge_hpcr.workspace import settings
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import Settings


def test_saved_settings_come_back(tmp_path):
    changed = Settings().replace(image_size=64, gate_per_second=3, archive=True, method="er")
    changed.save(tmp_path / "settings.json")
    assert Settings.load(tmp_path / "settings.json") == changed
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


@pytest.mark.parametrize("name", [each.name for each in Settings.describe() if each.name.endswith("_bytes")])
def test_settings_counted_in_bytes_take_sizes_as_people_write_them(tmp_path, name):
    assert getattr(Settings().replace(**{name: "2.5 MiB"}), name) == 2_621_440
    (tmp_path / "settings.json").write_text(json.dumps({name: "500KB"}))
    assert getattr(Settings.load(tmp_path / "settings.json"), name) == 500_000


def test_settings_that_a_file_does_not_name_have_their_defaults(tmp_path):
    (tmp_path / "settings.json").write_text('{"format": 2, "queue_samples": 7}')
    assert Settings.load(tmp_path / "settings.json") == Settings(queue_samples=7)


def test_a_workspace_of_an_older_version_goes_on_with_the_network_that_it_had(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"format": 1, "memory_bytes": 5000}')
    old = Settings.load(path)
    assert (old.backbone, old.image_size, old.codec, old.memory_bytes) == (
        "reduced_resnet18",
        32,
        "raw",
        5000,
    )
    new = Settings()
    assert (new.backbone, new.image_size, new.codec) == ("efficientnet_lite0", 0, "auto")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("image_size", -1, "image_size -1: give at least 0 and at most 1024"),
        ("image_size", 32.0, "image_size 32.0: give a whole number"),
        ("image_size", True, "image_size True: give a whole number"),
        ("memory_bytes", 0, "memory_bytes 0: give at least 1"),
        ("memory_bytes", "2MBit", "memory_bytes: '2MBit' is not a size in bytes: write it like 500KB, 2MB"),
        ("queue_samples", "2MB", "queue_samples '2MB': give a whole number"),
        ("held_out_share", 0.95, "held_out_share 0.95: give at least 0 and at most 0.9"),
        ("idle_share", float("nan"), "idle_share nan: give a number"),
        ("gate_per_second", float("inf"), "gate_per_second inf: give a number"),
        ("averaged", 1, "averaged 1: give true or false"),
        ("codec", "gif", "unknown setting codec 'gif': choose one of auto, raw, webp, jpeg, png"),
        (
            "backbone",
            "resnet",
            "unknown backbone 'resnet': choose one of efficientnet_lite0",
        ),
        ("device", "tpu", "unknown setting device 'tpu'"),
        ("method", "magic", "unknown method 'magic': choose one of hpcr"),
        ("method", None, "method None: give a text"),
    ],
)
def test_a_bad_value_is_refused_by_name_in_a_call_and_in_a_file(tmp_path, name, value, message):
    with pytest.raises(UserError, match=message):
        Settings().replace(**{name: value})
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({name: value}))
    with pytest.raises(UserError, match=message) as caught:
        Settings.load(path)
    assert str(caught.value).startswith(f"settings {path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "are damaged .*remove it to start with the defaults"),
        ("[1]", "a JSON object"),
        (b"\xff\xfe", "are damaged"),
        ('{"format": 3, "version": "9.1"}', r"format 3, this version .* \(9.1\) or a newer version"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path, content, message):
    path = tmp_path / "settings.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        Settings.load(path)


def test_an_unknown_setting_is_refused_when_it_is_given(tmp_path):
    with pytest.raises(UserError, match="unknown setting 'colour': choose one of backbone"):
        Settings().replace(colour=1)


def test_a_setting_of_a_newer_version_is_reported_and_kept(tmp_path):
    path = tmp_path / "w" / "settings.json"
    Workspace.open(path.parent).close()
    path.write_text(json.dumps({"format": 2, "colour": ["#123456"], "queue_samples": 7}))
    with Workspace.open(path.parent) as workspace:
        assert workspace.report == [
            f"settings {path}: this version does not know colour; kept, without effect"
        ]
        workspace.change_settings(queue_samples=8)
    kept = json.loads(path.read_text())
    assert (kept["colour"], kept["queue_samples"]) == (["#123456"], 8)
    assert status.gather(path.parent)["problems"] == workspace.report


def test_settings_of_an_older_format_are_upgraded_once_with_a_copy(tmp_path, monkeypatch):
    path = tmp_path / "settings.json"
    Workspace.open(tmp_path).close()
    old = '{"format": 1, "waiting_samples": 7}'
    path.write_text(old)

    def rename(values: dict) -> list[str]:
        values["queue_samples"] = values.pop("waiting_samples")
        return []

    monkeypatch.setattr(settings, "SETTINGS", Format("settings", (rename,)))
    assert Settings.load(path).queue_samples == 7 and path.read_text() == old, (
        "who only looks changes nothing"
    )
    with Workspace.open(tmp_path) as workspace:
        assert workspace.settings.queue_samples == 7
        assert "from format 1 to 2" in workspace.report[0]
    assert json.loads(path.read_text())["format"] == 2
    assert (tmp_path / "settings.format-1.json").read_text() == old
    with Workspace.open(tmp_path) as workspace:
        assert workspace.report == [] and workspace.settings.queue_samples == 7


def test_the_reference_page_is_up_to_date():
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == settings.reference(), "`make docs` writes it"


def test_missing_settings_and_an_impossible_place_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Settings.load(tmp_path / "settings.json")
    with pytest.raises(UserError, match="cannot be written"):
        Settings().save(tmp_path / "missing" / "settings.json")


def test_every_setting_has_help_and_a_default_within_its_limits():
    described = Settings.describe()
    assert {d.name: d.default for d in described} == Settings().model_dump()
    assert all(len(d.help) > 10 for d in described)
