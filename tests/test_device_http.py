"""Models from a server: the real one, and servers that are slow, lie, lead elsewhere or speak HTML."""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from device_parts import frame_of, manifest_of, publish, tiny_model
from process_parts import answering

from edge_hpcr.common.errors import UserError
from export.device.errors import BadModel, Unavailable
from export.device.hot_swap import HotSwap
from export.device.http_models import HttpModels
from export.device.model_source import Loading
from export.publish.serve import make_server

TOKEN = "a-token-of-good-length"
QUICK = {"timeout": 0.5, "most_seconds": 1.0}


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def nasty(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server that answers every GET with this function, and the paths (with their Range) that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path + (f" {self.headers['Range']}" if "Range" in self.headers else ""))
            answer(self)

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request, client_address) -> None:
            """The client hangs up; that is what these tests are about."""

    with serving(Server(("127.0.0.1", 0), Handler)) as url:
        yield url, asked


def send(
    handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, length: int | None = None, **headers
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def files_of(exports: Path) -> Answer:
    """What any static file server does, without ETag or ranges."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = exports / handler.path[1:]
        send(handler, path.read_bytes() if path.is_file() else b"", 200 if path.is_file() else 404)

    return answer


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    publish(tmp_path / "exports", 1)
    return tmp_path / "exports"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def swap_of(source: HttpModels, said: list[str] | None = None) -> HotSwap:
    return HotSwap(source, Loading("cpu", 1), (said if said is not None else []).append, poll=0.02)


def test_a_device_follows_the_real_server(exports: Path, cache: Path):
    with serving(make_server(exports.parent, "127.0.0.1", 0, TOKEN)) as url:
        swap = swap_of(HttpModels(url + "/", cache, TOKEN))
        assert swap.first().predict([frame_of("red")])[0].top[0].name == "red"
        assert not swap.look()
        publish(exports, 2)
        assert swap.look()
        assert swap.classifier.info.version == 2


def test_a_static_file_server_does_as_well(exports: Path, cache: Path):
    with nasty(files_of(exports)) as (url, asked):
        swap = swap_of(HttpModels(url, cache))
        assert swap.first().info.version == 1
        assert not swap.look()
        assert asked.count("/v000001/model.onnx") == 1
        publish(exports, 2)
        assert swap.look()


def test_while_nothing_changes_only_the_etag_is_compared(exports: Path, cache: Path):
    etag = '"one"'

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("If-None-Match") == etag:
            send(handler, b"", 304, ETag=etag)
        else:
            send(handler, (exports / handler.path[1:]).read_bytes(), ETag=etag)

    with nasty(answer) as (url, asked):
        swap = swap_of(HttpModels(url, cache))
        swap.first()
        before = len(asked)
        assert not swap.look() and not swap.look()
        assert asked[before:] == ["/latest.json", "/latest.json"]


def test_without_the_server_the_device_starts_with_what_it_has(exports: Path, cache: Path):
    said: list[str] = []
    with nasty(files_of(exports)) as (url, _):
        swap_of(HttpModels(url, cache)).first()
    swap = swap_of(HttpModels(url, cache, **QUICK), said)
    assert swap.first().info.version == 1
    assert "cannot be reached" in said[-1] and "started with v1 instead" in said[-1]


def test_it_starts_without_the_server_again_and_again(exports: Path, cache: Path):
    with nasty(files_of(exports)) as (url, _):
        swap_of(HttpModels(url, cache)).first()
    for _ in range(3):
        assert swap_of(HttpModels(url, cache, **QUICK)).first().info.version == 1


def test_a_device_that_started_without_its_server_finds_it_again(exports: Path, cache: Path):
    said: list[str] = []
    works = threading.Event()
    works.set()
    files = files_of(exports)
    with nasty(lambda h: files(h) if works.is_set() else send(h, b"", 503)) as (url, asked):
        swap_of(HttpModels(url, cache)).first()
        works.clear()
        swap = swap_of(HttpModels(url, cache), said)
        assert swap.first().info.version == 1
        assert not swap.look()
        works.set()
        asked.clear()
        assert not swap.look(), "it is the same model"
        assert said[-1] == "models can be had again"
        assert "/v000001/model.onnx" not in asked
        publish(exports, 2)
        assert swap.look()


def test_a_model_that_was_refused_is_not_what_a_device_starts_with(exports: Path, cache: Path):
    with nasty(files_of(exports)) as (url, _):
        swap = swap_of(HttpModels(url, cache))
        swap.first()
        publish(
            exports, 2, tiny_model(7).SerializeToString(), manifest_of(tiny_model(7).SerializeToString(), 2)
        )
        assert not swap.look()
    assert swap_of(HttpModels(url, cache, **QUICK)).first().info.version == 1


def test_a_refused_model_is_not_downloaded_again(exports: Path, cache: Path):
    said: list[str] = []
    with nasty(files_of(exports)) as (url, asked):
        swap = swap_of(HttpModels(url, cache), said)
        swap.first()
        data = tiny_model(2).SerializeToString()
        publish(exports, 2, data[:-1] + b"x", manifest_of(data, 2))
        said.clear()
        assert not swap.look() and not swap.look()
        assert asked.count("/v000002/model.onnx") == 1
        assert len(said) == 1 and "SHA-256" in said[0]
        assert swap.classifier.info.version == 1


def test_models_that_are_refused_do_not_fill_the_cache(exports: Path, cache: Path):
    with nasty(files_of(exports)) as (url, _):
        swap = swap_of(HttpModels(url, cache))
        swap.first()
        for version in range(2, 7):
            data = tiny_model(1).SerializeToString()
            publish(exports, version, data, manifest_of(data, version))
            assert not swap.look()
    kept = sorted(entry.name[:7] for entry in cache.glob("*/v*"))
    assert kept == ["v000001", "v000006"]
    assert swap_of(HttpModels(url, cache, **QUICK)).first().info.version == 1


def test_runtimes_that_share_a_cache_download_one_after_the_other(exports: Path, cache: Path):
    files, first_came, go_on = files_of(exports), threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.endswith(".onnx"):
            first_came.set()
            assert go_on.wait(20)
        files(handler)

    with nasty(answer) as (url, asked):
        swaps = [swap_of(HttpModels(url, cache)) for _ in range(2)]
        threads = [threading.Thread(target=swap.first) for swap in swaps]
        for thread in threads:
            thread.start()
        assert first_came.wait(20)
        # Both have read what there is to download when the second one gives in to the lock.
        while asked.count("/v000001/manifest.json") < 2:
            assert threads[1].is_alive()
        go_on.set()
        for thread in threads:
            thread.join(20)
        assert [swap.classifier.info.version for swap in swaps] == [1, 1]
        assert asked.count("/v000001/model.onnx") == 1


def test_a_model_that_is_spoiled_between_download_and_loading_is_downloaded_again(exports: Path, cache: Path):
    class Spoiling(Loading):
        def load(self, offer):
            if offer.name == "v2" and not spoiled:
                spoiled.append(offer.path)
                (offer.path / "model.onnx").write_bytes(b"rotten")
            return super().load(offer)

    spoiled: list[Path] = []
    with nasty(files_of(exports)) as (url, _):
        swap = HotSwap(HttpModels(url, cache), Spoiling("cpu", 1), lambda text: None)
        swap.first()
        publish(exports, 2)
        assert not swap.look() and spoiled
        assert swap.look()
        assert swap.classifier.info.version == 2


def test_the_cache_stays_small(exports: Path, cache: Path):
    with nasty(files_of(exports)) as (url, _):
        swap = swap_of(HttpModels(url, cache))
        swap.first()
        for version in range(2, 6):
            publish(exports, version)
            assert swap.look()
    (folder,) = cache.iterdir()
    kept = sorted(entry.name[:7] for entry in folder.iterdir() if entry.is_dir())
    assert kept == ["v000004", "v000005"]


def test_a_damaged_cache_is_filled_again(exports: Path, cache: Path):
    with nasty(files_of(exports)) as (url, asked):
        swap_of(HttpModels(url, cache)).first()
        (model,) = cache.glob("*/v*/model.onnx")
        model.write_bytes(b"rotten")
        assert swap_of(HttpModels(url, cache)).first().info.version == 1
        assert asked.count("/v000001/model.onnx") == 2


def test_a_cut_download_goes_on_where_it_was(exports: Path, cache: Path):
    model = (exports / "v000001" / "model.onnx").read_bytes()
    cut = 100
    files = files_of(exports)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if not handler.path.endswith(".onnx"):
            files(handler)
        elif "Range" in handler.headers:
            start = int(handler.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            send(handler, model[start:], 206, Content_Range=f"bytes {start}-{len(model) - 1}/{len(model)}")
        else:
            send(handler, model[:cut], length=len(model))

    with nasty(answer) as (url, asked):
        source = HttpModels(url, cache)
        offer = source.newest()
        with pytest.raises(Unavailable, match=f"cut off after {cut} of {len(model)} bytes"):
            source.fetch(offer)
        assert swap_of(source).first().info.version == 1
        assert asked[-1] == f"/v000001/model.onnx bytes={cut}-"


def test_another_part_than_the_one_asked_for_is_not_appended(exports: Path, cache: Path):
    model = (exports / "v000001" / "model.onnx").read_bytes()
    files = files_of(exports)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if not handler.path.endswith(".onnx"):
            files(handler)
        elif "Range" in handler.headers:
            send(handler, model, 206, Content_Range=f"bytes 0-{len(model) - 1}/{len(model)}")
        else:
            send(handler, model[:100], length=len(model))

    with nasty(answer) as (url, _):
        source = HttpModels(url, cache)
        with pytest.raises(Unavailable, match="cut off"):
            source.fetch(source.newest())
        assert swap_of(source).first().info.version == 1


def test_a_wrong_beginning_of_an_earlier_download_is_thrown_away(exports: Path, cache: Path):
    with serving(make_server(exports.parent, "127.0.0.1", 0)) as url:
        source = HttpModels(url, cache)
        digest = source.newest().manifest.model.sha256
        folder = cache / hashlib.sha256(url.encode()).hexdigest()[:16]
        folder.mkdir(parents=True)
        (folder / f"partial-{digest[:16]}").write_bytes(b"x" * 100)
        assert swap_of(source).first().info.version == 1


def test_more_bytes_than_promised_are_refused(exports: Path, cache: Path):
    files = files_of(exports)
    model = (exports / "v000001" / "model.onnx").read_bytes()
    with nasty(lambda h: send(h, model * 50) if h.path.endswith(".onnx") else files(h)) as (url, _):
        source = HttpModels(url, cache)
        with pytest.raises(BadModel, match=f"more than {len(model)} bytes"):
            source.fetch(source.newest())


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever: no single wait is long."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" ")
            if stop_dripping.wait(0.1):
                return
    except OSError:
        return


stop_dripping = threading.Event()


def silent(handler: BaseHTTPRequestHandler) -> None:
    stop_dripping.wait(3)


def drip_header(handler: BaseHTTPRequestHandler) -> None:
    try:
        while not stop_dripping.wait(0.1):
            handler.wfile.write(b"H")
    except OSError:
        return


LATEST = {"format": 1, "version": 1, "folder": "v000001", "manifest_sha256": "0" * 64}
NASTY: dict[str, tuple[Answer, str]] = {
    "a page": (lambda h: send(h, b"<!doctype html><html>Log in</html>"), "an HTML page instead of JSON"),
    "garbage": (lambda h: send(h, bytes(range(256))), "not valid JSON"),
    "nothing": (lambda h: send(h, b""), "not valid JSON"),
    "a list": (lambda h: send(h, b"[]"), "not a JSON object"),
    "too much": (lambda h: send(h, b" " * 100_000), "more than 65536 bytes"),
    "not found": (lambda h: send(h, b"", 404), "the server answers 404"),
    "broken": (lambda h: send(h, b"", 500), "the server answers 500"),
    "locked": (lambda h: send(h, b"", 401), r"wants a token \(--token FILE\)"),
    "elsewhere": (lambda h: send(h, b"", 302, Location="http://example.invalid/x"), "another address"),
    "another port": (lambda h: send(h, b"", 302, Location="http://127.0.0.1:9/x"), "another address"),
    "a file": (lambda h: send(h, b"", 301, Location="file:///etc/passwd"), "another address"),
    "in circles": (lambda h: send(h, b"", 307, Location=h.path), "redirects again and again"),
    "shorter": (lambda h: send(h, b'{"format"', length=500), "cut off after 9 of 500 bytes"),
    "silent": (silent, "does not answer in time"),
    "a drip": (drip, "took longer than 1 s"),
    "a drip of headers": (drip_header, "took longer than 1 s"),
    "no HTTP": (lambda h: h.wfile.write(b"SSH-2.0-OpenSSH\r\n"), "does not speak HTTP"),
    "a manifest of another hash": (lambda h: send(h, json.dumps(LATEST).encode()), "SHA-256 is not the one"),
    "a path outside": (lambda h: send(h, json.dumps(LATEST | {"folder": ".."}).encode()), "plain name"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_server_is_reported_and_the_old_model_goes_on(exports: Path, cache: Path, name: str):
    answer, complaint = NASTY[name]
    said: list[str] = []
    bad = threading.Event()
    files = files_of(exports)
    with nasty(lambda h: answer(h) if bad.is_set() else files(h)) as (url, _):
        swap = swap_of(HttpModels(url, cache, **QUICK), said)
        swap.first()
        said.clear()
        bad.set()
        assert not swap.look()
        assert len(said) == 1 and said[0].endswith("; v1 goes on")
        assert re.search(complaint, said[0]), said[0]
        assert swap.classifier.predict([frame_of("blue")])[0].top[0].name == "blue"
        bad.clear()
        publish(exports, 2)
        assert swap.look(), "it recovers by itself"


def test_a_redirect_within_the_server_is_followed(exports: Path, cache: Path):
    files = files_of(exports)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/old/"):
            send(handler, b"", 302, Location=handler.path.removeprefix("/old"))
        else:
            files(handler)

    with nasty(answer) as (url, _):
        assert swap_of(HttpModels(f"{url}/old", cache)).first().info.version == 1


def test_a_token_is_not_sent_elsewhere(exports: Path, cache: Path):
    with nasty(lambda h: send(h, b"")) as (other, reached):
        with nasty(lambda h: send(h, b"", 302, Location=other)) as (url, _), pytest.raises(Unavailable):
            HttpModels(url, cache, TOKEN).newest()
        assert reached == []


def test_a_wrong_token_is_told(exports: Path, cache: Path):
    with serving(make_server(exports.parent, "127.0.0.1", 0, TOKEN)) as url:
        with pytest.raises(Unavailable, match="refuses the token"):
            HttpModels(url, cache, "another-token-of-length").newest()
        with pytest.raises(Unavailable, match="wants a token"):
            HttpModels(url, cache).newest()


def test_a_server_that_nobody_runs_is_told(cache: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable, match="cannot be reached: Connection refused"):
        HttpModels(f"http://127.0.0.1:{port}", cache).newest()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "file:///etc",
        "http://",
        "http://host:99999/",
        "http://a b/",
        "http://user:secret@host/",
        "http://host..name/",
        f"http://{'x' * 64}/",
        "http://h/?a=b",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(cache: Path, url: str):
    with pytest.raises(UserError) as caught:
        HttpModels(url, cache)
    assert "secret" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_told(exports: Path, tmp_path: Path):
    (tmp_path / "occupied").write_text("")
    with nasty(files_of(exports)) as (url, _):
        source = HttpModels(url, tmp_path / "occupied")
        with pytest.raises(Unavailable, match=r"cannot keep models in .* \(--cache names another folder\)"):
            source.fetch(source.newest())
