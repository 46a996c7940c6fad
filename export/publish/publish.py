"""Publish a snapshot as the next version of an exports folder, or say why not: by hand, or by itself while learning.

A version is refused when its model does not answer as the network does, when a device would refuse it, or when it
recognises fewer held-out samples than the current version. The graph of the first one is kept beside the
versions, so that later ones need no tracing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import flush_to_disk, write_through
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream.resize import RESIZE_STEPS
from edge_hpcr.workspace.settings import Settings
from export.device import BadModel
from export.device.manifest import LATEST, MANIFEST, Manifest, current_folder, read_manifest, read_model_file
from export.device.model import Classifier
from export.publish.graph import FEWEST_SAMPLES, TwoParts, read_model
from export.publish.handout import write_beside
from export.publish.quantise import make_int8, none
from export.publish.snapshot import NO_UNKNOWN, Snapshot, snapshot_of
from export.publish.to_onnx import OUTPUTS, Exported, export, file_facts
from export.publish.versions import (
    Refused,
    changing,
    folder_name,
    latest_version,
    next_version,
    note,
    point_at,
    prune,
    rolled_back,
    signing_key,
    summary,
    versions,
)

LOG = logging.getLogger(__name__)
MODEL, TEMPLATE = "model.onnx", "template"
LOOK_SECONDS = 0.5  # how often the learner's step is looked at
REPLAY_SECONDS = 60.0  # between two versions, at least, while the learner only replays what it knows


@dataclass(frozen=True)
class Published:
    manifest: Manifest
    folder: Path
    traced: bool  # a full export; otherwise new weights in the known graph
    seconds: float
    notes: list[str]  # what it lacks, and what could not be checked, for people

    @property
    def text(self) -> str:
        """What was published, for people."""
        manifest, how = self.manifest, "traced" if self.traced else "new weights in the known graph"
        missing = [f"no {name} variant: {reason}" for name, reason in manifest.missing_variants.items()]
        what = f"published version {manifest.version} ({how}, {self.seconds:.1f} s): {summary(manifest)}"
        return "; ".join([what, *missing, *self.notes])


def publish(
    exports: Path,
    snapshot: Snapshot,
    settings: Settings | None = None,
    by_hand: bool = True,
    force: bool = False,
) -> Published:
    """Publish the snapshot as the next version and make it current; raises `Refused` if it fails a check.

    With `by_hand=False` a rollback is left alone: a person preferred the older version. With `force` a model that is worse
    than the current one is published too; never one that differs from the network.
    """
    settings = settings or Settings()
    if not snapshot.classes:
        raise UserError("nothing to publish: no class has been learned yet; label some images first")
    begun = time.monotonic()
    with changing(exports):
        if not by_hand and (reason := why_waiting(exports)):
            raise Refused(reason)
        signing_key(exports)  # one that is missing is told before anything is made
        version = next_version(exports)
        folder = exports / folder_name(version)
        writing = exports / f".{folder.name}.writing"
        writing.mkdir()
        try:
            exported = export(snapshot, writing / MODEL, version, exports / TEMPLATE)
        except BadModel as error:
            raise Refused(f"step {snapshot.step}: {error}") from None
        uncompared = None if force else _compare(exports, snapshot, exported, settings.publish_most_drop)
        made = {"int8": make_int8(writing / MODEL, exported, snapshot)} if settings.publish_int8 else {}
        facts = {
            **exported.facts,
            "resize_steps": RESIZE_STEPS,
            "outputs": list(OUTPUTS),
            **file_facts(writing / MODEL),
            "parity": exported.parity,
            "variants": made,
        }
        classifier = _check_as_a_device(writing, facts)
        facts["beside"] = write_beside(writing, classifier, snapshot, facts)
        write_through(writing / MANIFEST, json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False))
        flush_to_disk(writing)
        note(exports, last_version=version)  # never given again, even if the rename fails
        writing.rename(folder)
        flush_to_disk(exports)
        point_at(exports, version)
        prune(exports, settings.publish_keep)
    notes = [*([uncompared] if uncompared else []), *snapshot.notes]
    return Published(read_manifest(folder), folder, exported.traced, time.monotonic() - begun, notes)


def why_waiting(exports: Path) -> str | None:
    """Why nothing may be published by itself: a person has decided which version devices have."""
    source = rolled_back(exports)
    if source is None:
        return None
    return f"rolled back from version {source}: roll forward or publish by hand to continue"


def unchanged(exports: Path, snapshot: Snapshot) -> int | None:
    """The version that the snapshot would only repeat: the current one, or that was rolled back from; or None.

    Other versions do not matter: one may be whole and yet never have been current, after a power cut.
    """
    known = (latest_version(exports), rolled_back(exports))
    wanted = (snapshot.step, snapshot.classes, snapshot.unknown_below, snapshot.region, snapshot.temperature)
    for manifest in versions(exports):
        facts = (manifest.step, manifest.classes, manifest.unknown_below, manifest.region)
        if manifest.version in known and (*facts, manifest.facts.get("temperature")) == wanted:
            return manifest.version
    return None


def _compare(exports: Path, snapshot: Snapshot, exported: Exported, most_drop: float) -> str | None:
    """Refuse a step back. Both models are tested on the same samples: those held out now; a sentence if they cannot be.

    An older figure would rest on other samples and fewer classes, and every new class would look like a loss.
    """
    samples = snapshot.held_out
    if not (exports / LATEST).exists():
        return None
    try:
        folder, latest = current_folder(exports)
        manifest = read_manifest(folder, latest)
        # Devices that could say *unknown* would answer with a class for everything, and nobody would notice.
        if snapshot.unknown_below is None and manifest.unknown_below is not None:
            raise Refused(
                f"step {snapshot.step}: {NO_UNKNOWN}; version {manifest.version} can (teach it more and publish again, or "
                "force it)"
            )
        if len(samples) < FEWEST_SAMPLES:
            few = f"{len(samples)} held-out samples, and fewer than {FEWEST_SAMPLES} say too little"
            return f"accuracy was not compared: {few}"
        if (manifest.image.height, manifest.image.width) != (snapshot.height, snapshot.width):
            return f"accuracy was not compared: version {manifest.version} takes images of another size"
        model = read_model(read_model_file(folder, manifest.model), str(folder))
        before = TwoParts(model, str(folder)).accuracy(samples, [each.id for each in manifest.classes])
    except BadModel as error:
        return f"accuracy was not compared with the current version: {error}"
    was, now = before or 0.0, exported.accuracy or 0.0
    if round(was - now, 9) > most_drop:  # exactly that much is allowed
        raise Refused(
            f"step {snapshot.step} recognises {now:.1%} of {len(samples)} held-out samples, where version "
            f"{manifest.version} recognises {was:.1%}: a fall of more than {most_drop:.1%} is not published "
            "(teach it more, allow a larger fall, or force it)"
        )
    return None


def _check_as_a_device(folder: Path, facts: dict[str, Any]) -> Classifier:
    """The model as a device loads it. A version that no device would take is not published, nor is a variant of it."""
    try:
        manifest = Manifest.parse(json.dumps(facts).encode(), MANIFEST)
        classifier = Classifier.load(folder, "cpu", 1, manifest=manifest)
    except BadModel as error:
        raise Refused(f"a device would refuse the model: {error}") from None
    for variant, file in manifest.variants.items():
        try:
            Classifier.load(folder, "cpu", 1, variant, manifest=manifest)
        except BadModel as error:
            (folder / file.file).unlink()
            refusal = str(error).removeprefix(f"{folder}/")
            facts["variants"][variant] = none(f"a device would refuse it: {refusal}")
    return classifier


# By itself -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublisherStatus:
    phase: str = "waiting"  # waiting | publishing | failed
    problem: str | None = None  # why the last attempt published nothing, when it should have
    at: float | None = None  # time.time() of the last attempt


class Publisher:
    """A thread that publishes every so many steps or seconds, whichever comes first, if there is something new.

    How often, the workspace's settings say at any moment.
    It asks the learner for a copy between two steps; everything else happens beside the learning. After a rollback it
    waits: a person preferred the older version, and a roll-forward or a publication by hand ends that.
    """

    def __init__(
        self,
        live: LiveLearner,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live = live
        self._exports: Path = live.workspace.layout.exports
        self._say = say  # of a version, to a person; problems go there too, else to the log
        self._clock = clock
        # Of the last attempt.
        self._step, self._event, self._at = live.learner.step, -1, clock()
        # What the last version, or a look that found nothing new, was of.
        self._known: tuple[object, ...] | None = None
        self._status = PublisherStatus()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, publish: bool = False) -> None:
        """Finish the version under way, and end; with `publish`, after a last one if there is something new."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if publish and self._status.phase != "failed":
            self._try()

    def status(self) -> PublisherStatus:
        return self._status

    def _run(self) -> None:
        try:
            while not self._stopping.wait(LOOK_SECONDS):
                if self._is_due():
                    self._try()
        except Exception as error:
            # The thread's end must be seen; the learning goes on without it.
            LOG.exception("the publisher stopped")
            self._status = PublisherStatus("failed", f"publishing stopped: {error}", time.time())

    def _is_due(self) -> bool:
        settings = self._live.workspace.settings
        steps, seconds = settings.publish_steps, float(settings.publish_seconds)
        if steps and self._live.learner.step - self._step >= steps:
            return True
        if not seconds:
            return False
        if self._live.phase == "rehearsing" and self._live.follower.applied == self._event:
            # A version of every few replay steps would push out the kept ones, which are there to roll back to.
            seconds = max(seconds, REPLAY_SECONDS)
        return self._clock() - self._at >= seconds

    def _try(self) -> None:
        step, event = self._live.learner.step, self._live.follower.applied
        now = (step, event, self._live.predictor.calibration, self._live.workspace.regions.current())
        if now == self._known:
            # The clock is left alone: what comes after a quiet hour is published at once.
            self._status = replace(self._status, at=time.time())
            return
        self._status = replace(self._status, phase="publishing")
        self._step, self._event = step, event  # also when it fails: not again at every look
        problem = None
        try:
            self._publish()
            self._known = now
        except (Refused, UserError, BadModel) as error:
            problem = str(error)
            if isinstance(error, Refused) and why_waiting(self._exports) is None:
                self._known = now  # it would be refused again, until something is learned
        if problem is not None and problem != self._status.problem:
            (self._say or LOG.warning)(f"not published: {problem}")
        self._at = self._clock()
        self._status = PublisherStatus("waiting", problem, time.time())

    def _publish(self) -> None:
        """Make a version, if there is something new."""
        if reason := why_waiting(self._exports):
            raise Refused(reason)  # before a copy is made for nothing
        snapshot = snapshot_of(self._live)
        # Before the first label there is nothing to publish, and nothing wrong.
        if not snapshot.classes or unchanged(self._exports, snapshot) is not None:
            return
        made = publish(self._exports, snapshot, self._live.workspace.settings, by_hand=False)
        if self._say:
            self._say(made.text)
