"""The other tabs: review, imports, accuracy, memory, classes, models, benchmarks, settings; and a phone."""

import json
import re
import zipfile

import pytest
from playwright.sync_api import expect

from journeys.parts import (
    FILLED,
    QUICK,
    digit_folders,
    digits,
    edge,
    edge_json,
    go_to,
    open_page,
    png,
    running_app,
    wait_for,
    wait_until_filled,
    zip_of,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]
# Of every table that is shown: its edges, and how much of its width is out of sight.
TABLES = """
[...document.querySelectorAll(".edge-table, .accuracy-matrix")].filter((each) => each.offsetParent).map((each) => {
  const box = each.getBoundingClientRect();
  return [box.left, box.right, each.scrollWidth - each.clientWidth];
})
"""
LABELS = {"digit 0": 12, "digit 1": 12, "digit 2": 12}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """Twelve labels in each of three classes, and nine pictures in the queue. Each test puts back what it changed."""
    folder = tmp_path_factory.mktemp("tabs")
    learn = ("learn", "--workspace", folder / "workspace", *QUICK, "--source")
    edge(*learn, digit_folders(folder / "pictures", each=12), "--labels", "folders")
    for digit in range(3):
        for number, image in enumerate(digits(digit)[20:23]):
            (folder / "queue").mkdir(exist_ok=True)
            (folder / "queue" / f"{digit}-{number}.png").write_bytes(png(image))
    edge(
        *learn,
        folder / "queue",
        "--set",
        "gate_distance=-1",
        "--set",
        "gate_per_second=1000",
        "--set",
        "gate_sure=2",
    )
    with running_app(folder / "workspace") as app:
        assert (app.labels(), app.state()["queue"]) == (LABELS, 9)
        yield app


def test_pictures_are_reviewed_by_keys_and_by_many(app, browser):
    page = open_page(browser, app, "Review")
    cells = page.locator("#review-grid .review-cell")
    expect(cells).to_have_count(9)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("2")
    expect(cells).to_have_count(8)
    wait_for(lambda: app.labels() == {**LABELS, "digit 1": 13}, "the label")
    page.keyboard.press("d")
    expect(page.locator("#review-message")).to_contain_text("dismissed")
    expect(cells).to_have_count(7)
    for place in range(3):
        page.locator("#review-grid .review-box").nth(place).check()
    expect(page.locator("#review-count")).to_have_text("3 selected")
    page.locator("#review-classes button", has_text="digit 2").click()
    expect(page.locator("#review-message")).to_contain_text("3 labelled digit 2")
    wait_for(lambda: app.labels() == {"digit 0": 12, "digit 1": 13, "digit 2": 15}, "three labels")
    for left in (7, 8, 9):
        page.locator("#review-undo").click()
        expect(cells).to_have_count(left)
    assert app.labels() == LABELS


def test_a_wrong_label_is_found_enlarged_and_corrected(app, browser):
    page = open_page(browser, app, "Review")
    page.locator("#review-labelled").click()
    page.locator("#review-class").select_option(label="digit 1")
    expect(page.locator("#review-grid .review-cell")).to_have_count(12)
    page.locator(".review-face").first.click()
    expect(page.locator("#review-large img")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator("#review-grid .review-box").first.check()
    page.locator("#review-classes button", has_text="digit 0").click()
    expect(page.locator("#review-grid .review-cell")).to_have_count(11)
    assert app.labels() == {"digit 0": 13, "digit 1": 11, "digit 2": 12}
    page.locator("#review-undo").click()
    expect(page.locator("#review-grid .review-cell")).to_have_count(12)
    assert app.labels() == LABELS


def test_a_zip_is_looked_at_imported_exported_and_taken_back(app, browser):
    page = open_page(browser, app, "Review")
    page.locator("#review-pictures").click()
    pictures = {f"digit {digit}/{n}.png": png(digits(digit)[n]) for digit in (5, 6) for n in (30, 31)}
    page.locator("#pictures-files").set_input_files(
        {"name": "more.zip", "mimeType": "application/zip", "buffer": zip_of(pictures)}
    )
    expect(page.locator("#transfer-text")).to_contain_text("2 classes, 4 pictures")
    assert app.labels() == LABELS, "nothing is done before somebody says yes"
    page.locator("#import-take").click()
    expect(page.locator("#transfer-text")).to_contain_text("4 samples labelled, 2 new classes")
    assert app.labels() == {**LABELS, "digit 5": 2, "digit 6": 2}
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.locator("#export-start").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert len([name for name in archive.namelist() if name.endswith(".png")]) == 40
    page.keyboard.press("u")
    wait_for(lambda: app.labels() == LABELS, "the import taken back")


def test_classes_are_renamed_merged_deleted_and_brought_back(app, browser):
    page = open_page(browser, app, "Classes")
    rows = page.locator("#classes-table tbody tr")
    expect(rows).to_have_count(3)
    name = rows.nth(0).locator(".classes-name")
    name.fill("naught")
    name.press("Enter")
    expect(page.locator("#classes-message")).to_contain_text("now called naught")
    rows.nth(1).locator(".classes-merge").click()
    page.locator("#classes-merge-into").select_option("digit 2")
    page.locator("dialog[open] button[value=yes]").click()
    expect(rows).to_have_count(2)
    assert app.labels() == {"naught": 12, "digit 2": 24}
    rows.nth(0).locator(".classes-delete").click()
    page.locator("dialog[open] button[value=yes]").click()
    expect(rows).to_have_count(1)
    for left in (2, 3, 3):
        page.locator("#classes-undo").click()
        expect(rows).to_have_count(left)
        expect(page.locator("#classes-message")).to_contain_text("undone")
    wait_for(lambda: app.labels() == LABELS, "everything as before")


def test_accuracy_says_on_how_many_samples_it_rests(app, browser):
    page = open_page(browser, app, "Accuracy")
    expect(page.locator("#accuracy-verdict")).to_contain_text("Too few to tell")
    page.locator("#accuracy-more button").first.click()
    expect(page.locator("#accuracy-summary")).to_contain_text(re.compile(r"n ?= ?\d+, few samples"))


def test_a_model_is_published_taken_home_and_rolled_back(app, browser):
    exports = app.workspace / "exports"

    def current() -> int:
        latest = exports / "latest.json"
        return json.loads(latest.read_text())["version"] if latest.exists() else 0

    page = open_page(browser, app, "Models")
    page.locator("#models-publish").click()
    wait_for(lambda: current() == 1, "the first version")
    expect(page.locator("#models-status")).to_contain_text("version 1")  # else the next press would not count
    expect(page.locator("#models-versions")).to_contain_text("v1")
    status, bundle = app.get("/edge/device/1.zip")
    (app.workspace.parent / "device.zip").write_bytes(bundle)
    with zipfile.ZipFile(app.workspace.parent / "device.zip") as archive:
        names = " ".join(archive.namelist())
    assert status == 200 and "model.onnx" in names and "requirements.txt" in names and "runtime.py" in names
    app.act("rename_class", **{"class": 1, "name": "nil"})
    page.locator("#models-publish").click()
    wait_for(lambda: current() == 2, "the second version")
    expect(page.locator("#models-versions tr.current")).to_contain_text("v2")
    expect(page.locator("#models-target input")).to_have_value("v2, current")
    page.locator("#models-target input").click()
    page.get_by_role("option", name=re.compile("1")).first.click()
    page.locator("#models-roll").click()
    expect(page.locator("#models-roll-question")).to_contain_text("v1")
    assert current() == 2, "nothing is changed unasked"
    page.locator("#models-roll-yes").click()
    wait_for(lambda: current() == 1, "the rollback")
    expect(page.locator("#models-versions tr.current")).to_contain_text("v1")
    app.act("undo")
    assert app.labels() == LABELS


def test_a_benchmark_runs_to_its_end_beside_the_learner(app, browser):
    page = open_page(browser, app, "Benchmarks")
    page.locator("#benchmarks-limit input").first.fill("20")
    page.locator("#benchmarks-seeds input").fill("1")
    page.locator("#benchmarks-start").click()
    results = app.workspace / "benchmarks"
    (path,) = wait_for(lambda: list(results.glob("digits-*.json")), "the result", 240)
    expect(page.locator("#benchmarks-results")).to_contain_text("hpcr")
    expect(page.locator("#benchmarks-runs")).to_contain_text(path.stem)
    assert len(json.loads(path.read_text())["accuracy_matrix"]) == 5
    assert app.state()["phase"] not in ("failed", "silent")


def test_a_bad_setting_is_refused_and_a_good_one_is_kept(app, browser):
    page = open_page(browser, app, "Settings")
    field = page.locator("#settings-idle-share input").first
    expect(field).to_be_visible()
    field.fill("7")
    page.locator("#settings-save").click()
    expect(page.locator("#settings-message")).to_contain_text("idle_share")
    field.fill("0.3")
    page.locator("#settings-save").click()
    wait_for(lambda: '"idle_share": 0.3' in (app.workspace / "settings.json").read_text(), "the setting")
    page.reload()
    go_to(page, "Settings")
    expect(page.locator("#settings-idle-share input").first).to_have_value("0.3")


def test_the_memory_is_made_smaller_after_a_warning(app, browser):
    page = open_page(browser, app, "Memory")
    expect(page.locator("#memory-facts")).to_contain_text("8.00 MB")
    page.locator("#memory-budget input, #memory-budget textarea").first.fill("4KB")
    page.locator("#memory-apply").click()
    expect(page.locator("#memory-preview")).to_contain_text("would be dropped")
    page.locator("#memory-confirm").click()
    expect(page.locator("#memory-done")).to_contain_text("The memory is now")
    assert app.state()["memory"]["used"] <= 4000 == app.state()["memory"]["budget"]
    assert edge_json("status", app.workspace)["labels"] == 36, "labels stay"


def test_every_tab_fits_a_phone_and_no_script_fails(app, browser):
    page = open_page(browser, app, viewport={"width": 390, "height": 844}, has_touch=True)
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    for tab, filled in FILLED.items():
        go_to(page, tab)
        wait_until_filled(page, filled)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
        for left, right, hidden in page.evaluate(TABLES):
            assert left == 12 and right <= 378 and hidden <= 0, f"a table of {tab} is inset, or cut off"
    assert failed == []
