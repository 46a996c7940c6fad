"""Signed models: what a device with a public key takes, and everything that it must refuse."""

import json
import re
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from device_parts import publish, tiny_model
from export_parts import Teaching
from test_device_http import files_of, nasty
from test_device_runtime import add, run

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256
from edge_hpcr.workspace.settings import Settings
from export.__main__ import main
from export.device.hot_swap import HotSwap
from export.device.http_models import HttpModels
from export.device.manifest import Latest, read_latest
from export.device.model_source import Loading, LocalModels
from export.device.signing import SIGNATURE, PublicKey, Trust
from export.publish.keys import PrivateKey, make_keys
from export.publish.publish import publish as publish_snapshot
from export.publish.snapshot import snapshot_of


class Signer:
    """Publishes as the trainer does, signed."""

    def __init__(self, folder: Path, name: str = "key") -> None:
        self.private, self.public = folder / f"{name}.pem", folder / f"{name}.pub"
        make_keys(self.private, self.public)
        self.key = PrivateKey(self.private)
        self.serial = 0

    def publish(self, exports: Path, version: int) -> Path:
        folder = publish(exports, version)
        self.key.sign_folder(folder)
        self.point_at(exports, version)
        return folder

    def point_at(self, exports: Path, version: int, allows_older: bool = False) -> bytes:
        self.serial += 1
        folder = exports / f"v{version:06d}"
        latest = read_latest_of(folder)
        data = (folder / "manifest.json").read_bytes()
        signature = self.key.signature_of(latest, data, self.serial, allows_older)
        text = replace(latest, signature=signature).to_bytes()
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


Change = Callable[[Path, Signer, Path], None]


def unsigned(exports: Path, signer: Signer, folder: Path) -> None:
    publish(exports, 2)


def by_another_key(exports: Path, signer: Signer, folder: Path) -> None:
    other = Signer(folder, "other")
    other.serial = 100
    other.publish(exports, 2)


def with_another_manifest(exports: Path, signer: Signer, folder: Path) -> None:
    signer.publish(exports, 2)
    manifest = exports / "v000002" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"red"', b'"mug"'))


def with_another_manifest_and_its_hash(exports: Path, signer: Signer, folder: Path) -> None:
    with_another_manifest(exports, signer, folder)
    change_latest(exports, manifest_sha256=read_latest_of(exports / "v000002").manifest_sha256)


def with_permission_added(exports: Path, signer: Signer, folder: Path) -> None:
    signer.publish(exports, 2)
    facts = json.loads((exports / "latest.json").read_bytes())
    facts["signature"]["allows_older"] = True
    (exports / "latest.json").write_text(json.dumps(facts))


def with_a_signature_that_is_none(exports: Path, signer: Signer, folder: Path) -> None:
    signer.publish(exports, 2)
    facts = json.loads((exports / "latest.json").read_bytes())
    facts["signature"]["latest"] = facts["signature"]["manifest"]
    (exports / "latest.json").write_text(json.dumps(facts))


def with_another_model(exports: Path, signer: Signer, folder: Path) -> None:
    signer.publish(exports, 2)
    (exports / "v000002" / "model.onnx").write_bytes(tiny_model(2, scale=-0.2).SerializeToString())


def change_latest(exports: Path, **changes: object) -> None:
    latest = replace(read_latest(exports), **changes)
    (exports / "latest.json").write_bytes(latest.to_bytes())


FORGERIES = [
    (unsigned, "it is not signed"),
    (by_another_key, "its signature is not that of the owner"),
    (with_another_manifest, "SHA-256"),
    (with_another_manifest_and_its_hash, "its signature is not that of the owner"),
    (with_permission_added, "its signature is not that of the owner"),
    (with_a_signature_that_is_none, "its signature is not that of the owner"),
    (with_another_model, "SHA-256|bytes instead of"),
]


class Device:
    """The models of a device, from a folder or a file server, with its own cache."""

    def __init__(self, place: str, signer: Signer, cache: Path) -> None:
        self.said: list[str] = []
        trust = Trust(PublicKey(signer.public), cache, place)
        source = HttpModels(place, cache, trust=trust) if "://" in place else LocalModels(Path(place), trust)
        self.swap = HotSwap(source, Loading("cpu", 1), self.said.append)

    @property
    def version(self) -> int:
        return self.swap.classifier.info.version


@pytest.mark.parametrize("over_http", [False, True], ids=["folder", "server"])
@pytest.mark.parametrize(("forge", "why"), FORGERIES, ids=[forge.__name__ for forge, _ in FORGERIES])
def test_a_forgery_is_refused_and_told_and_the_old_model_goes_on(
    exports: Path, signer: Signer, tmp_path: Path, forge: Change, why: str, over_http: bool
):
    with nasty(files_of(exports)) as (url, _):
        device = Device(url if over_http else str(exports), signer, tmp_path / "cache")
        device.swap.first()
        forge(exports, signer, tmp_path)
        assert not device.swap.look() and not device.swap.look()
        assert re.search(why, device.said[-1]) and device.version == 1
        assert len([line for line in device.said if "goes on" in line]) == 1
        # The next honest version is taken.
        shutil.rmtree(exports / "v000002")
        signer.publish(exports, 3)
        assert device.swap.look() and device.version == 3


@pytest.mark.parametrize("over_http", [False, True], ids=["folder", "server"])
def test_an_older_version_is_taken_only_if_the_signer_says_so_and_never_by_repetition(
    exports: Path, signer: Signer, tmp_path: Path, over_http: bool
):
    first = (exports / "latest.json").read_bytes()
    with nasty(files_of(exports)) as (url, _):
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
            with pytest.raises(UserError, match="does not allow that"):
                again.swap.first()
        rollback = signer.point_at(exports, 1, allows_older=True)
        assert device.swap.look() and device.version == 1
        signer.point_at(exports, 2)
        assert device.swap.look() and device.version == 2
        (exports / "latest.json").write_bytes(rollback)  # the permission was for that time
        assert not device.swap.look() and device.version == 2


def test_a_clock_in_1970_changes_nothing(
    exports: Path, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(time, "time", lambda: 5.0)
    device = Device(str(exports), signer, tmp_path / "cache")
    device.swap.first()
    signer.publish(exports, 2)
    assert device.swap.look()


def test_a_device_starts_without_its_server_and_a_cache_that_was_changed_is_refused(
    exports: Path, signer: Signer, tmp_path: Path
):
    with nasty(files_of(exports)) as (url, _):
        Device(url, signer, tmp_path / "cache").swap.first()
    device = Device(url, signer, tmp_path / "cache")
    assert device.swap.first().info.version == 1
    signature = next((tmp_path / "cache").rglob(SIGNATURE))
    signature.write_text("bm8=")
    with pytest.raises(UserError, match="no model to start with"):
        Device(url, signer, tmp_path / "cache").swap.first()
    signature.unlink()
    with pytest.raises(UserError, match="no model to start with"):
        Device(url, signer, tmp_path / "cache").swap.first()


def test_a_versions_folder_is_taken_by_the_signature_beside_its_manifest_and_a_bare_file_never(
    exports: Path, signer: Signer, tmp_path: Path
):
    folder = exports / "v000001"
    assert Device(str(folder), signer, tmp_path / "cache").swap.first().info.version == 1
    with pytest.raises(UserError, match="a model file alone is not signed"):
        Device(str(folder / "model.onnx"), signer, tmp_path / "cache").swap.first()
    with pytest.raises(UserError, match="its signature is not that of the owner"):
        Device(str(folder), Signer(tmp_path, "other"), tmp_path / "cache").swap.first()


def test_a_damaged_newest_version_is_not_replaced_by_one_that_is_older_than_what_ran(
    exports: Path, signer: Signer, tmp_path: Path
):
    signer.publish(exports, 2)
    Device(str(exports), signer, tmp_path / "cache").swap.first()
    (exports / "v000002" / "model.onnx").write_bytes(b"")
    with pytest.raises(UserError, match="no model to start with"):
        Device(str(exports), signer, tmp_path / "cache").swap.first()


def test_what_a_device_remembers_is_not_forgotten_in_silence(exports: Path, signer: Signer, tmp_path: Path):
    Device(str(exports), signer, tmp_path / "cache").swap.first()
    (kept,) = (tmp_path / "cache").glob("signed-*.json")
    assert json.loads(kept.read_text()) == {"serial": 1, "version": 1}
    kept.write_text("{")
    with pytest.raises(UserError, match="is damaged, which says what this device ran last"):
        Device(str(exports), signer, tmp_path / "cache")


def test_without_a_public_key_a_signature_is_not_looked_at(exports: Path, signer: Signer, tmp_path: Path):
    with_permission_added(exports, signer, tmp_path)
    assert HotSwap(LocalModels(exports), Loading("cpu", 1), print).first().info.version == 2


def test_a_signed_latest_has_all_that_an_older_device_reads(exports: Path):
    facts = json.loads((exports / "latest.json").read_bytes())
    plain = asdict(replace(read_latest(exports), signature=None))
    assert {key: facts[key] for key in plain if key != "signature"} | {"format": 1} == {
        key: value for key, value in facts.items() if key != "signature"
    }


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


def test_a_private_key_among_published_models_is_refused(exports: Path, tmp_path: Path, capsys):
    inside = exports / "key.pem"
    assert main(["keygen", "--private", str(inside), "--public", str(tmp_path / "x.pub")]) == 2
    assert "are given out: keep the private key elsewhere" in capsys.readouterr().err
    assert not inside.exists() and not (tmp_path / "x.pub").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no key that"),
        (b"-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----\n", "no key that"),
        (None, "No such file"),
    ],
)
def test_a_public_key_that_is_none_is_refused(tmp_path: Path, content: bytes | None, why: str):
    if content is not None:
        (tmp_path / "bad.pub").write_bytes(content)
    with pytest.raises(UserError, match=why):
        PublicKey(tmp_path / "bad.pub")


def test_a_private_key_given_as_the_public_one_is_noticed(signer: Signer):
    with pytest.raises(UserError, match="a private key, which belongs on no device"):
        PublicKey(signer.private)


@pytest.mark.slow
def test_what_is_published_signed_runs_on_a_device_with_the_key_through_rollback_and_forward(
    tmp_path: Path, capsys
):
    one = Teaching(tmp_path / "w")
    one.teach(0)
    one.teach(1)
    one.close()
    workspace, key, public = (str(tmp_path / name) for name in ("w", "key.pem", "key.pub"))
    assert main(["--workspace", workspace]) == 0, "the first one is not signed"
    assert main(["keygen", "--private", key, "--public", public]) == 0
    assert main(["sign", "--workspace", workspace]) == 2
    assert "there is no key to sign with" in capsys.readouterr().err
    assert main(["sign", "--workspace", workspace, "--sign", key]) == 0
    exports = tmp_path / "w" / "exports"
    device = HotSwap(
        LocalModels(exports, Trust(PublicKey(Path(public)), tmp_path / "cache", "w")),
        Loading("cpu", 1),
        print,
    )
    assert device.first().info.version == 1
    assert main(["--workspace", workspace, "--force"]) == 0, "the key is known by now"
    assert device.look() and device.classifier.info.version == 2
    assert main(["rollback", "--workspace", workspace]) == 0
    assert device.look() and device.classifier.info.version == 1
    assert main(["rollforward", "--workspace", workspace]) == 0
    assert device.look() and device.classifier.info.version == 2
    Path(key).unlink()
    assert main(["rollback", "--workspace", workspace]) == 2
    assert "the private key" in capsys.readouterr().err
    assert not device.look() and device.classifier.info.version == 2


@pytest.mark.slow
def test_a_running_learner_that_saves_its_settings_keeps_the_key_that_was_named_meanwhile(
    signer: Signer, tmp_path: Path
):
    one = Teaching(tmp_path / "w")
    try:
        one.teach(0)
        publish_snapshot(one.exports, snapshot_of(one.live), variants=())
        assert main(["sign", "--workspace", str(tmp_path / "w"), "--sign", str(signer.private)]) == 0
        one.workspace.change_settings(queue_samples=9)
        one.teach(1)
        publish_snapshot(one.exports, snapshot_of(one.live), variants=())
        assert read_latest(one.exports).version == 2 and read_latest(one.exports).signature is not None
        one.workspace.change_settings(publish_key="")
        assert Settings.load(one.workspace.layout.settings).publish_key == "", (
            "by itself it can be taken back"
        )
    finally:
        one.close()


@pytest.mark.slow
def test_the_runtime_refuses_what_is_not_signed_in_one_line(exports: Path, signer: Signer, tmp_path: Path):
    (tmp_path / "images").mkdir()
    add(tmp_path / "images", "0.png", "red")
    places = ("--models", exports, "--source", tmp_path / "images", "--cache", tmp_path / "cache")
    good = run(*places, "--public-key", signer.public)
    assert (good.returncode, len(good.stdout.splitlines())) == (0, 1), good.stderr
    shutil.rmtree(exports)
    publish(exports, 2)
    bad = run(*places, "--public-key", signer.public)
    assert (bad.returncode, bad.stdout) == (2, "")
    (line,) = bad.stderr.splitlines()
    assert "it is not signed, and --public-key asks for a signature" in line
