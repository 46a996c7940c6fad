"""The images, as far as they can be tried without Docker: what they copy, install, run as, start and watch."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import cv2
import pytest
from device_parts import frame_of, publish
from test_skeleton import make

ROOT = Path(__file__).resolve().parent.parent
HOME = "/srv/edge-hpcr"


@dataclass
class Stage:
    """A target of the Dockerfile: its instructions in their order."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [argument for name, argument in self.steps if name == instruction]

    def only(self, instruction: str) -> str:
        (argument,) = self.all(instruction)
        return argument

    def place(self, instruction: str, argument: str) -> int:
        return self.steps.index((instruction, argument))

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for line in self.all("ENV") for pair in shlex.split(line))

    def copies(self) -> list[tuple[list[str], str]]:
        """What is copied from the project, and where to."""
        found = []
        for line in self.all("COPY"):
            *sources, target = [word for word in line.split() if not word.startswith("--")]
            found.append((sources, target))
        return found

    def health_check(self) -> list[str]:
        command: list[str] = json.loads(self.only("HEALTHCHECK").partition(" CMD ")[2])
        return command


def parse() -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments before the first stage, and the stages."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r" *\\\n *", " ", "\n".join(lines))
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in filter(None, text.splitlines()):
        instruction, argument = line.split(maxsplit=1)
        if instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", argument).groups()
            stages[name] = Stage(base)
        elif stages:
            list(stages.values())[-1].steps.append((instruction, argument))
        else:
            assert instruction == "ARG"
            arguments |= [argument.split("=", 1)]
    return arguments, stages


ARGUMENTS, STAGES = parse()
DEVICE, TRAINER = STAGES["device"], STAGES["trainer"]
both = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)


def test_there_are_two_targets_and_the_trainers_base_can_be_chosen():
    assert list(STAGES) == ["device", "trainer"], "without --target, the last one is built"
    assert DEVICE.base == ARGUMENTS["BASE"] == "python:3.11-slim"
    assert TRAINER.base == "${BASE}"


@pytest.mark.parametrize(("name", "target"), [("trainer", "install"), ("device", "install-device")])
def test_what_is_installed_is_installed_by_the_makefile(name: str, target: str):
    runs = STAGES[name].all("RUN")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [command for command in runs if command.startswith("make ")] == [f"make {target}"]
    assert target in targets
    assert [command for command in runs if re.search(r"\b(pip|uv|conda|curl|wget)\b|-m venv", command)] == []


@pytest.mark.parametrize(
    ("name", "target", "venv"),
    [("trainer", "install", ".venv"), ("device", "install-device", ".venv-device")],
)
def test_the_installation_finds_all_that_it_reads(name: str, target: str, venv: str, tmp_path: Path):
    stage = STAGES[name]
    before = Stage(stage.base, stage.steps[: stage.place("RUN", f"make {target}")])
    build(before, tmp_path)
    planned = make("-n", target, at=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert f"{venv}/bin/python -m pip install" in planned.stdout
    assert stage.environment()["PATH"] == f"{HOME}/{venv}/bin:$PATH"


@both
def test_nothing_of_ours_runs_as_root(stage: Stage):
    assert stage.all("USER") == ["edge"]
    user = stage.place("USER", "edge")
    assert [step for step, _ in stage.steps[:user]] == ["RUN", "RUN"], "packages and the user, nothing else"
    assert [text for _, text in stage.steps[user:] if re.search(r"\b(sudo|su|apt-get)\b", text)] == []
    assert "--uid 10001 edge" in stage.all("RUN")[1]
    assert all(line.startswith("--chown=edge ") for line in stage.all("COPY"))


@both
def test_what_must_last_is_outside_and_belongs_to_the_user(stage: Stage):
    volume = stage.only("VOLUME")
    assert f"install --directory --owner edge {HOME} {volume}" in stage.all("RUN")[1]
    assert stage.only("WORKDIR") == HOME


def test_the_workspace_and_the_datasets_are_on_the_volume():
    assert TRAINER.only("VOLUME") == "/data"
    assert TRAINER.environment()["EDGE_HPCR_DATA"].startswith("/data/")
    command = json.loads(TRAINER.only("CMD"))
    assert command[command.index("--workspace") + 1].startswith("/data/")


def test_the_models_of_a_server_are_kept_on_the_devices_volume():
    assert DEVICE.environment()["XDG_CACHE_HOME"] == DEVICE.only("VOLUME")


def test_the_trainer_starts_the_app_for_others_and_holds_no_password():
    assert json.loads(TRAINER.only("ENTRYPOINT")) == ["python"]
    assert json.loads(TRAINER.only("CMD")) == shlex.split("-m app --workspace /data/workspace --host 0.0.0.0")
    assert TRAINER.only("EXPOSE") == "7860"
    assert {package for sources, _ in TRAINER.copies() for package in sources} >= {
        "app",
        "edge_hpcr",
        "export",
    }
    secrets = re.compile("AUTH|TOKEN|PASSWORD")
    assert [name for stage in STAGES.values() for name in stage.environment() if secrets.search(name)] == []


def test_the_device_gets_nothing_of_the_trainer():
    copied = {source for sources, _ in DEVICE.copies() for source in sources}
    assert copied == {"Makefile", "LICENSE", "export", "export/requirements.txt"}
    assert "requirements.txt" not in copied
    assert not re.search(r"torch|gradio|nvidia", (ROOT / "export/requirements.txt").read_text())


@both
def test_everything_that_is_copied_is_there_and_not_ignored(stage: Stage):
    ignored = (ROOT / ".dockerignore").read_text().split()
    for sources, _ in stage.copies():
        for source in sources:
            assert (ROOT / source).exists()
            assert not any(part in ignored for part in [source, *Path(source).parts])


def test_what_git_ignores_and_what_is_secret_stays_out_of_the_images():
    git = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
    docker = {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().split()}
    assert git - docker == set()
    assert {".git", ".env*", "*.token"} <= docker


def build(stage: Stage, at: Path) -> None:
    """A folder with what the stage copies, and nothing else."""
    for sources, target in stage.copies():
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, at / target, dirs_exist_ok=True)
            else:
                (at / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, at / target)


def run(command: list[str], at: Path) -> subprocess.CompletedProcess[str]:
    assert command[0] == "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *command[1:]], cwd=at, env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_device_classifies_with_nothing_but_what_is_copied_and_its_health_shows(tmp_path: Path):
    build(DEVICE, tmp_path / "image")
    publish(tmp_path / "exports", 1)
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.png"), frame_of("blue")[..., ::-1])
    heartbeat = str(tmp_path / "heartbeat")
    start, check = (
        [heartbeat if word == "/tmp/heartbeat" else word for word in command]
        for command in (json.loads(DEVICE.only("ENTRYPOINT")), DEVICE.health_check())
    )
    assert heartbeat in start and heartbeat in check, "both must mean the same file"
    assert run(check, tmp_path / "image").returncode == 1, "it has not started yet"
    places = ["--models", str(tmp_path / "exports"), "--source", str(tmp_path / "photos")]
    done = run([*start, *places, "--cpu", "--threads", "1"], tmp_path / "image")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["top"][0]["name"] == "blue"
    assert run(check, tmp_path / "image").returncode == 0
    assert "No module named" in run(["python", "-c", "import edge_hpcr"], tmp_path / "image").stderr


def test_the_device_starts_with_options_that_the_runtime_knows(tmp_path: Path):
    build(DEVICE, tmp_path)
    command = [*json.loads(DEVICE.only("ENTRYPOINT")), *json.loads(DEVICE.only("CMD"))]
    assert run([*command, "--help"], tmp_path).returncode == 0
    assert "unrecognized" in run([*command, "--no-such-option"], tmp_path).stderr


class _App(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_trainers_health_is_that_of_the_app(
    status: int | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Nobody listens there: a check that asked the proxy would fail.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = None
    if status is not None:
        server = HTTPServer(("127.0.0.1", port), type("App", (_App,), {"status": status}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [word.replace(":7860/", f":{port}/") for word in TRAINER.health_check()]
    assert command != TRAINER.health_check()
    try:
        assert run(command, tmp_path).returncode == code
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
