"""Import and export on the page: through the routes, over a real socket, with files that are good, bad and hostile."""

import http.client
import io
import json
import shutil
import socket
import threading
import time
import zipfile
from contextlib import closing

import httpx
import numpy as np
import pytest
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from workspace_parts import SMALL

from app import transfers
from app.body_limit import _bytes_in
from app.routes import routes
from app.studio import Studio
from app.transfers import upload_name
from edge_hpcr.workspace import labelled_files
from edge_hpcr.workspace.folder import Workspace

PATIENCE = 60.0


def png(value):
    pixels = np.full((8, 8, 3), value % 256, np.uint8)
    pixels[0, 0] = value // 256, value % 7, 3
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def zipped(entries, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as bundle:
        for name, content in entries.items():
            bundle.writestr(zipfile.ZipInfo(name), content, compression)
    return file.getvalue()


MUGS = {"mug/1.png": png(1), "mug/2.png": png(2), "pen/1.png": png(3)}


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
        self.studio.transfers.stop()

    def act(self, **request):
        return self.client.post("/edge/act", json=request).json()

    def upload(self, content, name="mugs.zip"):
        return self.client.post("/edge/import", params={"name": name}, content=content).json()

    def transfer(self):
        return self.client.get("/edge/state").json()["transfer"]

    def asked(self):
        """What the page says once it has looked at an import."""
        self.until(lambda: self.transfer()["phase"] not in ("uploading", "looking"))
        return self.transfer()

    def ended(self):
        """What the page says of the transfer once it is over; what is asked is answered with yes."""
        if (asked := self.asked())["phase"] == "asking":
            self.act(do="take_import", number=asked["number"])
        self.until(lambda: self.transfer()["phase"] != "running")
        return self.transfer()

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

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


@pytest.fixture
def folder(tmp_path):
    for name, content in MUGS.items():
        (tmp_path / "parts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "parts" / name).write_bytes(content)
    return tmp_path / "parts"


# Import -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_is_imported_and_the_result_is_a_sentence(app, folder):
    (folder / "pen" / "broken.png").write_bytes(b"no image")
    assert app.act(do="import", path=f" {folder} ")["message"] == f"looking at {folder} …"
    result = app.ended()
    assert result["phase"] == "done" and (result["done"], result["total"]) == (4, 4)
    assert result["message"] == "3 samples labelled, 2 new classes, 0 known already, 1 bad"
    assert len(result["reasons"]) == 1 and "broken.png" in result["reasons"][0]
    assert app.labels() == {"mug": 2, "pen": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("  ", "no folder was named"),
        ("parts/mugs", "is no whole path"),
        ("/a\0b", "is no whole path"),
        ("~nobody-of-that-name/parts", "there is no such user"),
    ],
)
def test_a_path_that_says_no_place_is_refused_at_once(app, path, words):
    assert words in app.act(do="import", path=path)["error"]
    assert app.transfer() is None


def test_a_folder_that_is_missing_is_told_as_a_sentence(app, tmp_path):
    app.act(do="import", path=str(tmp_path / "nowhere"))
    result = app.ended()
    assert result["phase"] == "failed" and result["message"].endswith("there is no such folder or zip file")


@pytest.mark.parametrize("path", ["/", "/proc", "/sys/class"])
def test_a_folder_of_the_system_is_not_imported(app, path):
    app.act(do="import", path=path)
    result = app.ended()
    assert result["phase"] == "failed" and "is a folder of the system's" in result["message"]


@pytest.mark.slow
def test_an_uploaded_zip_is_imported_under_its_own_name_and_nothing_is_left_of_it(app):
    content = zipped(MUGS)
    assert app.upload(content, "C:\\Bilder\\mügs.ZIP")["state"]["transfer"]["kind"] == "import"
    assert app.ended()["message"] == "3 samples labelled, 2 new classes, 0 known already, 0 bad"
    assert app.labels() == {"mug": 2, "pen": 1}
    origins = {row.origin.split("/")[0] for row in app.studio.journal.samples()}
    assert origins == {"uploaded mügs.zip"}, "one part of a path, and no temporary name"
    app.upload(content)
    assert app.ended()["message"] == "0 samples labelled, 0 new classes, 3 known already, 0 bad"
    assert app.left() == []


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("mugs.zip", "uploaded mugs.zip"),
        ("/etc/passwd", "uploaded passwd.zip"),
        ("..", "uploaded samples.zip"),
        ("a\nb\0.zip", "uploaded ab.zip"),
        ("", "uploaded samples.zip"),
        ("x" * 300, f"uploaded {'x' * 80}.zip"),
    ],
)
def test_an_upload_is_called_by_one_part_of_a_path(sent, kept):
    assert upload_name(sent) == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zipped({"mug/1.png": png(1), "../../evil.png": png(2)}), "leads out of the archive"),
        (zipped({"/etc/evil.png": png(2)}), "leads out of the archive"),
        (b"no zip at all", "is no folder and no whole zip file"),
        (b"", "is no folder and no whole zip file"),
        (zipped({}), "holds no files"),
        (zipped(MUGS)[:-30], "is no folder and no whole zip file"),
    ],
)
def test_a_zip_that_cannot_be_used_is_refused_with_a_sentence_and_nothing_is_left(
    app, content, words, tmp_path
):
    app.upload(content)
    result = app.ended()
    assert result["phase"] == "failed" and words in result["message"]
    assert result["message"].startswith("uploaded mugs.zip"), "not by its temporary name"
    assert app.labels() == {} and app.left() == []
    assert not [*tmp_path.rglob("evil*")]


@pytest.mark.slow
def test_one_packed_image_that_is_a_bomb_is_bad_and_the_others_are_taken(app):
    bomb = zipped({**MUGS, "mug/bomb.png": bytes(60_000_000)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    app.upload(bomb)
    result = app.ended()
    assert result["message"] == "3 samples labelled, 2 new classes, 0 known already, 1 bad"
    assert "it has more than 50,000,000 bytes" in result["reasons"][0]
    assert app.left() == []


@pytest.mark.slow
def test_a_zip_that_unpacks_to_too_much_in_all_is_refused(app, monkeypatch):
    monkeypatch.setattr(labelled_files, "MOST_BYTES", 5_000_000)
    app.upload(zipped({f"mug/{n}.png": bytes(2_000_000) for n in range(5)}, zipfile.ZIP_DEFLATED))
    result = app.ended()
    assert result["phase"] == "failed"
    assert result["message"].startswith("uploaded mugs.zip unpacks to more than 5,000,000 bytes")
    assert app.labels() == {} and app.left() == []


def test_an_upload_that_is_announced_as_too_large_is_refused_before_it_is_sent(app):
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=PATIENCE)
    with closing(connection):
        connection.putrequest("POST", "/edge/import?name=a.zip")
        connection.putheader("Content-Length", str(transfers.LARGEST_UPLOAD + 1))
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 400
        assert "the zip has more than 500 MB: copy it" in json.load(response)["error"]
    assert app.transfer() is None and app.left() == []


def test_an_upload_that_grows_too_large_on_its_way_is_refused_and_removed(app, monkeypatch):
    monkeypatch.setattr(transfers, "LARGEST_UPLOAD", 3_000_000)
    parts = (bytes(1_000_000) for _ in range(4))  # sent in chunks, without a length
    assert "has more than 3 MB" in app.upload(parts)["error"]
    assert app.transfer()["phase"] == "failed" and app.left() == []


@pytest.mark.slow
def test_an_upload_that_breaks_off_is_removed_and_the_next_one_may_come(app):
    with socket.create_connection(("127.0.0.1", app.port)) as raw:
        raw.sendall(
            b"POST /edge/import?name=a.zip HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + bytes(900)
        )
        app.until(lambda: (app.transfer() or {}).get("done") == 900)
        assert app.transfer()["phase"] == "uploading" and app.transfer()["total"] == 5000
        assert app.left() != []
    result = app.ended()
    assert result["phase"] == "failed" and result["message"] == "the upload broke off: nothing was imported"
    assert app.left() == []
    app.upload(zipped(MUGS))
    assert app.ended()["phase"] == "done" and app.labels() == {"mug": 2, "pen": 1}


@pytest.mark.slow
def test_a_second_transfer_is_refused_while_one_is_under_way_and_an_upload_can_be_cancelled(app, folder):
    with socket.create_connection(("127.0.0.1", app.port)) as raw:
        raw.sendall(
            b"POST /edge/import?name=a.zip HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + bytes(900)
        )
        app.until(lambda: (app.transfer() or {}).get("done") == 900)
        expected = "an import is under way: wait for its end, or cancel it"
        assert app.act(do="import", path=str(folder))["error"] == expected
        assert app.act(do="export")["error"] == expected
        assert app.upload(zipped(MUGS))["error"] == expected
        assert app.act(do="cancel_transfer")["message"] == "cancelling …"
        raw.sendall(bytes(900))
        assert app.ended()["phase"] == "cancelled"
    assert app.labels() == {} and app.left() == []
    assert "nothing to cancel" in app.act(do="cancel_transfer")["error"]


@pytest.mark.slow
def test_a_cancelled_import_keeps_what_it_has_and_the_same_again_goes_on(app, folder, monkeypatch):
    (folder / "mug" / "more").mkdir()
    for number in range(100, 140):
        (folder / "mug" / "more" / f"{number}.png").write_bytes(png(number))
    told, refused = threading.Event(), []

    def stop_after_the_first_part():
        if not told.is_set():
            told.set()
            refused.append(app.act(do="undo")["error"])  # the rest would come behind it
            app.studio.transfers.cancel()

    app.act(do="import", path=str(folder))
    app.asked()
    monkeypatch.setattr(app.studio.live, "notify", stop_after_the_first_part)
    result = app.ended()
    assert result["phase"] == "cancelled" and 0 < result["done"] < result["total"] == 43
    assert result["message"].startswith("cancelled; what was taken in so far stays: 10 samples labelled")
    assert refused == ["an import is under way: wait for its end, or cancel it, before you undo"]
    app.act(do="import", path=str(folder))
    assert app.ended()["message"] == "33 samples labelled, 0 new classes, 10 known already, 0 bad"


@pytest.mark.slow
def test_an_import_shows_first_what_it_found_and_does_nothing_before_somebody_says_yes(app):
    split = {f"data/{part}/{name}": content for part in ("train", "test") for name, content in MUGS.items()}
    app.upload(zipped({**split, "data/read.me": b"text"}))
    asked = app.asked()
    assert asked["phase"] == "asking" and app.labels() == {}
    assert asked["found"]["text"] == (
        "2 classes, 3 pictures, 1 file skipped; train/ and test/ look like splits: train is used"
    )
    assert asked["found"]["classes"] == [["mug", 2], ["pen", 1]]
    assert (asked["found"]["splits"], asked["found"]["split"]) == (["train", "test"], "train")
    app.act(do="choose_split", number=asked["number"], split="all")
    assert app.transfer()["found"]["pictures"] == 6
    assert (
        "choose one of train, test or all"
        in app.act(do="choose_split", number=asked["number"], split="x")["error"]
    )
    app.act(do="cancel_transfer")
    assert app.transfer()["message"] == "nothing was imported"
    assert app.labels() == {} and app.left() == []
    assert "no longer asked about" in app.act(do="take_import", number=asked["number"])["error"]


@pytest.mark.slow
def test_an_import_is_undone_in_one_step(app, folder):
    app.act(do="import", path=str(folder))
    done = app.ended()
    assert done["can_undo"] and app.labels() == {"mug": 2, "pen": 1}
    told = app.act(do="undo_import", number=done["number"])["message"]
    assert told == "import undone: 3 labels and 2 classes taken back"
    assert app.labels() == {} and not app.transfer()["can_undo"]
    assert "cannot be undone here any more" in app.act(do="undo_import", number=done["number"])["error"]


def test_a_question_that_nobody_answers_is_forgotten_with_its_file(app, monkeypatch):
    monkeypatch.setattr(transfers, "EXPORT_SECONDS", 0.05)
    app.upload(zipped(MUGS))
    app.until(lambda: app.transfer()["phase"] == "cancelled")
    assert app.left() == [] and app.labels() == {}


# Export -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_export_is_made_fetched_once_and_gone(app, folder):
    app.act(do="import", path=str(folder))
    app.ended()
    assert app.client.get("/edge/export.zip").status_code == 400
    app.act(do="export")
    result = app.ended()
    assert result["message"] == "3 samples of 2 classes exported" and result["ready"] is True
    assert app.client.head("/edge/export.zip").status_code == 200
    answer = app.client.get("/edge/export.zip")
    assert answer.headers["content-disposition"] == 'attachment; filename="edge-hpcr-samples.zip"'
    assert answer.headers["content-length"] == str(len(answer.content))
    with zipfile.ZipFile(io.BytesIO(answer.content)) as bundle:
        assert bundle.testzip() is None
        assert sorted(name.split("/")[0] for name in bundle.namelist()) == [
            "classes.json",
            "mug",
            "mug",
            "pen",
            "samples.csv",
        ]
    assert app.left() == [] and app.transfer()["ready"] is False
    assert "no export is ready" in app.client.get("/edge/export.zip").json()["error"]


@pytest.mark.slow
def test_an_export_whose_file_has_vanished_is_told_as_a_sentence(app, folder):
    app.act(do="import", path=str(folder))
    app.ended()
    app.act(do="export")
    assert app.ended()["ready"] is True
    shutil.rmtree(next(app.temporary.iterdir()))
    answer = app.client.get("/edge/export.zip")
    assert answer.status_code == 400 and "start a new one" in answer.json()["error"]


@pytest.mark.slow
def test_a_sample_whose_file_has_vanished_is_not_found(app, folder):
    app.act(do="import", path=str(folder))
    app.ended()
    row = app.studio.journal.samples()[0]
    assert app.client.get(f"/edge/sample/{row.id}").headers["content-type"] == "image/png"
    (app.studio.workspace.files.folder / row.file).unlink()
    assert app.client.get(f"/edge/sample/{row.id}").status_code == 404


def test_uploads_are_measured_while_files_come_and_go(tmp_path):
    stopping = threading.Event()

    def come_and_go():
        while not stopping.is_set():
            folder = tmp_path / "one"
            folder.mkdir()
            for number in range(20):
                (folder / str(number)).write_bytes(b"x")
            shutil.rmtree(folder)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert all(0 <= _bytes_in(tmp_path) <= 20 for _ in range(500))
    finally:
        stopping.set()
        thread.join()


@pytest.mark.slow
def test_an_export_of_nothing_says_so(app):
    app.act(do="export")
    result = app.ended()
    assert result["phase"] == "failed" and result["message"].startswith("nothing to export")
    assert app.left() == []


@pytest.mark.slow
def test_an_export_that_nobody_fetches_is_removed(app, folder, monkeypatch):
    app.act(do="import", path=str(folder))
    app.ended()
    monkeypatch.setattr(transfers, "EXPORT_SECONDS", 0.05)
    app.act(do="export")
    assert app.ended()["phase"] == "done"
    app.until(lambda: app.left() == [])
    app.until(lambda: app.transfer()["ready"] is False)


@pytest.mark.slow
def test_the_end_of_the_program_removes_an_export_that_waits(app, folder):
    app.act(do="import", path=str(folder))
    app.ended()
    app.act(do="export")
    app.ended()
    assert app.left() != []
    app.studio.transfers.stop()
    assert app.left() == []
