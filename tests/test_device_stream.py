"""A device needs nothing but the packages of its own list."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from device_parts import frame_of
from PIL import Image
from process_parts import ROOT

DEVICE = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + sys.argv[1:3]
from export.device.model import Classifier, Result
from export.runtime import main
code = main(sys.argv[3:])
ours = {name for name in sys.modules if name.startswith("edge_hpcr.")}
assert all(name.split(".")[1] in ("common", "stream") for name in ours), ours
assert not {"sqlite3", "torch", "gradio", "pandas", "scipy", "sklearn"} & set(sys.modules)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that export/requirements.txt names, what they need, and no other."""
    folder = tmp_path_factory.mktemp("packages")
    lines = (ROOT / "export" / "requirements.txt").read_text().splitlines()
    wanted = [line.partition("==")[0] for line in lines if line and not line.startswith("#")]
    installed = {each.name for each in metadata.distributions()}
    for name in wanted:
        if name == "onnxruntime" and name not in installed:
            name = "onnxruntime-gpu"
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
        # What it needs itself is installed with it.
        needs = [each for each in distribution.requires or [] if ";" not in each]
        wanted += [name for each in needs if (name := re.match(r"[\w.-]+", each)[0]) not in wanted]
    return folder


def on_a_device(packages: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", DEVICE, str(packages), str(ROOT), "--cpu", "--threads", "1"]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=packages
    )


@pytest.mark.slow
def test_a_device_needs_the_packages_of_its_own_list_only(packages: Path, exports: Path, tmp_path: Path):
    (tmp_path / "images").mkdir()
    Image.fromarray(frame_of("blue")).save(tmp_path / "images" / "a.png")
    done = on_a_device(packages, "--models", exports, "--source", tmp_path / "images")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["top"][0]["name"] == "blue"
    watched = f"watch:{tmp_path / 'images'}"
    done = on_a_device(packages, "--models", exports, "--source", watched, "--count", 1)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
