"""Between the source and the page: no frame of a folder is lost, and labels that a folder brings are written soon."""

import threading

import cv2
import numpy as np
import pytest
from browser_parts import wait_for
from workspace_parts import SMALL

from app.__main__ import source_rules
from app.feeder import FRAMES_KEPT, RECENTLY_HELD_KEPT, Feeder
from app.studio import Studio
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import Rules
from edge_hpcr.workspace.folder import Taken, Workspace


@pytest.fixture
def feeder(tmp_path):
    with Workspace.open(tmp_path / "workspace") as workspace:
        workspace.change_settings(**SMALL)
        live = LiveLearner(workspace)
        live.start()
        feeder = Feeder(workspace, live)
        feeder.start()
        yield feeder
        feeder.stop()
        live.stop()


def pictures(folder, count, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        cv2.imwrite(str(folder / f"{number}.png"), rng.integers(0, 255, (24, 24, 3), np.uint8))


@pytest.mark.slow
def test_a_folder_waits_while_its_picture_is_held(feeder, tmp_path):
    pictures(tmp_path / "photos" / "mug", 12)
    feeder.choose(str(tmp_path / "photos"), "folders")
    for _ in range(4):
        wait_for(lambda: feeder.newest() is not None or feeder.ended, "a frame")
        feeder.hold(True)
        feeder.stopping.wait(0.3)
        feeder.hold(False)
    wait_for(lambda: feeder.ended, "the folder's end")
    assert feeder.workspace.journal.counts().labels == 12


@pytest.mark.slow
def test_the_demonstration_leaves_only_what_was_labelled(feeder):
    journal = feeder.workspace.journal
    feeder.choose("workbench:1")
    wait_for(lambda: journal.counts().queued >= 2, "two frames in the queue")
    sample = journal.queued()[0]
    journal.label([sample.id], journal.create_class("labelled"))
    feeder.choose("browser")
    assert (journal.counts().queued, journal.counts().labels) == (0, 1)
    assert feeder.workspace.image(sample.id).shape == (384, 512, 3)


@pytest.mark.slow
def test_a_few_labelled_files_of_a_watched_folder_are_labelled_soon(feeder, tmp_path):
    pictures(tmp_path / "inbox" / "cup", 3)
    feeder.choose(f"watch:{tmp_path / 'inbox'}", "folders")
    wait_for(
        lambda: feeder.workspace.journal.counts().labels == 3, "three labels, less than are written at once"
    )


@pytest.mark.slow
def test_a_held_picture_stays_however_many_frames_pass(feeder):
    feeder.choose("browser")
    camera = feeder.browser_camera

    def show() -> int:
        before = feeder._newest.number if feeder._newest else 0
        camera.push(np.full((8, 8, 3), 7, np.uint8))
        wait_for(lambda: feeder._newest is not None and feeder._newest.number > before, "a frame")
        return feeder._newest.number

    first, second = show(), show()
    feeder.hold(True, first)
    assert feeder.newest().number == first  # the one that was named, although a newer one had come
    feeder._shown.clear()
    assert feeder.shown(first).number == first
    feeder.hold(False)
    assert feeder.newest().number == second
    assert feeder.shown(first).number == first  # somebody may still be typing a name for it
    for _ in range(RECENTLY_HELD_KEPT):
        feeder.hold(True, show())
        feeder.hold(False)
    with pytest.raises(UserError, match="no longer here"):
        feeder.shown(first)
    assert FRAMES_KEPT >= 100


@pytest.mark.slow
def test_sources_that_several_people_change_while_they_are_read_double_nothing(feeder, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        for name in ("mug", "cup"):
            pictures(folder / name, 20, seed=2 * seed + (name == "cup"))
    journal = feeder.workspace.journal

    def change(person: int) -> None:
        for number in range(15):
            feeder.choose(str(folders[(person + number) % 2]), "folders")
            feeder.stopping.wait(0.003 * (person + number % 3))

    people = [threading.Thread(target=change, args=(person,)) for person in range(3)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    for folder in folders:
        feeder.choose(str(folder), "folders")
        wait_for(lambda: feeder.ended, "the folder's end")
    rows = list(journal.all_samples())
    assert [row.state for row in rows] == ["labelled"] * 80
    assert len({row.source_digest for row in rows}) == 80
    labelled = [move.sample_id for event in journal.events_after(0) for move in event.moves]
    assert sorted(labelled) == sorted(row.id for row in rows), "one label each, and no correction"


def test_a_person_may_label_the_same_picture_of_a_camera_twice(feeder):
    feeder.choose("browser")
    image = np.random.default_rng(0).integers(0, 255, (24, 24, 3), np.uint8)
    taken = [Taken(image, "browser camera")] * 2
    with feeder.workspace.taking(taken) as ids:
        feeder.workspace.journal.label(ids, feeder.workspace.journal.create_class("mug"))
    assert len(set(ids)) == 2 and feeder.workspace.journal.counts().labels == 2


@pytest.mark.slow
def test_a_remembered_source_that_is_away_is_opened_when_it_is_back(feeder, tmp_path, monkeypatch):
    monkeypatch.setattr("app.feeder.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("app.feeder.OPEN_SECONDS", 0.01)
    feeder.resume(str(tmp_path / "disk"), "none")
    wait_for(lambda: feeder.problem is not None, "the error")
    assert feeder.problem.startswith(f"there is no source '{tmp_path / 'disk'}'") and feeder.stream is None
    pictures(tmp_path / "disk", 2)
    wait_for(lambda: feeder.stream is not None and feeder.problem is None, "the source")
    assert feeder.stream.name == str(tmp_path / "disk")


@pytest.mark.slow
def test_a_remembered_source_that_hangs_keeps_nobody_waiting_and_yields_to_one_that_is_chosen(
    feeder, tmp_path, monkeypatch
):
    monkeypatch.setattr("app.feeder.OPEN_SECONDS", 0.01)
    begun, go_on, late = threading.Event(), threading.Event(), []
    pictures(tmp_path / "slow", 1)

    def open_slowly(spec, labels):
        if spec == "browser":
            return opens(spec, labels)
        begun.set()
        assert go_on.wait(60)
        late.append(opens(spec, labels))
        return late[0]

    opens = feeder._open
    monkeypatch.setattr(feeder, "_open", open_slowly)
    feeder.resume(str(tmp_path / "slow"), "none")  # returns although it hangs
    assert begun.wait(60)
    feeder.choose("browser")
    go_on.set()
    wait_for(lambda: late and late[0].state().phase == "closed", "the end of the late one")
    assert feeder.spec == "browser" and feeder.browser_camera is not None


@pytest.mark.slow
def test_a_remembered_source_that_is_refused_late_is_no_problem_of_the_chosen_one(feeder, monkeypatch):
    monkeypatch.setattr("app.feeder.OPEN_SECONDS", 0.01)
    begun, go_on, opens = threading.Event(), threading.Event(), feeder._open

    def refuse_slowly(spec, labels):
        if spec == "browser":
            return opens(spec, labels)
        begun.set()
        assert go_on.wait(60)
        raise UserError("it is gone")

    monkeypatch.setattr(feeder, "_open", refuse_slowly)
    feeder.resume("remembered", "none")
    assert begun.wait(60)
    feeder.choose("browser")
    go_on.set()
    feeder.stopping.set()  # ends its wait
    wait_for(
        lambda: not [each for each in threading.enumerate() if each.name == "remembered source"], "its end"
    )
    assert feeder.problem is None


@pytest.mark.slow
def test_a_page_chooses_and_imports_only_what_the_rules_allow(tmp_path):
    pictures(tmp_path / "allowed" / "mug", 1)
    pictures(tmp_path / "other" / "mug", 1)
    with Workspace.open(tmp_path / "workspace") as workspace:
        workspace.change_settings(**SMALL)
        studio = Studio(workspace, Rules((tmp_path / "allowed",), private=False))
        for call in (studio.use_source, studio.look_at_import):
            with pytest.raises(UserError, match=r"is not below .*allowed"):
                call(str(tmp_path / "other"))
        with pytest.raises(UserError, match="--allow-private-sources"):
            studio.use_source("http://127.0.0.1:9/x")
        studio.use_source(str(tmp_path / "allowed"))
        assert studio.feeder.stream.name == workspace.settings.source == str(tmp_path / "allowed")
        studio.feeder.leave()
        studio.transfers.stop()


@pytest.mark.slow
def test_the_demonstration_obeys_the_same_rules(tmp_path):
    pictures(tmp_path / "other" / "mug", 1)
    with Workspace.open(tmp_path / "workspace") as workspace:
        workspace.change_settings(**SMALL)
        studio = Studio(workspace, Rules((tmp_path / "allowed",), private=False))
        studio.start()
        try:
            studio.demonstrate()
            assert studio.workspace.settings.backbone == SMALL["backbone"]
            for call in (studio.use_source, studio.look_at_import):
                with pytest.raises(UserError, match=r"is not below .*allowed"):
                    call(str(tmp_path / "other"))
            shown = studio.workspace.path
            studio.demonstrate()  # by somebody else: the same one
            assert studio.workspace.path == shown
            studio.leave_demonstration()
            assert studio.workspace is workspace and not shown.exists()
        finally:
            studio.stop()


@pytest.mark.slow
def test_a_workspace_begins_without_a_source_and_goes_on_with_the_one_that_was_chosen(tmp_path):
    for source, labelled, expected in (("", 0, None), ("workbench", 0, None), ("workbench", 1, "workbench")):
        with Workspace.open(tmp_path / f"{source or 'none'}-{labelled}") as workspace:
            workspace.change_settings(**SMALL, source=source)
            if labelled:  # then somebody has worked with it
                workspace.journal.create_class("mug")
            studio = Studio(workspace)
            studio.start()
            try:
                assert (studio.feeder.stream.name if studio.feeder.stream else None) == expected
                assert studio.workspace.settings.source == source
            finally:
                studio.stop()


def test_addresses_of_this_network_are_for_pages_on_this_machine_unless_it_is_said_otherwise(tmp_path):
    assert source_rules(True, None, None) == Rules()
    assert source_rules(False, [tmp_path], None) == Rules((tmp_path,), private=False)
    assert source_rules(False, None, True).private and not source_rules(True, None, False).private


@pytest.mark.parametrize("spec", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_no_source(feeder, spec):
    with pytest.raises(UserError, match="there is no source"):
        feeder.choose(spec)


@pytest.mark.slow
def test_a_still_picture_is_asked_about_now_and_then_and_another_one_at_once(feeder, monkeypatch):
    feeder.choose("browser")
    asked, answer = [], feeder.live.answer

    def counted(frames):
        asked.append(frames[0])
        return answer(frames)

    monkeypatch.setattr(feeder.live, "answer", counted)
    monkeypatch.setattr("app.feeder.ASK_AGAIN_SECONDS", 1000.0)
    rng = np.random.default_rng(0)
    still, other = rng.integers(0, 255, (2, 24, 24, 3), np.uint8)
    for image in (still, still, still, still, other):
        before = feeder._newest.number if feeder._newest else 0
        feeder.browser_camera.push(image)
        wait_for(lambda before=before: feeder._newest and feeder._newest.number > before, "a frame")
    assert [frame.tobytes() for frame in asked] == [still.tobytes(), other.tobytes()]
    assert feeder._newest.answer is not None
