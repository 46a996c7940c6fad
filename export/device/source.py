"""Where models come from: a folder here, or the same folder on a server.

A source names the current model (`newest`), brings its files here (`fetch`), notes which ones proved good (`accepted`),
and has the one that ran last if it keeps it (`kept`).
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edge_hpcr.common.files import Locked, locked, reason_of, sha256, write_atomically
from export.device import BadModel, Unavailable
from export.device import manifest as files
from export.device.http_client import MOST_SECONDS, Server
from export.device.manifest import Latest, Manifest
from export.device.signing import SIGNATURE, Trust

MOST_DOWNLOAD_SECONDS = 600.0  # of a model; the next look begins again


@dataclass(frozen=True)
class Offer:
    """A model that may be loaded."""

    name: str  # for people: "v17"
    key: str  # changes whenever anything about the model does
    path: Path  # its version folder
    manifest: Manifest
    latest: Latest | None = None  # which names it as the current one


class LocalModels:
    """An exports folder (whose latest.json is followed), or one version's folder.

    With `trust`, only signed models are offered.
    """

    def __init__(self, path: Path, trust: Trust | None = None) -> None:
        self._path = path
        self._trust = trust

    def newest(self) -> Offer:
        """The current model; `Unavailable` or `BadModel` if that cannot be said."""
        path = self._path
        try:
            if not path.exists():
                raise Unavailable(f"{path} is not there")
            if (path / files.MANIFEST).exists():
                folder = path.resolve()
                manifest = files.read_manifest(folder)
                if self._trust is not None:
                    self._trust.check_folder(folder, manifest.version)
                return _offer(folder, manifest)
            if not (path / files.LATEST).exists():
                raise Unavailable(f"{path} holds no published model yet (no {files.LATEST})")
            data = files.read_plain_file(path / files.LATEST, files.LARGEST_LATEST)
            latest = self._parse_latest(data, str(path / files.LATEST))
            folder = path.resolve() / latest.folder
            return _offer(folder, files.read_manifest(folder, latest), latest)
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {reason_of(error)}") from None

    def fetch(self, offer: Offer) -> None:
        """Bring the files of the newest here; called before it is loaded."""

    def accepted(self, offer: Offer) -> None:
        """The model was loaded and is in use."""
        if self._trust is not None:
            self._trust.took(offer.manifest.version, offer.latest)

    def _parse_latest(self, data: bytes, where: str) -> Latest:
        latest = Latest.parse(data, where)
        if self._trust is not None:
            self._trust.check_latest(latest, where)
        return latest

    def kept(self) -> Offer | None:
        """The model that ran last, if it is at hand though the newest is not."""
        return None


def _offer(folder: Path, manifest: Manifest, latest: Latest | None = None) -> Offer:
    # Also files that are copied here one after the other make it another one.
    written = sorted((each.name, each.lstat().st_mtime_ns) for each in folder.iterdir())
    return Offer(f"v{manifest.version}", f"{folder}:{latest}:{written}", folder, manifest, latest)


class HttpModels(LocalModels):
    """Follows latest.json of a server by its ETag, and downloads what it names into a cache.

    The cache has the shape of an exports folder itself. What proved good is named by its own latest.json, so that a
    device starts without its server. Several runtimes may share a cache: one at a time changes it.
    """

    def __init__(
        self,
        url: str,
        cache: Path,
        token: str | None = None,
        variant: str = "fp32",
        device: str | None = None,
        trust: Trust | None = None,
    ) -> None:
        # A trainer may have another version for this device; a plain file server does not look at its name.
        self._server = Server(url, token, {"Device-Id": device} if device else {})
        self._url = self._server.url
        self._cache = cache / sha256(self._url.encode())[:16]
        super().__init__(self._cache, trust)
        self._variant = variant
        self._etag: str | None = None  # of the known offer's latest.json
        self._known: Offer | None = None
        self._manifest_data = b""  # of the known offer

    def newest(self) -> Offer:
        status, etag, data = self._server.get(files.LATEST, files.LARGEST_LATEST, self._etag)
        if status == 304 and self._known is not None:
            return self._known
        latest = self._parse_latest(data, f"{self._url}/{files.LATEST}")
        place = f"{latest.folder}/{files.MANIFEST}"
        _, _, manifest_data = self._server.get(place, files.LARGEST_MANIFEST)
        manifest = Manifest.parse(manifest_data, f"{self._url}/{place}", latest)
        # Two workspaces may both have a version 1: the folder's name says which.
        folder = self._cache / f"v{manifest.version:06d}-{latest.manifest_sha256[:12]}"
        self._known = Offer(f"v{manifest.version}", sha256(data), folder, manifest, latest)
        self._etag, self._manifest_data = etag, manifest_data
        return self._known

    def fetch(self, offer: Offer) -> None:
        assert offer.latest is not None
        file = offer.manifest.file_of(self._variant)
        # The process that holds the lock may be downloading this very file.
        with self._changing(MOST_DOWNLOAD_SECONDS):
            try:
                files.read_model_file(offer.path, file)
            except BadModel:
                self._make_room(offer.path)
                name = f"{offer.latest.folder}/{file.file}"
                _, _, data = self._server.get(name, file.bytes, most_seconds=MOST_DOWNLOAD_SECONDS)
                if sha256(data) != file.sha256:
                    raise BadModel(
                        f"{self._url}/{name}: its SHA-256 is not the one in the manifest"
                    ) from None
                offer.path.mkdir(exist_ok=True)
                write_atomically(offer.path / file.file, data)
            write_atomically(offer.path / files.MANIFEST, self._manifest_data)
            if offer.latest.signature is not None:
                write_atomically(offer.path / SIGNATURE, offer.latest.signature.manifest)

    @contextmanager
    def _changing(self, most_seconds: float) -> Iterator[None]:
        """Alone in the cache."""
        busy = f"{self._cache}: another runtime is still downloading into it"
        try:
            with locked(self._cache / "lock", busy, most_seconds):
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
        good = ""
        with suppress(BadModel):
            good = files.read_latest(self._cache).folder
        for entry in self._cache.iterdir():
            if entry.is_dir() and entry.name not in (good, wanted.name):
                shutil.rmtree(entry)

    def accepted(self, offer: Offer) -> None:
        """Name it in the cache's latest.json."""
        super().accepted(offer)
        if offer is self._known:  # else it was in the cache
            latest = Latest(offer.manifest.version, offer.path.name, sha256(self._manifest_data))
            with self._changing(MOST_SECONDS):
                write_atomically(self._cache / files.LATEST, latest.to_bytes())

    def kept(self) -> Offer:
        offer = LocalModels(self._cache).newest()
        if self._trust is not None:
            self._trust.check_folder(offer.path, offer.manifest.version)
        return offer
