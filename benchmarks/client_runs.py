"""An exported model in runtimes that others wrote: each is given the same pictures, one at a time.

A client is a function of models and their pictures. It raises `Absent` with the reason where its package is not to be had.
npm's packages are kept in `~/.cache/edge-hpcr/clients`, outside of everything that git sees.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "edge-hpcr" / "clients"
NPM_VERSION = "1.30.0"  # of both packages
NPM_SECONDS = 300
NODE_SCRIPT = Path(__file__).with_name("clients_node.js")
SCORE_TOLERANCE = 1e-3
_TIE = 1e-5  # of two classes that are as probable, either is the same answer


class Absent(Exception):
    """The client cannot be tried here. One line: why."""


@dataclass(frozen=True)
class Asked:
    """A model's file, and pictures of its size, uint8 [n, H, W, 3]."""

    model: Path
    images: np.ndarray


@dataclass(frozen=True)
class Answers:
    """What a client said of each picture."""

    version: str
    scores: np.ndarray
    similarity: np.ndarray
    ms: list[float]  # of each picture

    def compared(self, expected: Answers) -> dict[str, Any]:
        """How far from the expected answers, and how fast."""
        best = self.scores.argmax(1)
        same = expected.scores.max(1) - expected.scores[np.arange(len(best)), best] <= _TIE
        return {
            "version": self.version,
            "pictures": len(best),
            "same_answer": int(same.sum()),
            "max_score_difference": float(np.abs(self.scores - expected.scores).max()),
            "max_similarity_difference": float(np.abs(self.similarity - expected.similarity).max()),
            "ms": round(float(np.median(self.ms)), 3),
        }


Run = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def one_by_one(version: str, run: Run, images: np.ndarray) -> Answers:
    """Ask for each picture by itself; the first one is asked twice, and its first time does not count."""
    run(images[:1])
    scores, similarity, times = [], [], []
    for place in range(len(images)):
        began = time.perf_counter()
        row, near = run(images[place : place + 1])
        times.append((time.perf_counter() - began) * 1e3)
        scores.append(np.asarray(row).reshape(-1))
        similarity.append(float(np.asarray(near).reshape(-1)[0]))
    return Answers(version, np.stack(scores), np.array(similarity), times)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Absent(f"the Python package {name} is not installed") from None


# Python ---------------------------------------------------------------------------------------------------------------


def with_onnxruntime(asked: Sequence[Asked]) -> list[Answers]:
    import onnxruntime

    found = []
    for each in asked:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            each.model.read_bytes(), options, providers=["CPUExecutionProvider"]
        )

        def run(images: np.ndarray, session: Any = session) -> tuple[np.ndarray, np.ndarray]:
            scores, similarity = session.run(["scores", "similarity"], {"image": images})
            return scores, similarity

        found.append(one_by_one(onnxruntime.__version__, run, each.images))
    return found


def with_opencv(asked: Sequence[Asked], classic: bool = False) -> list[Answers]:
    """OpenCV's own runtime for networks; the classic one is that of OpenCV 4."""
    import cv2

    found, before = [], cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        for each in asked:
            engine = cv2.dnn.ENGINE_CLASSIC if classic else cv2.dnn.ENGINE_NEW
            network = cv2.dnn.readNetFromONNX(str(each.model), engine)

            def run(images: np.ndarray, network: Any = network) -> tuple[np.ndarray, np.ndarray]:
                network.setInput(images, "image")
                # Its new engine gives all outputs or none.
                scores, _, similarity = network.forward(["scores", "feature", "similarity"])
                return scores, similarity

            found.append(one_by_one(cv2.__version__, run, each.images))
    finally:
        cv2.setNumThreads(before)
    return found


def with_openvino(asked: Sequence[Asked]) -> list[Answers]:
    openvino, found = _package("openvino"), []
    for each in asked:
        # In 32 bits, as the trainer: some processors would use 16.
        how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = openvino.Core().compile_model(str(each.model), "CPU", how)

        def run(images: np.ndarray, compiled: Any = compiled) -> tuple[np.ndarray, np.ndarray]:
            outputs = compiled(images)
            return outputs["scores"], outputs["similarity"]

        found.append(one_by_one(installed("openvino"), run, each.images))
    return found


def with_ncnn(asked: Sequence[Asked]) -> list[Answers]:
    """Converted by pnnx. ncnn's input is float: the cast to float becomes a layer that does nothing."""
    ncnn, pnnx, found = _package("ncnn"), _package("pnnx"), []
    for each in asked:
        height, width = each.images.shape[1:3]
        place = each.model.parent / "ncnn"
        place.mkdir(exist_ok=True)
        model = shutil.copy(each.model, place / "model.onnx")
        command = [_program_of(pnnx), model, f"inputshape=[1,{height},{width},3]u8", "fp16=0"]
        _call(command, 300, "pnnx")
        text = (place / "model.ncnn.param").read_text().replace("Tensor.to ", "Noop      ")
        (place / "model.ncnn.param").write_text(text)
        network = ncnn.Net()
        network.opt.num_threads = 1
        network.opt.use_fp16_packed = network.opt.use_fp16_storage = network.opt.use_fp16_arithmetic = False
        if network.load_param(str(place / "model.ncnn.param")) or network.load_model(
            str(place / "model.ncnn.bin")
        ):
            raise Absent("ncnn cannot load what pnnx made of the model")

        def run(images: np.ndarray, network: Any = network) -> tuple[np.ndarray, np.ndarray]:
            extractor = network.create_extractor()
            numbers = images[0].astype(np.float32)  # by a name: ncnn's Mat does not keep it alive
            extractor.input("in0", ncnn.Mat(numbers).clone())
            return np.array(extractor.extract("out0")[1]), np.array(extractor.extract("out2")[1])

        found.append(one_by_one(installed("ncnn"), run, each.images))
    return found


def _program_of(pnnx: Any) -> str:
    return str(Path(pnnx.__file__).with_name("pnnx"))


# npm ------------------------------------------------------------------------------------------------------------------


def _call(command: list[Any], seconds: float, what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except FileNotFoundError:
        raise Absent(f"there is no {what} here") from None
    except subprocess.TimeoutExpired:
        raise Absent(f"{what} took more than {seconds:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or [f"exit code {error.returncode}"]
        raise Absent(f"{what}: {said[-1][:200]}") from None
    return done.stdout


@functools.cache
def npm_package(name: str) -> Path:
    """The folder in whose node_modules a package is, installed at the first call."""
    place = CACHE / "npm" / NPM_VERSION
    described = place / "node_modules" / name / "package.json"
    if not described.exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}')
        # Without its scripts: one of them downloads CUDA.
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        _call(["npm", "install", *quiet, "--prefix", place, f"{name}@{NPM_VERSION}"], NPM_SECONDS, "npm")
    if json.loads(described.read_text())["version"] != NPM_VERSION:
        raise Absent(f"{described} is not version {NPM_VERSION}: remove {place}")
    return place


def with_node(asked: Sequence[Asked]) -> list[Answers]:
    place, requests = npm_package("onnxruntime-node"), []
    folder = asked[0].model.parent
    for number, each in enumerate(asked):
        raw = folder / f"pictures-{number}.raw"
        raw.write_bytes(each.images.tobytes())
        height, width = each.images.shape[1:3]
        facts = {"count": len(each.images), "height": height, "width": width}
        requests.append({"model": str(each.model), "images": str(raw), **facts})
    request = folder / "node-request.json"
    request.write_text(json.dumps(requests))
    answered = json.loads(_call(["node", NODE_SCRIPT, place, request], 300, "node"))
    return [_of_outside(NPM_VERSION, answer) for answer in answered]


def _of_outside(version: str, answer: dict[str, Any]) -> Answers:
    scores = np.array(answer["scores"], np.float32)
    return Answers(version, scores, np.array(answer["similarity"]), answer["ms"])


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The files of a folder on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


IN_BROWSER = """async ({ model, images, count, height, width }) => {
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
  const bytes = new Uint8Array(await (await fetch(images)).arrayBuffer());
  const size = height * width * 3;
  const found = { scores: [], similarity: [], ms: [] };
  for (let place = 0; place < count; place++) {
    const image = new ort.Tensor("uint8", bytes.slice(place * size, (place + 1) * size), [1, height, width, 3]);
    const began = performance.now();
    const outputs = await session.run({ image });
    found.ms.push(performance.now() - began);
    found.scores.push(Array.from(outputs.scores.data));
    found.similarity.push(outputs.similarity.data[0]);
  }
  return found;
}"""


def with_browser(asked: Sequence[Asked], browser: Any) -> list[Answers]:
    """onnxruntime-web, as WebAssembly, in a page of this browser (Playwright's)."""
    place = npm_package("onnxruntime-web") / "node_modules" / "onnxruntime-web" / "dist"
    folder, found = asked[0].model.parent / "page", []
    folder.mkdir(exist_ok=True)
    for name in place.glob("ort*wasm*"):
        if name.suffix != ".map":
            shutil.copy(name, folder)
    (folder / "index.html").write_text('<!doctype html><script src="ort.wasm.min.js"></script>')
    with served(folder) as address:
        page = browser.new_page()
        page.goto(address)
        for number, each in enumerate(asked):
            shutil.copy(each.model, folder / f"{number}.onnx")
            (folder / f"{number}.raw").write_bytes(each.images.tobytes())
            height, width = each.images.shape[1:3]
            facts = {"count": len(each.images), "height": height, "width": width}
            answer = page.evaluate(
                IN_BROWSER, {"model": f"{number}.onnx", "images": f"{number}.raw", **facts}
            )
            found.append(_of_outside(NPM_VERSION, answer))
        page.close()
    return found


# An older ONNX Runtime ------------------------------------------------------------------------------------------------

OLD = "1.17.3"  # of January 2024: the last line that refuses IR 10
OLD_SCRIPT = """
import json, sys, time
import numpy as np, onnxruntime
found = []
for model, images in json.loads(open(sys.argv[1]).read()):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    answer = {"scores": [], "similarity": [], "ms": []}
    for image in np.load(images):
        began = time.perf_counter()
        scores, similarity = session.run(["scores", "similarity"], {"image": image[None]})
        answer["ms"].append((time.perf_counter() - began) * 1e3)
        answer["scores"].append(scores[0].tolist())
        answer["similarity"].append(float(similarity[0]))
    found.append(answer)
print(json.dumps(found))
"""


def with_old_onnxruntime(asked: Sequence[Asked]) -> list[Answers]:
    """An ONNX Runtime that refused what torch chose by itself, in a virtual environment of its own."""
    place = CACHE / f"onnxruntime-{OLD}"
    python = place / "bin" / "python"
    if not (place / ".installed").exists():
        _call([sys.executable, "-m", "venv", "--clear", place], 120, "venv")
        _call([python, "-m", "pip", "install", "-q", f"onnxruntime=={OLD}", "numpy<2"], 600, "pip")
        (place / ".installed").touch()
    said = _call([python, *_saved(asked, "old", OLD_SCRIPT)], 600, f"onnxruntime {OLD}")
    return [_of_outside(OLD, each) for each in json.loads(said)]


def _saved(asked: Sequence[Asked], name: str, script: str) -> list[Path]:
    """A script for another Python, and its request: the models and their pictures."""
    folder, requests = asked[0].model.parent, []
    for number, each in enumerate(asked):
        np.save(folder / f"{name}-{number}.npy", each.images)
        requests.append([str(each.model), str(folder / f"{name}-{number}.npy")])
    (folder / f"{name}.json").write_text(json.dumps(requests))
    (folder / f"{name}.py").write_text(script)
    return [folder / f"{name}.py", folder / f"{name}.json"]


# TFLite ---------------------------------------------------------------------------------------------------------------

TFLITE = CACHE / "tflite"  # made by hand: TensorFlow is large
TFLITE_PACKAGES = (
    "onnx2tf tensorflow-cpu tf_keras ai-edge-litert onnxruntime onnx onnx_graphsurgeon sng4onnx psutil"
)
TFLITE_SCRIPT = """
import json, os, sys, time
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
import numpy as np, onnx, onnx2tf
from importlib.metadata import version
# It would download pictures to try the model on; noise does as well.
for name, module in list(sys.modules.items()):
    if name.startswith("onnx2tf") and hasattr(module, "download_test_image_data"):
        module.download_test_image_data = lambda: np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
from ai_edge_litert.interpreter import Interpreter
found = []
for number, (path, images) in enumerate(json.loads(open(sys.argv[1]).read())):
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        first = value.type.tensor_type.shape.dim[0]
        if first.dim_param:
            first.dim_value = 1
    fixed = f"{path}.one.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model, strict_mode=True), fixed)
    folder = f"{path}.tflite"
    onnx2tf.convert(input_onnx_file_path=fixed, output_folder_path=folder, non_verbose=True,
                    keep_nwc_or_nhwc_or_ndhwc_input_names=["image"])
    (made,) = [name for name in os.listdir(folder) if name.endswith("_float32.tflite")]
    interpreter = Interpreter(os.path.join(folder, made), num_threads=1)
    interpreter.allocate_tensors()
    (given,), outputs = interpreter.get_input_details(), interpreter.get_output_details()
    answer = {"scores": [], "similarity": [], "ms": []}
    classes = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    for image in np.load(images):
        began = time.perf_counter()
        interpreter.set_tensor(given["index"], image[None].astype(given["dtype"]))
        interpreter.invoke()
        answer["ms"].append((time.perf_counter() - began) * 1e3)
        by_size = {interpreter.get_tensor(each["index"]).size: interpreter.get_tensor(each["index"]) for each in outputs}
        answer["scores"].append(by_size[classes].reshape(-1).tolist())
        answer["similarity"].append(float(by_size[1].reshape(-1)[0]))
    found.append(answer)
versions = f"{version('ai-edge-litert')}, onnx2tf {version('onnx2tf')}"
print(); print(json.dumps({"versions": versions, "found": found}))
"""


def with_tflite(asked: Sequence[Asked]) -> list[Answers]:
    python = TFLITE / "bin" / "python"
    if not python.exists():
        raise Absent(f"no virtual environment {TFLITE} with {TFLITE_PACKAGES}")
    request = _saved(asked, "tflite", TFLITE_SCRIPT)
    answered = json.loads(_call([python, *request], 1200, "onnx2tf").splitlines()[-1])
    return [_of_outside(answered["versions"], each) for each in answered["found"]]
