"""What the browser's tests share: the app in this process, a real Chromium, and films for its faked camera."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from journeys.parts import App, hold_up
from journeys.parts import chromium as chromium
from journeys.parts import wait_for as wait_for
from playwright.sync_api import Page
from process_parts import free_port
from sklearn.datasets import load_sample_images
from workspace_parts import FROM_SCRATCH, SMALL

from app.server import Server
from edge_hpcr.bench.datasets import load
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.workspace import Workspace

PASSWORD = "correct horse"  # of the app that the fixture `guarded` starts
PATIENCE = 40_000  # milliseconds: two busy cores may take long


class OwnServer(App):
    """The app in this process: it starts in a second, since everything has been imported.

    A workspace that is not there yet is made with this source, so that there is something to label.
    """

    def __init__(
        self, workspace: Path, source: str = "workbench:1", port: int | None = None, **options: Any
    ) -> None:
        self.workspace = workspace
        self.port = port or free_port()
        if not workspace.exists():
            with Workspace.open(workspace) as fresh:
                # Rehearsal takes a core, of which a test machine has few.
                fresh.change_settings(**FROM_SCRATCH, idle_steps=20, source=source)
        self.server = Server(workspace, port=self.port, **options)
        self.server.start()
        self.address = self.server.address.rstrip("/")

    @property
    def token(self) -> str | None:
        """What lets in, unless a password does."""
        return self.server.token

    @property
    def link(self) -> str:
        """As it is printed."""
        return self.server.link

    @contextmanager
    def look(self) -> Iterator[Workspace]:
        """What is in the workspace, as another process sees it."""
        with Workspace.open(self.workspace, learning=False) as workspace:
            yield workspace

    def labels(self) -> dict[str, int]:
        with self.look() as workspace:
            return {row.name: row.labels for row in workspace.journal.classes()}


@contextmanager
def running(workspace: Path, **options: Any) -> Iterator[OwnServer]:
    app = OwnServer(workspace, **options)
    try:
        yield app
    finally:
        app.server.stop()


def photos() -> dict[str, np.ndarray]:
    """Two real photographs that scikit-learn brings along, RGB."""
    china, flower = load_sample_images().images
    return {"temple": china, "flower": flower}


def show_picture(page: Page, image: np.ndarray) -> None:
    """Hold an RGB picture before the drawn camera of `journeys.parts.open_page`."""
    hold_up(page, np.ascontiguousarray(image[..., ::-1]))


def film_of(image: np.ndarray, path: Path, frames: int = 60) -> Path:
    """A film in which a hand-held camera looks at a photograph: the view wanders a little."""
    rng = np.random.default_rng(0)
    place = np.array([40.0, 40.0])
    with path.open("wb") as file:
        for _ in range(frames):
            place = np.clip(place + rng.normal(0, 4, 2), 0, 80)
            top, left = place.astype(int)
            view = cv2.resize(image[top : top + 340, left : left + 540], (320, 240))
            file.write(cv2.imencode(".jpg", cv2.cvtColor(view, cv2.COLOR_RGB2BGR))[1].tobytes())
    return path


@contextmanager
def taught(path: Path) -> Iterator[OwnServer]:
    """Three kinds of digits, twelve of each with a label, and nine in the queue."""
    with Workspace.open(path) as workspace:
        # A camera that nobody has: no new frames disturb the counts.
        workspace.change_settings(source="browser", **SMALL)
    with running(path) as app:
        studio = app.server.studio
        digits = load("digits")
        for digit, name in enumerate(("zero", "one", "two")):
            images = digits.train_images[digits.train_labels == digit][:15]
            ids = studio.workspace.take_many(
                # Hashes that are far apart: look-alikes of what was learned would not be held out.
                [
                    # What has a priority was picked from the queue, and does not measure.
                    Frame(image, "test", hash64=i * 0x9E3779B97F4A7C15 % 2**64, priority=0.5 * (i >= 12))
                    for i, image in enumerate(images)
                ]
            )
            class_id = studio.journal.create_class(name)
            studio.journal.label_each((sample_id, class_id) for sample_id in ids[:12])
        assert studio.live.wait_until_caught_up(120)
        yield app
