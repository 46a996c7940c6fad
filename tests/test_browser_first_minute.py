"""The first minute, in a real browser: from an empty workspace to three things that are told apart; and what disturbs it."""

import http.client
import re
import shutil

import cv2
import numpy as np
import pytest
from browser_parts import DRAWN_CAMERA, OwnServer, free_port, open_page, running, show_picture, wait_for
from playwright.sync_api import Browser, Page, expect
from test_browser_teach import labels_of, make_class, state_of

from app.door import Door
from edge_hpcr.stream.workbench import STAY, Film
from edge_hpcr.workspace.folder import Workspace

pytestmark = pytest.mark.browser

FILM = Film(seed=7)
LEARNED, NEVER_SHOWN = (8, 20, 32), (14, 26, 40)  # moments of a part's stay, in other poses
PARTS = [FILM.shows(visit * STAY) for visit in range(3)]


def part(visit: int, moment: int) -> np.ndarray:
    return FILM.frame(visit * STAY + moment)


def open_with_camera(browser: Browser, app: OwnServer, **options: object) -> Page:
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 850}, **options})
    context.add_init_script(DRAWN_CAMERA)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(app.link)
    expect(page.locator("#strip .phase")).to_be_visible()
    return page


def use_camera(page: Page) -> None:
    if not page.locator("#source-browser").is_visible():
        page.click("#source-change")
    page.click("#source-browser")
    expect(page.locator("#preview")).to_be_visible()


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """With the network that a new workspace has; the tests after the first go on with what it taught."""
    folder = tmp_path_factory.mktemp("first") / "workspace"
    with Workspace.open(folder) as workspace:
        workspace.change_settings(idle_steps=30)  # a test machine has few cores
    with running(folder) as app:
        yield app


def test_what_is_chosen_while_the_program_starts_is_done_when_it_has(tmp_path, browser):
    port = free_port()
    door = Door("127.0.0.1", port, choose=True)
    page = browser.new_context().new_page()
    page.add_init_script(DRAWN_CAMERA)
    page.goto(f"http://127.0.0.1:{port}/")
    page.locator(".source-choice", has_text="Camera").click()
    expect(page.locator("#preview")).to_be_visible()
    expect(page.locator("#guide")).to_contain_text("the program is starting")
    door.close()
    with running(tmp_path / "workspace", source="", port=port, token=False) as app:
        expect(page.get_by_role("tab", name="Review")).to_be_visible(timeout=60_000)
        expect(page.locator("#preview")).to_be_visible()
        wait_for(lambda: app.server.studio.feeder.browser_camera is not None, "the camera as the source")


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/?token=x", 200, 'data-choose="no"'),
        ("/edge/static/door.js", 200, "choiceButtons"),
        ("/healthz", 503, "not ready"),
        ("/edge/state", 503, "not ready"),
        ("/edge/static/../door.py", 503, "not ready"),
        ("/edge/static/%2e%2e/door.py", 503, "not ready"),
    ],
)
def test_the_door_shows_the_first_page_and_nothing_else(path, status, says):
    port = free_port()
    door = Door("127.0.0.1", port, choose=False)
    try:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        asking.request("GET", path)
        answer = asking.getresponse()
        assert (answer.status, says in answer.read().decode()) == (status, True)
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        asking.close()
    finally:
        door.close()
    Door("127.0.0.1", port, choose=True).close()  # the port is free again


def test_three_things_are_taught_and_are_right_on_pictures_never_shown(app, browser):
    page = open_with_camera(browser, app)
    use_camera(page)
    for visit, name in enumerate(PARTS):
        for number, moment in enumerate(LEARNED):
            show_picture(page, part(visit, moment))
            if number == 0:
                make_class(page, name)
            else:
                page.keyboard.press(str(visit + 1))
                wait_for(lambda name=name, count=number + 1: labels_of(app)[name] == count, "the label")
        if visit == 0:
            expect(page.locator("#guide")).to_have_text("Now show something else, and name that too.")
        if visit == 1:
            expect(page.locator("#guide")).to_contain_text(re.compile(r"Getting better … \d+ %"))
    assert labels_of(app) == dict.fromkeys(PARTS, 3)
    for moment in NEVER_SHOWN:
        for visit, name in enumerate(PARTS):
            show_picture(page, part(visit, moment))
            expect(page.locator("#answer .teach-name")).to_have_text(name)
    expect(page.locator("#guide")).to_have_text("Show 5 more of each.")
    expect(page.locator("#verdict")).to_have_text(
        "Too few to tell: nothing has been measured yet. Show 5 more of each."
    )
    with app.look() as workspace:
        rows = workspace.journal.samples(state="labelled")
        assert {row.origin for row in rows} == {"browser camera"} and len({row.hash64 for row in rows}) == 9


def test_the_camera_comes_back_after_a_reload_and_the_last_page_to_take_it_has_it(app, browser):
    first = open_with_camera(browser, app)
    use_camera(first)
    show_picture(first, part(0, 14))
    first.locator("#camera-mirror").check()
    first.reload()
    expect(first.locator("#preview")).to_be_visible()
    show_picture(first, part(0, 20))
    expect(first.locator("#camera-mirror")).to_be_checked()
    expect(first.locator("#screen")).to_have_class(re.compile("mirror"))
    # A phone that has slept: the camera has stopped, and nobody was told.
    first.evaluate("cameraOfTheTest.getVideoTracks()[0].stop()")
    first.evaluate("window.slept = cameraOfTheTest; document.dispatchEvent(new Event('visibilitychange'))")
    first.wait_for_function("window.slept !== cameraOfTheTest")
    shown = first.locator("#screen").get_attribute("data-shown")
    expect(first.locator("#screen")).not_to_have_attribute("data-shown", shown)
    second = open_with_camera(browser, app)
    expect(second.locator("#source-state")).to_contain_text("browser camera")
    expect(second.locator("#preview")).to_be_hidden()
    use_camera(second)
    expect(first.locator("#message")).to_contain_text("another page has taken the camera over")
    expect(first.locator("#preview")).to_be_hidden()
    show_picture(second, part(1, 14))
    expect(first.locator("#answer .teach-name")).to_have_text(PARTS[1])  # it shows what the other one sends
    first.locator("#source-change").click()
    first.locator("#source-browser").click()
    expect(second.locator("#message")).to_contain_text("another page has taken the camera over")
    first.click("#source-stop")
    expect(first.locator("#choices")).to_be_visible()
    assert first.evaluate("cameraOfTheTest.getVideoTracks()[0].readyState") == "ended"
    assert app.server.studio.workspace.settings.source == "" and app.server.studio.feeder.stream is None


def test_a_camera_that_goes_in_the_middle_of_a_burst_loses_nothing(app, browser):
    page = open_with_camera(browser, app)
    use_camera(page)
    show_picture(page, part(2, 20))
    page.keyboard.press("3")
    expect(page.locator("#message")).to_contain_text(f"{PARTS[2]} saved")
    before = labels_of(app)[PARTS[2]]
    page.keyboard.down("b")
    expect(page.locator("#message")).to_contain_text(re.compile(r"burst: ([3-9]|\d\d) frames"))
    page.evaluate("cameraOfTheTest.getVideoTracks()[0].dispatchEvent(new Event('ended'))")
    expect(page.locator("#message")).to_contain_text(f"{PARTS[2]} saved · ")
    page.keyboard.up("b")
    assert labels_of(app)[PARTS[2]] >= before + 3
    expect(page.locator("#preview")).to_be_hidden()
    page.keyboard.press("u")  # one action
    expect(page.locator("#message")).to_contain_text(re.compile("undone: .* labelled"))
    assert labels_of(app)[PARTS[2]] == before


def test_space_after_a_click_does_not_press_that_button_again(app, browser):
    page = open_with_camera(browser, app)
    use_camera(page)
    show_picture(page, part(0, 8))
    labels = sum(labels_of(app).values())
    for key in "12":
        page.keyboard.press(key)
        expect(page.locator("#message")).to_contain_text("saved")
    page.click("#undo")
    expect(page.locator("#message")).to_contain_text("undone")
    after = state_of(app)["seq"]
    page.keyboard.press(" ")
    expect(page.locator("#held")).to_be_visible()
    assert state_of(app)["seq"] == after and sum(labels_of(app).values()) >= labels
    page.keyboard.press(" ")
    page.get_by_role("tab", name="Accuracy").click()
    page.get_by_role("tab", name="Teach").click()
    page.keyboard.press(" ")
    expect(page.locator("#held")).to_be_visible()
    page.keyboard.press(" ")
    expect(page.locator("#held")).to_be_hidden()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("photographs")
    found = {name: [str(folder / f"{name} {moment}.jpg") for moment in LEARNED] for name in PARTS}
    for visit, name in enumerate(PARTS):
        for path, moment in zip(found[name], NEVER_SHOWN, strict=True):
            cv2.imwrite(path, part(visit, moment)[..., ::-1])
    return found


def test_pictures_of_one_s_own_are_added_dropped_on_a_card_looked_through_and_deleted(
    app, browser, photographs, tmp_path
):
    page = open_with_camera(browser, app)
    wrong = tmp_path / "notes.jpg"
    wrong.write_text("no picture")
    before = labels_of(app)
    if not page.locator("#source-pictures").is_visible():
        page.click("#source-change")
    page.click("#source-pictures")
    page.locator("#pictures-name").fill("a class of pictures")
    page.locator("#pictures-of-class").set_input_files([*photographs[PARTS[0]], wrong])
    page.click("#pictures-add")
    expect(page.locator("#message")).to_contain_text("notes.jpg is no picture that this browser can read")
    assert labels_of(app)["a class of pictures"] == 3

    card = page.locator(".class-card", has_text="a class of pictures")
    expect(card.locator(".card-picture img")).to_have_count(3)
    card.locator(".card-picture").first.click()
    page.locator("#enlarged img").wait_for()
    page.click("#delete-picture")
    wait_for(lambda: labels_of(app)["a class of pictures"] == 2, "one picture less")
    expect(card.locator(".card-picture img")).to_have_count(2)

    data = page.evaluate_handle(
        """async () => { const canvas = Object.assign(document.createElement("canvas"), { width: 90, height: 70 });
        const blob = await new Promise((done) => canvas.toBlob(done)); const data = new DataTransfer();
        data.items.add(new File([blob], "dropped.png", { type: "image/png" })); return data; }"""
    )
    card.dispatch_event("drop", {"dataTransfer": data})
    wait_for(lambda: labels_of(app)["a class of pictures"] == 3, "the dropped picture")
    with app.look() as workspace:
        assert "dropped.png" in {row.origin for row in workspace.journal.samples(state="labelled")}

    page.click("#source-pictures")
    page.locator("#pictures-mixed").set_input_files([photographs[PARTS[1]][0], photographs[PARTS[2]][1]])
    expect(page.locator("#source-state")).to_contain_text("picture 1 of 2")
    expect(page.locator("#answer .teach-name")).to_have_text(PARTS[1])
    page.keyboard.press("2")
    expect(page.locator("#source-state")).to_contain_text("picture 2 of 2")
    page.keyboard.press(" ")  # without a label
    expect(page.locator("#message")).to_contain_text("that was the last picture")
    assert labels_of(app)[PARTS[1]] == before[PARTS[1]] + 1
    assert labels_of(app)[PARTS[2]] == before[PARTS[2]]


def test_unknown_is_one_statement_and_the_slider_says_what_it_would_do(app, browser, monkeypatch):
    page = open_with_camera(browser, app)
    use_camera(page)
    calibration = type(app.server.studio.live.predictor.calibration)
    monkeypatch.setattr(calibration, "is_measured", property(lambda self: False))
    show_picture(page, part(1, 26))
    expect(page.locator("#unmeasured")).to_contain_text("It says how sure it is once it has about 20")
    expect(page.locator("#answer .teach-sure")).to_have_text("")
    monkeypatch.setattr(calibration, "is_measured", property(lambda self: True))
    show_picture(page, part(1, 28))
    expect(page.locator("#answer .teach-sure")).to_have_text(re.compile(r"\d+ %"))
    monkeypatch.setattr(calibration, "unknown", lambda self, similarity: np.ones(len(similarity), bool))
    show_picture(page, part(2, 26))
    expect(page.locator("#answer .teach-name")).to_have_text("unknown")
    expect(page.locator("#answer .teach-sure")).to_have_text("")
    expect(page.locator(".answer-bar")).to_have_count(0)
    monkeypatch.undo()
    page.locator("summary", has_text="When is something unknown?").click()
    expect(page.locator("#unknown-effect")).to_have_text(
        re.compile(r"about 20 different pictures|Of the last \d+ pictures? it would call \d+ unknown")
    )
    page.locator("#unknown-share").fill("12")
    expect(page.locator("#message")).to_contain_text("12 in 100 known pictures may be called unknown")
    assert app.server.studio.workspace.settings.unknown_share == 0.12

    page.keyboard.press("x")
    expect(page.locator("#message")).to_contain_text("none of these saved")
    expect(page.locator(".class-button", has_text="none of these")).to_be_visible()


def test_a_phone_keeps_the_picture_in_view_and_names_no_keys(app, browser):
    names = ["كوب", "कप", "\U0001f469‍\U0001f469‍\U0001f467", *(f"part {number}" for number in range(60))]
    for name in names:
        app.server.studio.create_class(name)
    page = open_with_camera(browser, app, viewport={"width": 390, "height": 844}, has_touch=True)
    expect(page.locator(".class-card")).to_have_count(len(labels_of(app)))
    for name in names[:3]:
        expect(page.locator(".class-name", has_text=name)).to_have_text(name)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    boxes = [page.locator(".class-card").nth(number).bounding_box() for number in range(3)]
    assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"], "two columns"
    page.locator(".class-card").nth(40).scroll_into_view_if_needed()
    for part_of_page in ("#screen", "#new-class-open"):
        box = page.locator(part_of_page).bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= 844, part_of_page
    expect(page.locator("#new-class-open kbd")).to_be_hidden()
    assert "press" not in page.locator("#teach").inner_text()


def test_a_workspace_that_is_deleted_under_the_page_is_told_and_ends_nothing(tmp_path, browser):
    with running(tmp_path / "workspace") as app:
        page = open_page(browser, app)
        make_class(page, "mug")
        while app.workspace.exists():  # the learner may just be writing there
            shutil.rmtree(app.workspace, ignore_errors=True)
        page.keyboard.press("1")
        expect(page.locator("#message")).to_contain_text("⚠")
        expect(page.locator("#message")).not_to_contain_text("something went wrong")
        expect(page.locator("#problems")).not_to_be_empty()
        expect(page.locator("#strip .phase")).to_be_visible()
