"""A workspace with everything that runs in it: its learner, the source that feeds it, imports. The app has one, and
for as long as somebody tries the demonstration a second one, whose folder goes with it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from app.changing import ChangingClasses
from app.feeder import Feeder
from app.sample_answers import SampleAnswers
from app.temporary import own_folder
from app.transfers import Transfers
from edge_hpcr.live.live_learner import LiveLearner
from edge_hpcr.stream import DEMONSTRATION, Rules
from edge_hpcr.workspace.folder import Workspace
from edge_hpcr.workspace.settings import Settings

DEMONSTRATION_BYTES = 200_000_000  # of images, on a disk that may be small
# What a demonstration learns like the person's own workspace.
TAKEN_OVER = ("backbone", "weights", "image_size", "method", "device", "threads", "idle_share", "idle_steps")


class Room:
    def __init__(self, workspace: Workspace, rules: Rules | None = None) -> None:
        self.workspace = workspace
        self.journal = workspace.journal
        self.live = LiveLearner(workspace)
        self.feeder = Feeder(workspace, self.live, rules)
        self.transfers = Transfers(workspace, self.live, rules)
        self.classes = ChangingClasses(workspace)
        self.answers = SampleAnswers(self.live)

    def start(self) -> None:
        """Begin to learn, with the source of the last time. Until somebody has chosen one, none runs."""
        self.live.start()
        self.feeder.start()
        settings = self.workspace.settings
        if settings.source and not self._is_unused_default(settings):
            self.feeder.resume(settings.source, settings.source_labels)

    def _is_unused_default(self, settings: Settings) -> bool:
        """Earlier versions began with the demonstration; where nothing was ever labelled, nobody has asked for it."""
        return settings.source == DEMONSTRATION and not self.journal.last_seq

    def stop(self) -> int:
        """End; returns how many labels of the source could not be stored."""
        try:
            return self.feeder.stop()
        finally:
            self.transfers.stop()
            self.live.stop()


class Demonstration(Room):
    """Parts on a workbench, in a workspace that is gone afterwards."""

    def __init__(self, own: Settings, rules: Rules | None = None) -> None:
        self._folder: tempfile.TemporaryDirectory[str] = own_folder("demonstration")
        with ExitStack() as undone:
            undone.callback(self._folder.cleanup)
            workspace = undone.enter_context(Workspace.open(Path(self._folder.name) / "workspace"))
            workspace.change_settings(
                source=DEMONSTRATION,
                disk_bytes=DEMONSTRATION_BYTES,
                **{name: getattr(own, name) for name in TAKEN_OVER},
            )
            super().__init__(workspace, rules)
            undone.pop_all()  # nothing failed: `stop` cleans up

    def _is_unused_default(self, settings: Settings) -> bool:
        return False

    def stop(self) -> int:
        try:
            super().stop()
        finally:
            self.workspace.close()
            self._folder.cleanup()
        return 0  # nothing of it is meant to stay
