"""The Settings tab: every setting has its place, wrong ones change nothing, and what has been learned stays usable."""

import threading

import pytest
from workspace_parts import SMALL

from app.studio import Studio
from app.tabs import settings as tab
from edge_hpcr.common.errors import UserError
from edge_hpcr.workspace.settings import Settings
from edge_hpcr.workspace.workspace import Workspace


@pytest.fixture
def studio(tmp_path):
    workspace = Workspace.open(tmp_path / "w")
    workspace.change_settings(**SMALL, idle_steps=0, threads=1, memory_bytes=60_000)
    one = Studio(workspace)
    one.live.start()
    yield one
    one.stop()


def test_a_change_that_the_learner_has_no_time_for_is_refused_and_does_not_happen_later(studio, monkeypatch):
    monkeypatch.setattr("app.studio.PATIENCE", 0.05)
    goes_on = threading.Event()
    blocked = studio.live.call(goes_on.wait)
    with pytest.raises(UserError):
        studio.change_settings(image_size=16)
    goes_on.set()
    assert blocked.result(60) and studio.live.call(lambda: True).result(60)
    assert studio.workspace.settings.image_size == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [("queue_samples", None), ("held_out_share", 0.95), ("device", "mps")],  # the next start would refuse it
)
def test_one_wrong_value_is_refused_by_name_and_nothing_is_saved(studio, name, value):
    before = Settings.load(studio.workspace.layout.settings)
    with pytest.raises(UserError, match=name):
        tab.save(studio, {"idle_share": 0.77, name: value})
    assert Settings.load(studio.workspace.layout.settings) == studio.workspace.settings == before


def test_an_untaught_learner_changes_its_method_at_once_and_a_taught_one_keeps_it(studio):
    tab.save(studio, {"method": "er"})
    assert studio.live.learner.config.method == "er"
    studio.journal.create_class("mug")
    studio.live.wait_until_caught_up(30)
    # From now on a checkpoint of it may exist, and another would keep the next start from using it.
    with pytest.raises(UserError):
        tab.save(studio, {"method": "hpcr"})
    assert Settings.load(studio.workspace.layout.settings).method == "er"


def test_how_much_may_be_unknown_counts_at_once(studio, monkeypatch):
    shares = []
    monkeypatch.setattr(
        studio.live.self_test, "recalibrate", lambda: shares.append(studio.workspace.settings.unknown_share)
    )
    tab.save(studio, {"unknown_share": 0.12})
    assert shares[-1] == 0.12
