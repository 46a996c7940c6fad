"""Everything for a device as one zip: unpacked elsewhere, its own commands answer as the trainer did."""

import io
import json
import re
import shlex
import subprocess
import sys
import zipfile

import pytest
from export_parts import first, with_template

from edge_hpcr.common.errors import UserError
from export.publish.bundle import bundle_name, write_bundle
from export.publish.publish import publish


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    folder = with_template(tmp_path_factory.mktemp("bundle") / "exports")
    publish(folder, first().snapshot, variants=())
    return folder


@pytest.mark.slow
def test_unpacked_elsewhere_the_commands_of_its_readme_give_the_golden_answer(exports, tmp_path):
    packed = io.BytesIO()
    write_bundle(exports, 1, packed)
    with zipfile.ZipFile(packed) as bundle:
        bundle.extractall(tmp_path)
    folder = tmp_path / bundle_name(1)
    held = {path.name for path in (folder / "model").iterdir()}
    assert held >= {"model.onnx", "manifest.json", "labels.txt", "model-card.md", "golden.json", "golden.png"}
    assert "onnxruntime==" in (folder / "requirements.txt").read_text()
    assert not list(folder.rglob("__pycache__")) and not (folder / "edge_hpcr" / "learner").exists()
    commands = re.findall(r"^    \.venv/bin/python (.+)$", (folder / "README.md").read_text(), re.MULTILINE)
    check, classify, _follow = map(shlex.split, commands)
    golden = json.loads((folder / "model" / "golden.json").read_text())

    checked, answered = run(folder, *check)
    assert max(checked["golden"].values()) <= golden["tolerance"]["image"]
    assert answered["name"] == golden["best"]["name"]

    # The pictures take the camera's place. Nothing of the trainer can be imported there.
    classify[classify.index("--source") + 1] = "model"
    lines = run(folder, *classify)
    assert len(lines) == 2
    for line in lines:
        (best, *_) = line["top"]
        assert best["name"] == golden["best"]["name"]
        assert best["confidence"] == pytest.approx(max(golden["scores"]), abs=golden["tolerance"]["image"])


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env={"HOME": str(folder)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_version_that_is_not_kept_or_was_changed_is_not_given_out(exports, tmp_path):
    with pytest.raises(UserError, match="version 7 cannot be given to a device"):
        write_bundle(exports, 7, io.BytesIO())
    labels = exports / "v000001" / "labels.txt"
    before = labels.read_bytes()
    labels.write_bytes(before.swapcase())
    try:
        with pytest.raises(UserError, match="SHA-256"):
            write_bundle(exports, 1, io.BytesIO())
    finally:
        labels.write_bytes(before)
