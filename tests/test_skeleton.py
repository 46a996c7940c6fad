"""What somebody with a fresh clone meets: make, the requirements, and what CI leaves behind."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "export/requirements.txt")


def requirements(file: str) -> list[Requirement]:
    lines = (line.strip() for line in (ROOT / file).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-r "))]


def own_files() -> list[Path]:
    """Every file of the project, without asking git: a downloaded archive must pass its tests too."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()} | {".git"}
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ignored]
        found += [Path(folder, name) for name in files]
    return found


def outside_make() -> dict[str, str]:
    """The environment without what the make that runs these tests would hand down to another one."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}


def make(*arguments: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", f"PYTHON={sys.executable}", *arguments],
        cwd=at,
        env=outside_make() | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The project as a fresh clone has it for make: no .venv yet. The requirements are empty, so pip needs no network."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "export").mkdir()
    for file in REQUIREMENTS:
        (tmp_path / file).touch()
    return tmp_path


@pytest.mark.parametrize("file", REQUIREMENTS)
def test_every_requirement_is_pinned_to_one_exact_version(file: str):
    pins = {str(requirement): str(requirement.specifier) for requirement in requirements(file)}
    assert pins
    assert [name for name, pin in pins.items() if not re.fullmatch(r"==\d+(\.\d+)+", pin)] == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_device_has_the_versions_that_the_trainer_tried_its_models_with(machine: str):
    system = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine}
    trainers = {
        r.name: r.specifier
        for r in requirements("requirements.txt")
        if r.marker is None or r.marker.evaluate(system)
    }
    trainers.setdefault("onnxruntime", trainers.get("onnxruntime-gpu"))  # the same, built with CUDA
    devices = {r.name: r.specifier for r in requirements("export/requirements.txt")}
    assert devices == {name: trainers[name] for name in devices}


def test_no_file_names_a_package_registry_by_its_address():
    # Put together here, so that this file does not name them either.
    hosts = [b".".join(parts) for parts in ((b"pypi", b"org"), (b"pythonhosted", b"org"), (b"npmjs", b"org"))]
    hosts += [b".".join(parts) for parts in ((b"debian", b"org"), (b"download", b"pytorch", b"org"))]
    option = re.compile(rb"(index-url|find-links|--registry|trusted-host)[= ]+\S*[/.]")
    files = own_files()
    assert ROOT / "requirements.txt" in files
    named = [
        str(path.relative_to(ROOT))
        for path in files
        if any(host in (text := path.read_bytes()) for host in hosts) or option.search(text)
    ]
    assert named == []


def test_a_python_that_is_too_old_is_refused_in_one_line(bare: Path):
    (bare / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 10, 4, 'final', 0)\n")
    refused = make("run", at=bare, PYTHONPATH=str(bare))
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "Python 3.11 or newer is needed" in refused.stderr
    assert not (bare / ".venv").exists()


@pytest.mark.parametrize(("there_before", "outcome"), [(True, "false"), (False, "true")])
def test_ci_runs_make_test_and_removes_only_the_venv_it_made(
    tmp_path: Path, there_before: bool, outcome: str
):
    (tmp_path / ".ci").mkdir()
    run = Path(shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci"))
    (tmp_path / "Makefile").write_text(f"test:\n\t@mkdir -p .venv && echo 3 passed in 1s && {outcome}\n")
    if there_before:
        (tmp_path / ".venv").mkdir()
    assert os.access(run, os.X_OK)
    ended = subprocess.run([run], capture_output=True, text=True, check=False, env=outside_make())
    assert ended.stdout.splitlines()[-1] == "3 passed in 1s"
    assert (ended.returncode == 0) == (outcome == "true")
    assert (tmp_path / ".venv").exists() == there_before
