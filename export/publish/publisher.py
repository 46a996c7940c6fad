"""Publish a running learner periodically, from a copy of it, while it goes on learning."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge_hpcr.common.errors import UserError, check_positive
from edge_hpcr.live.live_learner import LiveLearner
from export.device.errors import BadModel
from export.publish.policy import Policy, Refused
from export.publish.publish import Published, publish, unchanged
from export.publish.snapshot import snapshot_of

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # how often the learner's step is looked at


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
        self._tried_step, self._tried_at = live.learner.step, time.monotonic()
        self._status = PublisherStatus()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the version under way, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

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
        seconds = time.monotonic() - self._tried_at
        return (self._every_steps is not None and steps >= self._every_steps) or (
            self._every_seconds is not None and seconds >= self._every_seconds
        )

    def _try(self) -> None:
        self._status = replace(self._status, phase="publishing")
        published, problem = self._status.published, None
        self._tried_step = self._live.learner.step  # also when no copy can be made: not again at every look
        try:
            snapshot = snapshot_of(self._live)
            # Before the first label there is nothing to publish, and nothing wrong.
            if snapshot.classes and unchanged(self._exports, snapshot) is None:
                published = publish(self._exports, snapshot, self._policy, self._variants, by_hand=False)
        except (UserError, BadModel, Refused) as error:
            problem = str(error)
            if problem != self._status.problem:
                LOG.warning("not published: %s", problem)
        self._tried_at = time.monotonic()
        self._status = PublisherStatus("waiting", published, problem, time.time())
