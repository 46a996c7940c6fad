"""Teaching on the page: the first minute, the keys, taking back, the history, the demonstration, and a pulled plug."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from journeys.parts import (
    App,
    go_to,
    hold_up,
    make_class,
    open_page,
    running_app,
    tap,
    use_camera,
    views,
    wait_for,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """A new workspace; the tests after the first go on with what it taught."""
    with running_app(tmp_path_factory.mktemp("teach") / "workspace") as app:
        yield app


def open_with_camera(browser: Browser, app: App) -> Page:
    page = open_page(browser, app)
    use_camera(page)
    return page


def test_three_things_are_taught_by_keys_and_known_in_views_never_shown(app, browser):
    page = open_page(browser, app)
    for choice in ("Camera", "Pictures", "demonstration"):
        expect(page.locator(".source-choice", has_text=choice)).to_be_visible()
    expect(page.locator("#new-class-open")).to_be_hidden()
    use_camera(page)
    for key, name in enumerate(("temple", "flower", "stripes"), 1):
        for number, view in enumerate(views(name, 3)):
            hold_up(page, view)
            if number == 0:
                make_class(page, name)
            else:
                tap(page, str(key))
                wait_for(lambda name=name, count=number + 1: app.labels()[name] == count, "the label")
    assert app.labels() == {"temple": 3, "flower": 3, "stripes": 3}
    for name in ("flower", "temple", "stripes"):
        hold_up(page, views(name, 1, seed=1)[0])
        expect(page.locator("#answer .teach-name")).to_have_text(name)
    expect(page.locator("#strip")).to_contain_text("9 labels")
    expect(page.locator("#verdict")).to_contain_text("Too few to tell")


def test_keys_label_take_back_do_again_and_a_burst_is_one_action(app, browser):
    page, before = open_with_camera(browser, app), app.labels()
    hold_up(page, views("temple", 1, seed=2)[0])
    tap(page, "1")
    expect(page.locator("#message")).to_contain_text("temple saved")
    assert app.labels() == {**before, "temple": before["temple"] + 1}
    page.keyboard.press("u")
    expect(page.locator("#message")).to_contain_text("undone")
    assert app.labels() == before
    page.keyboard.press("r")
    expect(page.locator("#message")).to_contain_text("done again")
    page.keyboard.press(" ")
    expect(page.locator("#held")).to_be_visible()
    hold_up(page, views("flower", 1, seed=3)[0])
    tap(page, "2")  # of the picture that was held
    expect(page.locator("#held")).to_be_hidden()
    expect(page.locator("#message")).to_contain_text("flower")
    after = app.labels()
    page.keyboard.down("2")
    expect(page.locator("#message")).to_contain_text(re.compile(r"([3-9]|\d\d) pictures of flower"))
    page.keyboard.up("2")
    expect(page.locator("#message")).to_contain_text("flower saved")
    assert app.labels()["flower"] >= after["flower"] + 2
    page.keyboard.press("u")
    expect(page.locator("#message")).to_contain_text("undone")
    assert app.labels() == after
    page.keyboard.press("?")
    expect(page.locator("#key-help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#key-help")).to_be_hidden()


def test_the_history_takes_back_what_came_after_a_line(app, browser):
    page, before = open_with_camera(browser, app), app.labels()
    for seed, key in ((4, "1"), (5, "2"), (6, "3")):
        name = ("temple", "flower", "stripes")[int(key) - 1]
        hold_up(page, views(name, 1, seed=seed)[0])
        tap(page, key)
        expect(page.locator("#message")).to_contain_text(f"{name} saved")
    assert sum(app.labels().values()) == sum(before.values()) + 3
    page.locator("#teach .history-open").click()
    expect(page.locator("#history li .history-text").first).to_contain_text("stripes")
    page.locator("#history li").nth(2).locator("button").click()  # what came after the first of the three
    expect(page.locator("#message")).to_contain_text("undone: 2 actions")
    assert app.labels() == {**before, "temple": before["temple"] + 1}
    for _ in range(2):
        page.keyboard.press("r")
        expect(page.locator("#message")).to_contain_text("done again")
    wait_for(lambda: sum(app.labels().values()) == sum(before.values()) + 3, "all three again")


def test_two_pages_show_the_same(app, browser):
    first, second = open_with_camera(browser, app), open_page(browser, app)
    hold_up(first, views("temple", 1, seed=7)[0])
    count = app.labels()["temple"]
    tap(first, "1")
    expect(second.locator(".class-button", has_text="temple")).to_contain_text(str(count + 1))
    second.keyboard.press("u")
    expect(first.locator(".class-button", has_text="temple")).to_contain_text(str(count))


def test_the_demonstration_leaves_no_trace(tmp_path, browser):
    with running_app(tmp_path / "workspace") as app:
        before = sorted(path.name for path in app.workspace.rglob("*")), app.state()["seq"]
        page = open_page(browser, app)
        page.click("#source-demonstration")
        expect(page.locator("#room")).to_contain_text("Nothing is saved")
        make_class(page, "cog")
        expect(page.locator(".class-button")).to_have_count(1)
        assert app.labels() == {}
        page.click("#leave-demonstration")
        expect(page.locator("#choices")).to_be_visible()
        expect(page.locator(".class-button")).to_have_count(0)
        assert (sorted(path.name for path in app.workspace.rglob("*")), app.state()["seq"]) == before


def test_after_a_reload_and_a_kill_everything_is_there(app, browser):
    """The last one here: it kills the app."""
    page, labels = open_with_camera(browser, app), app.labels()
    page.reload()
    expect(page.locator("#strip")).to_contain_text(f"{sum(labels.values())} labels")
    expect(page.locator("#preview")).to_be_visible()  # the camera comes back by itself
    expect(page.locator(".class-button")).to_have_count(3)
    app.process.kill()
    app.process.wait()
    expect(page.locator("#strip")).to_contain_text("does not answer")
    with running_app(app.workspace) as again:
        page = open_page(browser, again)
        expect(page.locator("#strip")).to_contain_text(f"{sum(labels.values())} labels")
        go_to(page, "Classes")
        expect(page.locator("#classes-table tbody tr")).to_have_count(3)
        assert again.labels() == labels
