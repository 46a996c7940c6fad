"""A workspace's settings: every bad value is refused by name, and what is saved is whole."""

import json

import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.settings import TITLES, Settings


def test_saved_settings_come_back_and_what_a_file_does_not_name_has_its_default(tmp_path):
    path = tmp_path / "settings.json"
    changed = Settings().replace(image_size=64, gate_per_second=3, archive=True, method="er")
    changed.save(path)
    assert Settings.load(path) == changed
    assert [each.name for each in tmp_path.iterdir()] == ["settings.json"]
    path.write_text('{"format": 2, "queue_samples": 7, "disk_bytes": "2.5 MiB"}')
    assert Settings.load(path) == Settings(queue_samples=7, disk_bytes=2_621_440)


def test_a_workspace_of_an_older_version_goes_on_with_the_network_that_it_had(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"format": 1, "memory_bytes": 5000}')
    old = Settings.load(path)
    had = ("reduced_resnet18", 32, "raw", 5000)
    assert (old.backbone, old.image_size, old.codec, old.memory_bytes) == had
    new = Settings()
    assert (new.backbone, new.image_size, new.codec) == ("efficientnet_lite0", 0, "auto")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image_size", -1),
        ("memory_bytes", "2MBit"),
        ("idle_share", float("nan")),
    ],
)
def test_a_bad_value_is_refused_by_name_in_a_call_and_in_a_file(tmp_path, name, value):
    with pytest.raises(UserError) as refused:
        Settings().replace(**{name: value})
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({name: value}))
    with pytest.raises(UserError) as in_file:
        Settings.load(path)
    assert name in str(refused.value) and str(in_file.value) == f"settings {path}: {refused.value}"


def test_a_person_sees_at_most_twenty_settings_each_with_a_title_and_help():
    described = {each.name: each for each in Settings.describe()}
    assert {name: each.default for name, each in described.items()} == Settings().model_dump()
    assert TITLES.keys() <= described.keys() and len(TITLES) <= 20
    assert all(described[name].title and len(described[name].help) > 10 for name in TITLES)


def test_settings_of_other_versions_are_passed_over(tmp_path):
    (tmp_path / "settings.json").write_text('{"format": 2, "class_order": "3,1", "class_keys": "3=a"}')
    assert Settings.load(tmp_path / "settings.json") == Settings()
