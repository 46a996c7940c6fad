"""`pip install .`: a wheel with everything that runs, and the one command `edge-hpcr`."""

import os
import shutil
import subprocess
import sys
from email.parser import Parser
from pathlib import Path

import pytest

from edge_hpcr import __version__

ROOT = Path(__file__).parent.parent
PACKAGES = ("edge_hpcr", "app", "export")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel, built from a copy of what a clone has, and installed into a folder of its own."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("pyproject.toml", "requirements.txt", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "install", *offline, "--target", place, source], check=True, cwd=place)
    return place


def edge_hpcr(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    program = [str(installed / "bin" / "edge-hpcr"), *arguments]
    # From a folder without the sources, which would be imported first.
    return subprocess.run(
        program, cwd=installed, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_command_knows_its_version_and_all_commands(installed):
    assert edge_hpcr(installed, "--version").stdout == f"edge_hpcr {__version__}\n"
    shown = edge_hpcr(installed, "--help").stdout
    assert shown.startswith("Usage: edge-hpcr ")
    assert all(f"\n  {name} " in shown for name in ("learn", "app", "export", "device", "bench"))


def test_every_file_of_the_packages_is_installed_and_no_other_package(installed):
    def files(root: Path) -> set[Path]:
        found = (path for name in PACKAGES for path in (root / name).rglob("*") if path.is_file())
        return {path.relative_to(root) for path in found if "__pycache__" not in path.parts}

    assert files(installed) == files(ROOT)
    (facts,) = installed.glob("edge_hpcr-*.dist-info")
    assert {path.name for path in installed.iterdir()} == {*PACKAGES, "bin", facts.name}
    needed = Parser().parsestr((facts / "METADATA").read_text()).get_all("Requires-Dist")
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    always = [each for each in needed if "extra ==" not in each]
    assert len(always) == len([line for line in lines if line and not line.startswith("#")])
    optional = [each.partition(";")[0].strip() for each in needed if each not in always]
    assert optional == ["ray==2.60.0"]
    assert set(optional) <= set((ROOT / "requirements-dev.txt").read_text().splitlines()), "what is tested"
