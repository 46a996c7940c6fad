"""`kill -9` at any moment: what was acknowledged is there afterwards, and nothing is there twice.

EDGE_HPCR_KILLS sets how many rounds; the long form is 200.
"""

import http.client
import json
import os
import random
import sqlite3
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from journeys.parts import (
    QUICK,
    App,
    digit_folders,
    edge,
    edge_json,
    labels_of,
    png,
    running_app,
    started,
    wait_for,
)

pytestmark = pytest.mark.slow
ROUNDS = int(os.environ.get("EDGE_HPCR_KILLS", "3"))


def small_workspace(folder: Path) -> Path:
    pictures = digit_folders(folder / "pictures", classes=2, each=2)
    workspace = folder / "workspace"
    edge("learn", "--workspace", workspace, "--source", pictures, "--labels", "folders", *QUICK)
    return workspace


def label_until_it_dies(app: App, round_number: int, acknowledged: dict[str, str]) -> None:
    """New pictures with two classes in turn; each is noted once the answer is there."""
    # An answer that is cut off is no answer: the label may be there, and is not counted.
    with suppress(http.client.HTTPException, json.JSONDecodeError, OSError):
        for number in range(10_000):
            name = f"{round_number}-{number}.png"
            picture = np.random.default_rng((round_number, number)).integers(0, 256, (8, 8, 3), np.uint8)
            shown = app.show(png(picture), name)
            kind = f"digit {number % 2}"
            app.act("new_class", name=kind, frames=[shown["number"]])
            acknowledged[name] = kind


def test_labels_acknowledged_are_there_after_every_kill_and_none_is_there_twice(tmp_path):
    workspace, acknowledged = small_workspace(tmp_path), {}
    dice = random.Random(0)
    for round_number in range(ROUNDS):
        with running_app(workspace) as app:
            before = len(acknowledged)
            labelling = threading.Thread(target=label_until_it_dies, args=(app, round_number, acknowledged))
            labelling.start()
            wait_for(lambda before=before: len(acknowledged) > before + dice.randrange(2, 40), "labels")
            app.process.kill()
            labelling.join()
        rows = edge_json("samples", workspace, "list")
        found = {row["origin"]: row["class"] for row in rows}
        assert {name: found.get(name) for name in acknowledged} == acknowledged
        assert max(Counter(row["origin"] for row in rows).values()) == 1
        unanswered = sum(labels_of(workspace).values()) - 4 - len(acknowledged)
        assert 0 <= unanswered <= round_number + 1, "at most the last one of each round"
        verdict = edge_json("verify", workspace)
        assert verdict["whole"], verdict
    edge("learn", "--workspace", workspace, "--source", tmp_path / "pictures", "--no-rehearsal")
    status = edge_json("status", workspace)
    assert status["events_waiting"] == 0 and status["labels"] == sum(labels_of(workspace).values())


def test_a_command_that_is_killed_has_done_all_of_it_or_nothing(tmp_path):
    workspace = small_workspace(tmp_path)
    dice = random.Random(1)
    for number in range(2 * ROUNDS):
        before = labels_of(workspace)
        name = f"class {number}"
        with started("edge_hpcr", "label", workspace, "1,2,3", name, "--create") as process:
            with suppress(Exception):
                process.wait(dice.uniform(0.2, 0.7))
            process.kill()
        after = labels_of(workspace)
        assert after == before or after.get(name) == 3, "all three, or none"
        assert sum(after.values()) == 4
    with closing(sqlite3.connect(f"file:{workspace / 'journal.sqlite'}?mode=ro", uri=True)) as journal:
        assert journal.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_learning_that_is_killed_learns_the_rest_once(tmp_path):
    pictures = digit_folders(tmp_path / "pictures", classes=4, each=60)
    workspace = tmp_path / "workspace"
    learning = ("learn", "--workspace", workspace, "--source", pictures, "--labels", "folders", *QUICK)
    for least in (20, 120):
        with started("edge_hpcr", *learning, "--set", "checkpoint_steps=5", log=tmp_path / "log") as process:
            wait_for(lambda least=least: _labels(workspace) > least or process.poll() is not None, "labels")
            process.kill()
    edge(*learning)
    status = edge_json("status", workspace)
    assert labels_of(workspace) == {f"digit {digit}": 60 for digit in range(4)}
    assert status["memory"]["samples"] + status["held_out_labels"] == 240
    assert edge_json("verify", workspace)["whole"]


def _labels(workspace: Path) -> int:
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"file:{workspace / 'journal.sqlite'}?mode=ro", uri=True)) as db,
    ):
        return int(db.execute("SELECT count(*) FROM samples WHERE state = 'labelled'").fetchone()[0])
    return 0
