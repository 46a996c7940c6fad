"""axe-core finds nothing on any tab but what it calls minor, light and dark."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_parts import PATIENCE, taught
from journeys.parts import FILLED, go_to, wait_until_filled
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with taught(tmp_path_factory.mktemp("axe") / "workspace") as app:
        app.server.studio.change_settings(idle_share=0.0)  # nothing moves while it is looked at
        yield app


@pytest.fixture(scope="module", params=["light", "dark"])
def page(app, one_browser, request):
    context = one_browser.new_context(viewport={"width": 1200, "height": 850}, color_scheme=request.param)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{app.link}&__theme={request.param}")
    expect(page.locator("#strip")).to_contain_text("label")
    page.wait_for_function(
        f"document.body.classList.contains('dark') === {str(request.param == 'dark').lower()}"
    )
    yield page
    context.close()


def found_by_axe(page) -> list[str]:
    dark = page.evaluate("document.body.classList.contains('dark')")
    # In the dark only the colours differ.
    options = {"runOnly": ["color-contrast"]} if dark else None
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {node['target'][0]} {node['failureSummary'].splitlines()[-1].strip()}"
        for each in found
        if each["impact"] != "minor"
        for node in each["nodes"]
    ]


def test_nobody_is_kept_out_of_a_tab(page):
    wrong = {}
    for tab, filled in FILLED.items():
        go_to(page, tab)
        wait_until_filled(page, filled)
        if found := found_by_axe(page):
            wrong[tab] = found
    assert wrong == {}
