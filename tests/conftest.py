"""What the tests share: real digits, small learners, few threads."""

import os
import signal
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from edge_hpcr.bench.datasets import Dataset, load
from edge_hpcr.common.files import cache_folder, weights_file
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig

# Tests run without fetched weights, so that they are the same with and without: TinyViT's own name the fixture `fetched`.
# Processes of xdist and of tests inherit both names.
FETCHED = os.environ.setdefault("EDGE_HPCR_TEST_FETCHED", str(cache_folder()))
os.environ["EDGE_HPCR_CACHE"] = str(Path(tempfile.gettempdir(), "edge-hpcr-tests"))


def pytest_collection_modifyitems(items):
    """The longest files first: else one worker would be left with one of them at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    browser = {item.path for item in items if item.get_closest_marker("browser")}
    # Ray is told by its name: it starts a cluster, and most of that is waiting, which the browser's tests can use.
    items.sort(
        key=lambda item: (item.path.stem != "test_sweep_ray", item.path not in browser, -slow[item.path])
    )


@pytest.fixture(autouse=True, scope="session")
def few_threads():
    # A small network is fastest on one thread; EDGE_HPCR_TEST_THREADS tries others.
    torch.set_num_threads(int(os.environ.get("EDGE_HPCR_TEST_THREADS", "1")))


@pytest.fixture
def fetched(monkeypatch) -> Path:
    """The weights of TinyViT, where `weights get` has put them on this machine; what is made of them is the tests' own."""
    if not Path(FETCHED, "weights", "tiny_vit_5m.safetensors").is_file():
        pytest.skip("no source has answered `weights get tiny_vit_5m` here")
    cache = Path(os.environ["EDGE_HPCR_CACHE"], "fetched")
    cache.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (cache / "weights").symlink_to(Path(FETCHED, "weights"))
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(cache))
    return weights_file("tiny_vit_5m")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture
def workspace(tmp_path):
    """A new one, where this process learns."""
    from edge_hpcr.workspace.workspace import Workspace  # most tests need none

    with Workspace.open(tmp_path / "w") as opened:
        yield opened


@pytest.fixture
def small_learner():
    """A function that makes a learner of 8x8 images; keywords set fields of its LearnerConfig."""

    def make(**options) -> Learner:
        options = {"height": 8, "width": 8, "nf": 4, "memory": MemoryConfig(samples=23), **options}
        return Learner(LearnerConfig(**options), device="cpu")

    return make


@pytest.fixture
def digit_batches(digits):
    """A function that gives batches of ten images of the named digits, in a fixed order."""

    def batches(classes: list[int], count: int, start: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        chosen = np.flatnonzero(np.isin(digits.train_labels, classes))[start * 10 :]
        parts = [chosen[i * 10 : i * 10 + 10] for i in range(count)]
        return [(digits.train_images[part], digits.train_labels[part]) for part in parts]

    return batches


@pytest.fixture
def own_signals():
    """`learn` takes over Ctrl-C, as a command may; a test must give it back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def exports(tmp_path) -> Path:
    """Version 1 of a tiny model, published."""
    from device_parts import publish  # most tests need no model

    publish(tmp_path / "exports", 1)
    return tmp_path / "exports"


@pytest.fixture(scope="module")
def one_browser():
    from journeys.parts import chromium  # most tests need none

    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(one_browser):
    """Without the pages of earlier tests, which would go on asking for their servers."""
    yield one_browser
    for context in one_browser.contexts:
        context.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The app of Anna, who has a password."""
    from browser_parts import PASSWORD, running  # most tests need no app

    from app.security import Credentials

    with running(
        tmp_path_factory.mktemp("guarded") / "workspace", credentials=Credentials("anna", PASSWORD)
    ) as app:
        yield app
