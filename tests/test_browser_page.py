"""What is on the page beside teaching and reviewing, in a real browser: alarms, and other workspaces."""

import numpy as np
import pytest
from browser_parts import running
from journeys.parts import open_page
from playwright.sync_api import expect
from workspace_parts import SMALL

from edge_hpcr.live import status as live_status
from edge_hpcr.workspace.layout import last_used
from edge_hpcr.workspace.workspace import Workspace

pytestmark = pytest.mark.browser


def test_an_alarm_comes_before_what_happened_once_and_stays_until_it_is_over(tmp_path, browser, monkeypatch):
    with running(tmp_path / "workspace") as app:
        page = open_page(browser, app)
        app.server.studio.live.report("the roof leaks")
        monkeypatch.setattr(live_status, "NEARLY_FULL", 10**18)
        expect(page.locator("#problems")).to_contain_text("make room")
        expect(page.locator("#clear-problem")).to_have_count(0)
        monkeypatch.undo()
        expect(page.locator("#problems")).to_contain_text("the roof leaks")
        page.locator("#clear-problem").click()
        expect(page.locator("#problems")).to_be_empty()


def test_a_page_that_loads_shows_its_shape(app, browser):
    page = browser.new_page()
    page.route("**/assets/*.js", lambda route: route.abort())  # Gradio's, which take their time
    shape = "getComputedStyle(document.body, '::before').position"
    page.goto(app.link)
    assert page.evaluate(shape) == "fixed"
    page.unroute("**/assets/*.js")
    page.reload()
    expect(page.locator("#strip")).to_contain_text("labels")
    assert page.evaluate(shape) == "static"


@pytest.fixture
def app(tmp_path):
    """A workspace with three classes of a label each."""
    with Workspace.open(tmp_path / "parts") as workspace:
        workspace.change_settings(source="browser", idle_share=0.0, **SMALL)
        for number, name in enumerate(("bolt", "nut", "washer")):
            sample = workspace.take(np.full((8, 8, 3), 60 * number, np.uint8), "bench")
            workspace.journal.label([sample], workspace.journal.create_class(name))
    with running(tmp_path / "parts") as app:
        yield app


def test_another_workspace_is_opened_from_the_page_and_nothing_is_lost(app, browser):
    parts, taught = app.workspace, app.labels()
    page = open_page(browser, app)
    expect(page.locator("#workspace")).to_have_text("parts")
    with Workspace.open(parts.parent / "screws") as made:  # smaller than one that the page makes
        made.change_settings(**SMALL)
    page.locator("#workspace").click()
    page.locator("#workspaces li[data-workspace=screws] button").click()
    expect(page.locator("#workspace")).to_have_text("screws")
    expect(page.locator("#strip")).to_contain_text("0 labels")
    with app.server.studio.acting():  # which saves the other one after the page has changed
        assert last_used(parts.parent).name == "screws", "which the next start opens"
        with Workspace.open(parts) as left:  # it is let go of, and whole
            assert {row.name: row.labels for row in left.journal.classes()} == taught
    page.locator("#workspace").click()
    page.locator("#workspaces li[data-workspace=parts] button").click()
    expect(page.locator("#workspace")).to_have_text("parts")
    expect(page.locator("#strip")).to_contain_text(f"{sum(taught.values())} labels")
    with app.server.studio.acting():
        assert last_used(parts.parent) == parts
    assert last_used(parts) == parts / "workspace", "where none was opened"
