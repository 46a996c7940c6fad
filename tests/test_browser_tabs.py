"""The other tabs as a person uses them, in a real browser; after each action the workspace is looked into."""

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from browser_parts import OwnServer, go_to, open_page, photos, running, wait_for
from playwright.sync_api import Page, expect
from workspace_parts import SMALL

from app.feeder import encoded
from app.tabs import settings as settings_tab
from edge_hpcr.bench.datasets import load
from edge_hpcr.workspace.folder import Taken, Workspace
from export.publish.versions import latest_version, versions

pytestmark = pytest.mark.browser
# The tabs, and what is to be seen there once they have been filled with what `taught` has taught.
FILLED = {
    "Teach": ".class-card",
    "Review": "#review-grid .review-cell",
    "Accuracy": "#accuracy-confusion button",
    "Memory": "#memory-facts :text('MB')",
    "Classes": "#classes-table tbody tr",
    "Models": "#models-publish",
    "Benchmarks": "#benchmarks-start",
    "Settings": "#settings-save",
}


@contextmanager
def taught(path: Path) -> Iterator[OwnServer]:
    """Three kinds of digits, twelve of each with a label, and nine in the queue."""
    with Workspace.open(path) as workspace:
        # A camera that nobody has: no new frames disturb the counts.
        workspace.change_settings(source="browser", **SMALL)
    with running(path) as app:
        studio = app.server.studio
        digits = load("digits")
        for digit, name in enumerate(("zero", "one", "two")):
            images = digits.train_images[digits.train_labels == digit][:15]
            ids = studio.workspace.take_many(
                # Hashes that are far apart: look-alikes of what was learned would not be held out.
                [
                    Taken(image, "test", None, i * 0x9E3779B97F4A7C15 % 2**64, 0.5)
                    for i, image in enumerate(images)
                ]
            )
            class_id = studio.journal.create_class(name)
            studio.journal.label_each((sample_id, class_id) for sample_id in ids[:12])
        assert studio.live.wait_until_caught_up(120)
        yield app


@pytest.fixture
def app(tmp_path):
    with taught(tmp_path / "workspace") as app:
        yield app


@pytest.fixture(scope="module")
def shared_app(tmp_path_factory):
    """One app for the tests that leave labels, classes, memory and settings as they are."""
    with taught(tmp_path_factory.mktemp("shared") / "workspace") as app:
        yield app


def labels_of(app: OwnServer) -> dict[str, int]:
    with app.look() as workspace:
        return {row.name: row.labels for row in workspace.journal.classes()}


def queued(app: OwnServer) -> int:
    with app.look() as workspace:
        return workspace.journal.counts().queued


# Review -------------------------------------------------------------------------------------------------------------


def test_several_samples_of_the_queue_are_labelled_at_once(app, browser):
    page = open_page(browser, app, "Review")
    expect(page.locator("#review-grid .review-cell")).to_have_count(9)
    for place in (0, 1, 2):
        page.locator("#review-grid .review-box").nth(place).check()
    expect(page.locator("#review-count")).to_have_text("3 selected")
    page.locator("#review-classes button", has_text="two").click()
    expect(page.locator("#review-message")).to_contain_text("3 labelled two")
    expect(page.locator("#review-grid .review-cell")).to_have_count(6)
    assert labels_of(app) == {"zero": 12, "one": 12, "two": 15}
    page.locator("#review-undo").click()
    expect(page.locator("#review-grid .review-cell")).to_have_count(9)
    assert labels_of(app)["two"] == 12
    page.locator("#review-all").click()
    page.locator("#review-dismiss").click()
    expect(page.locator("#review-empty", has_text="The queue is empty")).to_be_visible()
    assert queued(app) == 0


def test_a_wrong_label_is_found_and_corrected(app, browser):
    page = open_page(browser, app, "Review")
    page.locator("#review-labelled").click()
    page.locator("#review-search").fill("one")
    expect(page.locator("#review-grid .review-cell")).to_have_count(12)
    page.locator("#review-grid .review-box").first.check()
    page.locator("#review-classes button", has_text="zero").click()
    expect(page.locator("#review-grid .review-cell")).to_have_count(11)
    assert labels_of(app) == {"zero": 13, "one": 11, "two": 12}
    page.locator("#review-grid .review-box").first.check()
    page.locator("#review-delete").click()
    expect(page.locator("#review-grid .review-cell")).to_have_count(10)
    assert labels_of(app)["one"] == 10


def zip_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def upload(page: Page, content: bytes, name: str = "photos.zip") -> None:
    page.locator("#review input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/zip", "buffer": content}
    )


def said(page: Page) -> str:
    places = ("#review-message", "#transfer-text", "#transfer-reasons")
    return " ".join(page.locator(place).inner_text() for place in places)


def test_a_zip_is_imported_and_exported(app, browser):
    page = open_page(browser, app, "Review")
    page.locator("#review details summary").first.click()
    pictures = {f"{name}/{name}.jpg": encoded(image)[0] for name, image in photos().items()}
    upload(page, zip_of(pictures))
    page.locator("#import-take").click()
    wait_for(lambda: labels_of(app).get("flower") == 1, "the imported photographs")
    expect(page.locator("#transfer-text")).to_contain_text(re.compile("Import of .*photos.zip: 2 "))
    page.locator("#review details summary").first.click()  # what was found has closed it
    with page.expect_download() as download:
        page.locator("#export-start").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        images = [name for name in archive.namelist() if name.endswith((".png", ".jpg"))]
        assert len(images) == 38
        assert {name.partition("/")[0] for name in images} == {"zero", "one", "two", "temple", "flower"}


def test_bad_zips_are_refused_with_a_sentence(shared_app, browser):
    page = open_page(browser, shared_app, "Review")
    page.locator("#review details summary").first.click()
    for content, says in (
        (b"this is no zip", "no whole zip file"),
        (zip_of({"../../evil/evil.jpg": b"x"}), "leads out of the archive"),
        (zip_of({"a/bomb.png": b"\0" * 60_000_000}), "bomb.png|bytes"),  # 50 MB are allowed
    ):
        assert not re.search(says, said(page)), "the one before must not say it"
        upload(page, content)
        if "bomb" in says:  # which is seen only when it is read
            page.locator("#import-take").click()
        wait_for(
            lambda says=says: re.search(says, said(page)) is not None,
            f"a sentence about {says}; it says {said(page)}",
        )
        assert labels_of(shared_app) == {"zero": 12, "one": 12, "two": 12}
        wait_for(
            lambda: not any(p.is_file() for p in shared_app.server.temporary.rglob("*")),
            "an empty temporary folder",
        )


# Classes ------------------------------------------------------------------------------------------------------------


def test_classes_are_renamed_merged_deleted_and_brought_back(app, browser):
    page = open_page(browser, app, "Classes")
    rows = page.locator("#classes-table tbody tr")
    expect(rows).to_have_count(3)
    name = rows.nth(0).locator(".classes-name")
    name.fill("naught")
    name.press("Enter")
    expect(page.locator("#classes-message")).to_contain_text("now called naught")
    assert labels_of(app) == {"naught": 12, "one": 12, "two": 12}

    name.fill("ONE")
    name.press("Enter")
    expect(page.locator("#classes-message")).to_contain_text("differs only in case from 'one'")
    name.press("Escape")

    rows.nth(1).locator(".classes-merge").click()
    page.locator("#classes-merge-into").select_option("two")
    expect(page.locator("#classes-merge-text")).to_have_text(
        "one has 12 labels. They become labels of two; one is gone. u undoes it."
    )
    page.locator("dialog[open] button[value=yes]").click()
    expect(rows).to_have_count(2)
    assert labels_of(app) == {"naught": 12, "two": 24}

    rows.nth(0).locator(".classes-delete").click()
    expect(page.locator("dialog[open]")).to_contain_text(
        re.compile("Deletes the class naught and its 12 labelled samples")
    )
    page.locator("dialog[open] button[value=yes]").click()
    expect(rows).to_have_count(1)
    assert labels_of(app) == {"two": 24}
    page.locator("#classes-undo").click()
    expect(rows).to_have_count(2)
    page.locator("#classes-undo").click()
    expect(rows).to_have_count(3)
    assert labels_of(app) == {"naught": 12, "one": 12, "two": 12}


# Accuracy, Memory, Settings -----------------------------------------------------------------------------------------


def test_accuracy_says_on_how_many_samples_it_rests(app, browser):
    live = app.server.studio.live
    # No more learning: a cell shows what is answered now, and the matrix what the last test found.
    app.server.studio.change_settings(idle_share=0.0)
    wait_for(
        lambda: live.phase == "idle" and live.self_test.held_out.step == live.learner.step, "a last test"
    )
    page = open_page(browser, app, "Accuracy")
    page.locator("#accuracy-more button").first.click()
    expect(page.locator("#accuracy-summary")).to_contain_text(re.compile(r"n ?= ?\d+, few samples"))
    cell = page.locator("#accuracy-confusion button").first
    cell.click()
    expect(page.locator("#accuracy-images img").first).to_be_visible()
    page.locator("#accuracy-seen button").first.click()
    expect(page.locator("#accuracy-map svg").first).to_be_visible()


def test_the_memory_is_made_smaller_after_a_warning(app, browser):
    page = open_page(browser, app, "Memory")
    expect(page.locator("#memory-facts")).to_contain_text("8.00 MB")
    expect(page.locator("#memory-preview")).to_contain_text("nothing would be dropped")
    before = app.server.studio.live.status()["memory"]["samples"]
    budget = page.locator("#memory-budget input, #memory-budget textarea").first
    budget.fill("5KB")  # 33 samples of 204 bytes do not fit
    expect(page.locator("#memory-preview")).to_contain_text("would be dropped, chosen at random")
    page.locator("#memory-apply").click()
    page.locator("#memory-confirm").click()
    expect(page.locator("#memory-done")).to_contain_text("The memory is now")
    after = app.server.studio.live.status()["memory"]
    assert after["samples"] < before
    assert after["bytes"]["total"] <= 5_000
    with app.look() as workspace:
        assert workspace.settings.memory_bytes == 5_000


def test_a_bad_setting_is_refused_and_a_good_one_is_kept(app, browser):
    page = open_page(browser, app, "Settings")
    page.locator("#settings-learning button").first.click()  # it is folded
    field = page.locator("#settings-micro-batch input").first
    field.fill("0")
    page.locator("#settings-save").click()
    expect(page.locator("#settings-message")).to_contain_text("micro_batch")
    field.fill("20")
    page.locator("#settings-save").click()
    wait_for(lambda: app.server.studio.workspace.settings.micro_batch == 20, "the setting")
    with app.look() as workspace:
        assert workspace.settings.micro_batch == 20


def test_what_is_typed_while_the_tab_still_loads_stays(app, browser, monkeypatch):
    asked, answer, form_values = Event(), Event(), settings_tab.form_values

    def slow(studio):
        asked.set()
        assert answer.wait(30)
        return form_values(studio)

    page = open_page(browser, app)
    monkeypatch.setattr(settings_tab, "form_values", slow)
    app.server.studio.change_settings(unknown_share=0.2)  # which this page has not seen
    go_to(page, "Settings")
    assert asked.wait(30)
    page.locator("#settings-idle-share input").first.fill("0.3")
    answer.set()
    expect(page.locator("#settings-unknown-share input").first).to_have_value("0.2")
    expect(page.locator("#settings-idle-share input").first).to_have_value("0.3")
    page.locator("#settings-save").click()
    expect(page.locator("#settings-message")).to_contain_text("Saved: How hard it works in idle time 0.3")
    assert app.server.studio.workspace.settings.unknown_share == 0.2


TYPE_AT_ONCE = """
async ([selector, text]) => {
  const soon = () => new Promise((then) => { const { port1, port2 } = new MessageChannel(); port1.onmessage = then; port2.postMessage(0); });
  const field = () => document.querySelector(selector);
  while (!field()?.offsetParent || field().readOnly) await soon();
  const typed = field();
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(typed), "value").set.call(typed, text);
  typed.dispatchEvent(new Event("input", { bubbles: true }));
  for (let frame = 0; frame < 20; frame++) await new Promise(requestAnimationFrame);
  return field().value;
}
"""


def test_what_is_typed_as_soon_as_a_field_can_be_seen_stays(shared_app, browser):
    page = open_page(browser, shared_app)
    for tab, field, text in (
        ("Memory", "#memory-budget :is(input, textarea)", "1 MB"),
        ("Benchmarks", "#benchmarks-limit input", "7"),
        ("Settings", "#settings-idle-share input", "0.7"),
        ("Models", "#models-seconds input", "7"),
    ):
        page.evaluate(f"(typing) => {{ window.typed = ({TYPE_AT_ONCE})(typing); }}", [field, text])
        go_to(page, tab)
        if tab == "Models":
            page.get_by_text("Publish by itself").click()
        assert page.evaluate("window.typed") == text, tab


def test_what_another_page_changes_back_is_shown(shared_app, browser):
    page = open_page(browser, shared_app, "Models")
    page.get_by_text("Publish by itself").click()
    page.locator("#models-seconds input").first.fill("3600")
    page.locator("#models-save-policy").click()
    wait_for(lambda: shared_app.server.studio.workspace.settings.publish_seconds == 3600, "the setting")
    shared_app.server.studio.change_settings(publish_seconds=0)
    go_to(page, "Teach")
    go_to(page, "Models")
    expect(page.locator("#models-seconds input").first).to_have_value("0")


# Models and benchmarks ----------------------------------------------------------------------------------------------


def test_publish_and_roll_back(app, browser):
    exports = app.workspace / "exports"
    page = open_page(browser, app, "Models")
    page.locator("#models-publish").click()
    wait_for(lambda: exports.exists() and latest_version(exports) == 1, "the first version", 240)
    expect(page.locator("#models-versions")).to_contain_text("v1")
    # Something new, or the second would say the same.
    app.server.studio.rename_class(app.server.studio.journal.classes()[0].id, "nil")
    page.locator("#models-publish").click()
    wait_for(lambda: latest_version(exports) == 2, "the second version", 240)
    expect(page.locator("#models-versions tr.current")).to_contain_text("v2")
    link = page.locator("#models-versions a").first
    with page.expect_download() as download:
        link.click()
    assert Path(download.value.path()).stat().st_size > 500
    page.locator("#models-target input").click()
    page.get_by_role("option", name=re.compile("1")).first.click()
    page.locator("#models-roll").click()
    expect(page.locator("#models-roll-question")).to_contain_text("Devices change to v1")
    assert latest_version(exports) == 2, "nothing is changed unasked"
    page.locator("#models-roll-yes").click()
    wait_for(lambda: latest_version(exports) == 1, "the rollback")
    expect(page.locator("#models-versions tr.current")).to_contain_text("v1")
    expect(page.locator("#models-status")).to_contain_text("Version 1 is the current one now")
    assert [each.version for each in versions(exports)] == [1, 2]


def test_the_digits_benchmark_runs_to_its_end_and_shows_its_curve(shared_app, browser):
    page = open_page(browser, shared_app, "Benchmarks")
    page.locator("#benchmarks-limit input").first.fill("60")
    page.locator("#benchmarks-start").click()
    results = shared_app.workspace / "benchmarks"
    wait_for(lambda: any(results.glob("digits-*.json")), "the result", 240)
    expect(page.locator("#benchmarks-curves svg").first).to_be_visible()
    expect(page.locator("#benchmarks-results")).to_contain_text("hpcr")
    go_to(page, "Teach")  # the live learner was neither slowed nor stopped
    expect(page.locator("#strip")).not_to_contain_text("stopped by an error")


def test_missing_data_are_explained_with_the_command(shared_app, browser, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGE_HPCR_DATA", str(tmp_path / "nothing"))
    page = open_page(browser, shared_app, "Benchmarks")
    page.locator("#benchmarks-dataset input").click()
    page.get_by_role("option", name="tiny_imagenet").click()
    expect(page.locator("#benchmarks-note")).to_contain_text("data get tiny_imagenet")


# Small screens and other colours ------------------------------------------------------------------------------------


def test_no_tab_is_wider_than_a_phone(shared_app, browser):
    page = browser.new_page(viewport={"width": 380, "height": 800})
    page.goto(shared_app.link)
    expect(page.locator("#strip")).to_contain_text("labels")
    for tab in ("Teach", "Review", "Accuracy", "Memory", "Classes", "Models", "Benchmarks", "Settings"):
        go_to(page, tab)
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, tab
