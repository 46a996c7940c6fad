"""What the Models tab is made of: versions, publishing by hand, latency, going back, a picture to try."""

import os
import shutil
import threading
import time
from dataclasses import replace
from html import escape, unescape

import cv2
import numpy as np
import pytest
from export_parts import Teaching, confused, first, later, with_template
from PIL import Image

from app import published
from app.published import Latency, Models, read_upload
from app.tabs import models as tab
from app.tabs import trial
from edge_hpcr.common.errors import UserError
from export.publish.policy import Policy
from export.publish.publish import TEMPLATE, publish
from export.publish.publisher import PublisherStatus
from export.publish.snapshot import snapshot_of
from export.publish.versions import latest_version, roll_to, rolled_back

PATIENCE = 120.0


@pytest.fixture
def taught(tmp_path):
    one = Teaching(tmp_path / "w")
    models = Models(one.live, Policy)
    yield one, models
    models.stop()
    one.close()


def finished(models):
    deadline = time.monotonic() + PATIENCE
    while models.publication.phase == "publishing" or models.measuring:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return models.publication


@pytest.mark.slow
def test_a_version_is_published_by_hand_measured_and_shown(taught):
    one, models = taught
    assert models.versions() == []
    assert "No version is published yet" in tab.versions_html(models, [])
    models.publish()
    assert finished(models).phase == "failed" and "no class has been learned" in models.publication.sentence
    one.teach(0)
    name = "<b>1 & 2</b>"
    one.journal.rename_class(one.teach(1), name)
    models.publish()
    publication = finished(models)
    assert publication.phase == "published" and "Version 1 is published" in publication.text
    (version,) = models.versions()
    assert version.current and not version.rolled_back_from and version.number == 1
    latency = models.latency(version.manifest.model)
    assert latency.milliseconds > 0 and latency.calls <= published.CALLS
    page = tab.versions_html(models, [version])
    assert (
        "✓ current" in page
        and f"{latency.milliseconds:.2f} ms" in page
        and "/edge/model/1/model.onnx" in page
    )
    assert name not in page and name in unescape(page)
    models.publish()
    assert finished(models).phase == "refused" and "Nothing is new" in models.publication.text
    models.publish(force=True)
    assert finished(models).phase == "published"
    assert [each.number for each in models.versions()] == [2, 1]


@pytest.mark.slow
def test_two_publications_at_once_are_refused_and_progress_says_how_long_it_takes(taught):
    one, models = taught
    one.teach(0)
    release = threading.Event()
    one.live.call(release.wait)  # the copy is taken between two steps, and this step takes its time
    models.publish()
    with pytest.raises(UserError, match="already"):
        models.publish()
    assert "about a second" in models.publication.text and "0 s so far" in models.publication.text
    release.set()
    assert finished(models).phase == "published"
    shutil.rmtree(one.exports / TEMPLATE)
    assert "10 to 20 seconds" in models._announcement(int8=False)
    assert "8 bits" in models._announcement(int8=True)


@pytest.mark.slow
def test_any_version_can_count_and_a_rollback_is_marked_until_it_ends(tmp_path):
    exports = with_template(tmp_path / "exports")
    snapshot = first().snapshot
    for steps in range(3):
        publish(exports, later(snapshot, steps), variants=())
    with pytest.raises(UserError, match="current one already"):
        roll_to(exports, 3)
    roll_to(exports, 1)
    assert (latest_version(exports), rolled_back(exports)) == (1, 3)
    roll_to(exports, 2)  # forward, but still behind the one that somebody left
    assert (latest_version(exports), rolled_back(exports)) == (2, 3)
    roll_to(exports, 3)
    assert (latest_version(exports), rolled_back(exports)) == (3, None)
    with pytest.raises(UserError, match="cannot become the current one"):
        roll_to(exports, 9)
    assert latest_version(exports) == 3


@pytest.mark.slow
def test_a_worse_model_is_refused_in_a_sentence_and_published_on_demand(taught, monkeypatch):
    one, models = taught
    good = first().snapshot
    publish(one.exports, good, variants=())
    monkeypatch.setattr(published, "snapshot_of", lambda live: confused(good))
    models.publish()
    assert finished(models).phase == "refused" and "is not published" in models.publication.text
    models.publish(force=True)
    assert finished(models).phase == "published" and models.versions()[0].number == 2


@pytest.mark.slow
def test_a_picture_is_answered_as_a_device_would_and_names_are_escaped(taught):
    one, models = taught
    one.teach(0, 8)
    one.journal.rename_class(one.teach(1, 8), "<i>one</i>")
    publish(one.exports, snapshot_of(one.live), variants=())
    image = one.digits.train_images[0]
    result = models.answer(1, "fp32", image)
    assert len(result.top) == 2 and sum(label.confidence for label in result.top) == pytest.approx(
        1, abs=1e-3
    )
    page = trial.answer_html(models.versions()[0], "fp32", replace(result, unknown=True), image)
    assert "<i>" not in page and "Unknown" in page and "data:image/png;base64," in page
    version, known = models.versions()[0], replace(result, unknown=False)
    measured = replace(version, manifest=replace(version.manifest, unknown_below=0.0))
    assert f"{100 * result.top[0].confidence:.0f} %" in trial.answer_html(measured, "fp32", known, image)
    assert " %" not in trial.answer_html(version, "fp32", known, image)  # taught too little to measure it
    best = result.top[0]
    for live, said in {
        replace(
            result, top=(replace(best, name="<i>renamed</i>"),), unknown=False
        ): "Both say &lt;i&gt;renamed",
        replace(
            result, top=tuple(result.top[1:]), unknown=False
        ): f"They differ: {escape(best.name)} there, ",
        replace(result, top=(), unknown=True): f"They differ: {escape(best.name)} there, unknown now.",
    }.items():
        now = trial.Said(live, is_measured=True)
        page = trial.answer_html(version, "fp32", known, image, now)
        assert said in page and "<i>" not in page and "The learner says now:" in page
    assert models.answer(1, "fp32", image) == result  # the model is still loaded
    publish(one.exports, snapshot_of(one.live), variants=())
    assert models.answer(2, "fp32", image).top[0].id == best.id
    with pytest.raises(UserError, match="cannot be used"):
        models.answer(7, "fp32", image)


@pytest.mark.slow
def test_a_damaged_version_says_so_instead_of_a_latency(taught):
    one, models = taught
    one.teach(0)
    folder = publish(one.exports, snapshot_of(one.live), variants=()).folder
    (folder / "model.onnx").write_bytes(b"nonsense")
    models.measure([1, 5])
    finished(models)
    (version,) = models.versions()
    assert models.latency(version.manifest.model).milliseconds is None
    assert "instead of" in tab.versions_html(models, models.versions())


def test_an_upload_is_decoded_once_and_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    folder = tmp_path / "uploads" / "0123"
    folder.mkdir(parents=True)
    left, begun = tmp_path / "uploads" / "tmpabc", tmp_path / "uploads" / "tmpdef"
    left.touch()
    os.utime(left, (0, 0))
    begun.touch()
    picture = np.full((20, 30, 3), 200, np.uint8)
    cv2.imwrite(str(folder / "mug.png"), picture)
    assert (read_upload(folder / "mug.png") == picture).all()
    assert list((tmp_path / "uploads").iterdir()) == [begun]  # somebody else's may have just begun
    outside = tmp_path / "settings.png"
    cv2.imwrite(str(outside), picture)
    for path in (outside, tmp_path / "uploads" / ".." / "settings.png", tmp_path / "uploads"):
        with pytest.raises(UserError, match="not sent by this page"):
            read_upload(path)
    assert outside.exists()


@pytest.mark.slow
def test_a_picture_of_200_megapixels_is_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "a").mkdir()
    Image.new("1", (20_000, 10_000)).save(tmp_path / "a" / "huge.png")
    with pytest.raises(UserError, match=r"huge.png cannot be used as an image: .*pixels"):
        read_upload(tmp_path / "a" / "huge.png")
    assert not (tmp_path / "a").exists()


def test_the_periodic_publisher_says_what_it_does_and_why_it_did_nothing():
    assert tab.periodic_text(0, 0, None) == "Models are published by hand only."
    now = time.time()
    assert "nothing new" in tab.periodic_text(0, 60, PublisherStatus(at=now))
    assert "publishing now" in tab.periodic_text(0, 60, PublisherStatus("publishing"))
    assert "Every 500 steps or 60 s, " in tab.periodic_text(500, 60, PublisherStatus())
    assert "Every 500 steps, " in tab.periodic_text(500, 0, PublisherStatus())
    said = tab.periodic_text(0, 60, PublisherStatus(problem="a fall of more than 2.0%", at=now - 5))
    assert "published nothing: a fall of more than 2.0%." in said and "5 s ago" in said


def test_the_commands_for_a_device_name_this_workspace(tmp_path):
    page = unescape(tab.commands_html(tmp_path / "my parts"))
    assert f"python -m export.runtime --models '{tmp_path}/my parts/exports' --source 0" in page
    assert "python -m export serve --workspace" in page


@pytest.mark.slow
def test_a_latency_that_was_measured_is_not_measured_again(taught):
    one, models = taught
    one.teach(0)
    publish(one.exports, snapshot_of(one.live), variants=())
    (version,) = models.versions()
    models._latencies.put(version.manifest.model.sha256, Latency(1.25, 50))
    models.measure([1])
    finished(models)
    assert models.latency(version.manifest.model) == Latency(1.25, 50)
