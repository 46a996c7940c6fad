"""The images, as far as they can be tried without Docker: what is copied is enough to install, start and watch them."""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import cv2
import pytest
from device_parts import frame_of, publish
from test_skeleton import ROOT, make

from app.tls import own_certificate

# A package that the device's image lacks, made impossible to import.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['gradio'] = None\n"


def stage(name: str) -> dict[str, list[str]]:
    """The arguments of each instruction of one target of the Dockerfile, in their order."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text())
    text = re.sub(r" *\\\n *", " ", text)
    (body,) = re.findall(rf"(?ms)^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", text)
    found: dict[str, list[str]] = {}
    for instruction, argument in re.findall(r"(?m)^([A-Z]+) (.*)$", body):
        found.setdefault(instruction, []).append(argument)
    return found


DEVICE, TRAINER = stage("device"), stage("trainer")


def health_check(of: dict[str, list[str]]) -> list[str]:
    command: list[str] = json.loads(of["HEALTHCHECK"][0].partition(" CMD ")[2])
    return command


def build(of: dict[str, list[str]], at: Path) -> Path:
    """A folder with what the stage copies, and nothing else: no cached bytecode, nothing that Docker ignores."""
    everywhere = [line for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("**/")]
    ignored = shutil.ignore_patterns(*(line.removeprefix("**/") for line in everywhere))
    for line in of["COPY"]:
        *sources, target = [word for word in line.split() if not word.startswith("--")]
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, at / target, dirs_exist_ok=True, ignore=ignored)
            else:
                (at / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, at / target)
    return at


def run(command: list[str], at: Path) -> subprocess.CompletedProcess[str]:
    assert command[0] == "python"
    return subprocess.run(
        [sys.executable, *command[1:]],
        cwd=at,
        env={
            **os.environ,
            "PYTHONPATH": str(at),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(at / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(("of", "target"), [(TRAINER, "install"), (DEVICE, "install-device")])
def test_the_installation_finds_all_that_it_reads(of: dict[str, list[str]], target: str, tmp_path: Path):
    assert f"make {target}" in of["RUN"]
    planned = make("-n", target, at=build(of, tmp_path))
    assert planned.returncode == 0, planned.stderr
    assert "-m pip install" in planned.stdout


@pytest.mark.slow
def test_the_trainer_starts_with_what_is_copied(tmp_path: Path):
    command = json.loads(TRAINER["ENTRYPOINT"][0]) + json.loads(TRAINER["CMD"][0])
    build(TRAINER, tmp_path)
    assert run([*command, "--help"], tmp_path).returncode == 0
    loaded = run(
        [
            "python",
            "-c",
            "import app.server, edge_hpcr.live.live_learner, export.publish.publish as p; print(p.__file__)",
        ],
        tmp_path,
    )
    assert loaded.stdout.startswith(str(tmp_path)), loaded.stderr


@pytest.mark.slow
def test_the_device_classifies_with_nothing_but_what_is_copied_and_its_health_shows(tmp_path: Path):
    image = build(DEVICE, tmp_path / "image")
    (image / "sitecustomize.py").write_text(WITHOUT_TORCH)
    publish(tmp_path / "exports", 1)
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.png"), frame_of("blue")[..., ::-1])
    heartbeat = str(tmp_path / "heartbeat")
    start, check = (
        [heartbeat if word == "/tmp/heartbeat" else word for word in command]
        for command in (json.loads(DEVICE["ENTRYPOINT"][0]), health_check(DEVICE))
    )
    assert heartbeat in start and heartbeat in check, "both must mean the same file"
    assert run(check, image).returncode == 1, "it has not started yet"
    places = ["--models", str(tmp_path / "exports"), "--source", str(tmp_path / "photos")]
    done = run([*start, *places, "--cpu", "--threads", "1"], image)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["top"][0]["name"] == "blue"
    assert run(check, image).returncode == 0
    assert run([*start, *json.loads(DEVICE["CMD"][0]), "--help"], image).returncode == 0


class _App(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_trainers_health_is_that_of_the_app(
    status: int | None, code: int, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Nobody listens there: a check that asked the proxy would fail.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with HTTPServer(("127.0.0.1", 0), type("App", (_App,), {"status": status or 200})) as server:
        command = [word.replace(":7860/", f":{server.server_port}/") for word in health_check(TRAINER)]
        assert command != health_check(TRAINER)
        if status is None:
            server.server_close()  # nobody listens
            assert run(command, tmp_path).returncode == code
            return
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(own_certificate(tmp_path / "tls.pem", "127.0.0.1").file)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert run(command, tmp_path).returncode == code
        server.shutdown()
