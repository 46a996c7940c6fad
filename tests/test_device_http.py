"""Models from a server: the real one, and servers that are slow, lie, lead elsewhere or speak HTML."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from device_parts import LOAD, files_of, frame_of, manifest_of, publish
from process_parts import Answer, http_server, send

from edge_hpcr.common.errors import UserError
from export.device import BadModel, Unavailable, http_client
from export.device.health import Health
from export.device.hot_swap import HotSwap, HttpModels

TOKEN = "a-token-of-good-length"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "TIMEOUT", 0.5)
    monkeypatch.setattr(http_client, "MOST_SECONDS", 1.0)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def swap_of(source: HttpModels, said: list[str] | None = None) -> HotSwap:
    return HotSwap(source, LOAD, Health("test", (said if said is not None else []).append), poll=0.02)


def test_while_nothing_changes_only_the_etag_is_compared(exports: Path, cache: Path):
    etag = '"one"'

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("If-None-Match") == etag:
            send(handler, b"", 304, ETag=etag)
        else:
            send(handler, (exports / handler.path[1:]).read_bytes(), ETag=etag)

    with http_server(answer) as (url, asked):
        swap = swap_of(HttpModels(url, cache))
        swap.first()
        before = len(asked)
        assert not swap.look() and not swap.look()
        assert asked[before:] == ["/latest.json", "/latest.json"]


def test_models_that_are_refused_are_downloaded_once_and_do_not_fill_the_cache(exports: Path, cache: Path):
    with http_server(files_of(exports)) as (url, asked):
        swap = swap_of(HttpModels(url, cache))
        swap.first()
        for version in range(2, 7):
            data = b"no model"
            publish(exports, version, data, manifest_of(data, version))
            assert not swap.look() and not swap.look()
            assert asked.count(f"/v{version:06d}/model.onnx") == 1
    kept = sorted(entry.name[:7] for entry in cache.glob("*/v*"))
    assert kept == ["v000001", "v000006"]
    assert swap_of(HttpModels(url, cache)).first().info.version == 1


def test_a_damaged_cache_is_filled_again(exports: Path, cache: Path):
    with http_server(files_of(exports)) as (url, asked):
        swap_of(HttpModels(url, cache)).first()
        (model,) = cache.glob("*/v*/model.onnx")
        model.write_bytes(b"rotten")
        assert swap_of(HttpModels(url, cache)).first().info.version == 1
        assert asked.count("/v000001/model.onnx") == 2


def test_a_download_that_is_cut_or_too_long_is_refused_and_begins_again(exports: Path, cache: Path):
    model = (exports / "v000001" / "model.onnx").read_bytes()
    wrong, files = [model * 50, model[:100]], files_of(exports)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.endswith(".onnx") and wrong:
            body = wrong.pop()
            send(handler, body, length=max(len(body), len(model)))
        else:
            files(handler)

    with http_server(answer) as (url, _):
        source = HttpModels(url, cache)
        with pytest.raises(Unavailable, match="cut off"):
            source.fetch(source.newest())
        with pytest.raises(BadModel):
            source.fetch(source.newest())
        assert swap_of(source).first().info.version == 1


stop_dripping = threading.Event()


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever: no single wait is long."""
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not stop_dripping.wait(0.1):
            handler.wfile.write(b" ")


LATEST = {"format": 1, "version": 1, "folder": "v000001", "manifest_sha256": "0" * 64}
NASTY: dict[str, Answer] = {
    "a page": lambda h: send(h, b"<!doctype html><html>Log in</html>"),
    "too much": lambda h: send(h, b" " * 100_000),
    "elsewhere": lambda h: send(h, b"", 302, Location="http://127.0.0.1:9/x"),
    "a file": lambda h: send(h, b"", 301, Location="file:///etc/passwd"),
    "silent": lambda h: stop_dripping.wait(3),
    "a drip": drip,
    "a path outside": lambda h: send(h, json.dumps(LATEST | {"folder": ".."}).encode()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_server_is_reported_and_the_old_model_goes_on(
    exports: Path, cache: Path, quick: None, name: str
):
    said: list[str] = []
    bad = threading.Event()
    files = files_of(exports)
    with http_server(lambda h: NASTY[name](h) if bad.is_set() else files(h)) as (url, _):
        swap = swap_of(HttpModels(url, cache), said)
        swap.first()
        said.clear()
        bad.set()
        assert not swap.look()
        assert len(said) == 1 and said[0].endswith("; v1 stays in use")
        assert swap.classifier.predict([frame_of("blue")])[0].top[0].name == "blue"
        bad.clear()
        publish(exports, 2)
        assert swap.look(), "it recovers by itself"


def test_a_token_is_not_sent_elsewhere(exports: Path, cache: Path):
    with http_server(lambda h: send(h, b"")) as (other, reached):
        with http_server(lambda h: send(h, b"", 302, Location=other)) as (url, _), pytest.raises(Unavailable):
            HttpModels(url, cache, TOKEN).newest()
        assert reached == []


@pytest.mark.parametrize("url", ["ftp://host/x", "http://user:secret@host/"])
def test_an_address_that_is_none_is_refused_and_not_repeated(cache: Path, url: str):
    with pytest.raises(UserError) as caught:
        HttpModels(url, cache)
    assert "secret" not in str(caught.value)
