"""The units of the page's scripts (tests/scripts)."""

import shutil
import subprocess

import pytest
from process_parts import ROOT

NODE = shutil.which("node")


def new_enough() -> bool:
    """Older ones do not import a `.js` file as a module."""
    said = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor, _ = map(int, said.strip().lstrip("v").split("."))
    return (major, minor) >= (20, 19)


@pytest.mark.skipif(NODE is None or not new_enough(), reason="Node.js 20.19 or newer is not installed")
def test_the_units_of_the_scripts_do_what_they_say():
    done = subprocess.run(
        [NODE, "--test", "tests/scripts/units.test.mjs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
