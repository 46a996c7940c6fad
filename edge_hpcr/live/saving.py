"""How the live learner saves itself: checkpoints, copies of the journal, and the room that both make free."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from edge_hpcr.common.errors import UserError
from edge_hpcr.live import checkpoints
from edge_hpcr.live.housekeeping import tidy
from edge_hpcr.live.measuring import held_out_ids
from edge_hpcr.workspace.recover import backup_journal

if TYPE_CHECKING:
    from edge_hpcr.live.live_learner import LiveLearner


class Saving:
    """Saves a live learner, in the thread that learns."""

    def __init__(self, live: LiveLearner) -> None:
        self._live = live
        self._saved_step, self._saved_seq = live.learner.step, live.follower.applied

    def is_due(self, idle: bool) -> bool:
        if not self._live.follower.whole:
            return False  # half an event would be learned twice after a restart
        steps = self._live.learner.step - self._saved_step
        changed = steps > 0 or self._live.follower.applied != self._saved_seq
        return steps >= self._live.workspace.settings.checkpoint_steps or (idle and changed)

    def save(self) -> None:
        """A checkpoint, a copy of the journal, and then the room that both make free."""
        layout = self._live.workspace.layout
        notes = {
            **self._live.self_test.notes(),
            "calibration": asdict(self._live.predictor.calibration),
            "memory": self._live.memory_facts(),
        }
        try:
            checkpoints.save(layout, self._live.learner, self._live.follower.applied, notes)
            backup_journal(layout.journal, layout.backup)
            checkpoints.prune(layout, self._live.workspace.settings.checkpoints_kept)
            tidy(self._live.workspace, self._live.learner.memory.ids(), held_out_ids(self._live.workspace))
        except UserError as error:
            self._live.report(str(error))  # a full disk: learning goes on, and the next time may have room
        self._saved_step, self._saved_seq = self._live.learner.step, self._live.follower.applied
