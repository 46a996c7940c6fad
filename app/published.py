"""The published models of a workspace, for the page: what there is, publishing by hand, latency, and trying a picture.

Publishing and measuring run in threads of their own; the page asks for their progress.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG
from typing import IO

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, write_atomically
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.stream.decode import decode_image, read_bytes
from export.device.errors import BadModel
from export.device.manifest import Manifest, ModelFile, read_manifest
from export.device.model import Classifier, Result
from export.publish.bundle import write_bundle
from export.publish.policy import Policy, Refused
from export.publish.publish import TEMPLATE, Published, publish, unchanged
from export.publish.snapshot import snapshot_of
from export.publish.versions import folder_name, latest_or_none, roll_to, rolled_back, versions

LOG = logging.getLogger(__name__)

CALLS, WARM_UP = 50, 3
MOST_SECONDS = 3.0  # of measuring one file: large images take long, and the learner wants the processor too
LATENCIES_KEPT = 1000
STOP_SECONDS = 60.0
ABANDONED_SECONDS = 600.0  # after these an upload that is still empty will bring nothing


@dataclass(frozen=True)
class Latency:
    """Of one picture on this machine's CPU, one thread, the model alone."""

    milliseconds: float | None  # the median; None when it could not be measured
    calls: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Publication:
    """How far publishing by hand is."""

    phase: str = "idle"  # idle | publishing | published | refused | failed
    sentence: str = ""
    begun: float = 0.0  # time.monotonic()

    @property
    def text(self) -> str:
        if self.phase != "publishing":
            return self.sentence
        return f"{self.sentence} ({time.monotonic() - self.begun:.0f} s so far)"


@dataclass(frozen=True)
class Version:
    """A published version, as the page shows it."""

    manifest: Manifest
    current: bool  # devices use this one
    rolled_back_from: bool

    @property
    def number(self) -> int:
        return self.manifest.version

    @property
    def accuracy(self) -> str:
        facts = self.manifest.facts.get("accuracy")
        facts = facts if isinstance(facts, dict) else {}
        share, samples = facts.get("held_out"), facts.get("samples", 0)
        if not isinstance(share, int | float) or not isinstance(samples, int):
            return accuracy_text(None, 0)
        return accuracy_text(share, samples)

    @property
    def files(self) -> dict[str, ModelFile]:
        return {"fp32": self.manifest.model, **self.manifest.variants}


class Latencies:
    """What was measured of model files on this machine, by their checksums; kept in a file, so that a restart knows it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machine = platform.node()
        self._known: dict[str, Latency] = {}
        try:
            kept = json.loads(path.read_bytes())
            if kept["machine"] == self._machine:  # a copied workspace was measured elsewhere
                self._known = {
                    digest: Latency(float(ms), int(calls)) for digest, (ms, calls) in kept["files"].items()
                }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass  # none yet, or damaged: it is measured again

    def get(self, digest: str) -> Latency | None:
        return self._known.get(digest)

    def put(self, digest: str, latency: Latency) -> None:
        self._known[digest] = latency
        measured = [(name, each) for name, each in self._known.items() if each.milliseconds is not None]
        files = {name: (each.milliseconds, each.calls) for name, each in measured[-LATENCIES_KEPT:]}
        try:
            write_atomically(
                self._path, json.dumps({"machine": self._machine, "files": files}), durable=False
            )
        except OSError as error:
            LOG.warning("%s: %s", self._path, error.strerror)


class Models:
    """The versions in a workspace's exports folder. Any thread may ask."""

    def __init__(self, live: LiveLearner, policy: Callable[[], Policy]) -> None:
        self.live = live
        self.exports: Path = live.workspace.layout.exports
        self._policy = policy
        self._lock = threading.Lock()
        self._publication = Publication()
        self._publisher: threading.Thread | None = None
        self._latencies = Latencies(live.workspace.layout.latencies)
        self._to_measure: list[int] = []
        self._tried: tuple[str, Classifier] | None = None  # the last one, with its file's checksum
        self._measurer: threading.Thread | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        """A version under way is finished: it is whole or absent, but a minute's work is worth keeping."""
        self._stopping.set()
        for thread in (self._publisher, self._measurer):
            if thread is not None and thread.is_alive():
                thread.join(STOP_SECONDS)

    # Versions ---------------------------------------------------------------------------------------------------------

    def versions(self) -> list[Version]:
        """The newest first."""
        current, source = latest_or_none(self.exports), rolled_back(self.exports)
        return [
            Version(manifest, manifest.version == current, manifest.version == source)
            for manifest in reversed(versions(self.exports))
        ]

    def bundle(self, version: int) -> IO[bytes]:
        """Everything for a device as a zip, opened; it is gone when it is closed."""
        with (
            disk_errors("the zip for a device cannot be written", "make room and try again"),
            ExitStack() as closed,
        ):
            file = closed.enter_context(tempfile.TemporaryFile(dir=os.environ.get("GRADIO_TEMP_DIR")))
            write_bundle(self.exports, version, file)
            file.seek(0)
            closed.pop_all()  # whoever sends it closes it
            return file

    def roll_to(self, version: int) -> Manifest:
        """Make this version the current one."""
        try:
            manifest = roll_to(self.exports, version)
        except BadModel as error:  # latest.json is damaged
            raise UserError(f"cannot change the current version: {error}; publish a new one") from None
        with self._lock:
            if self._publication.phase != "publishing":  # what it said of another version is over
                sentence = f"Version {version} is the current one now: devices change to it."
                self._publication = Publication("published", sentence)
        return manifest

    # Publishing -------------------------------------------------------------------------------------------------------

    @property
    def publication(self) -> Publication:
        return self._publication

    def publish(self, int8: bool = False, force: bool = False) -> None:
        """Begin; `publication` says how it goes. With `force` a worse model, or the same again, is published too."""
        with self._lock:
            if self._publication.phase == "publishing":
                raise UserError("a version is being published already: wait until it is done")
            self._publication = Publication("publishing", self._announcement(int8), time.monotonic())
            self._publisher = threading.Thread(
                target=self._publish, args=(int8, force), name="publish by hand", daemon=True
            )
            self._publisher.start()

    def _announcement(self, int8: bool) -> str:
        what = "Publishing: new weights go into the known graph, about a second."
        if not (self.exports / TEMPLATE).exists():
            what = "Publishing the first version: tracing the network takes 10 to 20 seconds, later ones about a second."
        eight = " A variant in 8 bits is made and measured too, some seconds more." if int8 else ""
        return f"{what}{eight} Learning goes on …"

    def _publish(self, int8: bool, force: bool) -> None:
        try:
            snapshot = snapshot_of(self.live)
            same = None if force else unchanged(self.exports, snapshot)
            if same is not None:
                sentence = f"Nothing is new: version {same} holds step {snapshot.step:,} already."
                self._publication = Publication("refused", sentence)
                return
            policy = replace(self._policy(), force=force)
            published = publish(self.exports, snapshot, policy, ("int8",) if int8 else ())
            self._publication = Publication("published", _told(published))
        except Refused as error:
            self._publication = Publication("refused", f"Not published: {error}.")
        except (UserError, BadModel) as error:
            self._publication = Publication("failed", f"Not published: {error}.")
        except Exception:
            LOG.exception("publishing failed")
            self._publication = Publication(
                "failed", "Not published: something went wrong; the log says what."
            )
        else:
            self.measure([published.manifest.version])

    # Latency ----------------------------------------------------------------------------------------------------------

    def latency(self, file: ModelFile) -> Latency | None:
        return self._latencies.get(file.sha256)

    @property
    def measuring(self) -> bool:
        return bool(self._to_measure)

    def measure(self, numbers: list[int]) -> None:
        """Measure these versions one after the other, unless that was done; `latency` knows the results."""
        with self._lock:
            waiting = set(self._to_measure)
            self._to_measure += [number for number in numbers if number not in waiting]
            if self._to_measure and (self._measurer is None or not self._measurer.is_alive()):
                self._measurer = threading.Thread(target=self._measure_all, name="latency", daemon=True)
                self._measurer.start()

    def _measure_all(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                if not self._to_measure:
                    self._measurer = None  # before anybody adds one and finds this thread still alive
                    return
                number = self._to_measure[0]
            try:
                self._measure(number)
            except Exception:
                LOG.exception("version %s could not be measured", number)
            with self._lock:
                self._to_measure.remove(number)

    def _measure(self, number: int) -> None:
        folder = self.exports / folder_name(number)
        try:
            manifest = read_manifest(folder)
        except BadModel:
            return  # no longer kept
        for variant, file in {"fp32": manifest.model, **manifest.variants}.items():
            if self._latencies.get(file.sha256) is not None:
                continue
            try:
                classifier = Classifier.load_version(folder, manifest, "cpu", 1, variant)
                self._latencies.put(file.sha256, _latency(classifier, self._stopping))
            except BadModel as error:
                self._latencies.put(file.sha256, Latency(None, problem=str(error)))

    # A picture --------------------------------------------------------------------------------------------------------

    def answer(self, number: int, variant: str, image: np.ndarray) -> Result:
        """What a version says of a picture, as a device would."""
        folder = self.exports / folder_name(number)
        try:
            manifest = read_manifest(folder)
            digest = manifest.file_of(variant).sha256
            last = self._tried
            if (
                last is None or last[0] != digest
            ):  # loading takes far longer than answering, and a camera asks every second
                last = (digest, Classifier.load_version(folder, manifest, "cpu", 1, variant))
                self._tried = last
            return last[1].predict([image])[0]
        except BadModel as error:
            raise UserError(f"version {number} cannot be used: {error}") from None


def _told(published: Published) -> str:
    manifest = published.manifest
    how = "its network was traced" if published.traced else "new weights in the known graph"
    parts = [
        f"Version {manifest.version} is published and now the current one: {how}, {published.seconds:.1f} s."
    ]
    parts += [f"There is no {name} variant: {reason}." for name, reason in manifest.missing_variants.items()]
    parts += [f"Note: {note}." for note in published.notes]
    return " ".join(parts)


def _latency(classifier: Classifier, stopping: threading.Event) -> Latency:
    info = classifier.info
    image = np.random.default_rng(0).integers(0, 256, (1, info.height, info.width, 3), np.uint8)
    for _ in range(WARM_UP):
        classifier.predict_prepared(image)
    taken: list[float] = []
    begun = time.perf_counter()
    while len(taken) < CALLS and time.perf_counter() - begun < MOST_SECONDS and not stopping.is_set():
        before = time.perf_counter()
        classifier.predict_prepared(image)
        taken.append(time.perf_counter() - before)
    return Latency(1e3 * float(np.median(taken)) if taken else None, len(taken))


def read_upload(path: Path) -> np.ndarray:
    """Read the picture that a browser has sent, and remove its file."""
    temporary = Path(os.environ["GRADIO_TEMP_DIR"]).resolve()
    path = path.resolve()
    if not path.is_relative_to(temporary) or path == temporary:
        raise UserError("that file was not sent by this page")
    try:
        return decode_image(read_bytes(path), path.name)
    finally:
        path.unlink(missing_ok=True)
        if path.parent != temporary:
            shutil.rmtree(path.parent, ignore_errors=True)  # a folder of its own, named by the content
        _remove_empty(temporary)


def _remove_empty(temporary: Path) -> None:
    """Remove the empty files that Gradio leaves beside uploads; a new one may be somebody's upload that begins."""
    for left in temporary.glob("tmp*"):
        with suppress(FileNotFoundError):
            found = left.stat()
            if (
                S_ISREG(found.st_mode)
                and not found.st_size
                and time.time() - found.st_mtime > ABANDONED_SECONDS
            ):
                left.unlink()
