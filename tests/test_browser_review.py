"""Review as a person uses it, in a real browser: guesses accepted and corrected by keys, pictures large, imports looked at."""

import pytest
from browser_parts import go_to, open_page, photos, running, wait_for
from playwright.sync_api import expect
from test_browser_tabs import labels_of, queued, upload, zip_of
from workspace_parts import SMALL

from app.feeder import encoded
from edge_hpcr.bench.datasets import load
from edge_hpcr.live.predictor import Answer
from edge_hpcr.workspace.folder import Taken, Workspace

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
            Taken(image, "bench" if i % 2 else "shelf", None, (i * 0x9E3779B97F4A7C15) % 2**64, 0.5)
            for i, image in enumerate(images)
        ]
    )
    one_app.guesses = {i: classes[place % 3] for place, i in enumerate(ids)}

    def answered(asked, seconds):
        return {
            i: Answer(((one_app.guesses[i], 0.9), (classes[0], 0.1)), 0.9, False)
            for i in asked
            if i in one_app.guesses
        }

    monkeypatch.setattr(studio.answers, "of", answered)
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
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator("#review-count")).to_have_text("2 selected")
    page.keyboard.press("d")
    expect(page.locator("#review-message")).to_have_text("2 dismissed")
    assert queued(app) == 41


def test_a_click_enlarges_a_picture_and_the_same_keys_work_there(app, browser):
    page = open_page(browser, app, "Review")
    page.locator(".review-face").nth(2).click()
    large = page.locator("#review-large")
    expect(large).to_be_visible()
    shown = current(page)
    expect(large.locator("img")).to_have_attribute("src", f"/edge/sample/{shown}")
    expect(large.locator(".answer-share").first).to_have_text("90 %")
    page.keyboard.press("Enter")
    wait_for(lambda: label_of(app, shown) == app.guesses[shown], "the accepted guess")
    expect(large.locator("img")).not_to_have_attribute("src", f"/edge/sample/{shown}")
    following = current(page)
    page.keyboard.press("ArrowRight")
    assert current(page) != following
    large.locator(".class-button", has_text=NAMES[1]).click()
    wait_for(lambda: labels_of(app).get(NAMES[1], 0) >= 1, "the label by its button")
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()


def test_pictures_are_chosen_by_source_guess_and_class(app, browser):
    page = open_page(browser, app, "Review")
    cells = page.locator(".review-cell")
    expect(cells).to_have_count(45)
    page.locator("#review-source").select_option("shelf")
    expect(cells).to_have_count(23)
    page.locator("#review-source").select_option("")
    page.locator("#review-guess").select_option(label=f"guess: {NAMES[2]}")
    expect(cells).to_have_count(15)
    page.locator("#review-all").click()
    page.locator("#review-accept").click()
    expect(page.locator("#review-empty")).to_have_text("No sample fits.")
    wait_for(lambda: labels_of(app)[NAMES[2]] == 15, "the labels in the state")
    page.locator("#review-labelled").click()
    expect(cells).to_have_count(15)
    page.locator("#review-class").select_option(label=NAMES[0])
    expect(cells).to_have_count(0)


@pytest.mark.parametrize("size", [(1200, 700), (390, 800)], ids=["desktop", "phone"])
def test_the_actions_stay_on_the_screen_and_the_badge_counts_right(app, browser, size):
    page = open_page(browser, app)
    if size[0] > 1000:
        expect(page.locator("#tab-review-button")).to_have_text("Review 45")  # also before the tab was opened
    page.set_viewport_size({"width": size[0], "height": size[1]})
    go_to(page, "Review")
    expect(page.locator(".review-cell")).to_have_count(45)
    page.locator(".review-cell").last.scroll_into_view_if_needed()
    assert page.evaluate("window.scrollY") > 200
    for button in ("#review-undo", "#review-classes button >> nth=0"):
        expect(page.locator(button)).to_be_in_viewport(ratio=1)
    if size[0] > 1000:
        badge = page.locator("#tab-review-button")
        expect(badge).to_have_text("Review 45")
        app.server.studio.journal.dismiss([next(iter(app.guesses))])  # nothing else in the strip changes
        expect(badge).to_have_text("Review 44")


def test_space_after_a_click_on_undo_does_not_undo_again(app, browser):
    page = open_page(browser, app, "Review")
    before = labels_of(app).get(NAMES[0], 0)
    for labelled in (1, 2):
        page.locator(".review-face").first.focus()
        page.keyboard.press("1")
        expect(page.locator("#review-message")).to_contain_text("1 labelled")
        expect(page.locator(".review-cell")).to_have_count(45 - labelled)
        page.locator("#review-message").evaluate("(element) => { element.textContent = ''; }")
    page.locator("#review-undo").click()
    expect(page.locator("#review-message")).to_contain_text("undone")
    page.keyboard.press("Space")
    page.keyboard.press("Escape")  # Space selects; this is answered after it
    expect(page.locator("#review-count")).to_have_text("nothing selected")
    assert labels_of(app)[NAMES[0]] == before + 1


def test_an_import_is_looked_at_confirmed_with_its_progress_in_sight_and_undone(app, browser):
    page = open_page(browser, app, "Review")
    pictures = {
        f"data/{split}/{name}/{number}.jpg": encoded(image[number:, number:])[0]
        for split, number in (("train", 0), ("test", 1))
        for name, image in photos().items()
    }
    upload(page, zip_of({**pictures, "data/notes.txt": b"text"}), "photos.zip")
    expect(page.locator("#transfer-text")).to_contain_text(
        "2 classes, 2 pictures, 1 file skipped; train/ and test/ look like splits: train is used"
    )
    assert "temple" not in labels_of(app), "nothing is done before somebody says yes"
    page.locator("#import-split").select_option("all")
    expect(page.locator("#import-take")).to_have_text("Import 4 pictures")
    page.locator("#import-split").select_option("train")
    expect(page.locator("#import-take")).to_have_text("Import 2 pictures")
    page.locator("#import-take").click()
    expect(page.locator("#transfer-text")).to_contain_text("2 samples labelled, 2 new classes")
    expect(page.locator("#transfer-text")).to_be_in_viewport()
    assert (labels_of(app)["temple"], labels_of(app)["flower"]) == (1, 1)
    page.locator("#import-undo").click()
    expect(page.locator("#transfer-text")).to_contain_text("2 labels and 2 classes taken back")
    assert "temple" not in labels_of(app) and queued(app) == 45


@pytest.mark.parametrize("size", [(1200, 700), (390, 800)], ids=["desktop", "phone"])
def test_sixty_classes_leave_room_for_the_pictures(app, browser, size):
    for number in range(4, 61):
        app.server.studio.journal.class_named(f"class number {number}, with a name that goes on for a while")
    page = open_page(browser, app, "Review")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    expect(page.locator("#review-classes button")).to_have_count(60)
    bar = page.locator(".review-bar").bounding_box()
    assert bar["height"] < 0.4 * size[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.locator(".review-face").first.click()
    page.locator("#review-large .class-button").nth(59).click()  # without a key, and far down in its list
    name = "class number 60, with a name that goes on for a while"
    wait_for(lambda: labels_of(app)[name] == 1, "the label of the last class")
    page.keyboard.press("Escape")
    for tab in ("Classes", "Accuracy"):
        go_to(page, tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], tab
    for row in app.server.studio.journal.classes()[3:]:
        app.server.studio.journal.delete_class(row.id)
