"""The Memory tab: what the bytes are spent on, what is held, and what another budget or encoding would hold."""

import base64
import re
import threading
from contextlib import contextmanager

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from workspace_parts import SMALL

from app.studio import Studio
from app.tabs import memory as tab
from app.tabs.accuracy import ClassLook, looks
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.codec import CODECS
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.workspace.folder import Taken, Workspace
from edge_hpcr.workspace.settings import Settings

PATIENCE = 60.0
BUDGET = 60_000
NASTY = "<b>mug</b>"


def teach(studio, name, images):
    class_id = studio.journal.create_class(name)
    studio.journal.label(studio.workspace.take_many([Taken(image, "test") for image in images]), class_id)
    assert studio.live.wait_until_caught_up(PATIENCE), studio.live.problems
    studio.between_steps(lambda: studio.live._write_status(force=True))


@contextmanager
def running(path, digits=None):
    """A workspace and its learner, perhaps taught thirty samples of one class and ten of another."""
    with Workspace.open(path) as workspace:
        workspace.change_settings(
            **SMALL,
            method="hpcr",
            idle_steps=0,
            threads=1,
            memory_bytes=BUDGET,
            held_out_share=0.0,
            averaged=False,
        )
        studio = Studio(workspace)
        studio.live.start()
        if digits is not None:
            teach(studio, "stapler", digits.train_images[digits.train_labels == 0][:30])
            teach(studio, NASTY, digits.train_images[digits.train_labels == 1][:10])
        yield studio
        studio.stop()


@pytest.fixture
def studio(tmp_path):
    with running(tmp_path / "w") as one:
        yield one


@pytest.fixture
def taught(tmp_path, digits):
    with running(tmp_path / "w", digits) as one:
        yield one


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory, digits):
    """As `taught`, for tests that change nothing."""
    with running(tmp_path_factory.mktemp("memory") / "w", digits) as one:
        yield one


def held(studio):
    return studio.live.status()["memory"]


# What it is now


@pytest.mark.slow
def test_the_bar_has_every_byte_and_what_is_free(looked_at):
    facts = held(looked_at)
    text = tab.budget_bar(facts)
    sizes = facts["bytes"]
    assert "of 60.00 KB used by 40 samples" in text
    for size in (
        sizes["image"],
        sizes["logits"],
        sizes["features"],
        sizes["label"] + sizes["bookkeeping"],
        BUDGET - sizes["total"],
    ):
        assert f"<b>{tab.format_bytes(size)}</b>" in text
    assert {key for _, _, keys in tab.PARTS for key in keys} == sizes.keys() - {"total"}


@pytest.mark.parametrize(
    ("dataset", "side", "features", "classes"),
    [
        ("CIFAR10", 32, 160, 10),
        ("CIFAR100", 32, 160, 100),
        ("MiniImageNet", 84, 640, 100),
        ("TinyImageNet", 64, 640, 200),
    ],
)
def test_the_papers_figures_are_those_of_its_own_sizes(dataset, side, features, classes):
    pixels = 3 * side * side
    assert tab.PAPER_OVERHEAD[dataset] == pytest.approx((pixels + features + classes) / pixels, abs=0.0051)


def test_the_overhead_stands_beside_the_papers_figures(looked_at):
    text = tab.overhead_text(held(looked_at))
    numbers = (192 + 160 + 2) / 192
    assert f"<b>{numbers:.2f}</b>" in text
    assert "CIFAR10 1.06, CIFAR100 1.08, MiniImageNet 1.03, TinyImageNet 1.07" in text


def test_an_empty_memory_says_what_to_do(studio):
    _, (text,) = tab.shown(studio).now()
    assert "Teach tab" in text and "Samples of each class" not in text


def test_each_class_has_a_bar_with_its_number_and_its_name_is_no_markup(looked_at):
    _, (text,) = tab.shown(looked_at).now()
    assert "30 (75 %)" in text and "10 (25 %)" in text
    assert NASTY not in text and "&lt;b&gt;mug" in text


@pytest.mark.slow
def test_the_text_is_made_again_only_when_something_changed(taught, digits):
    shown = tab.shown(taught)
    _, texts = shown.now()
    assert shown.now()[1] is texts
    teach(taught, "scissors", digits.train_images[digits.train_labels == 2][:3])
    assert "scissors" in shown.now()[1][0]


@pytest.mark.slow
def test_a_stopped_learner_is_a_sentence_and_not_an_alarm(taught):
    shown = tab.shown(taught)
    taught.live.stop()
    assert "has been stopped" in shown.now()[1][0]


# What it holds


def test_thumbnails_are_of_the_class_that_was_asked_for_and_never_too_many(looked_at):
    content = tab.look_into(looked_at, 2, most=24)
    assert sorted(content.ids) == list(range(31, 41)) and content.classes == [2] * 10
    assert len(tab.look_into(looked_at, None, most=24).ids) == 24
    assert (
        tab.look_into(looked_at, None, most=24, seed=1).ids
        != tab.look_into(looked_at, None, most=24, seed=2).ids
    )


@pytest.mark.slow
def test_a_sample_whose_file_is_gone_is_shown_from_the_memory(taught):
    taught.workspace.forget_images([31])
    content = tab.look_into(taught, 2, most=24)
    text = tab.thumbnails(taught, content, looks(taught))
    assert "/edge/sample/" not in text and text.count("as the memory holds it") == 2 * 10  # and as a title
    (encoded,) = re.findall(
        r'src="data:image/png;base64,([^"]+)"[^>]*sample 31, as the memory holds it', text
    )
    image = cv2.imdecode(np.frombuffer(base64.b64decode(encoded), np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    assert (image == content.images[content.ids.index(31)]).all()
    assert NASTY not in text


def test_a_class_of_which_nothing_is_held_says_so(looked_at):
    assert "nothing of it" in tab.thumbnails(
        looked_at, tab.look_into(looked_at, 99, 24), [ClassLook(99, "x", "#000000")]
    )


def test_looking_does_not_change_what_the_memory_draws_next(looked_at):
    rng = looked_at.live.learner.memory._rng
    before = rng.bit_generator.state
    tab.look_into(looked_at, None, 24)
    tab.measure(looked_at)
    assert rng.bit_generator.state == before


# What it would hold

costs = st.builds(
    tab.Costs,
    samples=st.integers(0, 10_000),
    classes=st.integers(0, 100),
    budget=st.just(0),
    codec=st.sampled_from(CODECS),
    fixed=st.integers(100, 1000),
    image_bytes=st.fixed_dictionaries({codec: st.integers(1, 100_000) for codec in CODECS}),
    guessed=st.just(False),
)


@given(costs, st.integers(1, 10**9), st.sampled_from(CODECS))
def test_what_stays_and_what_is_dropped_is_what_is_held(costs, budget, codec):
    wanted = tab.Plan(costs, budget, codec)
    assert wanted.stays + wanted.drops == costs.samples and wanted.stays <= wanted.holds
    assert wanted.holds * costs.row_bytes(codec) <= budget < (wanted.holds + 1) * costs.row_bytes(codec)
    assert wanted.possible == (wanted.holds >= max(1, costs.classes))


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_what_was_said_beforehand_is_about_what_is_held_afterwards(taught, codec):
    wanted = tab.Plan(tab.measure(taught), 12_000, codec)
    assert 0 < wanted.stays < 40
    tab.apply(taught, 12_000, codec)
    assert held(taught)["samples"] == pytest.approx(wanted.stays, abs=2)
    assert held(taught)["bytes"]["total"] <= held(taught)["budget"] == 12_000


def test_a_loss_is_stated_before_and_a_gain_too(looked_at):
    costs = tab.measure(looked_at)
    told = tab.plan_text(tab.Plan(costs, 12_000, "raw"))
    stays = 12_000 // costs.row_bytes("raw")
    assert f"holds 40 now; about {stays} would stay and about {40 - stays} would be dropped" in told
    assert "nothing would be dropped" in tab.plan_text(tab.Plan(costs, 10 * BUDGET, "raw"))


def test_a_budget_below_the_smallest_possible_is_a_sentence(looked_at):
    costs = tab.measure(looked_at)
    smallest = 2 * costs.row_bytes("raw")
    assert tab.Plan(costs, smallest, "raw").possible
    too_small = tab.Plan(costs, smallest - 1, "raw")
    assert not too_small.possible
    assert "one sample of each of 2 classes needs about" in tab.plan_text(too_small)


def test_an_empty_memory_calls_its_numbers_a_guess(studio):
    costs = tab.measure(studio)
    assert costs.samples == 0 and "a guess" in tab.plan_text(tab.Plan(costs, BUDGET, "webp"))


def test_every_encoding_stands_beside_the_chosen_one(looked_at):
    costs = tab.measure(looked_at)
    text = tab.preview(tab.Plan(costs, 12_000, "webp"))
    assert "webp (chosen)" in text and "raw (now)" in text
    for codec in CODECS:
        assert f"<td>{12_000 // costs.row_bytes(codec):,}</td>" in text


@pytest.mark.parametrize("budget", ["", "much", "0", "-1MB", "9999999 GB", None])
def test_a_budget_that_cannot_be_is_refused_with_a_sentence(budget):
    with pytest.raises(UserError):
        tab.parse_request(budget, "raw")


def test_an_unknown_encoding_is_refused():
    with pytest.raises(UserError, match="bmp"):
        tab.parse_request("1MB", "bmp")


# Changing it


@pytest.mark.slow
def test_a_change_counts_at_once_and_after_a_restart(taught):
    assert "40 samples, none was dropped" in tab.apply(taught, 3 * BUDGET, "png")
    kept = Settings.load(taught.workspace.layout.settings)
    assert (kept.memory_bytes, kept.codec) == (3 * BUDGET, "png")
    taught.live.stop()
    memory = LiveLearner(taught.workspace).learner.memory
    assert (memory.config.bytes, memory.config.codec, len(memory)) == (3 * BUDGET, "png", 40)


@pytest.mark.slow
def test_a_change_that_the_memory_refuses_leaves_memory_and_settings_as_they_were(taught):
    with pytest.raises(UserError, match="raise the budget"):
        tab.apply(taught, 100, "raw")
    assert held(taught)["budget"] == BUDGET and held(taught)["samples"] == 40
    assert Settings.load(taught.workspace.layout.settings).memory_bytes == BUDGET


@pytest.mark.slow
def test_settings_that_cannot_be_written_leave_the_memory_as_it_was(taught):
    (
        taught.workspace.layout.settings.with_name("settings.json.writing")
    ).mkdir()  # where the new ones would go first
    with pytest.raises(UserError, match="cannot be written"):
        tab.apply(taught, 3 * BUDGET, "png")
    memory = taught.between_steps(lambda: taught.live.learner.memory.config)
    assert (memory.bytes, memory.codec) == (BUDGET, "raw")


@pytest.mark.slow
def test_two_pages_that_change_it_at_once_leave_one_of_the_two_and_settings_that_say_which(taught):
    both = [threading.Thread(target=tab.apply, args=(taught, size, "raw")) for size in (20_000, 30_000)]
    for each in both:
        each.start()
    for each in both:
        each.join(PATIENCE)
    assert held(taught)["budget"] in (20_000, 30_000)
    assert taught.workspace.settings.memory_bytes == held(taught)["budget"]
