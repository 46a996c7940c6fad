"""The Settings tab: every setting has its place, wrong ones change nothing, and what has been learned stays usable."""

import threading

import pytest
from workspace_parts import SMALL

from app.studio import Studio
from app.tabs import settings as tab
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import Settings


@pytest.fixture
def studio(tmp_path):
    workspace = Workspace.open(tmp_path / "w")
    workspace.change_settings(**SMALL, idle_steps=0, threads=1, memory_bytes=60_000)
    one = Studio(workspace)
    one.live.start()
    yield one
    one.stop()
    workspace.close()


def test_a_change_that_the_learner_has_no_time_for_is_refused_and_does_not_happen_later(studio, monkeypatch):
    monkeypatch.setattr("app.studio.PATIENCE", 0.05)
    goes_on = threading.Event()
    blocked = studio.live.call(goes_on.wait)
    with pytest.raises(UserError, match="busy with a long step: try again"):
        studio.change_settings(image_size=16)
    goes_on.set()
    assert blocked.result(60) and studio.live.call(lambda: True).result(60)
    assert studio.workspace.settings.image_size == 8


def filled(studio, **values):
    """The form as it is, with some fields filled in."""
    form = tab.form_values(studio)
    for name, value in values.items():
        form[[each.name for each in tab.shown()].index(name)] = value
    return form


def test_every_setting_is_in_one_group_or_has_its_own_place():
    names = [each.name for each in Settings.describe()]
    grouped = [name for group in tab.GROUPS.values() for name in group]
    assert sorted([*grouped, *tab.ELSEWHERE]) == sorted(names)
    assert [each.name for each in tab.shown()] == grouped
    assert len(tab.GROUPS[tab.FIRST]) == 4, "the rest is folded"
    assert tab.PURPOSES.keys() == {*grouped}
    titles = [tab.title(name) for name in grouped]
    assert len({*titles}) == len(titles)
    for each in tab.shown():
        assert f"({each.name}: {each.help}.)" in tab.explanation(each), "as the command line calls it"


def test_a_form_that_nobody_touched_changes_nothing(studio):
    assert tab.changes(studio.workspace.settings, tab.form_values(studio)) == {}
    assert tab.save(studio, tab.form_values(studio)) == "Nothing has changed."


def test_saved_settings_are_on_disk_and_the_answer_says_when_they_count(studio):
    form = filled(studio, micro_batch=5.0, disk_bytes="500 MB", gate_sure=0.9, threads=2, archive=True)
    told = tab.save(studio, form)
    assert (
        "Labels learned in one step 5, at once" in told and "Disk space for pictures 500 MB, at once" in told
    )
    assert "Keep every labelled picture on" in told
    assert "Confidence that needs no label 0.9, with the next source or start" in told
    assert "Processor cores for learning 2, at the next start" in told
    kept = Settings.load(studio.workspace.layout.settings)
    assert (kept.micro_batch, kept.disk_bytes, kept.gate_sure, kept.threads) == (5, 500_000_000, 0.9, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("micro_batch", 0, "setting micro_batch 0: give at least 1"),
        ("micro_batch", 2.5, "whole number"),
        ("micro_batch", None, "whole number"),
        ("held_out_share", 0.95, "at most 0.9"),
        ("disk_bytes", "plenty", "setting disk_bytes: 'plenty' is not a size"),
        ("device", "toaster", "device"),
        ("device", "mps", "no Apple GPU"),  # the next start would refuse it
        ("method", "magic", "unknown method"),
        ("image_size", 4, "image_size 4: with the backbone reduced_resnet18 give 8 to 256"),
        ("image_size", 200, "cannot hold one sample"),
        ("image_size", 512, "give 8 to 256"),
        ("backbone", "magic", "unknown backbone"),
    ],
)
def test_one_wrong_value_is_refused_by_name_and_nothing_is_saved(studio, name, value, message):
    before = Settings.load(studio.workspace.layout.settings)
    with pytest.raises(UserError, match=message):
        tab.save(studio, filled(studio, queue_samples=77, **{name: value}))
    assert Settings.load(studio.workspace.layout.settings) == studio.workspace.settings == before


def test_nothing_may_be_measured_on_and_sizes_survive_the_form(studio):
    tab.save(studio, filled(studio, held_out_bytes="0", queue_bytes="1234567 B"))
    assert studio.workspace.settings.held_out_bytes == 0
    assert tab.changes(studio.workspace.settings, tab.form_values(studio)) == {}
    assert studio.workspace.settings.queue_bytes == 1_234_567


def test_an_untaught_learner_changes_its_image_size_at_once_and_starts_with_it_again(studio):
    tab.save(studio, filled(studio, image_size=16, method="er"))
    config = studio.live.learner.config
    assert (config.height, config.method) == (
        16,
        "er",
    ) and studio.live.predictor._learner is studio.live.learner
    path = studio.workspace.path
    class_id = studio.journal.create_class("mug")
    studio.live.wait_until_caught_up(30)
    # From now on a checkpoint of this size may exist, and another size would keep the next start from using it.
    with pytest.raises(UserError, match="stays so"):
        tab.save(studio, filled(studio, image_size=32))
    assert Settings.load(studio.workspace.layout.settings).image_size == 16
    at = [each.name for each in tab.shown()].index("image_size")
    assert tab.default_values(studio)[at] == 16
    studio.live.stop()
    studio.workspace.close()
    with Workspace.open(path) as again:
        assert LiveLearner(again).learner.class_ids in ([], [class_id])


def test_the_defaults_come_back_into_the_form_and_are_saved_only_on_demand(studio):
    tab.save(studio, filled(studio, gate_stable=9))
    form = tab.default_values(studio)
    assert studio.workspace.settings.gate_stable == 9
    tab.save(studio, form)
    assert studio.workspace.settings.gate_stable == Settings().gate_stable
    assert studio.workspace.settings.memory_bytes == 60_000  # it has its own place


def test_periodic_publishing_can_be_changed_at_any_moment(studio):
    studio.change_settings(publish_seconds=3600)
    first = studio.publisher
    assert first is not None and first.status().phase == "waiting"
    studio.change_settings(publish_seconds=1800)
    assert studio.publisher is not first
    studio.change_settings(publish_seconds=0)
    assert studio.publisher is None
    studio.change_settings(publish_steps=500)
    assert studio.publisher is not None and studio.publisher.status().phase == "waiting"
