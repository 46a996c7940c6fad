"""Signed models: what a device with a public key takes, and everything that it must refuse."""

import json
import shutil
import stat
from pathlib import Path

import pytest
from device_parts import LOAD, files_of, publish, tiny_model
from process_parts import http_server

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from export.__main__ import main
from export.device.health import Health
from export.device.hot_swap import HotSwap, HttpModels, LocalModels
from export.device.manifest import Latest
from export.device.signing import SIGNATURE, PrivateKey, Trust, make_keys


class Signer:
    """Publishes as the trainer does, signed."""

    def __init__(self, folder: Path, name: str = "key") -> None:
        self.private, self.public = folder / f"{name}.pem", folder / f"{name}.pub"
        make_keys(self.private, self.public)
        self.key = PrivateKey(self.private)
        self.serial = 0

    def publish(self, exports: Path, version: int) -> Path:
        folder = publish(exports, version)
        self.point_at(exports, version)
        return folder

    def point_at(self, exports: Path, version: int, allows_older: bool = False) -> bytes:
        self.serial += 1
        folder = exports / f"v{version:06d}"
        text = self.key.signed(folder, read_latest_of(folder), self.serial, allows_older).to_bytes()
        (exports / ".next").write_bytes(text)
        (exports / ".next").replace(exports / "latest.json")
        return text


def read_latest_of(folder: Path) -> Latest:
    return Latest(int(folder.name[1:]), folder.name, sha256((folder / "manifest.json").read_bytes()))


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path)


@pytest.fixture
def exports(tmp_path: Path, signer: Signer) -> Path:
    signer.publish(tmp_path / "exports", 1)
    return tmp_path / "exports"


class Device:
    """The models of a device, from a folder or a file server, with its own cache."""

    def __init__(self, place: str, signer: Signer, cache: Path) -> None:
        self.said: list[str] = []
        trust = Trust(signer.public, cache, place)
        source = HttpModels(place, cache, trust=trust) if "://" in place else LocalModels(Path(place), trust)
        self.swap = HotSwap(source, LOAD, Health("test", self.said.append))

    @property
    def version(self) -> int:
        return self.swap.classifier.info.version


def forge(exports: Path, signer: Signer, kind: str) -> None:
    """Publish something as version 2 that the owner of the key has not signed."""
    if kind == "not signed":
        publish(exports, 2)
        return
    if kind == "another key":
        other = Signer(exports.parent, "other")
        other.serial = 100
        other.publish(exports, 2)
        return
    folder = signer.publish(exports, 2)
    facts = json.loads((exports / "latest.json").read_bytes())
    if kind.startswith("another manifest"):
        manifest = folder / "manifest.json"
        manifest.write_bytes(manifest.read_bytes().replace(b'"red"', b'"mug"'))
        if kind.endswith("hash"):
            facts["manifest_sha256"] = read_latest_of(folder).manifest_sha256
    elif kind == "permission added":
        facts["signature"]["allows_older"] = True
    elif kind == "the other signature":
        facts["signature"]["latest"] = facts["signature"]["manifest"]
    elif kind == "another model":
        (folder / "model.onnx").write_bytes(tiny_model(2, scale=-0.2).SerializeToString())
    (exports / "latest.json").write_text(json.dumps(facts))


FORGERIES = (
    "not signed",
    "another key",
    "another manifest",
    "another manifest and its hash",
    "permission added",
    "the other signature",
    "another model",
)


@pytest.mark.parametrize("over_http", [False, True], ids=["folder", "server"])
@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forgery_is_refused_and_told_and_the_old_model_goes_on(
    exports: Path, signer: Signer, tmp_path: Path, kind: str, over_http: bool
):
    with http_server(files_of(exports)) as (url, _):
        device = Device(url if over_http else str(exports), signer, tmp_path / "cache")
        device.swap.first()
        forge(exports, signer, kind)
        assert not device.swap.look() and not device.swap.look() and device.version == 1
        assert len([line for line in device.said if "stays in use" in line]) == 1
        # The next honest version is taken.
        shutil.rmtree(exports / "v000002")
        signer.publish(exports, 3)
        assert device.swap.look() and device.version == 3


@pytest.mark.parametrize("over_http", [False, True], ids=["folder", "server"])
def test_an_older_version_is_taken_only_if_the_signer_says_so_and_never_by_repetition(
    exports: Path, signer: Signer, tmp_path: Path, over_http: bool
):
    first = (exports / "latest.json").read_bytes()
    with http_server(files_of(exports)) as (url, _):
        place = url if over_http else str(exports)
        device = Device(place, signer, tmp_path / "cache")
        device.swap.first()
        signer.publish(exports, 2)
        assert device.swap.look()
        (exports / "latest.json").write_bytes(first)  # signed, whole, and old
        assert not device.swap.look() and "repeats what was signed before" in device.said[-1]
        signer.point_at(exports, 1)
        assert not device.swap.look() and "does not allow that" in device.said[-1]
        # After a start it knows that still.
        again = Device(place, signer, tmp_path / "cache")
        if over_http:
            assert again.swap.first().info.version == 2, "from its cache"
        else:
            with pytest.raises(UserError):
                again.swap.first()
        rollback = signer.point_at(exports, 1, allows_older=True)
        assert device.swap.look() and device.version == 1
        signer.point_at(exports, 2)
        assert device.swap.look() and device.version == 2
        (exports / "latest.json").write_bytes(rollback)  # the permission was for that time
        assert not device.swap.look() and device.version == 2


@pytest.mark.parametrize("signature", ["bm8=", None])
def test_a_device_starts_without_its_server_and_a_cache_that_was_changed_is_refused(
    exports: Path, signer: Signer, tmp_path: Path, signature: str | None
):
    with http_server(files_of(exports)) as (url, _):
        Device(url, signer, tmp_path / "cache").swap.first()
    assert Device(url, signer, tmp_path / "cache").swap.first().info.version == 1
    kept = next((tmp_path / "cache").rglob(SIGNATURE))
    kept.unlink() if signature is None else kept.write_text(signature)
    with pytest.raises(UserError):
        Device(url, signer, tmp_path / "cache").swap.first()


def test_a_versions_folder_is_taken_by_the_signature_beside_its_manifest(
    exports: Path, signer: Signer, tmp_path: Path
):
    folder = exports / "v000001"
    assert Device(str(folder), signer, tmp_path / "cache").swap.first().info.version == 1
    with pytest.raises(UserError):
        Device(str(folder), Signer(tmp_path, "other"), tmp_path / "cache").swap.first()


def test_what_a_device_remembers_is_not_forgotten_in_silence(exports: Path, signer: Signer, tmp_path: Path):
    Device(str(exports), signer, tmp_path / "cache").swap.first()
    (kept,) = (tmp_path / "cache").glob("signed-*.json")
    assert json.loads(kept.read_text()) == {"serial": 1, "version": 1}
    kept.write_text("{")
    with pytest.raises(UserError):
        Device(str(exports), signer, tmp_path / "cache")


# The commands ---------------------------------------------------------------------------------------------------------


def test_keys_are_made_for_their_owner_only_and_never_overwritten(tmp_path: Path, capsys):
    places = ["--private", str(tmp_path / "key.pem"), "--public", str(tmp_path / "key.pub")]
    assert main(["keygen", *places]) == 0
    before = (tmp_path / "key.pem").read_bytes()
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    assert main(["keygen", *places]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert (tmp_path / "key.pem").read_bytes() == before
    assert b"PRIVATE" not in (tmp_path / "key.pub").read_bytes()
