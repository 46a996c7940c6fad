"""A real browser for the journeys, and its pages."""

import shutil

import pytest
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="module")
def one_browser():
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)  # None: Playwright's own
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def browser(one_browser):
    """Without the pages of earlier tests, which would go on asking for their servers."""
    yield one_browser
    for context in one_browser.contexts:
        context.close()
