"""The history, the order of classes, and what else goes beyond teaching, in a real browser."""

import re
import threading

import numpy as np
import pytest
from browser_parts import go_to, open_page, photos, running, wait_for
from playwright.sync_api import expect
from test_browser_tabs import labels_of, upload, zip_of
from test_data_download import mnist_images, site  # noqa: F401
from test_data_fetch import small_mnist  # noqa: F401
from workspace_parts import SMALL

from app.arrangement import OWN_KEYS, arranged, chosen_keys
from app.feeder import encoded
from app.routes import SCRIPTS
from edge_hpcr.bench import datasets
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.verify import verify_workspace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def one_app(tmp_path_factory):
    path = tmp_path_factory.mktemp("beyond") / "parts"
    with Workspace.open(path) as workspace:
        workspace.change_settings(source="browser", idle_share=0.0, **SMALL)
    with running(path) as app:
        yield app


@pytest.fixture
def app(one_app):
    """Three classes with a label each, and nothing before or after them."""
    workspace = one_app.server.studio.workspace
    journal = workspace.journal
    for row in journal.classes():
        journal.delete_class(row.id)
    workspace.change_settings(class_order="", class_keys="")
    one_app.classes = [journal.create_class(name) for name in ("bolt", "nut", "washer")]
    for number, class_id in enumerate(one_app.classes):
        sample = workspace.take(np.full((8, 8, 3), 60 * number, np.uint8), "bench")
        journal.label([sample], class_id)
    return one_app


def import_photos(page):
    pictures = {f"{name}/1.jpg": encoded(image)[0] for name, image in photos().items()}
    upload(page, zip_of(pictures), "photos.zip")
    page.locator("#import-take").click()
    expect(page.locator("#transfer-text")).to_contain_text("2 samples labelled, 2 new classes")


def test_one_click_in_the_history_takes_back_everything_after_it_and_redo_brings_it_back(app, browser):
    page = open_page(browser, app, "Review")
    import_photos(page)
    assert labels_of(app) == {"bolt": 1, "nut": 1, "washer": 1, "flower": 1, "temple": 1}
    page.keyboard.press("u")
    expect(page.locator("#review-message")).to_have_text("undone: import of 2 pictures")
    assert labels_of(app) == {"bolt": 1, "nut": 1, "washer": 1}
    page.keyboard.press("r")
    expect(page.locator("#review-message")).to_have_text("done again: import of 2 pictures")
    assert labels_of(app)["temple"] == 1
    go_to(page, "Teach")
    page.locator("#teach .history-open").click()
    lines = page.locator("#history li .history-text")
    assert lines.all_text_contents()[:4] == [
        "import of 2 pictures, with 2 new classes",
        "1 picture labelled washer",
        "1 picture labelled nut",
        "1 picture labelled bolt",
    ]
    expect(page.locator("#history li").first.locator("button")).to_have_count(0)  # nothing comes after it
    page.locator("#history li").nth(3).locator("button").click()
    expect(page.locator("#history")).to_have_count(0)
    expect(page.locator("#message")).to_have_text("✓ undone: 3 actions")
    assert labels_of(app) == {"bolt": 1, "nut": 0, "washer": 0}
    page.keyboard.press("r")
    expect(page.locator("#message")).to_have_text("✓ done again: 1 picture labelled nut")
    go_to(page, "Classes")
    page.locator("#classes .history-open").click()
    expect(page.locator("#history li.undone")).to_have_count(2)
    # Somebody acts while the list is open: their work is not taken back unseen.
    app.server.studio.redo()
    page.locator("#history li").nth(3).locator("button").click()
    expect(page.locator("#classes-message")).to_contain_text("something was done or undone meanwhile")
    assert labels_of(app) == {"bolt": 1, "nut": 1, "washer": 1}


def set_field(page, row, name, value):
    field = page.locator(f"#classes tbody tr[data-class='{row}'] .classes-{name}")
    field.fill(value)
    field.press("Tab")


def test_what_is_typed_while_the_last_answer_is_on_its_way_stays(app, browser):
    bolt = app.classes[0]
    page = open_page(browser, app, "Classes")
    on_its_way = []
    page.route("**/edge/act*", lambda route: on_its_way.append(route))
    with page.expect_request("**/edge/act*"):
        set_field(page, bolt, "key", "-")
    field = page.locator(f"#classes tbody tr[data-class='{bolt}'] .classes-key")
    field.fill("k")
    on_its_way[0].continue_()
    page.unroute("**/edge/act*")
    expect(page.locator("#classes-message")).to_contain_text("key '-': give one small letter")
    expect(field).to_have_value("k")
    field.press("Tab")
    expect(page.locator("#classes-message")).to_have_text("bolt has the key k")


def test_classes_are_put_in_order_and_given_keys_which_every_tab_follows_and_a_restart_keeps(app, browser):
    bolt, nut, washer = app.classes
    page = open_page(browser, app, "Classes")
    colours = [row["colour"] for row in app.server.studio.state()["classes"]]
    names = page.locator("#classes tbody .classes-name")
    set_field(page, washer, "place", "1")
    expect(page.locator("#classes-message")).to_have_text("washer moved")
    expect(names.first).to_have_value("washer")
    assert [each.input_value() for each in names.all()] == ["washer", "bolt", "nut"]
    set_field(page, nut, "key", "m")
    expect(page.locator("#classes-message")).to_have_text("nut has the key m")
    for key, problem in (
        ("u", "does something else on this page"),
        ("M", "key 'M': give one small letter"),
        ("-", "key '-': give one small letter"),
    ):
        set_field(page, bolt, "key", key)
        expect(page.locator("#classes-message")).to_contain_text(problem)
    set_field(page, bolt, "key", "m")
    expect(page.locator("#classes-message")).to_contain_text("key 'm' is that of nut")
    keys = page.locator("#classes tbody .classes-key")
    assert [each.input_value() for each in keys.all()] == ["1", "2", "m"]

    go_to(page, "Teach")
    cards = page.locator("#class-buttons .class-button")
    expect(cards).to_have_text(["1washer1", "2bolt1", "mnut1"])
    assert colours == [row["colour"] for row in app.server.studio.state()["classes"]], (
        "which go with the class"
    )
    sample = app.server.studio.workspace.take(np.full((8, 8, 3), 9, np.uint8), "bench")
    go_to(page, "Review")
    expect(page.locator("#review-classes button")).to_have_text(["1washer", "2bolt", "mnut"])
    page.locator(f'.review-cell[data-sample="{sample}"] .review-face').focus()
    page.keyboard.press("m")
    expect(page.locator("#review-message")).to_have_text("1 labelled nut")
    assert app.server.studio.journal.sample(sample).class_id == nut

    # Who opens the workspace anew finds the same, and what programs rely on stays in the order of age.
    with app.look() as workspace:
        assert arranged(app.classes, workspace.settings.class_order) == [washer, bolt, nut]
        assert chosen_keys(workspace.settings.class_keys) == {nut: "m"}
        assert [row.id for row in workspace.journal.classes()] == [bolt, nut, washer]


def test_no_key_of_the_page_itself_can_be_chosen_for_a_class():
    scripts = "".join(path.read_text() for path in SCRIPTS.values() if path.suffix == ".js")
    pressed = {*re.findall(r'event\.key === "([a-z])"', scripts), *re.findall(r"\b([a-z]): \(\) =>", scripts)}
    assert {"u", "r", "n", "b"} < pressed <= {*OWN_KEYS}


@pytest.mark.usefixtures("small_mnist")
def test_a_benchmarks_data_are_got_by_a_button_with_progress_and_cancelled(
    app, browser, request, monkeypatch, tmp_path
):
    offered = request.getfixturevalue("site")
    monkeypatch.setenv("EDGE_HPCR_DATA", str(tmp_path))
    page = open_page(browser, app, "Benchmarks")
    expect(page.locator("#benchmarks-get")).to_be_hidden()  # the digits are built in
    page.locator("#benchmarks-dataset input").click()
    page.get_by_role("option", name="mnist", exact=True).click()
    expect(page.locator("#benchmarks-note")).to_contain_text("mnist is not in")
    page.locator("#benchmarks-get-folder textarea, #benchmarks-get-folder input").fill(
        str(tmp_path / "nowhere")
    )
    page.locator("#benchmarks-get").click()
    progress = page.locator("#benchmarks-get-progress p")
    expect(progress).to_have_text(f"⚠ mnist: {tmp_path / 'nowhere'}: no such folder")
    page.locator("#benchmarks-get-folder textarea, #benchmarks-get-folder input").fill("")

    offered.silent = threading.Event()
    page.locator("#benchmarks-get").click()
    expect(progress.locator("progress")).to_be_visible()
    wait_for(lambda: offered.asked, "the first request", 300)
    page.locator("#benchmarks-get-cancel").click()
    expect(progress).to_contain_text("cancelled; whole files are kept")
    assert not datasets.is_here("mnist")
    expect(page.locator("#benchmarks-get")).to_be_visible()


def test_another_workspace_is_made_and_opened_from_the_page_and_nothing_is_lost(app, browser):
    studio, parts = app.server.studio, app.workspace
    taught, before = labels_of(app), studio.own
    page = open_page(browser, app)
    expect(page.locator("#workspace")).to_have_text("parts")
    page.locator("#workspace").click()
    rows = page.locator("#workspaces li")
    expect(rows).to_have_text(["partsopen"])
    for name, problem in (("parts", "exists already"), ("../etc", "a name that a folder can have")):
        page.locator("#workspace-name").fill(name)
        page.locator("#workspace-new button").click()
        expect(page.locator("#workspaces-message")).to_contain_text(problem)
    with Workspace.open(
        parts.parent / "screws"
    ) as made:  # smaller than one that the page makes: it loads sooner
        made.change_settings(**SMALL)
        page.keyboard.press("Escape")
        page.locator("#workspace").click()
        page.locator("#workspaces li[data-workspace=screws] button").click()
        expect(page.locator("#workspaces-message")).to_contain_text("is in use by process")
        assert studio.own is before, "what cannot be opened changes nothing"
    page.locator("#workspaces li[data-workspace=screws] button").click()
    expect(page.locator("#workspace")).to_have_text("screws")
    expect(page.locator("#strip")).to_contain_text("0 labels")
    assert before.live.phase == "stopped"
    with Workspace.open(parts) as left:  # it is let go of, and whole
        assert {row.name: row.labels for row in left.journal.classes()} == taught
    assert not verify_workspace(parts)
    go_to(page, "Classes")
    page.locator("#classes-new-name").fill("m4")
    page.locator("#classes-create").click()
    expect(page.locator("#classes tbody .classes-name")).to_have_value("m4")
    assert [row.name for row in studio.journal.classes()] == ["m4"]

    page.locator("#workspace").click()
    page.locator("#workspaces li[data-workspace=parts] button").click()
    expect(page.locator("#workspace")).to_have_text("parts")
    expect(page.locator("#strip")).to_contain_text(f"{sum(taught.values())} labels")
    assert labels_of(app) == taught
    with Workspace.open(parts.parent / "screws", learning=False) as other:
        assert [row.name for row in other.journal.classes()] == ["m4"]
