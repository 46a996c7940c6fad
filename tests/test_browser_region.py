"""A rectangle drawn on the picture, as a person does it: only what is inside is learned."""

import numpy as np
import pytest
from browser_parts import running, show_picture
from journeys.parts import make_class, open_page, use_camera
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

NEAR = 0.02  # a pointer's place is a whole number of pixels


def halves(left: tuple[int, int, int], right: tuple[int, int, int]) -> np.ndarray:
    image = np.empty((480, 640, 3), np.uint8)
    image[:, :320], image[:, 320:] = left, right
    return image


def draw(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one place on the picture to another, as shares of the screen, which has the picture's shape."""
    if page.locator("#region-hint").is_hidden():
        page.click("#region-draw")
    page.locator("#screen").scroll_into_view_if_needed()
    box = page.locator("#screen").bounding_box()
    page.mouse.move(box["x"] + start[0] * box["width"], box["y"] + start[1] * box["height"])
    page.mouse.down()
    for share in (0.5, 1.0):
        across, down = (a + share * (b - a) for a, b in zip(start, end, strict=True))
        page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    page.mouse.up()


def region_of(page: Page) -> list[float]:
    """Where the outline is, as shares of the screen: left, top, width, height."""
    screen, outline = (page.locator(each).bounding_box() for each in ("#screen", "#region"))
    return [
        (outline["x"] - screen["x"]) / screen["width"],
        (outline["y"] - screen["y"]) / screen["height"],
        outline["width"] / screen["width"],
        outline["height"] / screen["height"],
    ]


def test_only_what_is_inside_a_drawn_rectangle_is_learned(tmp_path, browser):
    with running(tmp_path / "workspace", source="") as app:
        page = open_page(browser, app)
        use_camera(page)
        show_picture(page, halves((200, 0, 0), (0, 0, 200)))
        expect(page.locator("#source-state")).to_contain_text("live")
        expect(page.locator("#region")).to_be_hidden()

        draw(page, (0.5, 0.25), (0.51, 0.26))
        expect(page.locator("#message")).to_contain_text("is too small, less than 5% of a side")
        expect(page.locator("#region")).to_be_hidden()
        draw(page, (0.5, 0.0), (1.2, 1.3))  # beyond the edge means up to the edge
        expect(page.locator("#message")).to_contain_text("only what is inside the rectangle is learned")
        expect(page.locator("#region-hint")).to_be_hidden()
        assert app.state()["source"]["region"] == pytest.approx([0.5, 0, 0.5, 1], abs=NEAR)
        assert region_of(page) == pytest.approx([0.5, 0, 0.5, 1], abs=NEAR)
        make_class(page, "blue thing")
        with app.look() as workspace:
            (row,) = workspace.journal.samples(state="labelled")
            image = workspace.image(row.id)
            assert image.shape[0] == pytest.approx(480, abs=10) and image.shape[1] == pytest.approx(
                320, abs=15
            )
            red, _, blue = image[:, 20:].mean((0, 1))
            assert red < 30 and blue > 170

        page.reload()  # it belongs to the source
        expect(page.locator("#preview")).to_be_visible()
        show_picture(page, halves((200, 0, 0), (0, 0, 200)))
        expect(page.locator("#region")).to_be_visible()
        assert app.state()["source"]["region"] == pytest.approx([0.5, 0, 0.5, 1], abs=NEAR)
        page.click("#region-clear")
        expect(page.locator("#region")).to_be_hidden()
        expect(page.locator("#region-clear")).to_be_hidden()
        assert app.state()["source"]["region"] is None
