"""An exports folder on a server, and a cache here that has the shape of an exports folder itself.

What proved good is named by the cache's own latest.json, so that a device starts without its server. Several runtimes
may share a cache: one at a time changes it.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_hpcr.common.files import Locked, flush_to_disk, locked, reason_of, sha256, write_atomically
from export.device import manifest as files
from export.device.errors import BadModel, Unavailable
from export.device.http_client import Server
from export.device.manifest import Latest, ModelFile
from export.device.model_source import LocalModels, ModelSource, Offer
from export.device.signing import SIGNATURE, Trust

MOST_DOWNLOAD_SECONDS = 600.0  # what is not here by then goes on where it was, at the next look
LOCK = "lock"


class HttpModels(ModelSource):
    """Follows latest.json of a server by its ETag, and downloads what it names."""

    def __init__(
        self,
        url: str,
        cache: Path,
        token: str | None = None,
        variant: str = "fp32",
        timeout: float = 10.0,
        most_seconds: float = 30.0,
        device: str | None = None,
        trust: Trust | None = None,
    ) -> None:
        # A trainer may have another version for this device; a plain file server does not look at its name.
        self._server = Server(url, token, timeout, {"Device-Id": device} if device else {})
        self._trust = trust
        self._latest: Latest | None = None
        self.name = self._server.url
        self._cache = cache / sha256(self.name.encode())[:16]
        self._variant = variant
        self._most_seconds = most_seconds
        self._etag: str | None = None
        self._known: Offer | None = None
        self._fetched: Offer | None = None
        self._manifest_data = b""  # of the known offer

    def newest(self) -> Offer:
        status, etag, data = self._server.get(
            files.LATEST, files.LARGEST_LATEST, self._etag, self._most_seconds
        )
        if status == 304 and self._known is not None:
            return self._known
        latest = Latest.parse(data, f"{self.name}/{files.LATEST}")
        if self._trust is not None:
            self._trust.check_latest(latest, f"{self.name}/{files.LATEST}")
        place = f"{latest.folder}/{files.MANIFEST}"
        _, _, manifest_data = self._server.get(
            place, files.LARGEST_MANIFEST, most_seconds=2 * self._most_seconds
        )
        manifest = files.parse_manifest(manifest_data, f"{self.name}/{place}", latest)
        # Two workspaces may both have a version 1: the folder's name says which.
        folder = self._cache / f"v{manifest.version:06d}-{latest.manifest_sha256[:12]}"
        key = sha256(data)
        self._known = Offer(f"v{manifest.version}", key, folder, manifest)
        self._etag, self._manifest_data, self._latest = etag, manifest_data, latest
        return self._known

    def fetch(self, offer: Offer) -> None:
        if offer.manifest is None or offer != self._known:
            return  # a fallback, which is in the cache
        file = offer.manifest.file_of(self._variant)
        # The process that holds the lock may be downloading this very file.
        with self._changing(MOST_DOWNLOAD_SECONDS):
            if not _is_whole(offer.path, file):
                self._make_room(offer.path)
                offer.path.mkdir(exist_ok=True)
                self._download(file, offer.path / file.file)
            write_atomically(offer.path / files.MANIFEST, self._manifest_data)
            if self._latest is not None and self._latest.signature is not None:
                write_atomically(offer.path / SIGNATURE, self._latest.signature.manifest)
        self._fetched = offer

    def _remote(self) -> str:
        """The folder of the known offer on the server."""
        return self._latest.folder if self._latest is not None else ""

    def lost(self, offer: Offer) -> bool:
        # What a server sends wrongly was not fetched, and would come as wrongly again.
        if offer.manifest is None or offer != self._fetched:
            return False
        return not _is_whole(offer.path, offer.manifest.file_of(self._variant))

    @contextmanager
    def _changing(self, most_seconds: float) -> Iterator[None]:
        """Alone in the cache."""
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            busy = f"{self._cache}: another runtime is still downloading into it"
            with locked(self._cache / LOCK, busy, most_seconds):
                yield
        except Locked as error:
            raise Unavailable(str(error)) from None
        except OSError as error:
            raise Unavailable(
                f"cannot keep models in {self._cache}: {reason_of(error)} (--cache names another folder)"
            ) from None

    def _make_room(self, wanted: Path) -> None:
        """Remove all versions but this one and the last that proved good: most of the others were refused.

        Not earlier, because another runtime may be about to load what it fetched.
        """
        try:
            good = files.read_latest(self._cache).folder
        except BadModel:
            good = ""
        for entry in self._cache.iterdir():
            if entry.is_dir() and entry.name not in (good, wanted.name):
                shutil.rmtree(entry)

    def _download(self, file: ModelFile, target: Path) -> None:
        partial = self._cache / f"partial-{file.sha256[:16]}"
        resumed = partial.exists() and partial.stat().st_size > 0
        digest = self._continue(file, partial)
        if digest != file.sha256 and resumed:
            # What was left of an earlier download may be at fault.
            partial.unlink()
            digest = self._continue(file, partial)
        if digest != file.sha256:
            partial.unlink()
            raise BadModel(
                f"{self.name}/{self._remote()}/{file.file}: its SHA-256 is not the one in the manifest"
            )
        flush_to_disk(partial)
        partial.replace(target)

    def _continue(self, file: ModelFile, partial: Path) -> str:
        """Download what is missing; the SHA-256 of all of it."""
        name = f"{self._remote()}/{file.file}"
        with partial.open("a+b") as out:
            out.seek(0)
            have = os.fstat(out.fileno()).st_size
            if have >= file.bytes:
                have = 0
            digest = hashlib.sha256(out.read(have))
            asked = {"Range": f"bytes={have}-"} if have else {}
            with self._server.open(name, asked, MOST_DOWNLOAD_SECONDS) as reply:
                if reply.status not in (200, 206, 416):
                    raise Unavailable(f"{reply.url}: the server answers {reply.status}")
                continues = (reply.header("Content-Range") or "").startswith(f"bytes {have}-")
                if reply.status != 206 or not continues:
                    have, digest = 0, hashlib.sha256()
                out.truncate(have)
                if reply.status == 416:
                    raise Unavailable(f"{reply.url}: shorter than its manifest says")
                for block in reply.blocks(file.bytes - have):
                    digest.update(block)
                    out.write(block)
                    have += len(block)
            if have < file.bytes:
                raise Unavailable(f"{self.name}/{name}: {have} of {file.bytes} bytes so far")
        return digest.hexdigest()

    def accepted(self, offer: Offer) -> None:
        """Name it in the cache's latest.json, and forget what was downloaded in part."""
        if offer.manifest is None:
            return
        if self._trust is not None:
            self._trust.took(offer.manifest.version, self._latest if offer == self._known else None)
        if offer != self._known:
            return
        latest = Latest(offer.manifest.version, offer.path.name, sha256(self._manifest_data))
        with self._changing(self._most_seconds):
            write_atomically(self._cache / files.LATEST, latest.to_bytes())
            for partial in self._cache.glob("partial-*"):
                partial.unlink()

    def fallbacks(self) -> Iterator[Offer]:
        with suppress(BadModel, Unavailable):
            offer = LocalModels(self._cache).newest()
            if self._trust is not None and offer.manifest is not None:
                self._trust.check_folder(offer.path, offer.manifest.version)
            yield offer


def _is_whole(folder: Path, file: ModelFile) -> bool:
    try:
        files.read_model_file(folder, file)
    except BadModel:
        return False
    return True
