"""The Memory tab: what the bytes are spent on, what is held, and another budget."""

import re

import pytest
from workspace_parts import SMALL

import app.studio
from app.studio import Studio
from app.tabs import memory as tab
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.settings import Settings
from edge_hpcr.workspace.workspace import Workspace

PATIENCE = 60.0
BUDGET = 60_000


@pytest.fixture
def taught(tmp_path, digits):
    """A workspace and its learner, taught thirty samples of one class and ten of another."""
    workspace = Workspace.open(tmp_path / "w")
    kept = {"memory_bytes": BUDGET, "held_out_share": 0.0, "averaged": False}
    workspace.change_settings(**SMALL, method="hpcr", idle_steps=0, threads=1, **kept)
    studio = Studio(workspace)
    studio.live.start()
    for digit, (name, count) in enumerate({"stapler": 30, "mug": 10}.items()):
        class_id = studio.journal.create_class(name)
        images = digits.train_images[digits.train_labels == digit][:count]
        studio.journal.label(workspace.take_many([Frame(image, "test") for image in images]), class_id)
        assert studio.live.wait_until_caught_up(PATIENCE), studio.live.problems
    studio.between_steps(lambda: studio.live._write_status(force=True))
    yield studio
    studio.stop()


def held(studio):
    return studio.live.status()["memory"]


def test_a_bar_is_as_long_as_its_share():
    sizes = dict.fromkeys(tab.PARTS, 0) | {"image": 3_000, "label": 6_000, "total": 9_000}
    drawn = tab.budget_bars({"bytes": sizes, "budget": 12_000, "samples": 2})
    assert re.findall(r"width:([\d.]+)%", drawn) == ["25.0", "50.0", "25.0"]


@pytest.mark.slow
def test_the_bar_has_every_byte_and_what_is_free_and_the_learner_stands_beside_it(taught):
    facts = held(taught)
    text, sizes = tab.budget_bars(facts), facts["bytes"]
    assert "of 60.00 KB used by 40 samples" in text
    for size in (*(sizes[part] for part in tab.PARTS if sizes.get(part)), BUDGET - sizes["total"]):
        assert f">{tab.format_bytes(size)}</span>" in text
    assert tab.PARTS.keys() == sizes.keys() - {"total"}
    _, (page,) = tab.shown(taught).now()
    itself = taught.live.learner.learner_bytes()["total"]
    assert (
        f"The learner itself (weights, their average, the optimiser) takes another {tab.format_bytes(itself)}."
        in page
    )


@pytest.mark.slow
def test_what_was_said_beforehand_is_about_what_is_held_afterwards(taught):
    wanted, before = tab.holds(taught, 12_000)
    assert 0 < wanted < before == 40 and "would be dropped" in tab.warning(wanted, before)
    tab.apply(taught, 12_000)
    assert held(taught)["samples"] == pytest.approx(wanted, abs=2)
    assert held(taught)["bytes"]["total"] <= held(taught)["budget"] == 12_000


@pytest.mark.slow
def test_a_change_counts_at_once_and_after_a_restart(taught, monkeypatch):
    monkeypatch.setattr(app.studio, "STATE_SECONDS", 60.0)
    assert taught.state()["memory"]["budget"] == BUDGET
    assert "40 samples, none was dropped" in tab.apply(taught, 3 * BUDGET)
    assert taught.state()["memory"]["budget"] == 3 * BUDGET, "a page sees it as soon as it is told"
    kept = Settings.load(taught.workspace.layout.settings)
    assert kept.memory_bytes == 3 * BUDGET
    taught.live.stop()
    memory = LiveLearner(taught.workspace).learner.memory
    assert (memory.config.bytes, len(memory)) == (3 * BUDGET, 40)


@pytest.mark.slow
def test_a_change_that_fails_leaves_memory_and_settings_as_they_were(taught):
    with pytest.raises(UserError):
        tab.apply(taught, 100)
    # Where the new ones would go first.
    taught.workspace.layout.settings.with_name("settings.json.writing").mkdir()
    with pytest.raises(UserError):
        tab.apply(taught, 3 * BUDGET)
    assert held(taught)["budget"] == BUDGET and held(taught)["samples"] == 40
    assert Settings.load(taught.workspace.layout.settings).memory_bytes == BUDGET
