"""Archives from outside: unpacked below the target, or refused."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from edge_hpcr.bench.datasets.archives import extract
from edge_hpcr.common.errors import UserError


def _tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 2 if member.isfile() else 0
            tar.addfile(member, io.BytesIO(b"ok") if member.isfile() else None)
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_a_tar_and_a_zip_are_unpacked(tmp_path):
    tar = _tar(tmp_path / "a.tar.gz", _member("folder/file"))
    assert (extract(tar, tmp_path / "one") / "folder" / "file").read_bytes() == b"ok"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as bundle:
        bundle.writestr("folder/file", b"ok")
    assert (extract(tmp_path / "a.zip", tmp_path / "two") / "folder" / "file").read_bytes() == b"ok"


@pytest.mark.parametrize(
    "name", ["../outside", "a/../../outside", "/tmp/outside", "..\\outside", "C:\\outside"]
)
def test_a_path_outside_the_target_is_refused_and_nothing_is_written(tmp_path, name):
    tar = _tar(tmp_path / "a.tar.gz", _member("first"), _member(name))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as bundle:
        bundle.writestr("first", b"ok")
        bundle.writestr(name, b"ok")
    for archive in (tar, tmp_path / "a.zip"):
        with pytest.raises(UserError, match="would be written outside the target folder"):
            extract(archive, tmp_path / "deep" / "target")
    assert list((tmp_path / "deep").rglob("*")) == [tmp_path / "deep" / "target"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    tar = _tar(tmp_path / "a.tar.gz", _member("odd", kind, "/etc/passwd"))
    with pytest.raises(UserError, match="'odd' is a link or a device"):
        extract(tar, tmp_path / "target")


def test_a_link_in_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as bundle:
        link = zipfile.ZipInfo("odd")
        link.external_attr = 0o120777 << 16
        bundle.writestr(link, "/etc/passwd")
    with pytest.raises(UserError, match="'odd' is a link"):
        extract(tmp_path / "a.zip", tmp_path / "target")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_an_archive_that_is_damaged_or_too_large_is_refused(tmp_path, name):
    path = tmp_path / name
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as bundle:
        bundle.writestr("file", b"ok")
    whole = _tar(tmp_path / "whole.tar.gz", _member("file")) if name != "a.zip" else tmp_path / "whole.zip"
    with pytest.raises(UserError, match="unpacked it would be 2 bytes, more than 1"):
        extract(whole, tmp_path / "target", most_bytes=1)
    for content in (b"", b"nonsense", whole.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}: (damaged|cannot be unpacked)"):
            extract(path, tmp_path / "target")
