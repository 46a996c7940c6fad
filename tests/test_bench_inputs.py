"""What a benchmark's learner sees: images, or the trunk's latents, which are computed once and kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

from edge_hpcr.bench import inputs as module
from edge_hpcr.bench.inputs import Inputs
from edge_hpcr.bench.pictures import Pictures
from edge_hpcr.commands.cli import main
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig

LATENTS = MemoryConfig(samples=20, codec="latent")
TRUNK = LearnerConfig.recommended("efficientnet_lite0", height=32, width=32, memory=LATENTS)
CHOSEN = np.array([4, 0, 3])  # of both classes, not in order


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    frames = np.random.default_rng(0).integers(0, 256, (5, 8, 12, 3), np.uint8)
    return Pictures("noise", "noise", frames.__getitem__, np.array([0, 1, 1, 0, 1]), ("a", "b"))


def encoded(pictures: Pictures) -> np.ndarray:
    return Learner(TRUNK, "cpu").encode(pictures.prepared(CHOSEN, 32))


def test_without_a_trunk_they_are_the_images(pictures, cache):
    seen = Inputs(LearnerConfig(), pictures, "cpu")[CHOSEN]
    assert (seen == pictures.prepared(CHOSEN, 32)).all()
    assert not cache.exists()


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
    Inputs(TRUNK, pictures, "cpu")[CHOSEN]
    first, second = sorted(cache.glob("latents/*/[01].npy"))
    np.save(first, np.full_like(np.load(first), 7))
    second.write_bytes(second.read_bytes()[:100])
    again = Inputs(TRUNK, pictures, "cpu")[CHOSEN]
    assert (again[1:] == 7).all() and not (again[0] == 7).any()
    assert len(np.load(second)) == 3
    assert not list(cache.glob("latents/*/*.lock"))


@pytest.mark.slow
def test_latents_of_another_version_of_the_trunk_are_computed_again(pictures, cache):
    Inputs(TRUNK, pictures, "cpu")[CHOSEN]
    (folder,) = cache.glob("latents/*")
    for path in folder.glob("*.npy"):  # as a trunk that answers otherwise would have left them
        np.save(path, np.load(path) + 7)
    assert np.allclose(Inputs(TRUNK, pictures, "cpu")[CHOSEN], encoded(pictures), rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_other_pictures_sizes_and_views_have_files_of_their_own(pictures, cache):
    Inputs(TRUNK, pictures, "cpu")[CHOSEN]
    Inputs(TRUNK, replace(pictures, identity="other"), "cpu")[CHOSEN]
    Inputs(replace(TRUNK, height=48, width=48), pictures, "cpu")[CHOSEN]
    assert Inputs(replace(TRUNK, stored_views=2), pictures, "cpu")[CHOSEN].shape[1] == 2
    assert len(list(cache.glob("latents/*"))) == 4
    # What a learner's seed or method is, the trunk does not know.
    Inputs(replace(TRUNK, seed=3, method="er", method_options={}), pictures, "cpu")[CHOSEN]
    assert len(list(cache.glob("latents/*"))) == 4


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_only_time(pictures, cache):
    cache.write_text("a file where the folder should be")
    assert len(Inputs(TRUNK, pictures, "cpu")[CHOSEN]) == 3


def test_portions_are_the_whole(pictures, monkeypatch):
    monkeypatch.setattr(module, "PORTION", 2)
    seen = Inputs(LearnerConfig(), pictures, "cpu")
    parts = list(seen.batches(np.arange(5)))
    assert list(map(len, parts)) == [2, 2, 1]
    assert (np.concatenate(parts) == seen[np.arange(5)]).all()


@pytest.mark.slow
def test_a_split_benchmark_runs_on_a_trunk(tmp_path, capsys):
    small = ["--image-size", "32", "--limit", "20", "--budget", "400KB", "--out", str(tmp_path / "out")]
    command = ["bench", "--dataset", "digits", "--backbone", "efficientnet_lite0", *small]
    for method in ("hpcr", "ranpac"):
        assert main([*command, "--method", method]) == 0
        assert f"{method} (backbone=efficientnet_lite0, height=32" in capsys.readouterr().out
        path = tmp_path / "out" / f"digits-{method}-efficientnet_lite0-400000B-limit20-32px-seed0.json"
        assert 0 < json.loads(path.read_text())["bytes"]["total"] <= 400_000
