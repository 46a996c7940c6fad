"""An exported model in runtimes that others wrote, and the samples for whoever builds on it: the trainer's answers everywhere.

What a package is missing for is skipped with the reason.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from browser_parts import PATIENCE, chromium, film_of, photos
from export_parts import first, with_template
from playwright.sync_api import expect

from benchmarks.client_runs import (
    SCORE_TOLERANCE,
    Absent,
    Answers,
    Asked,
    npm_package,
    served,
    with_browser,
    with_node,
    with_onnxruntime,
    with_opencv,
    with_openvino,
)
from benchmarks.clients import page_of, pictures
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from export.device.manifest import ClassLabel
from export.publish.publish import publish
from export.publish.snapshot import Snapshot, snapshot_of_learner

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "export" / "samples"
SIZE = 64  # of the network with a trunk; its own 224 would take most of the time


def trunk_snapshot() -> Snapshot:
    """The default network after one step on digits and two photographs."""
    memory = MemoryConfig(samples=20, codec=LATENT)
    learner = Learner(
        LearnerConfig.recommended("efficientnet_lite0", height=SIZE, width=SIZE, memory=memory), "cpu"
    )
    images = pictures(SIZE, 20)
    learner.observe(images, [0] * 10 + [1, 2] * 5)
    names = {0: ClassLabel(0, "digit"), 1: ClassLabel(1, "temple"), 2: ClassLabel(2, "flower | größer")}
    return replace(snapshot_of_learner(learner, names), images=images[:16], unknown_below=-1.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    """Published versions: of the network from scratch, and of the one with a trunk."""
    exports = tmp_path_factory.mktemp("clients")
    scratch = publish(with_template(exports / "scratch"), first().snapshot, variants=())
    return [scratch.folder, publish(exports / "trunk", trunk_snapshot(), variants=()).folder]


@pytest.fixture(scope="module")
def asked(folders) -> list[Asked]:
    sizes = (first().snapshot.height, SIZE)
    return [Asked(folder / "model.onnx", pictures(size)) for folder, size in zip(folders, sizes, strict=True)]


@pytest.fixture(scope="module")
def expected(asked) -> list[Answers]:
    return with_onnxruntime(asked)


@pytest.fixture(scope="module")
def camera(tmp_path_factory):
    """A browser whose camera shows a flower."""
    with chromium(film_of(photos()["flower"], tmp_path_factory.mktemp("film") / "film.mjpeg")) as browser:
        yield browser


def agree(found: list[Answers], expected: list[Answers]) -> None:
    for answers, wanted in zip(found, expected, strict=True):
        facts = answers.compared(wanted)
        assert facts["same_answer"] == facts["pictures"] == 100
        assert facts["max_score_difference"] <= SCORE_TOLERANCE
        assert facts["max_similarity_difference"] <= SCORE_TOLERANCE


@pytest.mark.parametrize(
    "client",
    [with_node, with_opencv, lambda asked: with_opencv(asked, classic=True), with_openvino],
    ids=["onnxruntime-node", "OpenCV", "the engine of OpenCV 4", "OpenVINO"],
)
def test_others_give_the_answers_of_onnx_runtime(client, asked, expected):
    try:
        agree(client(asked), expected)
    except Absent as absent:
        pytest.skip(str(absent))


@pytest.mark.browser
def test_a_browser_gives_the_answers_of_onnx_runtime(asked, expected, camera):
    try:
        agree(with_browser(asked, camera), expected)
    except Absent as absent:
        pytest.skip(str(absent))


def test_a_client_that_answers_otherwise_is_found_out(expected):
    other = replace(expected[1], scores=np.roll(expected[1].scores, 1, axis=1))
    with pytest.raises(AssertionError):
        agree([expected[0], other], expected)


# The golden sample ----------------------------------------------------------------------------------------------------


def in_python(folder: Path, *pictures: Path) -> subprocess.CompletedProcess[str]:
    """The sample as an integrator runs it: nothing of ours can be imported."""
    command = [sys.executable, "-I", SAMPLES / "classify.py", folder, *pictures]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)


@pytest.mark.parametrize("place", [0, 1], ids=["scratch", "trunk"])
def test_python_without_our_package_answers_the_golden_sample_as_the_trainer_did(folders, place):
    done = in_python(folders[place], folders[place] / "golden.png")
    assert done.returncode == 0, done.stderr
    checked, answer = map(json.loads, done.stdout.splitlines())
    golden = json.loads((folders[place] / "golden.json").read_text())
    assert checked["golden"]["input"] < 1e-5 and checked["golden"]["image"] <= golden["tolerance"]["image"]
    assert (answer["name"], answer["unknown"]) == (golden["best"]["name"], golden["unknown"])


@pytest.mark.parametrize("key", ["scores", "similarity"])
def test_a_port_with_other_answers_ends_with_1(folders, tmp_path, key):
    folder = Path(shutil.copytree(folders[0], tmp_path / "version"))
    golden = json.loads((folder / "golden.json").read_text())
    golden[key] = [0.5, *golden[key][1:]] if key == "scores" else golden[key] - 0.1
    (folder / "golden.json").write_text(json.dumps(golden))
    done = in_python(folder)
    assert done.returncode == 1 and "the golden input is answered otherwise" in done.stderr


@pytest.mark.parametrize("mistake", ["blue first", "nearest pixel", "squeezed"])
def test_the_golden_picture_shows_the_usual_mistakes_of_a_port(folders, mistake):
    import cv2

    folder = folders[1]
    golden = json.loads((folder / "golden.json").read_text())
    frame = cv2.imread(str(folder / "golden.png"))[..., ::-1]
    middle = frame[:, 40:280]
    wrong = {
        "blue first": cv2.resize(middle[..., ::-1], (SIZE, SIZE), interpolation=cv2.INTER_AREA),
        "nearest pixel": cv2.resize(middle, (SIZE, SIZE), interpolation=cv2.INTER_NEAREST),
        "squeezed": cv2.resize(frame, (SIZE, SIZE), interpolation=cv2.INTER_AREA),
    }[mistake]
    (answers,) = with_onnxruntime([Asked(folder / "model.onnx", np.ascontiguousarray(wrong)[None])])
    apart = max(
        np.abs(answers.scores[0] - golden["scores"]).max(), abs(answers.similarity[0] - golden["similarity"])
    )
    assert apart > golden["tolerance"]["image"]


@pytest.mark.browser
def test_the_browser_sample_checks_itself_and_classifies_a_camera(folders, camera, tmp_path):
    try:
        ort = npm_package("onnxruntime-web") / "node_modules" / "onnxruntime-web" / "dist"
    except Absent as absent:
        pytest.skip(str(absent))
    site = Path(shutil.copytree(SAMPLES / "browser", tmp_path / "site"))
    shutil.copytree(folders[1], site / "model")
    shutil.copytree(ort, site / "ort", ignore=shutil.ignore_patterns("*.map", "*jsep*", "*webgpu*", "*all*"))
    with served(site) as address:
        page = camera.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        expect(page.locator("#state")).to_contain_text("answered as by the trainer")
        expect(page.locator("#answer")).to_have_text(re.compile(r"^(digit|temple|flower \| größer): \d+ %$"))
        page.close()


def test_the_cpp_sample_is_built_and_checks_itself(folders, tmp_path):
    spec = find_spec("openvino")
    if shutil.which("g++") is None or spec is None or spec.origin is None:
        pytest.skip("g++ or the Python package openvino, which brings its headers, is missing")
    if not Path("/usr/include/opencv4/opencv2/imgcodecs.hpp").exists():
        pytest.skip("OpenCV's headers are missing: apt-get install libopencv-imgcodecs-dev")
    openvino = Path(spec.origin).parent
    program = tmp_path / "classify"
    (library,) = openvino.glob("libs/libopenvino.so.*")
    command = ["g++", "-std=c++17", SAMPLES / "cpp" / "classify.cpp", "-o", program, f"-I{openvino}/include"]
    command += ["-I/usr/include/opencv4", library, f"-Wl,-rpath,{openvino}/libs"]
    command += [f"-lopencv_{name}" for name in ("core", "imgcodecs", "imgproc")]
    subprocess.run(command, check=True, timeout=300)
    for folder in folders:
        done = subprocess.run(
            [program, folder, folder / "golden.png"], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        golden = json.loads((folder / "golden.json").read_text())
        said = "unknown" if golden["unknown"] else golden["best"]["name"]
        assert f"golden.png: {said}" in done.stdout
    broken = Path(shutil.copytree(folders[0], tmp_path / "broken"))
    (broken / "golden-input.png").write_bytes((broken / "golden.png").read_bytes()[:1000])
    assert subprocess.run([program, broken], capture_output=True, timeout=120).returncode == 1


def test_the_page_of_clients_is_made_from_the_results():
    result = json.loads((ROOT / "results" / "clients.json").read_text())
    assert page_of(result) == (ROOT / "docs" / "clients.md").read_text()
