"""Where models come from: a folder here, or the same folder on a server.

A source names the current model (`newest`), brings its files here (`fetch`), notes which ones proved good (`accepted`),
and lists what to start with when the newest cannot be had (`fallbacks`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_hpcr.common.files import reason_of, sha256
from export.device import manifest as files
from export.device.errors import BadModel, Unavailable
from export.device.manifest import Manifest
from export.device.model import Classifier
from export.device.signing import Trust

_VERSION_FOLDER = re.compile(r"v([0-9]{6,15})")


@dataclass(frozen=True)
class Offer:
    """A model that may be loaded."""

    name: str  # for people: "v17"
    key: str  # changes whenever anything about the model does
    path: Path  # its version folder, or a bare model file
    manifest: Manifest | None


@dataclass(frozen=True)
class Loading:
    """How the models of this device are loaded."""

    providers: str = "auto"
    threads: int = 0
    variant: str = "fp32"
    require_gpu: bool = False

    def load(self, offer: Offer) -> Classifier:
        how = (self.providers, self.threads, self.variant, self.require_gpu)
        if offer.manifest is None:
            return Classifier.load(offer.path, *how)
        return Classifier.load_version(offer.path, offer.manifest, *how)


class ModelSource(ABC):
    """Offers models; by default their files are here already."""

    name: str

    @abstractmethod
    def newest(self) -> Offer:
        """The current model; `Unavailable` or `BadModel` if that cannot be said."""

    @abstractmethod
    def fallbacks(self) -> Iterator[Offer]:
        """Models to start with if the newest one cannot be had, the best first."""

    def fetch(self, offer: Offer) -> None:
        """Bring the files here; called before a model is loaded."""

    def accepted(self, offer: Offer) -> None:
        """The model was loaded and is in use."""

    def lost(self, offer: Offer) -> bool:
        """Whether a model that was refused is no longer the one that was fetched: another `fetch` may help."""
        return False


class LocalModels(ModelSource):
    """An exports folder (whose latest.json is followed), one version's folder, or a single model file."""

    def __init__(self, path: Path, trust: Trust | None = None) -> None:
        self.name = str(path)
        self._path = path
        self._trust = trust
        self._latest: files.Latest | None = None
        self._known: Offer | None = None

    def newest(self) -> Offer:
        try:
            return self._newest()
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {reason_of(error)}") from None

    def _newest(self) -> Offer:
        if not self._path.exists():
            raise Unavailable(f"{self._path} is not there")
        if self._path.is_file() or (self._path / files.MANIFEST).exists():
            return self._single(self._path.resolve())
        if not (self._path / files.LATEST).exists():
            raise Unavailable(f"{self._path} holds no published model yet (no {files.LATEST})")
        data = files.read_plain_file(self._path / files.LATEST, files.LARGEST_LATEST)
        latest = files.Latest.parse(data, str(self._path / files.LATEST))
        if self._trust is not None:
            self._trust.check_latest(latest, str(self._path / files.LATEST))
        self._latest = latest
        folder = self._path.resolve() / latest.folder
        digest = sha256(data)
        known = self._known
        if known is None or known.manifest is None or known.key != _key(folder, digest, known.manifest):
            manifest = files.read_manifest(folder, latest)
            known = Offer(f"v{manifest.version}", _key(folder, digest, manifest), folder, manifest)
            self._known = known
        return known

    def _single(self, path: Path) -> Offer:
        if path.is_file():
            if self._trust is not None:
                raise BadModel(
                    f"{path}: a model file alone is not signed; name its version's folder, or exports"
                )
            return Offer(path.name, f"{path}:{_state(path)}", path, None)
        manifest = files.read_manifest(path)
        if self._trust is not None:
            self._trust.check_folder(path, manifest.version)
        return Offer(f"v{manifest.version}", _key(path, "", manifest), path, manifest)

    def accepted(self, offer: Offer) -> None:
        if self._trust is not None and offer.manifest is not None:
            self._trust.took(offer.manifest.version, self._latest if offer == self._known else None)

    def fallbacks(self) -> Iterator[Offer]:
        """Older versions, the newest first. After a rollback the newer ones were not wanted any more."""
        try:
            newest = files.read_latest(self._path).version
            entries = list(self._path.resolve().iterdir())
        except (BadModel, OSError):
            return
        numbers = {
            entry: int(match[1]) for entry in entries if (match := _VERSION_FOLDER.fullmatch(entry.name))
        }
        for folder in sorted(numbers, key=lambda entry: -numbers[entry]):
            if numbers[folder] < newest:
                try:
                    manifest = files.read_manifest(folder)
                    if self._trust is not None:
                        self._trust.check_folder(folder, manifest.version)
                except BadModel:
                    continue
                yield Offer(f"v{manifest.version}", _key(folder, "", manifest), folder, manifest)


def _key(folder: Path, digest: str, manifest: Manifest) -> str:
    states = [_state(folder / name) for name in (files.MANIFEST, *(each.file for each in manifest.files))]
    return ":".join([str(folder), digest, *states])


def _state(path: Path) -> str:
    """What changes when a file is written again."""
    try:
        state = path.lstat()
    except OSError:
        return "absent"
    return f"{state.st_ino},{state.st_mtime_ns},{state.st_size}"
