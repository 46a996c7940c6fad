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

from export.publish.handout import bundle_name, write_bundle
from export.publish.publish import publish


@pytest.mark.slow
def test_unpacked_elsewhere_the_commands_of_its_readme_give_the_golden_answer(tmp_path):
    exports, packed = with_template(tmp_path / "exports"), io.BytesIO()
    publish(exports, first().snapshot)
    write_bundle(exports, 1, packed)
    with zipfile.ZipFile(packed) as bundle:
        bundle.extractall(tmp_path)
    folder = tmp_path / bundle_name(1)
    held = {path.name for path in (folder / "model").iterdir()}
    assert held >= {"model.onnx", "manifest.json", "labels.txt", "model-card.md", "golden.json", "golden.png"}
    assert "onnxruntime==" in (folder / "requirements.txt").read_text()
    assert not list(folder.rglob("__pycache__")) and not (folder / "edge_hpcr" / "learner").exists()
    commands = re.findall(r"^    \.venv/bin/python (.+)$", (folder / "README.md").read_text(), re.MULTILINE)
    classify, _follow = map(shlex.split, commands)
    golden = json.loads((folder / "model" / "golden.json").read_text())

    # The pictures take the camera's place. Nothing of the trainer can be imported there.
    classify[classify.index("--source") + 1] = "model"
    done = subprocess.run(
        [sys.executable, *classify], cwd=folder, env={"HOME": str(folder)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 2
    for line in lines:
        (best, *_) = line["top"]
        assert best["name"] == golden["best"]["name"]
        assert best["confidence"] == pytest.approx(max(golden["scores"]), abs=golden["tolerance"]["image"])
