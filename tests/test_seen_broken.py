"""What people have seen broken on the pages and on the command line; each of these failed before it was mended."""

import io
import json
import os
import pty
import shlex
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from process_parts import started
from test_live_learner import PATIENCE, Bench
from workspace_parts import SMALL

from app import review
from app.published import Latencies, Latency, Publication, Version
from app.studio import Studio
from app.tabs import memory, models
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.accuracy import TestThenTrain
from edge_hpcr.workspace.folder import Workspace


@pytest.fixture
def bench(tmp_path, digits):
    made = Bench(tmp_path / "w", digits)
    yield made
    made.close()


@pytest.fixture
def studio(tmp_path):
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, memory_bytes=40_000, threads=1)
        yield Studio(workspace)


# Labels and answers -----------------------------------------------------------------------------------------------


def test_a_label_that_was_undone_and_lost_its_image_is_no_problem_after_a_restart(bench):
    bench.label(0)
    bench.learned()
    bench.close()
    bench.live = None
    with Workspace.open(bench.path) as workspace:  # meanwhile nobody learns
        sample = workspace.take(bench.digits.train_images[5], "test")
        workspace.journal.label([sample], workspace.journal.class_id("digit 0"))
        workspace.journal.undo()
        workspace.drop_queued([sample])
        with pytest.raises(UserError, match="has no image any more: it was removed from the queue"):
            workspace.image(sample)
    bench.open()
    bench.learned()
    assert list(bench.live.problems) == []


def test_a_class_whose_only_label_is_held_out_is_no_answer(bench):
    bench.label(0)
    (first,) = bench.label(1)
    bench.journal.held_out_share = 0.9
    (measured,) = bench.label(1)
    assert bench.journal.sample(measured).held_out
    learner = bench.learned()
    assert len(learner.class_ids) == 2
    bench.journal.delete_samples([first])
    assert bench.learned().class_ids == [bench.class_of(0)]
    (answer,) = bench.live.answer([bench.workspace.image(measured)])
    assert [class_id for class_id, _ in answer.top] == [bench.class_of(0)]
    bench.journal.held_out_share = 0.0
    bench.label(1)
    assert bench.learned().class_ids == [bench.class_of(0), bench.class_of(1)]


def test_labels_of_a_class_that_is_not_known_yet_are_no_test(bench):
    """After an import in order of class it said 0 % (n=200)."""
    live = bench.live
    for digit in (0, 1, 2):
        bench.label(digit, 10)
        bench.learned()
    tried = live.call(lambda: live.self_test.test_then_train).result()
    batch = live.workspace.settings.micro_batch
    assert isinstance(tried, TestThenTrain) and tried.seen.total() <= 30 - 3
    assert all(10 - batch <= tried.seen[bench.class_of(digit)] < 10 for digit in (0, 1, 2))


def test_a_workspace_that_is_deleted_under_the_page_acknowledges_no_label(studio):
    """Its files are open, and could be written; they would be gone with the program."""
    mug = studio.create_class("mug").class_id
    sample = studio.workspace.take(np.zeros((8, 8, 3), np.uint8), "test")
    path = studio.workspace.path
    shutil.move(path, path.with_name("elsewhere"))
    with pytest.raises(UserError, match="was deleted or replaced while it was in use: nothing more is saved"):
        studio.label_samples([sample], mug)
    with pytest.raises(UserError, match=r"journal .* is missing"):
        review.page(studio, {})
    state = studio.state(fresh=True)
    assert "cannot be read: No such file or directory" in state["alarms"][0], "every tab's strip says it"
    assert any("nothing more is saved" in reason for reason in studio.reasons_not_ready())
    shutil.move(path.with_name("elsewhere"), path)
    assert studio.label_samples([sample], mug).samples == 1, "the same file is back"


# The command line -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/video97").exists(), reason="there is a camera with this number")
def test_learn_says_in_full_why_a_camera_shows_nothing_however_narrow_the_terminal_is(tmp_path):
    reader, writer = pty.openpty()
    said = io.BytesIO()

    def read() -> None:
        try:
            while part := os.read(reader, 4096):
                said.write(part)
        except OSError:
            pass  # the terminal's other side is closed

    thread = threading.Thread(target=read)
    thread.start()
    os.system(f"stty cols 40 < {shlex.quote(os.ttyname(writer))}")
    command = ["-m", "edge_hpcr", "learn", "--workspace", tmp_path / "w", "--source", "97", "--seconds", "2"]
    with started(*command, "--set", "backbone=reduced_resnet18", stderr=writer) as process:
        process.wait(PATIENCE)
    os.close(writer)
    thread.join(PATIENCE)
    assert (
        b"camera 97: reconnecting: cannot open: there is no /dev/video97; connect a camera" in said.getvalue()
    )


# Models -----------------------------------------------------------------------------------------------------------


class _Manifest:
    def __init__(self, version: int) -> None:
        self.version, self.facts = version, {"accuracy": {"held_out": 0.9, "samples": 40}}


VERSIONS = [Version(_Manifest(3), True, False), Version(_Manifest(2), False, False)]  # type: ignore[arg-type]


def test_the_version_that_devices_have_is_chosen_at_first_and_a_change_is_asked_about():
    target, tried = models._choices(VERSIONS)
    assert target["value"] == tried["value"] == 3
    assert models.roll_question(VERSIONS, 2) == (
        "Devices change to v2 (90 % (n=40)) instead of v3 (90 % (n=40)). Change it?"
    )
    with pytest.raises(UserError, match="version 3 is the current one already"):
        models.roll_question(VERSIONS, 3)
    with pytest.raises(UserError, match="version 9 is no longer kept"):
        models.roll_question(VERSIONS, 9)


def test_after_a_rollback_the_line_names_the_version_that_is_current_now(studio, monkeypatch):
    monkeypatch.setattr("app.published.roll_to", lambda exports, version: _Manifest(version))
    studio.models._publication = Publication("published", "Version 3 is published and now the current one.")
    studio.models.roll_to(2)
    assert studio.models.publication.text == "Version 2 is the current one now: devices change to it."


def test_latencies_are_still_known_after_a_restart_and_not_on_another_machine(tmp_path):
    file = tmp_path / "latencies.json"
    Latencies(file).put("a" * 64, Latency(1.5, 50))
    assert Latencies(file).get("a" * 64) == Latency(1.5, 50)
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "machine": "another"}))
    assert Latencies(file).get("a" * 64) is None
    for damage in ("{", "[]", '{"machine": 1}', json.dumps({**kept, "files": {"a": 1}})):
        file.write_text(damage)
        assert Latencies(file).get("a" * 64) is None


def test_the_devices_commands_name_the_interpreter_and_can_be_copied(tmp_path):
    text = models.commands_html(tmp_path)
    assert f"{shlex.quote(sys.executable)} -m export.runtime" in text and ">python -m" not in text
    assert text.count("data-copy") == text.count("<code>") == 4


# Memory -----------------------------------------------------------------------------------------------------------


def test_the_memory_shows_what_it_holds_and_not_the_originals(studio):
    mug = studio.journal.create_class("mug")
    sample = studio.workspace.take(np.zeros((64, 64, 3), np.uint8), "test")
    studio.journal.label([sample], mug)
    held = np.full((1, 8, 8, 3), 7, np.uint8)
    shown = memory.thumbnails(studio, memory.Content({mug: 1}, [sample], held, [mug]), [])
    assert "data:image/png;base64," in shown and "as the memory holds it" in shown
    assert f"/edge/sample/{sample}" not in shown
    latent = memory.thumbnails(studio, memory.Content({mug: 1}, [sample], None, [mug]), [])
    assert memory.ORIGINALS_SHOWN in latent and "the picture that it was made from" in latent
