"""axe-core finds nothing serious on any tab, light and dark."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_parts import go_to, open_page
from playwright.sync_api import expect
from test_browser_tabs import taught

pytestmark = pytest.mark.browser
TABS = ("Teach", "Review", "Accuracy", "Memory", "Classes", "Models", "Benchmarks", "Settings")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with taught(tmp_path_factory.mktemp("axe") / "workspace") as app:
        app.server.studio.change_settings(idle_share=0.0)  # nothing moves while it is looked at
        yield app


def serious(page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['target'][0]} {node['failureSummary'].splitlines()[-1].strip()}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_kept_out_of_a_tab(app, browser, theme):
    page = open_page(browser, app, color_scheme=theme)
    page.goto(f"{app.address}/?__theme={theme}")
    expect(page.locator("#strip")).to_contain_text("label")
    wrong = {}
    for tab in TABS:
        go_to(page, tab)
        page.wait_for_timeout(1500)  # Gradio fills a tab after it has been shown
        if found := serious(page):
            wrong[tab] = found
    assert wrong == {}
