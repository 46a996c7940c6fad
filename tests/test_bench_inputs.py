"""What a benchmark's learner sees: images, or the trunk's latents, which are computed once and kept."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from edge_hpcr.bench.inputs import Inputs, Pictures
from edge_hpcr.bench.run import Run
from edge_hpcr.bench.run_config import RunConfig
from edge_hpcr.common.files import cache_folder
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig

LATENTS = MemoryConfig(samples=20, codec="latent")
TRUNK = LearnerConfig.recommended("efficientnet_lite0", height=32, width=32, memory=LATENTS)
CHOSEN = np.array([4, 0, 3])  # of both classes, not in order


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Without latents; the trunk for ONNX Runtime, whose export takes seconds, is all tests'."""
    exported = cache_folder() / "trunks"
    exported.mkdir(parents=True, exist_ok=True)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "trunks").symlink_to(exported)
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(cache))
    return cache


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    frames = np.random.default_rng(0).integers(0, 256, (5, 8, 12, 3), np.uint8)
    return Pictures("noise", "noise", frames.__getitem__, np.array([0, 1, 1, 0, 1]), ("a", "b"))


def encoded(pictures: Pictures) -> np.ndarray:
    return Learner(TRUNK, "cpu").encode(pictures.prepared(CHOSEN, 32))


@pytest.mark.slow
@pytest.mark.computes
def test_with_a_trunk_they_are_its_latents_whether_computed_or_read(pictures):
    expected = encoded(pictures)
    for _ in range(2):
        seen = Inputs(TRUNK, pictures, "cpu")[CHOSEN]
        assert seen.shape == expected.shape and seen.dtype == np.float32
        assert np.allclose(seen, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_what_was_computed_is_read_the_next_time_and_what_is_damaged_is_computed_again(pictures, cache):
    first = Inputs(TRUNK, pictures, "cpu")[CHOSEN]
    (path,) = cache.glob("latents/*.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        (latent,) = db.execute("SELECT latent FROM latents WHERE id = 0").fetchone()
        db.execute("UPDATE latents SET latent = ? WHERE id = 4", (latent,))
    again = Inputs(TRUNK, pictures, "cpu")[CHOSEN]
    assert (again[0] == first[1]).all() and (again[1:] == first[1:]).all()
    for rest in cache.glob("latents/*"):
        rest.unlink()
    path.write_bytes(b"no database" * 100)
    assert (Inputs(TRUNK, pictures, "cpu")[CHOSEN] == first).all()


@pytest.mark.slow
@pytest.mark.parametrize("made", ["before", "meanwhile"])
def test_where_nothing_can_be_written_latents_stay_in_memory(pictures, cache, made):
    if made == "before":
        (cache / "latents").write_text("in the way")
    seen = Inputs(TRUNK, pictures, "cpu")
    if made == "meanwhile":
        seen._latents._db.execute("PRAGMA query_only = ON")
    first = seen[CHOSEN]
    assert (first == seen[CHOSEN]).all() and first.any()


@pytest.mark.slow
def test_only_what_is_asked_for_passes_the_trunk(pictures, capsys):
    """Of two classes one, and of that two pictures out of three; the third when it is wanted, too."""
    seen = Inputs(TRUNK, pictures, "cpu")
    two = seen[np.array([2, 4])]
    three = seen[np.array([1, 2, 4])]
    assert np.array_equal(three[1:], two)
    asked = re.findall(r"looks at (\d) pictures of class (\w)", capsys.readouterr().err)
    assert asked == [("2", "b"), ("1", "b")]


@pytest.mark.slow
def test_a_benchmark_asks_for_the_pictures_of_a_task_at_once(tmp_path, capsys):
    """Asked step by step, the trunk would see a few at a time, which takes longer."""
    learner = replace(
        TRUNK, method="slda", method_options={}, memory=MemoryConfig(bytes=10_000_000, codec="latent")
    )
    Run(RunConfig("digits", learner, tasks=5, seed=0, limit=12), tmp_path / "out").run()
    asked = [line for line in capsys.readouterr().err.splitlines() if "of class" in line]
    assert len(asked) == 20, "each class once to train and once to test"
