"""The images, as far as they can be tried without Docker: what is copied is enough to install, start and watch them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from device_parts import frame_of, publish
from process_parts import ROOT, free_port

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
    command = [sys.executable, *command[1:]]
    return subprocess.run(
        command, cwd=at, env=os.environ | environment(at), capture_output=True, text=True, timeout=120
    )


def environment(at: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(at), "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(at / "cache")}


@pytest.mark.parametrize(
    ("of", "target"), [(TRAINER, "install"), (TRAINER, "weights"), (DEVICE, "install-device")]
)
def test_the_installation_finds_all_that_it_reads(of: dict[str, list[str]], target: str, tmp_path: Path):
    assert f"make {target}" in of["RUN"]
    command = ["make", f"PYTHON={sys.executable}", "-n", target]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    planned = subprocess.run(
        command, cwd=build(of, tmp_path), env=outside, capture_output=True, text=True, timeout=60
    )
    assert planned.returncode == 0, planned.stderr
    assert ("weights get" if target == "weights" else "-m pip install") in planned.stdout


@pytest.mark.slow
def test_the_device_classifies_with_nothing_but_what_is_copied_and_its_health_shows(tmp_path: Path):
    image = build(DEVICE, tmp_path / "image")
    (image / "sitecustomize.py").write_text(WITHOUT_TORCH)
    publish(tmp_path / "exports", 1)
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.png"), frame_of("blue")[..., ::-1])
    port = str(free_port())
    start, check = (
        [word.replace("8090", port) for word in command]
        for command in (json.loads(DEVICE["ENTRYPOINT"][0]), health_check(DEVICE))
    )
    assert port in start and any(f"127.0.0.1:{port}/" in word for word in check), "both mean the same port"
    assert run(check, image).returncode == 1, "it has not started yet"
    places = ["--models", str(tmp_path / "exports"), "--source", f"watch:{tmp_path / 'photos'}"]
    command = [sys.executable, *start[1:], *places, "--cpu", "--threads", "1"]
    with subprocess.Popen(
        command, cwd=image, env=os.environ | environment(image), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["top"][0]["name"] == "blue"
        assert run(check, image).returncode == 0
        process.terminate()
        assert process.wait(60) == 0
    assert run([*start, *json.loads(DEVICE["CMD"][0]), "--help"], image).returncode == 0
