"""`python -m export.runtime` as a user starts it: real processes, real pipes, a real page."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from device_parts import NAMES, frame_of, manifest_of, publish, tiny_model
from process_parts import started
from test_device_hostile import endless_when_black, model_case, nan_when_black, slow_constants

from export.device.runtime import main, tell
from export.publish.serve import make_server

ROOT = Path(__file__).parent.parent
# Named, so that no test leaves a name in the cache of whoever runs it.
USUAL = ("--cpu", "--threads", "1", "--device-id", "test")


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    publish(tmp_path / "exports", 1)
    return tmp_path / "exports"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for place, name in enumerate(NAMES):
        add(folder, f"{place}.png", name)
    return folder


def add(folder: Path, file: str, name: str) -> None:
    data = cv2.imencode(".png", cv2.cvtColor(frame_of(name), cv2.COLOR_RGB2BGR))[1].tobytes()
    (folder / ".writing").write_bytes(data)
    (folder / ".writing").replace(folder / file)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "export.runtime", *USUAL, *map(str, arguments)]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def running_device(*arguments: object) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return started(*command(*arguments)[1:])


def line_of(stream, pattern: str) -> str:
    """The next line that the pattern is found in."""
    for line in stream:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it ended without saying {pattern!r}")


@pytest.mark.slow
def test_a_json_line_a_frame_and_nothing_else_on_stdout(exports: Path, images: Path):
    done = run("--models", exports, "--source", images, "--top", 2)
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["top"][0]["name"] for line in lines] == list(NAMES)
    assert [line["frame"] for line in lines] == [1, 2, 3, 4]
    first = lines[0]
    assert set(first) == {
        *(
            "frame",
            "at",
            "origin",
            "device",
            "top",
            "unknown",
            "similarity",
            "answer",
            "version",
            "latency_ms",
        )
    }
    assert (first["version"], first["unknown"], len(first["top"])) == (1, False, 2)
    assert first["origin"] == str(images / "0.png") and 0 < first["latency_ms"] < 10_000
    assert abs(first["at"] - time.time()) < 100


@pytest.mark.slow
def test_every_nth_frame_and_so_many_answers(exports: Path, images: Path):
    done = run("--models", exports, "--source", images, "--every", 2)
    assert [json.loads(line)["frame"] for line in done.stdout.splitlines()] == [1, 3]
    done = run("--models", exports, "--source", images, "--count", 3)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--models", "nowhere", "--source", "IMAGES"], "nowhere is not there"),
        (["--models", "IMAGES", "--source", "IMAGES"], "holds no published model yet"),
        (["--models", "ftp://host", "--source", "IMAGES"], "address is not understood"),
        (["--models", "EXPORTS", "--source", "nowhere"], "there is no source 'nowhere'"),
        (["--models", "EXPORTS", "--source", "IMAGES", "--display", "window"], "this OpenCV has no windows"),
        (["--models", "EXPORTS", "--source", "IMAGES", "--display", "70000"], "window or a port"),
        (["--models", "EXPORTS", "--source", "IMAGES", "--display", "00000099999"], "window or a port"),
        (["--models", "EXPORTS", "--source", "IMAGES", "--mqtt", "host/#"], "--mqtt"),
        (["--models", "http://host..name", "--source", "IMAGES"], "address is not understood"),
        (["--models", "EXPORTS", "--source", "x" * 300], "there is no source"),
        (["--models", "EXPORTS", "--source", "x" * 300, "--watch"], "cannot be read: File name too long"),
        (["--models", "EXPORTS", "--source", "0", "--watch"], "0: there is no such folder"),
        (["--models", "EXPORTS", "--source", "rtsp://u:p@h", "--watch"], "only a folder can be watched"),
        (["--models", "x" * 300, "--source", "IMAGES"], "cannot be read: File name too long"),
        (["--models", "EXPORTS", "--source", "IMAGES", "--require-gpu"], "a GPU is required"),
        (["--models", "EXPORTS", "--source", "IMAGES", "--top", "0"], "whole number of at least 1"),
        (["--models", "EXPORTS", "--source", "IMAGES", "--poll", "nan"], "not a number from"),
    ],
)
def test_wrong_input_ends_with_2_and_a_line(
    exports: Path, images: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
):
    places = {"IMAGES": str(images), "EXPORTS": str(exports)}
    try:
        code = main([*USUAL, *(places.get(each, each) for each in arguments)])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert complaint in line


def test_without_a_gpu_there_is_one_warning(exports: Path, images: Path):
    plain = [each for each in command("--models", exports, "--source", images) if each != "--cpu"]
    done = subprocess.run(plain, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if "CUDAExecutionProvider" in done.stderr:
        pytest.skip("a GPU works here")
    assert (done.returncode, done.stderr.count("warning:")) == (0, 1)
    assert "on the CPU" in done.stderr
    assert len(done.stderr.splitlines()) == 3, (
        "the model, the warning, the end; nothing of ONNX Runtime's own"
    )


@pytest.mark.slow
def test_it_goes_on_while_the_model_changes_is_damaged_and_disappears(
    exports: Path, images: Path, tmp_path: Path
):
    arguments = ("--models", exports, "--source", images, "--watch", "--poll", 0.05)
    with running_device(*arguments) as process:
        numbers = iter(range(10, 100))

        def answer(name: str) -> dict:
            add(images, f"{next(numbers)}.png", name)
            return json.loads(process.stdout.readline())

        for _ in NAMES:
            process.stdout.readline()
        assert answer("red")["version"] == 1
        publish(exports, 2)
        line_of(process.stderr, "model v2 is in use instead of v1: same answer on 5 of the last 5 frames")
        assert answer("blue")["version"] == 2
        publish(exports, 3, b"no model", manifest_of(tiny_model(3).SerializeToString(), 3))
        line_of(process.stderr, "refused.*v2 goes on")
        assert answer("green")["version"] == 2
        shutil.rmtree(exports)
        line_of(process.stderr, "is not there; v2 goes on")
        last = answer("white")
        assert (last["version"], last["top"][0]["name"]) == (2, "white")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_camera_that_is_not_there_is_waited_for_until_somebody_ends_it(exports: Path, number: int):
    with running_device("--models", exports, "--source", "9") as process:
        lines = [process.stderr.readline(), process.stderr.readline()]
        assert any("camera 9: reconnecting: cannot open" in line for line in lines)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in errors) == (0, False), errors


@pytest.mark.slow
def test_a_first_model_is_waited_for_if_asked(images: Path, tmp_path: Path):
    exports = tmp_path / "later"
    with running_device("--models", exports, "--source", images, "--wait", "--poll", 0.05) as process:
        line_of(process.stderr, "waiting for a first model")
        publish(exports, 1)
        assert len(process.stdout.readlines()) == 4
        assert process.wait(60) == 0


@pytest.mark.slow
def test_when_nobody_reads_the_results_any_more_it_ends_quietly(exports: Path, images: Path):
    with running_device("--models", exports, "--source", images, "--watch") as process:
        for _ in NAMES:
            process.stdout.readline()
        process.stdout.close()
        add(images, "9.png", "red")
        assert process.wait(60) == 0
        errors = process.stderr.read()
    assert "Traceback" not in errors and "BrokenPipe" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_results_that_cannot_be_written_are_one_line_and_exit_code_1(exports: Path, images: Path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("--models", exports, "--source", images),
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        "export.runtime: results cannot be written: No space left on device"
    ]


def test_without_a_home_only_models_of_a_server_need_a_cache(
    exports: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def homeless(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert main([*USUAL, "--models", str(exports), "--source", str(images)]) == 0
    assert main([*USUAL, "--models", "http://127.0.0.1:9", "--source", str(images)]) == 2
    assert "--cache DIR" in capsys.readouterr().err


def test_what_is_told_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]):
    tell("a\x1b[2Jb\rc\nd\u2028e \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}")
    assert capsys.readouterr().err == "export.runtime: a [2Jb c d e \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\n"


def test_a_frame_that_fails_is_told_again_after_one_that_did_not(tmp_path: Path, capsys):
    (tmp_path / "images").mkdir()
    for place, name in enumerate(["black", "black", "red", "black"]):
        add(tmp_path / "images", f"{place}.png", name)
    model_case(nan_when_black)(tmp_path / "exports")
    places = ["--models", str(tmp_path / "exports"), "--source", str(tmp_path / "images")]
    assert main([*USUAL, *places]) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["frame"] for line in said.out.splitlines()] == [3]
    assert said.err.count("not a number") == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_model_that_hangs_on_a_frame_does_not_hold_up_the_end(tmp_path: Path, number: int):
    (tmp_path / "images").mkdir()
    add(tmp_path / "images", "0.png", "black")
    model_case(endless_when_black)(tmp_path / "exports")
    with running_device("--models", tmp_path / "exports", "--source", tmp_path / "images") as process:
        line_of(process.stderr, "model v2")
        busy = psutil.Process(process.pid).cpu_times
        deadline, before = time.monotonic() + 60, busy().user
        while busy().user < before + 0.5:  # nothing else takes so long
            assert time.monotonic() < deadline
            time.sleep(0.02)
        begun = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        assert time.monotonic() - begun < 5, "not only when the limit of a run has passed"


LEAVE = """
import sys, threading
import numpy as np
from export.device.model import Classifier
from export.device.runtime import leave
classifier, begun = Classifier.load(sys.argv[1], "cpu", 1), threading.Event()
def run():
    while True:
        classifier.predict_prepared(np.zeros((64, 16, 16, 3), np.uint8))
        begun.set()
for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
begun.wait()
print("done")
leave(3)
"""


@pytest.mark.slow
def test_the_end_while_other_threads_are_in_a_model_is_no_crash(exports: Path):
    arguments = [sys.executable, "-c", LEAVE, str(exports)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", "")


@pytest.mark.slow
def test_the_end_in_the_middle_of_a_swap_is_not_waited_for(exports: Path, images: Path):
    with running_device("--models", exports, "--source", images, "--watch", "--poll", 0.05) as process:
        line_of(process.stderr, "model v1")
        for _ in NAMES:
            process.stdout.readline()
        model_case(slow_constants)(exports)
        add(images, "9.png", "red")
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_models_from_a_server_with_a_token(exports: Path, images: Path, tmp_path: Path):
    token = "a-token-of-good-length"
    (tmp_path / "token").write_text(token)
    server = make_server(tmp_path, "127.0.0.1", 0, token)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    arguments = ("--models", url, "--source", images, "--cache", tmp_path / "cache")
    try:
        assert run(*arguments, EDGE_HPCR_TOKEN=token).returncode == 0
        refused = run(*arguments[:-1], tmp_path / "other", EDGE_HPCR_TOKEN=token + "x")
        assert (refused.returncode, "refuses the token" in refused.stderr) == (2, True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    away = run(*arguments, "--token", tmp_path / "token")
    assert (away.returncode, len(away.stdout.splitlines())) == (0, 4), away.stderr
    assert "started with v1 instead" in away.stderr


# The page -----------------------------------------------------------------------------------------------------------


def part_of(reply: http.client.HTTPResponse) -> np.ndarray:
    """The next picture of a multipart stream."""
    assert reply.readline() == b"--frame\r\n"
    assert reply.readline() == b"Content-Type: image/jpeg\r\n"
    length = int(reply.readline().removeprefix(b"Content-Length: "))
    assert reply.readline() == b"\r\n"
    data = reply.read(length)
    assert reply.readline() == b"\r\n"
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


@pytest.mark.slow
def test_the_page_shows_the_frames_with_their_labels(exports: Path, images: Path):
    arguments = ("--models", exports, "--source", images, "--watch", "--display", 0)
    with running_device(*arguments) as process:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", line_of(process.stderr, "the picture is at"))[1])
        for _ in NAMES:
            process.stdout.readline()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/")
        assert b'<img src="/stream"' in connection.getresponse().read()
        connection.close()
        viewer = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        viewer.request("GET", "/stream")
        reply = viewer.getresponse()
        while part_of(reply)[100, 100].min() < 150:
            continue  # until the last one of the folder, which is white
        add(images, "9.png", "red")
        picture = part_of(reply)
        assert picture[100, 100, 2] > 150 > 100 > picture[100, 100, 0]
        assert picture[-60:].max() > 100, "a bar with text"
        reply.close()
        viewer.close()
        add(images, "99.png", "blue")
        process.stdout.readline()
        assert json.loads(process.stdout.readline())["top"][0]["name"] == "blue"
