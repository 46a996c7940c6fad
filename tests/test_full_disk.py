"""A disk that is really full: labels that a source brings are tried again, kept, and counted at the end; a device goes on.

It is a small one of its own, in memory; mounting it needs root.
"""

import os
import signal
import subprocess
import sys

import cv2
import numpy as np
import pytest
from browser_parts import wait_for
from device_parts import frame_of, publish
from fleet_parts import TOKEN, make_workspace, running
from process_parts import started
from workspace_parts import SMALL

from app.studio import Studio
from benchmarks.endurance.trouble import full_disk, small_disk
from edge_hpcr.live.feeder import Feeder
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import Frame, open_stream
from edge_hpcr.workspace.folder import Workspace
from export.device.health import Health
from export.device.hot_swap import HotSwap
from export.device.http_models import HttpModels
from export.device.model import Label, Result
from export.device.model_source import Loading
from export.device.unsure import Choice, UnsureFrames

FILES = 15
PATIENCE = 120.0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def disk(tmp_path):
    """A workspace's place on a disk that can be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    with small_disk(place) as mounted:
        if not mounted:
            pytest.skip("mounting a small disk needs root")
        yield place


@pytest.fixture
def photos(tmp_path):
    """Two classes that the workspace does not know yet, on another disk."""
    rng = np.random.default_rng(0)
    for name in ("mug", "cup"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(FILES):
            picture = rng.integers(0, 256, (64, 64, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "photos" / name / f"{number}.png"), picture)
    return tmp_path / "photos"


def full(disk):
    """While this lasts, nothing at all can be written."""
    return full_disk(disk / "w", np.random.default_rng(0))  # whose first draw leaves no page


def test_the_disk_of_these_tests_is_full(disk):
    with full(disk), pytest.raises(OSError, match="No space left"):
        (disk / "file").write_bytes(bytes(5000))


def labels(workspace: Workspace) -> dict[str, int]:
    return {row.name: row.labels for row in workspace.journal.classes()}


def assert_each_file_once(path):
    with Workspace.open(path) as workspace:
        assert labels(workspace) == {"mug": FILES, "cup": FILES}
        digests = [row.source_digest for row in workspace.journal.all_samples()]
        assert len(digests) == len(set(digests)) == 2 * FILES
        assert not (workspace.layout.quarantine / "quarantine.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["", "watch:"])
def test_labels_of_a_folder_wait_for_room_and_none_is_called_bad(disk, photos, source):
    with Workspace.open(disk / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1)
        live = LiveLearner(workspace)
        live.start()
        feeder = Feeder(workspace, live)
        try:
            with full(disk):
                feeder.use(open_stream(f"{source}{photos}", "folders"), brings_labels=True)

                def refused() -> bool:
                    feeder.turn(0.01)
                    return any("room" in problem for problem in live.problems)

                wait_for(refused, "word of the full disk")
                for _ in range(FILES):
                    feeder.turn(0.01)
                assert feeder.finish() > 0 and labels(workspace) == {}

            def all_stored() -> bool:
                feeder.turn(0.01)
                return sum(labels(workspace).values()) == 2 * FILES

            wait_for(all_stored, "all labels")
            assert feeder.finish() == 0
        finally:
            feeder.leave()
            live.stop()
    assert_each_file_once(disk / "w")


def learn(workspace, source, *more):
    small = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    command = [
        "-m",
        "edge_hpcr",
        "learn",
        "--workspace",
        workspace,
        "--source",
        source,
        "--labels",
        "folders",
    ]
    return [*map(str, command), *small, "--no-rehearsal", *more]


@pytest.mark.slow
def test_learn_ends_with_an_error_that_counts_and_the_same_command_again_stores_the_rest(disk, photos):
    waiting = photos.with_name("waiting")
    photos.rename(waiting)
    photos.mkdir()
    # So few that only the last flush would store them.
    few = [waiting / "cup" / f"{number}.png" for number in range(3)]
    with started(*learn(disk / "w", f"watch:{photos}"), env=ENVIRONMENT) as running:
        wait_for((disk / "w" / "status.json").exists, "the learner", PATIENCE)
        with full(disk):
            (photos / "cup").mkdir()
            for file in few:
                file.rename(photos / "cup" / file.name)
            wait_for(lambda: "room" in running.stderr.readline(), "word of the full disk", PATIENCE)
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "3 labels could not be stored: make room, and start the same command again" in err
    assert "Traceback" not in err
    (photos / "cup").rename(waiting / "again")
    for file in (waiting / "again").iterdir():
        file.rename(waiting / "cup" / file.name)
    (waiting / "again").rmdir()
    done = subprocess.run(
        [sys.executable, *learn(disk / "w", waiting)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    assert_each_file_once(disk / "w")


@pytest.mark.slow
def test_the_app_counts_at_its_end_what_it_could_not_store(disk, photos):
    with Workspace.open(disk / "w") as workspace:
        workspace.change_settings(**SMALL, idle_steps=0, threads=1, source="digits")
        studio = Studio(workspace)
        studio.start()
        with full(disk):
            studio.feeder.choose(str(photos), "folders")
            wait_for(
                lambda: any("room" in problem for problem in studio.live.problems), "word of the full disk"
            )
            assert studio.stop() > 0


# A device -------------------------------------------------------------------------------------------------------------


def test_a_device_whose_disk_is_full_says_so_once_and_takes_the_model_when_there_is_room(disk, tmp_path):
    workspace, said = make_workspace(tmp_path / "w"), []
    publish(workspace / "exports", 1)
    with running(workspace) as server:
        models = HttpModels(f"http://127.0.0.1:{server.server_address[1]}", disk / "cache", TOKEN)
        swap = HotSwap(models, Loading("cpu", 1), said.append)
        assert swap.first().info.version == 1
        publish(workspace / "exports", 2)
        with full(disk):
            assert not swap.look() and not swap.look()
            assert swap.classifier.predict([frame_of("red")])[0].top[0].name == "red"
        (trouble,) = [line for line in said if "No space left" in line]
        assert "cannot keep models in" in trouble and "v1 goes on" in trouble
        assert swap.look() and swap.classifier.info.version == 2
        assert said[-2] == "models can be had again"


def test_frames_for_a_trainer_that_find_a_full_disk_are_dropped_and_told_once(disk):
    said = []
    health = Health("cam-1", said.append)
    frames = UnsureFrames("http://127.0.0.1:9", TOKEN, disk / "cache", Choice(per_minute=6000.0), health)

    def offer(seeds):
        taken = 0
        for seed in seeds:
            blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
            frame = Frame(np.kron(blocks, np.ones((16, 16, 1), np.uint8)), "x", None, None, 1000.0)
            taken += frames.offer(frame, Result([Label(1, "a", 0.9)], True, 0.1))
        return taken

    with full(disk):
        wanted = offer(range(4))
        wait_for(lambda: health.unsure_dropped == wanted, "every frame to be dropped")
    assert len([line for line in said if "No space left on device" in line]) == 1
    more = offer(range(10, 12))
    wait_for(lambda: health.unsure_waiting == more, "frames to be stored again")
    assert "frames for the trainer are stored again" in said
    frames.close()
