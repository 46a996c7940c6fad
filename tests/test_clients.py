"""An exported model in runtimes that others wrote, and the samples for whoever builds on it: the trainer's answers everywhere.

What a package is missing for is skipped with the reason.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest
from browser_parts import PATIENCE, chromium, film_of, photos
from export_parts import first, with_template
from playwright.sync_api import expect
from process_parts import ROOT, answering
from sklearn.datasets import load_sample_images

from edge_hpcr.bench.datasets import load
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.stream.resize import prepare
from export.device.manifest import ClassLabel
from export.publish.publish import publish
from export.publish.snapshot import Snapshot, snapshot_of_learner

pytestmark = pytest.mark.slow

SAMPLES = ROOT / "export" / "samples"
SIZE = 64  # of the network with a trunk; its own 224 would take most of the time
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "edge-hpcr" / "clients"
NPM_VERSION = "1.30.0"
Ask = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # images to scores and similarity


def pictures(size: int, count: int = 100) -> np.ndarray:
    """Real pictures as a model of this size sees them: handwritten digits, and parts of two photographs."""
    rng = np.random.default_rng(0)
    found = [prepare(image, (size, size)) for image in load("digits").test_images[: count // 2]]
    photographs = load_sample_images().images
    while len(found) < count:
        photograph = photographs[len(found) % 2]
        side = int(rng.integers(100, min(photograph.shape[:2])))
        top, left = (int(rng.integers(0, length - side)) for length in photograph.shape[:2])
        found.append(prepare(photograph[top : top + side, left : left + side], (size, size)))
    return np.stack(found)


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
    scratch = publish(with_template(exports / "scratch"), first().snapshot)
    return [scratch.folder, publish(exports / "trunk", trunk_snapshot()).folder]


def with_onnxruntime(model: Path) -> Ask:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["scores", "similarity"], {"image": images})


def with_opencv(model: Path, engine: int) -> Ask:
    network = cv2.dnn.readNetFromONNX(str(model), engine)

    def ask(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        network.setInput(images, "image")
        # Its new engine gives all outputs or none.
        scores, _, similarity = network.forward(["scores", "feature", "similarity"])
        return scores, similarity

    return ask


def with_openvino(model: Path) -> Ask:
    openvino = pytest.importorskip("openvino")
    # In 32 bits, as the trainer: some processors would use 16.
    how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(str(model), "CPU", how)

    def ask(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs = compiled(images)
        return outputs["scores"], outputs["similarity"]

    return ask


@pytest.mark.parametrize(
    "client",
    [
        partial(with_opencv, engine=cv2.dnn.ENGINE_NEW),
        partial(with_opencv, engine=cv2.dnn.ENGINE_CLASSIC),
        with_openvino,
    ],
    ids=["OpenCV", "the engine of OpenCV 4", "OpenVINO"],
)
def test_others_give_the_answers_of_onnx_runtime(client: Callable[[Path], Ask], folders):
    for folder, size in zip(folders, (first().snapshot.height, SIZE), strict=True):
        ask, ours = client(folder / "model.onnx"), with_onnxruntime(folder / "model.onnx")
        for image in pictures(size):
            (scores, similarity), (expected, near) = ask(image[None]), ours(image[None])
            assert np.abs(np.asarray(scores).ravel() - expected.ravel()).max() <= 1e-3
            assert abs(float(np.asarray(similarity).ravel()[0]) - float(near[0])) <= 1e-3


# The samples --------------------------------------------------------------------------------------------------------


@contextmanager
def served(folder: Path):
    """The files of a folder on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


def onnxruntime_web() -> Path:
    """The files of the npm package, kept outside of everything that git sees, and installed at the first call."""
    place = CACHE / "npm" / NPM_VERSION
    folder = place / "node_modules" / "onnxruntime-web"
    if not folder.exists():
        if shutil.which("npm") is None:
            pytest.skip("there is no npm here")
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}')
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        command = ["npm", "install", *quiet, "--prefix", place, f"onnxruntime-web@{NPM_VERSION}"]
        if subprocess.run(command, capture_output=True, timeout=300).returncode:
            pytest.skip("npm cannot install onnxruntime-web")
    return folder / "dist"


@pytest.mark.browser
def test_the_browser_sample_checks_itself_and_classifies_a_camera(folders, tmp_path):
    ort = onnxruntime_web()
    site = Path(shutil.copytree(SAMPLES / "browser", tmp_path / "site"))
    shutil.copytree(folders[1], site / "model")
    shutil.copytree(ort, site / "ort", ignore=shutil.ignore_patterns("*.map", "*jsep*", "*webgpu*", "*all*"))
    film = film_of(photos()["flower"], tmp_path / "film.mjpeg")
    with served(site) as address, chromium(film) as camera:
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
