"""Imports on the page: through the routes, over a real socket, with files that are good, bad and hostile."""

import socket
import threading
from contextlib import closing

import httpx
import numpy as np
import pytest
import uvicorn
from journeys.parts import png, wait_for, zip_of
from starlette.applications import Starlette
from workspace_parts import SMALL

from app.routes import routes
from app.studio import Studio
from edge_hpcr.workspace.workspace import Workspace

PATIENCE = 60.0


def picture(value):
    pixels = np.full((8, 8, 3), value, np.uint8)
    pixels[0, 0, 0] = 3
    return png(pixels)


MUGS = {"mug/1.png": picture(1), "mug/2.png": picture(2), "pen/1.png": picture(3)}


class App:
    """The routes over a real socket, without the page; the learner is not started."""

    def __init__(self, workspace, temporary):
        self.temporary = temporary
        self.studio = Studio(workspace)
        application = Starlette(routes=routes(self.studio))
        self._server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off"))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=[[self._listening]])
        self._thread.start()
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE, trust_env=False
        )

    def close(self):
        self.client.close()
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
        self.studio.imports.stop()

    def act(self, **request):
        return self.client.post("/edge/act", json=request).json()

    def upload(self, content, name="mugs.zip"):
        """A zip; or files by their paths."""
        files = content if isinstance(content, dict) else {name: content}
        sent = [("files", (path, data)) for path, data in files.items()]
        return self.client.post("/edge/import", files=sent).json()

    def imported(self):
        return self.client.get("/edge/state").json()["import"]

    def asked(self):
        """What the page says once it has looked at an import."""
        wait_for(lambda: self.imported()["phase"] != "looking", "the import")
        return self.imported()

    def ended(self):
        """What the page says of the transfer once it is over; what is asked is answered with yes."""
        if (asked := self.asked())["phase"] == "asking":
            self.act(do="take_import", number=asked["number"])
        wait_for(lambda: self.imported()["phase"] != "running", "the import")
        return self.imported()

    def labels(self):
        return {row.name: row.labels for row in self.studio.journal.classes()}

    def left(self):
        return [str(path) for path in self.temporary.rglob("*")]


@pytest.fixture
def app(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(temporary))
    with Workspace.open(tmp_path / "w") as workspace:
        workspace.change_settings(**SMALL, memory_bytes=40_000, threads=1)
        with closing(App(workspace, temporary)) as made:
            yield made


def test_a_zip_that_cannot_be_used_is_refused_with_a_sentence_and_nothing_is_left(app):
    app.upload(b"no zip at all")
    result = app.ended()
    assert result["phase"] == "failed"
    assert result["message"].startswith("uploaded mugs.zip"), "not by its temporary name"
    assert app.labels() == {} and app.left() == []


def test_loose_files_wait_in_the_queue_and_those_of_a_folder_are_asked_about(app):
    app.upload({"1.png": picture(1), "../2.png": picture(2), "notes.txt": b"no picture"})
    assert app.ended()["message"] == "2 samples in the queue, 0 known already, 1 bad"
    assert app.studio.journal.counts().queued == 2 and app.labels() == {} and app.left() == []
    app.upload(MUGS | {"4.png": picture(4)})
    assert app.asked()["found"]["pictures"] == 4 and app.labels() == {}
    assert app.ended()["message"].startswith("3 samples labelled, 2 new classes, 1 sample in the queue")
    assert app.labels() == {"mug": 2, "pen": 1} and app.left() == []
    app.studio.workspace.change_settings(queue_samples=2)
    app.upload({"5.png": picture(5), "6.png": picture(6)})
    assert "1 left out because the queue is full" in app.ended()["message"]


def test_an_upload_that_breaks_off_leaves_nothing_and_holds_up_nobody(app):
    with socket.create_connection(("127.0.0.1", app.port)) as raw:
        head = b"POST /edge/import HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n"
        raw.sendall(head + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n")
        app.upload(MUGS)
        assert app.asked()["found"]["classes"] == "mug 2, pen 1"
    app.act(do="cancel_import")
    wait_for(lambda: app.left() == [], "the end of both uploads")
    assert app.imported()["phase"] == "cancelled" and app.labels() == {}
    assert "nothing to cancel" in app.act(do="cancel_import")["error"]


@pytest.mark.slow
def test_a_cancelled_import_keeps_what_it_has_and_the_same_again_goes_on(app, monkeypatch):
    files = MUGS | {f"mug/more/{number}.png": picture(number) for number in range(100, 140)}
    told, refused = threading.Event(), []

    def stop_after_the_first_part():
        if not told.is_set():
            told.set()
            refused.append(app.act(do="undo")["error"])  # the rest would come behind it
            refused.append(app.upload(zip_of(MUGS))["error"])
            app.studio.imports.cancel()

    app.upload(files)
    app.asked()
    monkeypatch.setattr(app.studio.live, "notify", stop_after_the_first_part)
    result = app.ended()
    assert result["phase"] == "cancelled" and 0 < result["done"] < result["total"] == 43
    assert result["message"].startswith("cancelled; what was taken in so far stays: 10 samples labelled")
    assert refused == ["an import is under way: wait for its end, or cancel it"] * 2
    app.upload(files)
    assert app.ended()["message"] == "33 samples labelled, 0 new classes, 10 known already, 0 bad"
