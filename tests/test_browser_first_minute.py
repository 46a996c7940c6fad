"""The first minute, in a real browser: cameras, pictures, unknown; and a phone."""

import re

import cv2
import numpy as np
import pytest
from browser_parts import PATIENCE, chromium, running, show_picture
from journeys.parts import next_frame, open_choices, open_page, tap, use_camera, wait_for
from playwright.sync_api import expect

from edge_hpcr.stream.workbench import STAY, Film
from edge_hpcr.workspace.workspace import Workspace

pytestmark = pytest.mark.browser

FILM = Film(seed=7)
LEARNED, NEVER_SHOWN = (8, 20, 32), (14, 26, 40)  # moments of a part's stay, in other poses
PARTS = [FILM.shows(visit * STAY) for visit in range(3)]


def part(visit: int, moment: int) -> np.ndarray:
    return FILM.frame(visit * STAY + moment)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """With the network that a new workspace has, and three parts of the workbench learned in three poses each."""
    folder = tmp_path_factory.mktemp("first") / "workspace"
    with Workspace.open(folder) as workspace:
        workspace.change_settings(idle_steps=30)  # a test machine has few cores
    with running(folder) as app:
        studio = app.server.studio
        for visit, name in enumerate(PARTS):
            ids = [studio.workspace.take(part(visit, moment), "bench") for moment in LEARNED]
            studio.journal.label(ids, studio.journal.create_class(name))
        assert studio.live.wait_until_caught_up(120)
        yield app


# First: it needs a browser of its own, beside which there can be no other.
def test_of_two_cameras_the_chosen_one_is_used_also_after_a_reload(tmp_path):
    """By its name: this browser, like others in private windows, gives its cameras new ids at every load."""
    used = "document.querySelector('#preview')?.srcObject?.getVideoTracks()[0].label"
    with running(tmp_path / "workspace", source="") as app, chromium(cameras=2) as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 850})
        page.set_default_timeout(PATIENCE)
        page.goto(app.link)
        page.click("#source-browser")
        picker = page.locator("#camera-choice")
        expect(picker).to_be_visible()
        expect(picker.locator("option")).to_have_count(2)
        shown = picker.locator("option:checked")
        before = page.evaluate(used)
        expect(shown).to_have_text(before)
        (other,) = set(picker.locator("option").all_text_contents()) - {before}
        picker.select_option(label=other)
        page.wait_for_function(f"{used} === '{other}'")
        next_frame(page)
        page.reload()
        page.wait_for_function(f"{used} === '{other}'")
        expect(shown).to_have_text(other)
        next_frame(page)


def test_the_camera_comes_back_after_a_reload_and_the_last_page_to_take_it_has_it(app, browser):
    first = open_page(browser, app)
    use_camera(first)
    first.reload()
    expect(first.locator("#preview")).to_be_visible()
    show_picture(first, part(0, 20))
    # A phone that has slept: the camera has stopped, and nobody was told.
    first.evaluate("cameraOfTheTest.getVideoTracks()[0].stop()")
    first.evaluate("window.slept = cameraOfTheTest; document.dispatchEvent(new Event('visibilitychange'))")
    first.wait_for_function("window.slept !== cameraOfTheTest")
    next_frame(first)
    second = open_page(browser, app)
    expect(second.locator("#source-state")).to_contain_text("browser camera")
    expect(second.locator("#preview")).to_be_hidden()
    use_camera(second)
    expect(first.locator("#message")).to_contain_text("another page has taken the camera over")
    expect(first.locator("#preview")).to_be_hidden()
    show_picture(second, part(1, 14))
    expect(first.locator("#answer .teach-name")).to_have_text(PARTS[1])  # it shows what the other one sends
    open_choices(first)
    first.click("#source-browser")
    expect(second.locator("#message")).to_contain_text("another page has taken the camera over")
    first.click("#source-stop")
    expect(first.locator("#choices")).to_be_visible()
    assert first.evaluate("cameraOfTheTest.getVideoTracks()[0].readyState") == "ended"
    # What is shown may be between the change of the source and that of the settings.
    wait_for(lambda: app.server.studio.workspace.settings.source == "", "the setting")
    assert app.server.studio.feeder.stream is None


# Two pictures dropped on the page.
DROP = """
async () => {
  const dropped = new DataTransfer();
  for (const colour of ["teal", "plum"]) {
    const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 40 }), context = canvas.getContext("2d");
    context.fillStyle = colour;
    context.fillRect(5, 10, 25, 20);
    const drawn = await new Promise((done) => canvas.toBlob(done));
    dropped.items.add(new File([drawn], `${colour}.png`, { type: "image/png" }));
  }
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true }));
}
"""


def test_loose_pictures_fill_the_queue_a_folder_makes_classes_and_one_is_tried(app, browser, tmp_path):
    rng = np.random.default_rng(0)
    for number in range(250):
        small = rng.integers(0, 255, (24, 24, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"{number}.png"), small)
    app.act("source", source="")  # which would fill the queue, too
    before = app.state()["queue"]
    page = open_page(browser, app)
    page.click("#source-pictures")
    page.locator("#pictures-files").set_input_files(sorted(tmp_path.glob("*.png")))
    expect(page.locator("#transfer-text")).to_contain_text("250 samples in the queue")
    assert app.state()["queue"] == before + 250

    page.keyboard.press("Escape")
    page.evaluate(DROP)
    expect(page.locator("#transfer-text")).to_contain_text("2 samples in the queue")
    assert app.state()["queue"] == before + 252

    folder = tmp_path / "pictures" / "a class of pictures"
    folder.mkdir(parents=True)
    for moment in LEARNED:
        cv2.imwrite(str(folder / f"{moment}.jpg"), part(0, moment + 1)[..., ::-1])
    page.locator("#pictures-folder").set_input_files(tmp_path / "pictures")
    expect(page.locator("#transfer-text")).to_contain_text("1 class, 3 pictures")
    page.click("#import-take")
    expect(page.locator("#transfer-text")).to_contain_text("3 samples labelled, 1 new class")
    page.keyboard.press("Escape")

    card = page.locator(".class-card", has_text="a class of pictures")
    expect(card.locator(".card-picture img")).to_have_count(3)
    box = card.locator(".card-picture").first.bounding_box()
    assert box["width"] == pytest.approx(box["height"], abs=1) and box["width"] >= 56
    page.wait_for_function(
        "[...document.querySelectorAll('.card-picture img')].every((each) => each.naturalWidth && each.naturalWidth === each.naturalHeight)"
    )
    card.locator(".card-picture").first.click()
    page.locator("#enlarged .class-button", has_text=PARTS[1]).click()
    wait_for(lambda: app.labels()["a class of pictures"] == 2, "one picture moved to another class")
    expect(card.locator(".card-picture img")).to_have_count(2)
    card.locator(".card-picture").first.click()
    page.click("#delete-picture")
    wait_for(lambda: app.labels()["a class of pictures"] == 1, "one picture less")

    labels = app.labels()
    unseen = tmp_path / "unseen.jpg"
    cv2.imwrite(str(unseen), part(1, NEVER_SHOWN[0])[..., ::-1])
    page.locator("#try-file").set_input_files(unseen)
    expect(page.locator("#held")).to_be_visible()
    expect(page.locator("#answer .teach-name")).to_have_text(PARTS[1])
    assert app.labels() == labels, "trying teaches nothing"
    page.reload()
    expect(page.locator("#strip")).to_contain_text("labels")
    wait_for(lambda: not app.state()["frame"] or not app.state()["frame"]["held"], "the picture let go")


def test_a_held_card_records_its_class_and_a_stopped_camera_is_started_from_its_picture(app, browser):
    page = open_page(browser, app)
    use_camera(page)
    before = app.labels()[PARTS[2]]
    show_picture(page, part(2, 20))
    expect(page.locator("#answer")).to_be_visible()
    page.locator(".class-button", has_text=PARTS[2]).hover()
    page.mouse.down()
    expect(page.locator("#message")).to_contain_text(re.compile(rf"([3-9]|\d\d) pictures of {PARTS[2]}"))
    assert app.labels()[PARTS[2]] == before, "saved when it is let go"
    page.mouse.up()
    wait_for(lambda: app.labels()[PARTS[2]] > before + 2, "the burst")
    page.keyboard.press("u")
    wait_for(lambda: app.labels()[PARTS[2]] == before, "all of it taken back at once")

    page.route("**/edge/picture*", lambda route: route.fulfill(status=400, json={"error": "no room"}))
    tap(page, "1")
    expect(page.locator("#message")).to_contain_text("no room")
    page.unroute("**/edge/picture*")

    refuse = "() => Promise.reject(new DOMException('', 'NotAllowedError'))"
    page.evaluate(
        f"window.allowed = navigator.mediaDevices.getUserMedia; navigator.mediaDevices.getUserMedia = {refuse}; 0"
    )
    page.evaluate("cameraOfTheTest.getVideoTracks()[0].stop()")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#message")).to_contain_text("did not allow the camera")
    expect(page.locator("#camera-stopped")).to_contain_text(re.compile(r"stopped \d+ s ago"))
    expect(page.locator("#screen")).to_have_class(re.compile("stale"))
    page.click("#source-change")
    expect(page.locator("#choices")).to_be_in_viewport(ratio=1)
    expect(page.locator("#camera-stopped")).to_be_hidden()
    page.click("#source-keep")
    page.evaluate("navigator.mediaDevices.getUserMedia = window.allowed; 0")
    page.click("#camera-start")
    expect(page.locator("#preview")).to_be_visible()


def test_unknown_is_one_statement_and_none_of_these_a_label(app, browser, monkeypatch):
    page = open_page(browser, app)
    use_camera(page)
    calibration = type(app.server.studio.live.predictor.calibration)
    monkeypatch.setattr(calibration, "unknown", lambda self, similarity: np.ones(len(similarity), bool))
    show_picture(page, part(2, 26))
    expect(page.locator("#answer .teach-name")).to_have_text("unknown")
    expect(page.locator("#answer .teach-sure")).to_have_text("")
    expect(page.locator(".answer-bar")).to_have_count(0)
    monkeypatch.undo()
    page.keyboard.press("x")
    expect(page.locator("#message")).to_contain_text("none of these saved")
    expect(page.locator(".class-button", has_text="none of these")).to_be_visible()


def test_a_phone_shows_odd_names_as_they_are_keeps_the_picture_in_view_and_names_no_keys(app, browser):
    markup = "<img src=x onerror=alert(1)><b>bold</b>"
    odd = [markup, "كوب", "कप", "\U0001f469‍\U0001f469‍\U0001f467", "x" * 100]
    names = [*odd, *(f"part {number}" for number in range(60))]
    for name in names:
        app.server.studio.journal.create_class(name)
    page = open_page(browser, app, viewport={"width": 390, "height": 844}, has_touch=True)
    page.on("dialog", lambda dialog: pytest.fail("a class's name was run as a script"))
    expect(page.locator(".class-card")).to_have_count(len(app.labels()))
    for name in odd:
        expect(page.locator(".class-name", has_text=name)).to_have_text(name)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tops = page.evaluate(
        "[...document.querySelectorAll('.class-card')].slice(0, 3).map((card) => card.getBoundingClientRect().top)"
    )
    assert tops[0] == tops[1] < tops[2], "two columns"
    page.locator(".class-card").nth(40).scroll_into_view_if_needed()
    for part_of_page in ("#screen", "#new-class-open"):
        box = page.locator(part_of_page).bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= 844, part_of_page
    expect(page.locator("#new-class-open kbd")).to_be_hidden()
    assert "press" not in page.locator("#teach").inner_text()
