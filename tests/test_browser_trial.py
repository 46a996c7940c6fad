"""A published version tried on the live camera, in a real browser."""

import re

import numpy as np
import pytest
from browser_parts import go_to, running, show_picture
from device_parts import frame_of, publish
from playwright.sync_api import expect
from test_browser_first_minute import open_with_camera, use_camera
from test_browser_teach import make_class

pytestmark = pytest.mark.browser


def colour(name: str) -> np.ndarray:
    return frame_of(name, 480, 640)


def test_a_version_answers_what_the_camera_sees_beside_the_learner(tmp_path, browser):
    with running(tmp_path / "workspace", source="") as app:
        publish(app.workspace / "exports", 1)  # a tiny model whose classes are colours
        page = open_with_camera(browser, app)
        use_camera(page)
        show_picture(page, colour("red"))
        make_class(page, "warm thing")
        go_to(page, "Models")
        page.locator("#models-try").get_by_role("button", name="Try a picture").click()
        page.get_by_label("Follow the live camera").check()
        said = page.locator("#models-answer .models-answer > div")
        expect(said).to_have_count(2)
        expect(said.nth(0)).to_contain_text("Version 1 (FP32) says:")
        expect(said.nth(0).locator(".answer-name").first).to_have_text("red")
        expect(said.nth(1)).to_contain_text("The learner says now:")
        expect(said.nth(1)).to_contain_text("warm thing (how sure it is, nobody has measured)")
        verdict = page.locator("#models-answer .models-answer > p")
        expect(verdict).to_have_text(re.compile("They differ: red there, (warm thing|unknown) now."))
        show_picture(page, colour("blue"))  # it follows without a click
        expect(said.nth(0).locator(".answer-name").first).to_have_text("blue")
        page.locator("#models-try-frame").click()  # what is asked for once stays
        expect(said).to_have_count(1)
        expect(page.get_by_label("Follow the live camera")).not_to_be_checked()
        show_picture(page, colour("green"))
        page.wait_for_timeout(2500)
        expect(said).to_have_count(1)
        expect(said.locator(".answer-name").first).to_have_text("blue")
