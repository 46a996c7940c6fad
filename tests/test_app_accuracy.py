"""The Accuracy tab: honest numbers, every class, what is mixed up, and a map with the proxies."""

import re
import threading

import numpy as np
import pytest
from workspace_parts import SMALL

from app.feature_map import PCA, TSNE, FeatureMap, Samples, gather, pca
from app.studio import Studio
from app.tabs import accuracy as tab
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.accuracy import held_out_ids
from edge_hpcr.workspace.folder import Taken, Workspace

PATIENCE = 60.0
NASTY = "<b>mug</b> & ${value}"


@pytest.fixture(scope="module")
def taught(tmp_path_factory, digits):
    """A workspace of 8x8 digits that has learned three classes and tested itself on the held-out samples."""
    with Workspace.open(tmp_path_factory.mktemp("accuracy") / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, memory_bytes=60_000, held_out_share=0.4)
        studio = Studio(workspace)
        studio.live.start()
        for digit, name in enumerate(("stapler", NASTY, "scissors")):
            class_id = studio.journal.create_class(name)
            images = digits.train_images[digits.train_labels == digit][:20]
            ids = workspace.take_many([Taken(image, "test") for image in images])
            studio.journal.label_each([(sample_id, class_id) for sample_id in ids])
        assert studio.live.wait_until_caught_up(PATIENCE), studio.live.problems
        studio.between_steps(studio.live.self_test.test)
        studio.between_steps(lambda: studio.live._write_status(force=True))
        yield studio
        studio.stop()


@pytest.fixture
def empty_studio(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, threads=1, memory_bytes=60_000)
        yield Studio(workspace)


def status_of(held_out_curve=(), tried_curve=(), confusion=(), classes=None, tried_classes=None, waiting=0):
    samples = sum(count for _, _, count in confusion)
    labels = tried_curve[-1][0] if tried_curve else 0
    return {
        "labels_waiting": waiting,
        "held_out": {
            "samples": samples,
            "accuracy": 0.9 if samples else None,
            "curve": list(held_out_curve),
            "confusion": list(confusion),
            "classes": classes or {},
        },
        "answers": list(confusion),
        "test_then_train": {
            "labels": labels,
            "accuracy": 0.5 if labels else None,
            "recent": {"labels": min(labels, 100), "accuracy": 0.5 if labels else None},
            "curve": list(tried_curve),
            "classes": tried_classes or {},
        },
    }


LOOKS = [tab.ClassLook(1, "stapler", "#0072b2"), tab.ClassLook(2, NASTY, "#e69f00")]


def test_an_empty_workspace_says_what_to_do_and_draws_no_axes(empty_studio):
    _, (summary, matrix) = tab.shown(empty_studio).now()
    assert "Teach tab" in summary and "<svg" not in summary
    assert "never learned" in matrix and "<table" not in matrix


def test_labels_that_wait_are_announced():
    assert tab.NOT_LEARNED in tab.summary(status_of(waiting=3), LOOKS, 0.1)


def test_a_workspace_that_holds_nothing_out_says_why_nothing_is_measured():
    status = status_of(tried_curve=[(50, 0.5)])
    assert "Settings tab" in tab.summary(status, LOOKS, held_out_share=0.0)
    assert "10%" in tab.summary(status, LOOKS, held_out_share=0.1)


@pytest.mark.slow
def test_numbers_say_on_how_many_samples_they_rest(taught):
    _, (summary, _) = tab.shown(taught).now()
    held_out = taught.live.status()["held_out"]
    assert held_out["samples"] == 24
    assert f"{100 * held_out['accuracy']:.0f} % (n=24, few samples)" in summary
    tested = taught.live.status()["test_then_train"][
        "labels"
    ]  # before they were learned; a new class's first are none
    assert 0 < tested < 60 and f"(n={tested})" in summary


def test_values_on_few_samples_are_a_line_of_their_own():
    text = tab.summary(status_of([(5, 0.2, 29), (9, 0.9, 30)], [(100, 0.5)], [(1, 1, 30)]), LOOKS, 0.1)
    assert "few samples (n below 30)" in text and "n of 30 or more" in text
    text = tab.summary(status_of([(5, 0.2, 30), (9, 0.9, 31)], [(100, 0.5)], [(1, 1, 31)]), LOOKS, 0.1)
    assert "few samples (n below 30)" not in text


def test_each_class_shows_its_recall_its_forgetting_and_its_accuracy_before_learning():
    one = {"recall": 0.75, "samples": 40, "best": 0.95, "best_samples": 20, "forgetting": 0.2}
    status = status_of(classes={1: one}, tried_classes={1: {"accuracy": 0.5, "labels": 60}})
    recall, forgetting, before = tab.class_charts(status, LOOKS).split("</figure>")[:3]
    texts = r'<span class="chart-(?:name|number)">([^<]*)</span>'
    shown = [re.findall(texts, chart) for chart in (recall, forgetting, before)]
    assert shown[0][:2] == ["stapler", "75 % (n=40)"] and shown[0][3] == "nothing yet"
    assert shown[1] == ["stapler", "20 of 95 % (n=20, few)"]
    assert shown[2][1] == "50 % (n=60)" and shown[2][3] == "nothing yet"
    assert recall.count('class="chart-mark"') == 2  # the best of the one class that has one, and the legend's


def test_every_cell_of_the_confusion_matrix_that_holds_samples_is_a_button():
    table = tab.confusion_table([(1, 1, 30), (1, 2, 10), (2, 2, 5)], LOOKS)
    cells = re.findall(
        r'--share:([\d.]+)"><button data-true="(\d)" data-said="(\d)".*?>(\d+)</button>', table
    )
    assert cells == [("0.75", "1", "1", "30"), ("0.25", "1", "2", "10"), ("1.00", "2", "2", "5")]
    assert "<td>40</td>" in table and "<td>5 few</td>" in table


def test_a_class_that_was_deleted_since_the_test_is_left_out_of_the_matrix():
    assert "data-true" not in tab.confusion_table([(9, 9, 3)], LOOKS)


def test_names_are_never_markup(taught):
    _, texts = tab.shown(taught).now()
    for text in (
        *texts,
        tab.cell_images(taught, 2, 2),
        FeatureMap(taught).draw(PCA, {2: NASTY}, {2: "#e69f00"}),
    ):
        assert "<b>mug" not in text and "&lt;b&gt;mug" in text


def test_the_cells_together_hold_every_held_out_sample_of_the_class(taught):
    members = [i for i, class_id in held_out_ids(taught.workspace).items() if class_id == 1]
    found = [i for said in (1, 2, 3) for i in tab.cell_samples(taught, 1, said)]
    assert len(members) == 8 and sorted(found) == sorted(members)


def test_a_cell_shows_the_samples_that_have_this_answer_now_and_not_too_many(taught):
    counts = {(true, said): count for true, said, count in taught.live.status()["held_out"]["confusion"]}
    (true, said), count = next(iter(counts.items()))
    text = tab.cell_images(taught, true, said)
    assert len(re.findall(r'src="/edge/sample/\d+"', text)) == count
    assert len(tab.cell_samples(taught, true, said, most=1)) == 1
    missing = next((t, s) for t in (1, 2, 3) for s in (1, 2, 3, 99) if (t, s) not in counts)
    assert tab.cell_samples(taught, *missing) == []


def test_a_cell_of_a_class_that_is_gone_is_refused_with_a_sentence(taught):
    with pytest.raises(UserError, match="gone"):
        tab.cell_images(taught, 1, 99)


def test_the_text_is_made_again_only_when_something_changed(taught):
    shown = tab.shown(taught)
    key, texts = shown.now()
    assert shown.now()[1] is texts
    taught.journal.rename_class(3, "shears")
    fresh, renamed = shown.now()
    assert fresh != key and "shears" in renamed[0]
    taught.journal.rename_class(3, "scissors")


def test_features_and_proxies_have_length_one_and_held_out_samples_are_marked(taught):
    samples = gather(taught)
    assert np.allclose(np.linalg.norm(samples.features, axis=1), 1, atol=1e-5)
    assert np.allclose(np.linalg.norm(samples.proxies, axis=1), 1, atol=1e-5)
    assert samples.proxy_classes.tolist() == [1, 2, 3]
    assert samples.held_out.sum() == 24 and np.bincount(samples.classes[samples.held_out]).tolist() == [
        0,
        8,
        8,
        8,
    ]
    assert (~samples.held_out).sum() == len(taught.live.learner.memory) == 36


def test_looking_does_not_change_what_the_memory_draws_next(taught):
    before = taught.live.learner.memory._rng.bit_generator.state
    gather(taught)
    assert taught.live.learner.memory._rng.bit_generator.state == before


def test_pca_keeps_distances_of_what_lies_in_a_plane():
    rng = np.random.default_rng(0)
    plane, _ = np.linalg.qr(rng.normal(size=(16, 2)))
    flat = rng.normal(size=(20, 2))
    features, none = flat @ plane.T, np.zeros(20, bool)
    places = pca(Samples(features, none, none, features[:3], np.arange(3), 0))
    wanted = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    assert np.allclose(np.linalg.norm(places.samples[:, None] - places.samples[None], axis=2), wanted)
    assert np.allclose(places.proxies, places.samples[:3])
    assert places.shares is not None and sum(places.shares) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PCA, TSNE])
def test_a_map_has_the_points_of_each_class_and_a_star_for_each_proxy(taught, kind):
    looks = tab.looks(taught)
    text = FeatureMap(taught).draw(kind, {k.id: k.name for k in looks}, {k.id: k.colour for k in looks})
    assert f"{kind} of 60 features" in text and "36 from the memory, 24 held out" in text
    assert len(re.findall(r"fill: #\w{6}; stroke: currentColor", text)) == 3  # the stars
    assert len(re.findall(r"fill: none; stroke: #\w{6}", text)) == 24  # held out
    assert sum(int(count) for count in re.findall(r": (\d+)</text>", text)) == 60  # each sample once


@pytest.mark.slow
def test_a_map_is_made_once_for_all_pages_until_the_learner_moves_on(taught):
    maps = FeatureMap(taught)
    maps.draw(PCA, {1: "a"}, {1: "#000000"})
    made = maps._made[PCA]
    maps.draw(PCA, {1: "a"}, {1: "#000000"})
    assert maps._made[PCA] is made
    taught.live._status["step"] += 1
    maps.draw(PCA, {1: "a"}, {1: "#000000"})
    taught.live._status["step"] -= 1
    assert maps._made[PCA] is not made


def test_a_map_of_nothing_says_how_many_samples_it_needs(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, threads=1, memory_bytes=60_000)
        studio = Studio(workspace)
        studio.live.start()
        assert "needs 3 labelled samples" in FeatureMap(studio).draw(PCA, {}, {})
        studio.stop()


def test_a_learner_that_does_not_come_to_an_end_of_its_step_is_called_busy(taught):
    goes_on = threading.Event()
    blocked = taught.live.call(goes_on.wait)
    with pytest.raises(UserError, match="busy"):
        taught.between_steps(lambda: None, patience=0.01)
    goes_on.set()
    assert blocked.result(PATIENCE)
