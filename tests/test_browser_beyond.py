"""The history, the order of classes, and what else goes beyond teaching, in a real browser."""

import numpy as np
import pytest
from browser_parts import go_to, open_page, photos, running
from playwright.sync_api import expect
from test_browser_tabs import labels_of, upload, zip_of
from workspace_parts import SMALL

from app.feeder import encoded
from edge_hpcr.workspace.folder import Workspace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def one_app(tmp_path_factory):
    path = tmp_path_factory.mktemp("beyond") / "parts"
    with Workspace.open(path) as workspace:
        workspace.change_settings(source="browser", idle_share=0.0, **SMALL)
    with running(path) as app:
        yield app


@pytest.fixture
def app(one_app):
    """Three classes with a label each, and nothing before or after them."""
    workspace = one_app.server.studio.workspace
    journal = workspace.journal
    for row in journal.classes():
        journal.delete_class(row.id)
    one_app.classes = [journal.create_class(name) for name in ("bolt", "nut", "washer")]
    for number, class_id in enumerate(one_app.classes):
        sample = workspace.take(np.full((8, 8, 3), 60 * number, np.uint8), "bench")
        journal.label([sample], class_id)
    return one_app


def import_photos(page):
    pictures = {f"{name}/1.jpg": encoded(image)[0] for name, image in photos().items()}
    upload(page, zip_of(pictures), "photos.zip")
    page.locator("#import-take").click()
    expect(page.locator("#transfer-text")).to_contain_text("2 samples labelled, 2 new classes")


def test_one_click_in_the_history_takes_back_everything_after_it_and_redo_brings_it_back(app, browser):
    page = open_page(browser, app, "Review")
    import_photos(page)
    assert labels_of(app) == {"bolt": 1, "nut": 1, "washer": 1, "flower": 1, "temple": 1}
    page.keyboard.press("u")
    expect(page.locator("#review-message")).to_have_text("undone: import of 2 pictures")
    assert labels_of(app) == {"bolt": 1, "nut": 1, "washer": 1}
    page.keyboard.press("r")
    expect(page.locator("#review-message")).to_have_text("done again: import of 2 pictures")
    assert labels_of(app)["temple"] == 1
    go_to(page, "Teach")
    page.locator("#teach .history-open").click()
    lines = page.locator("#history li .history-text")
    assert lines.all_text_contents()[:4] == [
        "import of 2 pictures, with 2 new classes",
        "1 picture labelled washer",
        "1 picture labelled nut",
        "1 picture labelled bolt",
    ]
    expect(page.locator("#history li").first.locator("button")).to_have_count(0)  # nothing comes after it
    page.locator("#history li").nth(3).locator("button").click()
    expect(page.locator("#history")).to_have_count(0)
    expect(page.locator("#message")).to_have_text("✓ undone: 3 actions")
    assert labels_of(app) == {"bolt": 1, "nut": 0, "washer": 0}
    page.keyboard.press("r")
    expect(page.locator("#message")).to_have_text("✓ done again: 1 picture labelled nut")
    go_to(page, "Classes")
    page.locator("#classes .history-open").click()
    expect(page.locator("#history li.undone")).to_have_count(2)
    # Somebody acts while the list is open: their work is not taken back unseen.
    app.server.studio.redo()
    page.locator("#history li").nth(3).locator("button").click()
    expect(page.locator("#classes-message")).to_contain_text("something was done or undone meanwhile")
    assert labels_of(app) == {"bolt": 1, "nut": 1, "washer": 1}
