"""A workspace's settings: every bad value is refused by name, and what is saved is whole."""

import json

import pytest

from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.settings import Settings


def test_saved_settings_come_back(tmp_path):
    settings = Settings().replace(image_size=64, gate_per_second=3, archive=True, method="er")
    settings.save(tmp_path / "settings.json")
    assert Settings.load(tmp_path / "settings.json") == settings
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_settings_that_a_file_does_not_name_have_their_defaults(tmp_path):
    (tmp_path / "settings.json").write_text('{"format": 1, "queue_samples": 7}')
    assert Settings.load(tmp_path / "settings.json") == Settings(queue_samples=7)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("image_size", 4, "image_size 4: give at least 8 and at most 256"),
        ("image_size", 32.0, "image_size 32.0: give a whole number"),
        ("image_size", True, "image_size True: give a whole number"),
        ("memory_bytes", 0, "memory_bytes 0: give at least 1"),
        ("memory_bytes", "2MB", "memory_bytes '2MB': give a whole number"),
        ("held_out_share", 0.95, "held_out_share 0.95: give at least 0 and at most 0.9"),
        ("idle_share", float("nan"), "idle_share nan: give a number"),
        ("gate_per_second", float("inf"), "gate_per_second inf: give a number"),
        ("averaged", 1, "averaged 1: give true or false"),
        ("codec", "gif", "unknown setting codec 'gif': choose one of raw, webp, jpeg, png"),
        ("device", "tpu", "unknown setting device 'tpu'"),
        ("method", "magic", "unknown method 'magic': choose one of hpcr"),
        ("method", None, "method None: give a text"),
        ("colour", 1, "unknown setting 'colour': choose one of image_size"),
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
        ('{"format": 2}', "use a newer version"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path, content, message):
    path = tmp_path / "settings.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        Settings.load(path)


def test_missing_settings_and_an_impossible_place_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Settings.load(tmp_path / "settings.json")
    with pytest.raises(UserError, match="cannot be written"):
        Settings().save(tmp_path / "missing" / "settings.json")


def test_every_setting_has_help_and_a_default_within_its_limits():
    described = Settings.describe()
    assert {d.name: d.default for d in described} == vars(Settings())
    assert all(len(d.help) > 10 for d in described)
