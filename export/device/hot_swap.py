"""Follows new models of a folder or a server while the old one answers: each is loaded and checked beside it, then
swapped between two frames.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import Locked, locked, reason_of, sha256, write_atomically
from export.device import BadModel, Unavailable
from export.device import manifest as files
from export.device.health import Health
from export.device.http_client import MOST_SECONDS, Server
from export.device.manifest import Latest, Manifest
from export.device.model import Classifier
from export.device.signing import SIGNATURE, Trust

LOG = logging.getLogger(__name__)
PART = "models"  # of what may be wrong with a device
MOST_DOWNLOAD_SECONDS = 600.0  # of a model; the next look begins again

# `Classifier.load`, with how this device loads its models.
Load = Callable[..., Classifier]


# Where models come from -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """A model that may be loaded."""

    key: str  # changes whenever anything about the model does
    path: Path  # its version folder
    manifest: Manifest
    latest: Latest | None = None  # which names it as the current one

    @property
    def name(self) -> str:
        """For people."""
        return f"v{self.manifest.version}"


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
            folder, latest = files.current_folder(path)
            if self._trust is not None and latest is not None:
                self._trust.check_latest(latest, str(path / files.LATEST))
            manifest = files.read_manifest(folder, latest)
            if self._trust is not None and latest is None:
                self._trust.check_folder(folder, manifest.version)
            # Also files that are copied here one after the other make it another one.
            written = sorted((each.name, each.lstat().st_mtime_ns) for each in folder.iterdir())
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {reason_of(error)}") from None
        return Offer(f"{folder}:{latest}:{written}", folder, manifest, latest)

    def fetch(self, offer: Offer) -> None:
        """Bring the files of the newest here; called before it is loaded."""

    def accepted(self, offer: Offer) -> None:
        """The model was loaded and is in use."""
        if self._trust is not None:
            self._trust.took(offer.manifest.version, offer.latest)

    def kept(self) -> Offer | None:
        """The model that ran last, if it is at hand though the newest is not."""
        return None


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
        super().__init__(cache / sha256(self._url.encode())[:16], trust)
        self._variant = variant
        self._etag: str | None = None  # of the known offer's latest.json
        self._known: Offer | None = None
        self._manifest_data = b""  # of the known offer

    def newest(self) -> Offer:
        status, etag, data = self._server.get(files.LATEST, files.LARGEST_LATEST, self._etag)
        if status == 304 and self._known is not None:
            return self._known
        where = f"{self._url}/{files.LATEST}"
        latest = Latest.parse(data, where)
        if self._trust is not None:
            self._trust.check_latest(latest, where)
        place = f"{latest.folder}/{files.MANIFEST}"
        _, _, manifest_data = self._server.get(place, files.LARGEST_MANIFEST)
        manifest = Manifest.parse(manifest_data, f"{self._url}/{place}", latest)
        # Two workspaces may both have a version 1: the folder's name says which.
        folder = self._path / f"v{manifest.version:06d}-{latest.manifest_sha256[:12]}"
        self._known = Offer(sha256(data), folder, manifest, latest)
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
        busy = f"{self._path}: another runtime is still downloading into it"
        try:
            with locked(self._path / "lock", busy, most_seconds):
                yield
        except Locked as error:
            raise Unavailable(str(error)) from None
        except OSError as error:
            raise Unavailable(
                f"cannot keep models in {self._path}: {reason_of(error)} (--cache names another folder)"
            ) from None

    def _make_room(self, wanted: Path) -> None:
        """Remove all versions but this one and the last that proved good: most of the others were refused.

        Not earlier, because another runtime may be about to load what it fetched.
        """
        good = ""
        with suppress(BadModel):
            good = files.read_latest(self._path).folder
        for entry in self._path.iterdir():
            if entry.is_dir() and entry.name not in (good, wanted.name):
                shutil.rmtree(entry)

    def accepted(self, offer: Offer) -> None:
        """Name it in the cache's latest.json."""
        super().accepted(offer)
        if offer is self._known:  # else it was in the cache
            latest = Latest(offer.manifest.version, offer.path.name, sha256(self._manifest_data))
            with self._changing(MOST_SECONDS):
                write_atomically(self._path / files.LATEST, latest.to_bytes())

    def kept(self) -> Offer:
        offer = LocalModels(self._path).newest()
        if self._trust is not None:
            self._trust.check_folder(offer.path, offer.manifest.version)
        return offer


# The swap ---------------------------------------------------------------------------------------------------------------


class HotSwap:
    """Holds the model in use; a thread looks for new ones every `poll` seconds.

    Take `classifier` once for each frame. A model that is damaged or does not fit is reported once and not tried again
    until something about it changes.
    """

    def __init__(self, source: LocalModels, load: Load, health: Health, poll: float = 5.0) -> None:
        self._source = source
        self._load = load
        self._health = health
        self._poll = poll
        self._classifier: Classifier | None = None
        self._used: Offer | None = None
        self._refused: tuple[str, BadModel] | None = None  # the key of the last model that was, and why
        self._notes: set[str] = set()
        self._stop = threading.Event()
        self.swaps = 0

    @property
    def classifier(self) -> Classifier:
        assert self._classifier is not None, "call `first` before"
        return self._classifier

    # The first model ----------------------------------------------------------------------------------------------

    def first(self, wait: bool = False) -> Classifier:
        """The newest model, or else one that is known to be good; with `wait` for as long as it takes."""
        while True:
            try:
                self._follow()
            except (Unavailable, BadModel) as error:
                with suppress(BadModel, Unavailable):
                    if (kept := self._source.kept()) is not None:
                        self._take(kept)
                if self._classifier is None and not wait:
                    raise UserError(f"no model to start with: {error} (--wait waits for one)") from None
                self._say(str(error))
            if self._classifier is not None:
                return self._classifier
            if self._stop.wait(self._poll):
                raise UserError("stopped before there was a model")

    # New models ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        threading.Thread(target=self._watch, name="hot swap", daemon=True).start()

    def close(self) -> None:
        """Not waited for: a download may hang for its whole time limit."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._poll):
            try:
                self.look()
            except Exception:
                # Frames are still answered, and the next look may do better.
                LOG.exception("looking for a new model failed")

    def look(self) -> bool:
        """Look once; whether another model is in use now."""
        before = self.swaps
        try:
            self._follow()
        except (Unavailable, BadModel, UserError) as error:
            self._say(str(error))
        else:
            # A new model says so itself.
            mended = "models are available again" if self.swaps == before else ""
            self._health.trouble(PART, None, mended)
        return self.swaps > before

    def _follow(self) -> None:
        """Use the newest model; an error says why not, and `BadModel` the same as long as the model is the same."""
        offer = self._source.newest()
        if self._refused is not None and offer.key == self._refused[0]:
            raise self._refused[1]
        used = self._used
        if used is not None and (used.path, used.manifest) == (offer.path, offer.manifest):
            return
        try:
            self._source.fetch(offer)
            self._take(offer)
        except (Unavailable, UserError):
            raise
        except Exception as error:
            why = str(error) if isinstance(error, BadModel) else f"{type(error).__name__}"
            if not isinstance(error, BadModel):
                LOG.exception("model %s", offer.name)
            self._refused = offer.key, BadModel(f"model {offer.name} is refused: {why}")
            raise self._refused[1] from None
        self._refused = None

    def _take(self, offer: Offer) -> None:
        """Load a model beside the one in use, if there is one, and use it instead."""
        started = time.perf_counter()
        new, old = self._load(offer.path, manifest=offer.manifest), self._used
        # One assignment: a frame is answered by the old model or by the new one.
        self._classifier, self._used = new, offer
        for note in new.notes:
            if note not in self._notes:
                self._notes.add(note)
                self._health.tell(f"warning: {note}: running {new.variant}, {new.provider}")
        seconds, classes = time.perf_counter() - started, f"{len(new.info.classes)} classes"
        if old is None:
            how = f"{new.info.image.width}x{new.info.image.height} pixels, {new.variant}, {new.provider}"
            self._health.tell(f"model {offer.name}: {classes}, {how}, loaded in {seconds:.2f} s")
        else:
            self.swaps += 1
            self._health.tell(
                f"model {offer.name} is in use instead of {old.name}: {classes}, ready after {seconds:.2f} s"
            )
        self._source.accepted(offer)

    def _say(self, why: str) -> None:
        """Report what does not work, once and not at every look."""
        outcome = f"{self._used.name} stays in use" if self._used else "waiting for a first model"
        self._health.trouble(PART, f"{why}; {outcome}")
