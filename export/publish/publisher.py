"""Publish a running learner periodically, from a copy of it, while it goes on learning."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge_hpcr.common.errors import UserError, check_positive
from edge_hpcr.live.live_learner import LiveLearner
from export.device.errors import BadModel
from export.publish.policy import Policy, Refused
from export.publish.publish import Published, publish, unchanged, why_waiting
from export.publish.snapshot import snapshot_of

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # how often the learner's step is looked at
REPLAY_SECONDS = 60.0  # between two versions, at least, while the learner only replays what it knows


@dataclass(frozen=True)
class PublisherStatus:
    phase: str = "waiting"  # waiting | publishing | stopped | failed
    published: Published | None = None  # the last one
    problem: str | None = None  # why the last attempt published nothing, when it should have
    at: float | None = None  # time.time() of the last attempt


class Publisher:
    """A thread that publishes every so many steps or seconds, whichever comes first, if there is something new.

    It asks the learner for a copy between two steps; everything else happens beside the learning. After a rollback it
    waits: a person preferred the older version, and a roll-forward or a publication by hand ends that.
    """

    def __init__(
        self,
        live: LiveLearner,
        policy: Policy | None = None,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        variants: Sequence[str] = (),
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every_steps is None and every_seconds is None:
            raise UserError("how often to publish: give a number of steps, of seconds, or both")
        for name, value in (("every_steps", every_steps), ("every_seconds", every_seconds)):
            if value is not None:
                check_positive(name, value)
        self._live = live
        self._exports: Path = live.workspace.layout.exports
        self._policy = policy or Policy()
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._variants = tuple(variants)
        self._say = say  # of a version, to a person; problems go there too, else to the log
        self._clock = clock
        self._tried_step, self._tried_at = live.learner.step, clock()
        self._taught_at = self._tried_at  # of the last attempt for which something had been taught
        self._settled_event = -1  # the last that a version has, or that needs none
        self._known: tuple[object, ...] | None = (
            None  # what the last version, or a look that found nothing new, was of
        )
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
        if publish and self._status.phase == "stopped":
            self._try()
            self._status = replace(self._status, phase="stopped")

    def status(self) -> PublisherStatus:
        return self._status

    def _run(self) -> None:
        pause = min(LOOK_SECONDS, self._every_seconds or LOOK_SECONDS)
        try:
            while not self._stopping.wait(pause):
                if self._is_due():
                    self._try()
            self._status = replace(self._status, phase="stopped")
        except Exception as error:
            # The thread's end must be seen; the learning goes on without it.
            LOG.exception("the publisher stopped")
            self._status = replace(self._status, phase="failed", problem=f"publishing stopped: {error}")
            raise

    def _is_due(self) -> bool:
        steps = self._live.learner.step - self._tried_step
        if self._every_steps is not None and steps >= self._every_steps:
            return True
        if self._every_seconds is None:
            return False
        now = self._clock()
        if self._live.follower.applied != self._settled_event:
            # A label waits for the version of the label before, and not for one that only replay has changed.
            return now - self._taught_at >= self._every_seconds
        # What replay makes of a label is no version every few seconds: it would push out the kept ones that somebody
        # may want to go back to.
        replays = self._live.phase == "rehearsing"
        return now - self._tried_at >= max(self._every_seconds, REPLAY_SECONDS if replays else 0.0)

    def _try(self) -> None:
        step, event = self._live.learner.step, self._live.follower.applied
        now = (step, event, self._live.predictor.calibration, self._live.workspace.regions.current())
        if now == self._known:
            # The clock is left alone: what comes after a quiet hour is published at once.
            self._status = replace(self._status, at=time.time())
            return
        self._status = replace(self._status, phase="publishing")
        published = self._status.published
        is_taught = event != self._settled_event
        self._tried_step = step  # also when it fails: not again at every look
        try:
            problem = why_waiting(self._exports)  # asked here too: a copy would be for nothing
            if problem is None:
                published = self._publish() or published
                self._known, self._settled_event = now, event
        except Refused as error:
            problem = str(error)
            if why_waiting(self._exports) is None:
                self._known = now  # it would be refused again, until something is learned
        except (UserError, BadModel) as error:
            problem = str(error)
        if problem is not None and problem != self._status.problem:
            (self._say or LOG.warning)(f"not published: {problem}")
        self._tried_at = self._clock()
        if is_taught:
            self._taught_at = self._tried_at
        self._status = PublisherStatus("waiting", published, problem, time.time())

    def _publish(self) -> Published | None:
        """A version, if there is something new."""
        snapshot = snapshot_of(self._live)
        # Before the first label there is nothing to publish, and nothing wrong.
        if not snapshot.classes or unchanged(self._exports, snapshot) is not None:
            return None
        made = publish(self._exports, snapshot, self._policy, self._variants, by_hand=False)
        if self._say:
            manifest = made.manifest
            missing = [f"no {name}: {reason}" for name, reason in manifest.missing_variants.items()]
            what = f"published version {manifest.version}: step {manifest.step:,}, {len(manifest.classes)} classes"
            self._say("; ".join([what, *missing, *made.notes]))
        return made


def publisher_of(
    live: LiveLearner, default_seconds: float | None = None, say: Callable[[str], None] | None = None
) -> Publisher | None:
    """A publisher as the workspace's settings ask for it; if they ask for none, every `default_seconds`, or none."""
    settings = live.workspace.settings
    steps, seconds = settings.publish_steps or None, float(settings.publish_seconds) or None
    if steps is None and seconds is None:
        seconds = default_seconds
    if steps is None and seconds is None:
        return None
    variants = ("int8",) if settings.publish_int8 else ()
    return Publisher(live, Policy.of(settings), steps, seconds, variants, say)
