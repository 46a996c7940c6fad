"""Getting a benchmark's data from the page: the real command, a real server on this machine, and what goes wrong."""

import sys

import pytest
from browser_parts import wait_for
from test_data_download import mnist_images, site  # noqa: F401  (fixtures)
from torchvision import datasets

import app.data_fetch
from app.data_fetch import DataFetch
from app.tabs.data_fetch import fetch_html
from edge_hpcr.bench import datasets as data
from edge_hpcr.common.errors import UserError
from edge_hpcr.stream import Rules

# The command, but for thirty pictures that are offered as MNIST by a server of the test.
COMMAND = """
import sys
from dataclasses import replace
from edge_hpcr.bench.datasets import registry
from edge_hpcr.commands import cli
small = replace(registry.DATASETS["mnist"], content_sha256=None, train_per_class=2, test_per_class=1, sources=("download", "folder"))
registry.DATASETS["mnist"] = small
if "--folder" not in sys.argv:
    from torchvision import datasets
    datasets.MNIST.mirrors, datasets.MNIST.resources = [sys.argv[1]], eval(sys.argv[2])
sys.exit(cli.main(sys.argv[3:]))
"""


@pytest.fixture
def small_mnist(site, mnist_images, monkeypatch):  # noqa: F811
    command = (sys.executable, "-c", COMMAND, site.address, repr(datasets.MNIST.resources))
    monkeypatch.setattr(app.data_fetch, "COMMAND", command)


@pytest.fixture
def fetching(small_mnist, tmp_path):
    made = DataFetch(tmp_path / "data")
    yield made
    made.stop()


def ended(fetching):
    wait_for(lambda: fetching.now.phase not in ("running", "stopping"), "the end", 300)
    return fetching.now


@pytest.mark.slow
def test_a_missing_file_is_said_and_data_that_are_there_are_fetched(fetching, site, tmp_path):  # noqa: F811
    offered, site.files = site.files, {}
    fetching.start("mnist")
    with pytest.raises(UserError, match="mnist is being fetched: wait for its end, or cancel it"):
        fetching.start("cifar10")
    assert "<progress" in fetch_html(fetching.now)
    failed = ended(fetching)
    assert failed.phase == "failed" and "\n" not in failed.said and 'class="warning"' in fetch_html(failed)
    assert failed.said.startswith("mnist could not be fetched (download: the download failed: ")
    assert "404" in failed.said and not data.is_here("mnist", tmp_path / "data")
    site.files = offered
    fetching.start("mnist")
    assert ended(fetching).phase == "done", fetching.now
    assert "it is here, and was checked" in fetch_html(fetching.now)
    assert data.is_here("mnist", tmp_path / "data")
    with pytest.raises(UserError, match="nothing to cancel"):
        fetching.cancel()


def test_what_cannot_be_fetched_is_refused_before_anything_starts(tmp_path):
    fetching = DataFetch(tmp_path, Rules((tmp_path / "allowed",)))
    for name, folder, problem in (
        ("digits", "", "built in"),
        ("mini_imagenet", "", "name the folder that holds mini_imagenet here"),
        ("mnist", "/etc", "allowed"),
        ("nothing", "", "nothing"),
    ):
        with pytest.raises(UserError, match=problem):
            fetching.start(name, folder)
    assert fetching.now.phase == "idle"
