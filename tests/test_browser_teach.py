"""Teaching as a person does it: in a real browser, with its camera and its keys."""

import json
import re
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from browser_parts import (
    App,
    OwnServer,
    chromium,
    film_of,
    go_to,
    open_page,
    photos,
    running,
    running_alone,
    wait_for,
)
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, expect

from app.security import Credentials
from edge_hpcr.live import health

pytestmark = pytest.mark.browser

TABS = ("Teach", "Review", "Accuracy", "Memory", "Classes", "Models", "Benchmarks", "Settings")


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("films")
    return {name: film_of(image, folder / f"{name}.mjpeg") for name, image in photos().items()}


@pytest.fixture(scope="module")
def shared_app(tmp_path_factory):
    """One app for the tests that make classes of their own, and disturb nobody else's."""
    with running(tmp_path_factory.mktemp("shared") / "workspace") as app:
        yield app


def state_of(app: App | OwnServer) -> dict:
    request = urllib.request.Request(
        f"{app.address}/edge/state", headers={"Authorization": f"Bearer {app.token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def labels_of(app: App | OwnServer) -> dict[str, int]:
    with app.look() as workspace:
        return {row.name: row.labels for row in workspace.journal.classes()}


def make_class(page: Page, name: str) -> None:
    """Of a frame that has no label yet."""
    next_frame(page)
    page.keyboard.press("n")
    page.locator("#new-class-name").fill(name)
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_contain_text(f"{name} saved")
    expect(page.locator("#new-class")).to_be_hidden()


def open_other_source(page: Page) -> None:
    if not page.locator("#source-pictures").is_visible():
        page.click("#source-change")
    page.click("#source-pictures")
    page.locator("summary", has_text="Another source").click()


def next_frame(page: Page) -> None:
    screen = page.locator("#screen")
    expect(screen).to_have_attribute("data-shown", re.compile("[0-9]+"))
    expect(screen).not_to_have_attribute("data-shown", screen.get_attribute("data-shown"))


def test_two_classes_taught_from_the_camera_are_told_apart(tmp_path, films):
    with running(tmp_path / "workspace", source="") as app:
        for name, film in films.items():
            with chromium(film) as browser:
                page = open_page(browser, app)
                if labels_of(app):  # the page of before has the camera
                    page.click("#source-change")
                page.click("#source-browser")
                expect(page.locator("#preview")).to_be_visible()
                make_class(page, name)
                key = str(len(labels_of(app)))
                for count in range(2, 8):
                    next_frame(page)
                    page.keyboard.press(key)
                    wait_for(
                        lambda name=name, count=count: labels_of(app)[name] == count,
                        f"{count} labels of {name}",
                    )
                    expect(page.locator("#lesson")).to_contain_text(re.compile("learned in|measured with it"))
                if name == "flower":
                    page.keyboard.down("b")  # for as long as a burst can be
                    wait_for(lambda: labels_of(app)["flower"] > 7, "the burst's end")
                    page.keyboard.up("b")
                    expect(page.locator("#message")).to_contain_text("flower saved · ")
                    assert labels_of(app)["flower"] > 7 + 1, "more than one of its frames"
                    page.keyboard.press("u")
                    expect(page.locator("#message")).to_contain_text(re.compile("undone: .* labelled"))
                expect(page.locator("#answer .teach-name")).to_have_text(name)
        with chromium(films["temple"]) as browser:  # the first one, after the second was learned
            page = open_page(browser, app)
            page.click("#source-change")
            page.click("#source-browser")
            expect(page.locator("#preview")).to_be_visible()
            expect(page.locator("#answer .teach-name")).to_have_text("temple")
        labels = labels_of(app)
        assert labels.keys() == films.keys()
        assert set(labels.values()) == {7}
        with app.look() as workspace:
            rows = workspace.journal.samples(state="labelled")
            assert all(workspace.image(row.id).shape == (240, 320, 3) for row in rows)
            assert {row.origin for row in rows} == {"browser camera"}


def test_of_two_cameras_the_chosen_one_is_used_also_after_a_reload(tmp_path):
    """By its name: this browser, like others in private windows, gives its cameras new ids at every load."""
    used = "document.querySelector('#preview')?.srcObject?.getVideoTracks()[0].label"
    with running(tmp_path / "workspace", source="") as app, chromium(cameras=2) as browser:
        page = open_page(browser, app)
        page.click("#source-browser")
        picker = page.locator("#camera-choice")
        expect(picker).to_be_visible()
        expect(picker.locator("option")).to_have_count(2)
        shown = picker.locator("option:checked")
        before = page.evaluate(used)
        expect(shown).to_have_text(before)
        (other,) = set(picker.locator("option").all_text_contents()) - {before}
        picker.select_option(label=other)
        page.wait_for_function(f"{used} === '{other}'")
        next_frame(page)
        page.reload()
        page.wait_for_function(f"{used} === '{other}'")
        expect(shown).to_have_text(other)
        next_frame(page)


def test_a_camera_that_vanishes_is_told_and_another_source_goes_on(tmp_path, films):
    with running(tmp_path / "workspace", source="") as app, chromium(films["temple"]) as browser:
        context = browser.new_context()
        # The page's own way to its camera, and a copy of what it got: nobody can pull a cable here.
        context.add_init_script(
            "const given = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);"
            "navigator.mediaDevices.getUserMedia = async (wish) => (window.cameraOfTheTest = await given(wish));"
        )
        page = context.new_page()
        page.goto(app.link)
        page.click("#source-browser")
        expect(page.locator("#source-state")).to_contain_text("browser camera: live", timeout=40_000)
        make_class(page, "temple")
        page.evaluate("window.cameraOfTheTest.getVideoTracks()[0].dispatchEvent(new Event('ended'))")
        expect(page.locator("#message")).to_contain_text("the camera has gone: plug it in")
        expect(page.locator("#source-state")).to_contain_text(
            re.compile("stalled|waiting|no frame"), timeout=40_000
        )
        app.server.studio.use_source("workbench")
        expect(page.locator("#source-state")).to_contain_text("workbench: live", timeout=40_000)
        assert labels_of(app) == {"temple": 1}


def test_an_empty_workspace_asks_where_pictures_come_from_and_nothing_runs(tmp_path, browser):
    with running(tmp_path / "workspace", source="") as app:
        page = open_page(browser, app)
        for choice in ("Camera", "Pictures", "Try the demonstration"):
            expect(page.locator(".source-choice", has_text=choice).locator("svg")).to_be_visible()
        expect(page.locator("#guide")).to_have_text("Choose where the pictures come from.")
        expect(page.locator("#new-class-open")).to_be_hidden()
        page.wait_for_timeout(1000)
        state = state_of(app)
        assert (state["source"]["phase"], state["frame"], state["queue"]) == ("closed", None, 0)
        app.server.studio.use_source("workbench")  # as somebody may who wants to keep it
        expect(page.locator("#empty")).to_have_text(
            "Show something to the camera, press n, and give it a name."
        )


def test_the_demonstration_leaves_no_trace_and_one_click_leads_back(tmp_path, browser):
    with running(tmp_path / "workspace", source="") as app:
        own = app.server.studio.journal
        before = own.last_seq, sorted(path.name for path in app.workspace.rglob("*"))
        page = open_page(browser, app)
        page.click("#source-demonstration")
        expect(page.locator("#room")).to_contain_text("nothing of it stays")
        for tab in ("Models", "Benchmarks", "Settings"):
            expect(page.get_by_role("tab", name=tab)).to_be_hidden()
        make_class(page, "cog")
        make_class(page, "nut")
        demonstration = app.server.studio.workspace.path
        assert demonstration != app.workspace and labels_of(app) == {}
        # Who still shows the other room is refused: class 1 would be another one there.
        stale = page.request.post(f"{app.address}/edge/act?room=own", data={"do": "delete_class", "class": 1})
        assert stale.status == 400 and "look again" in stale.json()["error"]
        page.click("#leave-demonstration")
        expect(page.locator("#choices")).to_be_visible()
        expect(page.locator("#room")).to_be_hidden()
        expect(page.locator(".class-button")).to_have_count(0)
        assert not demonstration.exists()
        names = sorted(path.name for path in app.workspace.rglob("*"))
        assert (own.last_seq, names) == before and own.counts().images == 0


def test_keys_label_hold_burst_and_undo(tmp_path, browser):
    with running(tmp_path / "workspace") as app:
        page = open_page(browser, app)
        expect(page.locator("#frame")).to_be_visible()
        page.keyboard.press("1")
        expect(page.locator("#message")).to_contain_text("there is no class 1 yet")
        make_class(page, "one")
        make_class(page, "two")
        next_frame(page)
        page.keyboard.press("1")
        expect(page.locator("#message")).to_have_text(re.compile("✓ one saved"))
        assert labels_of(app) == {"one": 2, "two": 1}

        page.keyboard.press("u")
        expect(page.locator("#message")).to_contain_text(re.compile("undone: .* labelled"))
        assert labels_of(app) == {"one": 1, "two": 1}
        page.keyboard.press("r")
        expect(page.locator("#message")).to_contain_text("done again")
        assert labels_of(app) == {"one": 2, "two": 1}

        next_frame(page)
        page.keyboard.press(" ")
        expect(page.locator("#held")).to_be_visible()
        number = page.locator("#frame").get_attribute("data-number")
        page.wait_for_timeout(2500)
        assert page.locator("#frame").get_attribute("data-number") == number
        page.keyboard.press("2")
        expect(page.locator("#held")).to_be_hidden()
        wait_for(lambda: labels_of(app) == {"one": 2, "two": 2}, "the label of the held picture")

        page.keyboard.down("b")
        expect(page.locator("#message")).to_contain_text(re.compile(r"burst: ([3-9]|\d\d) frames"))
        page.keyboard.up("b")
        expect(page.locator("#message")).to_contain_text("two saved")
        burst = labels_of(app)["two"] - 2
        assert burst >= 2  # the first of the three may be the frame that 2 has labelled
        page.keyboard.press("u")  # a burst is one action
        expect(page.locator("#message")).to_contain_text("undone")
        assert labels_of(app) == {"one": 2, "two": 2}

        page.locator(".class-button").first.click()  # by mouse; then Space still holds, and labels nothing
        expect(page.locator("#message")).to_contain_text("✓ one saved")
        before = labels_of(app)
        page.keyboard.press(" ")
        expect(page.locator("#held")).to_be_visible()
        assert labels_of(app) == before
        page.keyboard.press("n")  # and Escape: the picture is held as before
        page.keyboard.press("Escape")
        expect(page.locator("#new-class")).to_be_hidden()
        page.wait_for_timeout(1500)
        expect(page.locator("#held")).to_be_visible()
        page.keyboard.press(" ")
        expect(page.locator("#held")).to_be_hidden()

        page.locator("#burst").focus()  # a burst by the keyboard's other way
        page.keyboard.down("Enter")
        expect(page.locator("#message")).to_contain_text(re.compile(r"burst: ([2-9]|\d\d) frames"))
        page.keyboard.up("Enter")
        expect(page.locator("#message")).to_contain_text("one saved")
        assert labels_of(app)["one"] > before["one"]

        page.keyboard.press("?")
        expect(page.locator("#key-help")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#key-help")).to_be_hidden()


def test_keys_typed_into_a_field_label_nothing(shared_app, browser):
    page = open_page(browser, shared_app)
    before = labels_of(shared_app)
    open_other_source(page)
    page.locator("#source-text").press_sequentially("1n u2b?")
    page.wait_for_timeout(500)
    assert labels_of(shared_app) == before
    expect(page.locator("#new-class")).to_be_hidden()
    page.locator("#source-labels").focus()
    page.keyboard.press(" ")
    expect(page.locator("#source-labels")).to_be_checked()
    assert not shared_app.server.studio.feeder.held


def test_a_problem_is_shown_until_somebody_has_read_it(shared_app, browser):
    page = open_page(browser, shared_app)
    for problem in ("the roof leaks", "the door is open"):
        shared_app.server.studio.live.report(problem)
    expect(page.locator("#problems")).to_contain_text("the door is open")
    page.locator("#clear-problem").click()
    expect(page.locator("#problems")).to_contain_text("the roof leaks")
    page.locator("#clear-problem").click()
    expect(page.locator("#problems")).to_be_empty()
    assert not shared_app.server.studio.live.problems


def test_an_alarm_comes_before_what_happened_once_and_stays_until_it_is_over(
    shared_app, browser, monkeypatch
):
    page = open_page(browser, shared_app)
    shared_app.server.studio.live.report("the roof leaks")
    monkeypatch.setattr(health, "NEARLY_FULL", 10**18)
    expect(page.locator("#problems")).to_contain_text("make room")
    expect(page.locator("#clear-problem")).to_have_count(0)
    monkeypatch.undo()
    expect(page.locator("#problems")).to_contain_text("the roof leaks")
    page.locator("#clear-problem").click()
    expect(page.locator("#problems")).to_be_empty()


def test_rapid_key_presses_are_all_kept(tmp_path, browser):
    with running(tmp_path / "workspace") as app:
        page = open_page(browser, app)
        make_class(page, "a")
        make_class(page, "b")
        next_frame(page)
        before = state_of(app)["seq"]
        for key in "1212121":  # of the same frame, as a rule: a label and its corrections, none lost
            page.keyboard.press(key)
        wait_for(lambda: state_of(app)["seq"] == before + 7, "seven key presses")
        expect(page.locator("#message")).to_contain_text("a saved")
        with app.look() as workspace:
            last = max(workspace.journal.samples(state="labelled"), key=lambda row: row.labelled_seq)
            assert last.class_id == workspace.journal.class_id("a")


def test_two_pages_stay_in_step(tmp_path, browser):
    with running(tmp_path / "workspace") as app:
        first, second = (
            open_page(browser, app),
            open_page(browser, app),
        )
        make_class(first, "mug")
        expect(second.locator(".class-button")).to_have_text("1mug1")
        next_frame(second)
        second.keyboard.press("1")
        expect(first.locator(".class-button")).to_have_text("1mug2")
        first.keyboard.press("u")
        expect(second.locator(".class-button")).to_have_text("1mug1")
        # The opposite at the same moment: both are done, one after the other, and both pages agree.
        make_class(second, "cup")
        for page in (first, second):
            expect(page.locator(".class-button")).to_have_count(2)
        first.keyboard.press("1")
        second.keyboard.press("2")
        expect(first.locator("#message")).to_contain_text(re.compile("mug"))
        expect(second.locator("#message")).to_contain_text(re.compile("cup"))
        wait_for(
            lambda: (
                first.locator("#class-buttons").inner_text() == second.locator("#class-buttons").inner_text()
            ),
            "two pages that agree",
        )


def test_pulling_the_plug_loses_no_label(tmp_path, browser):
    workspace = tmp_path / "workspace"
    with running_alone(workspace, source="workbench:1") as app:
        page = open_page(browser, app)
        make_class(page, "kept")
        next_frame(page)
        page.keyboard.press("1")
        wait_for(lambda: labels_of(app) == {"kept": 2}, "the second label")
        go_to(page, "Settings")
        page.locator("#settings-learning button").first.click()  # it is folded
        page.locator("#settings-micro-batch input").first.fill("7")
        page.locator("#settings-save").click()
        expect(page.locator("#settings-message")).to_contain_text("Saved: Labels learned in one step 7")
        app.kill()
    expect(page.locator("#strip")).to_contain_text("does not answer")
    with running(workspace) as again:
        page = open_page(browser, again)
        expect(page.locator(".class-button")).to_have_text("1kept2")
        expect(page.locator("#strip")).to_contain_text("2 labels")
        assert labels_of(again) == {"kept": 2}
        go_to(page, "Settings")
        page.locator("#settings-learning button").first.click()
        expect(page.locator("#settings-micro-batch input").first).to_have_value("7")


def test_odd_class_names_are_shown_as_they_are(shared_app, browser):
    page = open_page(browser, shared_app)
    page.on("dialog", lambda dialog: pytest.fail("a class's name was run as a script"))
    family, books = "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627"
    for name in ("<img src=x onerror=alert(1)><b>bold</b>", f"{family} {books}", "x" * 100):
        make_class(page, name)
        expect(page.locator(".class-button .class-name", has_text=name)).to_have_text(name)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert name in labels_of(shared_app)


def test_a_name_that_is_too_long_or_empty_is_refused_with_a_sentence(shared_app, browser):
    page = open_page(browser, shared_app)
    before = labels_of(shared_app)
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_contain_text("an empty class name: give the class a name")
    # The field itself stops at 100 characters; somebody else's page may not.
    answer = page.request.post(
        f"{shared_app.address}/edge/act", data={"do": "new_class", "name": "x" * 300, "frames": []}
    )
    assert answer.status == 400
    assert "has 300 characters" in answer.json()["error"]
    assert labels_of(shared_app) == before


def test_a_camera_that_is_refused_is_explained(shared_app, browser):
    # without a faked camera, and without the right to use one
    page = open_page(browser, shared_app)
    page.click("#source-change")
    page.click("#source-browser")
    expect(page.locator("#message")).to_contain_text(re.compile("did not allow the camera|finds no camera"))
    assert state_of(shared_app)["source"]["name"] == "workbench"


def test_a_bad_source_is_refused_and_the_present_one_goes_on(shared_app, browser):
    page = open_page(browser, shared_app)
    open_other_source(page)
    page.locator("#source-text").fill("/no/such/folder")
    page.click("#source-use")
    expect(page.locator("#message")).to_contain_text("there is no source '/no/such/folder'")
    assert state_of(shared_app)["source"]["phase"] == "live"


def test_a_folder_as_the_source(tmp_path, browser):
    import cv2

    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, image in photos().items():
        cv2.imwrite(str(folder / f"{name}.jpg"), image[..., ::-1])
    with running(tmp_path / "workspace") as app:
        page = open_page(browser, app)
        open_other_source(page)
        page.locator("#source-text").fill(str(folder))
        page.click("#source-use")
        expect(page.locator("#source-state")).to_contain_text("it has shown everything")
        page.keyboard.press("n")
        page.locator("#new-class-name").fill("photo")
        page.keyboard.press("Enter")
        expect(page.locator("#message")).to_contain_text("photo saved")
        with app.look() as workspace:
            (row,) = workspace.journal.samples(state="labelled")
            assert row.origin.startswith(str(folder))


def test_nothing_leaves_this_host(tmp_path, browser):
    # A proxy that is not there: whoever asked it would fail, and so would the start.
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    with running_alone(tmp_path / "workspace", environment=nowhere) as app:
        page = open_page(browser, app)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        for tab in TABS:
            go_to(page, tab)
            page.wait_for_timeout(700)
        assert any("/edge/state" in url for url in asked)
        assert [url for url in asked if not url.startswith((app.address, "data:", "blob:"))] == []
        # And the server itself talks to nobody else.
        connections = psutil.Process(app.process.pid).net_connections(kind="inet")
        others = [c.raddr.ip for c in connections if c.raddr and c.raddr.ip not in ("127.0.0.1", "::1")]
        assert others == []


def test_a_password_is_asked_for(tmp_path, browser):
    with running(tmp_path / "workspace", credentials=Credentials("anna", "correct horse")) as app:
        wrong = browser.new_context(http_credentials={"username": "anna", "password": "wrong password"})
        page = wrong.new_page()
        with suppress(PlaywrightError):  # Chromium shows the server's refusal, or an error of its own
            page.goto(app.address)
        assert page.locator("#strip").count() == 0
        assert wrong.request.get(f"{app.address}/edge/state").status == 401
        page = open_page(browser, app, http_credentials={"username": "anna", "password": "correct horse"})
        make_class(page, "mug")
        assert labels_of(app) == {"mug": 1}
