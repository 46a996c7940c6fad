"""Review as a person uses it, in a real browser: guesses accepted and corrected by keys, pictures large, imports looked at."""

import threading

import pytest
from browser_parts import running
from journeys.parts import go_to, open_page, wait_for
from playwright.sync_api import expect
from workspace_parts import SMALL

from app import actions, review
from edge_hpcr.bench.datasets import load
from edge_hpcr.live.predictor import Answer
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace

pytestmark = pytest.mark.browser
NAMES = ("zero", "مفتاح ربط", "🔧 पेंच")


@pytest.fixture(scope="module")
def one_app(tmp_path_factory):
    path = tmp_path_factory.mktemp("review") / "workspace"
    with Workspace.open(path) as workspace:
        workspace.change_settings(source="browser", idle_share=0.0, **SMALL)
    with running(path) as app:
        yield app


@pytest.fixture
def app(one_app, monkeypatch):
    """Three classes, 45 pictures in the queue, and a learner whose guesses are known: 0, 1, 2, 0, 1, 2, …"""
    studio = one_app.server.studio
    journal, digits = studio.journal, load("digits")
    classes = [journal.class_named(name) for name in NAMES]
    images = digits.train_images[:45]
    ids = studio.workspace.take_many(
        [
            Frame(image, "bench" if i % 2 else "shelf", hash64=(i * 0x9E3779B97F4A7C15) % 2**64, priority=0.5)
            for i, image in enumerate(images)
        ]
    )
    one_app.guesses = {i: classes[place % 3] for place, i in enumerate(ids)}

    def answered(live, asked, seconds):
        return {
            i: Answer(((one_app.guesses[i], 0.9), (classes[0], 0.1)), 0.9, False)
            for i in asked
            if i in one_app.guesses
        }

    monkeypatch.setattr(review, "answers_about", answered)
    one_app.classes = classes
    yield one_app
    for state in ("queued", "labelled"):
        if rows := journal.samples(state=state):
            journal.delete_samples(row.id for row in rows)


def current(page):
    return int(page.locator(".review-cell.current").get_attribute("data-sample"))


def label_of(app, sample):
    return app.server.studio.journal.sample(sample).class_id


def test_keys_accept_a_guess_correct_it_and_move_between_pictures(app, browser):
    page = open_page(browser, app, "Review")
    expect(page.locator(".review-guess").first).to_contain_text("90 %")
    page.keyboard.press("ArrowRight")
    first = current(page)
    page.keyboard.press("ArrowRight")
    second = current(page)
    page.keyboard.press("ArrowLeft")
    assert current(page) == first != second
    page.keyboard.press("Enter")
    expect(page.locator(f'.review-cell[data-sample="{first}"]')).to_have_count(0)
    assert label_of(app, first) == app.guesses[first]
    assert current(page) == second, "the next one takes its place"
    wrong = app.classes.index(app.guesses[second])
    page.keyboard.press(str((wrong + 1) % 3 + 1))
    expect(page.locator(f'.review-cell[data-sample="{second}"]')).to_have_count(0)
    assert label_of(app, second) == app.classes[(wrong + 1) % 3]
    page.keyboard.press("Space")
    expect(page.locator("#review-count")).to_have_text("1 selected")


def test_a_click_enlarges_a_picture_and_the_same_keys_work_there(app, browser):
    page = open_page(browser, app, "Review")
    page.locator(".review-face").nth(2).click()
    large = page.locator("#review-large")
    expect(large).to_be_visible()
    shown = current(page)
    expect(large.locator("img")).to_have_attribute("src", f"/edge/sample/{shown}")
    expect(large.locator("#review-large-text")).to_contain_text("90 %")
    expect(large.locator("img")).to_have_js_property("complete", True)
    picture, place = (large.locator(each).bounding_box() for each in ("img", ".review-large-picture"))
    assert picture["height"] <= place["height"] and picture["width"] <= place["width"], "all of it is seen"
    page.keyboard.press("Enter")
    wait_for(lambda: label_of(app, shown) == app.guesses[shown], "the accepted guess")
    expect(large.locator("img")).not_to_have_attribute("src", f"/edge/sample/{shown}")
    following = current(page)
    page.keyboard.press("ArrowRight")
    assert current(page) != following
    page.keyboard.press("2")
    wait_for(lambda: app.labels().get(NAMES[1], 0) >= 1, "the label by its key")
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()


def test_guesses_are_shown_although_each_answer_takes_longer_than_the_page_waits_to_ask(
    app, browser, monkeypatch
):
    answered, calls = review.answers_about, []

    def slowly(live, asked, seconds):
        calls.append(threading.Event().wait(0.8))
        return answered(live, asked, seconds) if len(calls) > 1 else {}

    monkeypatch.setattr(review, "answers_about", slowly)
    page = open_page(browser, app, "Review")
    expect(page.locator(".review-guess").first).to_contain_text("90 %")


def test_on_a_phone_the_actions_stay_on_the_screen(app, browser):
    page = open_page(browser, app, viewport={"width": 390, "height": 800})
    go_to(page, "Review")
    expect(page.locator(".review-cell")).to_have_count(45)
    page.click("#review-pictures")
    dialog = page.locator("#pictures").bounding_box()
    assert 0 <= dialog["x"] < dialog["x"] + dialog["width"] <= 390
    page.keyboard.press("Escape")
    page.locator(".review-cell").last.scroll_into_view_if_needed()
    assert page.evaluate("window.scrollY") > 200
    for button in ("#review-undo", "#review-classes button >> nth=0"):
        expect(page.locator(button)).to_be_in_viewport(ratio=1)


def test_all_that_a_filter_shows_is_accepted_and_taken_back_as_one(app, browser, monkeypatch):
    monkeypatch.setattr(actions, "answers_about", review.answers_about)
    monkeypatch.setattr(review, "PAGE", 20)  # so that there are three pages
    page = open_page(browser, app, "Review")
    expect(page.locator(".review-cell")).to_have_count(20)
    page.keyboard.press("ArrowRight")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    expect(page.locator("#review-count")).to_have_text("4 selected")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+a")
    expect(page.locator("#review-count")).to_have_text("45 selected")
    page.click("#review-accept")
    expect(page.locator("#review-message")).to_contain_text("45 labelled as guessed: 3 classes")
    expect(page.locator(".review-cell")).to_have_count(0)
    for sample, class_id in app.guesses.items():
        assert label_of(app, sample) == class_id
    assert app.json("/edge/history")["entries"][0]["text"].startswith("45 pictures labelled as guessed: ")
    page.keyboard.press("u")
    wait_for(lambda: app.state()["queue"] == 45, "one undo for all of them")
    for number in range(10):
        app.server.studio.journal.class_named(f"more {number}")
    expect(page.locator("#review-classes button")).to_have_count(13)
    expect(page.locator(".review-cell")).to_have_count(20)
    page.keyboard.press("ArrowRight")
    page.locator("#review-classes button").nth(10).click()
    expect(page.locator("#review-message")).to_contain_text("labelled more 7")
