"""axe-core finds nothing serious on any tab, light and dark."""

import io

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_parts import go_to, open_page
from PIL import Image
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_ticked_box_can_be_told_from_an_empty_one(app, browser, theme):
    page = open_page(browser, app, color_scheme=theme)
    page.goto(f"{app.address}/?__theme={theme}")
    go_to(page, "Models")
    box = page.locator("#models-int8 input[type=checkbox]")
    box.wait_for()
    looks = []
    for ticked in (False, True):
        box.set_checked(ticked)
        page.mouse.move(0, 0)
        box.blur()
        page.wait_for_timeout(400)
        shown = Image.open(io.BytesIO(box.screenshot())).convert("L")
        looks.append(np.asarray(shown, np.int64))
    assert (np.abs(looks[1] - looks[0]) > 60).mean() > 0.3, "most of the box is filled"
    middle = looks[1][3:-3, 3:-3]
    assert middle.max() - middle.min() > 80, "and the tick stands out from the filling"
