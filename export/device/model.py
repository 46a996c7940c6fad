"""A published model on a device: loaded only if it is whole, then asked for what it sees.

A model is refused with `BadModel` unless its bytes are those of its manifest, its outputs are as the manifest says, and
it answers test images with probabilities.

    classifier = Classifier.load("workspace/exports")
    for result in classifier.predict([frame]):      # uint8 RGB [H, W, 3], any size
        print(result.top[0].name, result.top[0].confidence, result.unknown)
"""

import base64
import contextlib
import functools
import io
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from edge_hpcr.stream.resize import prepare
from export.device import BadModel
from export.device import manifest as files
from export.device.manifest import Manifest

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# It runs what does not depend on the image, without a time limit, and cannot be stopped. The first answer does the same
# within a limit. Our own models gain nothing by it (32x32: 0.99 to 1.03 of the time).
_NOT_AT_LOADING = ["ConstantFolding"]
_SILENT = 4  # only what ends the process; everything else reaches us as an exception

# ONNX Runtime's own errors have no common base class.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(value for value in vars(_state).values() if isinstance(value, type) and issubclass(value, Exception)),
    RuntimeError,
    ValueError,
    MemoryError,
)
LONGEST_CHECK_SECONDS = 30.0  # of a run before it is in use; the first one prepares a GPU
MOST_WRONG_SUM = 0.05  # of probabilities; a variant in 8 bits does not add up to exactly 1
_TINY = 1e-12


@dataclass(frozen=True)
class Label:
    """One answer."""

    id: int
    name: str
    confidence: float


@dataclass(frozen=True)
class Result:
    """What a model says of one frame."""

    top: list[Label]  # the best first
    unknown: bool  # no class is near
    similarity: float  # to the nearest class; larger is nearer

    @property
    def answer(self) -> Label | None:
        return None if self.unknown else self.top[0]

    def line(
        self, number: int, at: float, origin: str, device: str, version: int, seconds: float
    ) -> dict[str, Any]:
        """The JSON line of a frame, which line.schema.json describes."""
        top = [
            {"id": each.id, "name": each.name, "confidence": round(each.confidence, 6)} for each in self.top
        ]
        return {
            "frame": number,
            "at": round(at, 3),
            "origin": origin,
            "device": device,
            "top": top,
            "unknown": self.unknown,
            "similarity": round(self.similarity, 6),
            "answer": self.answer and {"id": self.answer.id, "name": self.answer.name},
            "version": version,
            "latency_ms": round(1000 * seconds, 3),
        }


class Classifier:
    """A model that passed every check, ready to answer. Safe to ask from several threads."""

    def __init__(self, session: "Session", where: str, manifest: Manifest) -> None:
        self._session, self._where, self.info = session, where, manifest
        self.provider, self.variant = session.provider, "fp32"
        # Why it is not the hardware, or not the variant, that was asked for.
        self.notes = [session.note] if session.note else []
        has_similarity = "similarity" in session.outputs
        self._proxies = None if has_similarity else _proxies_of(session.metadata, manifest, where)
        self._widths = {
            "scores": [len(manifest.classes)],
            "feature": [manifest.feature_size],
            "similarity": [],
        }
        for count in (1, 2):
            self._check_run(count)

    @classmethod
    def load(
        cls,
        path: Path | str,
        providers: str = "auto",
        threads: int = 0,
        variant: str = "fp32",
        manifest: Manifest | None = None,
    ) -> "Classifier":
        """The model of an exports folder (its latest), or of a version's folder (whose manifest may be at hand).

        `providers`: auto (CUDA if it works, else the CPU), or cpu.
        """
        folder = Path(path)
        if manifest is None:
            folder, latest = files.current_folder(folder)
            manifest = files.read_manifest(folder, latest)
        file = manifest.file_of(variant)
        data, where = files.read_model_file(folder, file), str(folder / file.file)
        classifier = cls(Session(data, where, providers, threads), where, manifest)
        if variant in manifest.variants:
            classifier.variant = variant
        elif variant != "fp32":
            reason = manifest.missing_variants.get(variant, "it was not made")
            classifier.notes.append(f"version {manifest.version} has no {variant} variant: {reason}")
        return classifier

    def predict(self, frames: Sequence[np.ndarray], top: int = 3) -> list[Result]:
        """The `top` best classes of each frame (uint8 RGB of any size), and whether it is none of them."""
        return self.predict_prepared(self.prepare(frames), top) if len(frames) else []

    def prepare(self, frames: Sequence[np.ndarray]) -> np.ndarray:
        """The frames as this model's input."""
        size = (self.info.image.height, self.info.image.width)
        return np.stack([prepare(frame, size) for frame in frames])

    def predict_prepared(self, images: np.ndarray, top: int = 3) -> list[Result]:
        outputs = self._run(images)
        scores, similarities = outputs["scores"], outputs["similarity"]
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        classes, threshold = self.info.classes, self.info.unknown_below
        return [
            Result(
                [Label(classes[place].id, classes[place].name, float(row[place])) for place in places],
                threshold is not None and float(similarity) < threshold,
                float(similarity),
            )
            for row, places, similarity in zip(scores, best, similarities, strict=True)
        ]

    def _run(self, images: np.ndarray, seconds: float | None = None) -> dict[str, np.ndarray]:
        names = [*self._widths] if self._proxies is None else ["scores", "feature"]
        outputs = dict(zip(names, self._session.run(names, {"image": images}, seconds), strict=True))
        if self._proxies is not None:
            features = outputs["feature"]
            lengths = np.maximum(np.linalg.norm(features, axis=1, keepdims=True), _TINY)
            outputs["similarity"] = (features / lengths @ self._proxies.T).max(axis=1)
        for name, output in outputs.items():
            if not np.isfinite(output).all():
                raise BadModel(f"{self._where}: {name} of an image is not a number")
        return outputs

    def _check_run(self, count: int) -> None:
        """Refuse a model that does not answer so many images as the contract says; its warm-up, too."""
        shape = (count, self.info.image.height, self.info.image.width, 3)
        images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        outputs = self._run(images, LONGEST_CHECK_SECONDS)
        for name, output in outputs.items():
            wanted = [count, *self._widths[name]]
            if list(output.shape) != wanted or output.dtype != np.float32:
                raise BadModel(
                    f"{self._where}: {name} of {count} images came as {output.dtype} {list(output.shape)} "
                    f"instead of float32 {wanted}"
                )
        scores = outputs["scores"]
        if (scores < -1e-6).any() or (np.abs(scores.sum(axis=1) - 1) > MOST_WRONG_SUM).any():
            raise BadModel(f"{self._where}: the scores of a test image are no probabilities")


def _proxies_of(metadata: Mapping[str, str], manifest: Manifest, where: str) -> np.ndarray:
    """The normalised proxies float32 [C, D] in a model of version 0.1, which leaves the similarity to the device."""
    try:
        halves = np.frombuffer(base64.b64decode(metadata["proxies"], validate=True), "<f2")
        return halves.astype(np.float32).reshape(len(manifest.classes), manifest.feature_size)
    except (KeyError, ValueError):
        raise BadModel(f"{where}: it has neither an output similarity nor a proxy per class") from None


# ONNX Runtime ---------------------------------------------------------------------------------------------------------


class Session:
    """A model in ONNX Runtime, on the best hardware that works; `threads` 0 leaves their number to ONNX Runtime."""

    def __init__(self, data: bytes, where: str, providers: str = "auto", threads: int = 0) -> None:
        self._where, failed = where, ""
        attempts = _attempts(providers)
        for wanted in attempts:
            try:
                # Without its own fallback, which prints to stdout.
                session = onnxruntime.InferenceSession(
                    data, _options(threads), wanted, disabled_optimizers=_NOT_AT_LOADING, enable_fallback=0
                )
                break
            except RUNTIME_ERRORS as error:
                failed = one_line(error)
        else:
            raise BadModel(f"{where}: ONNX Runtime cannot load it: {failed}")
        self._session = session
        self.provider: str = session.get_providers()[0]  # what really runs it
        hoped = attempts[0][0]
        advice = f"{hoped} did not start (do driver, CUDA and cuDNN fit this ONNX Runtime?)"
        self.note = None if self.provider == hoped else advice
        try:
            self.metadata = dict(session.get_modelmeta().custom_metadata_map)
            self.inputs = [each.name for each in session.get_inputs()]
            self.outputs = [each.name for each in session.get_outputs()]
        except UnicodeDecodeError:
            raise BadModel(f"{where}: its names or its metadata are not valid UTF-8") from None

    def run(
        self, outputs: Sequence[str], inputs: Mapping[str, np.ndarray], seconds: float | None = None
    ) -> list[np.ndarray]:
        """The outputs of these names; `BadModel` if it fails, or takes longer than `seconds`."""
        options = onnxruntime.RunOptions()
        # ONNX Runtime looks at it between two operators.
        limit = threading.Timer(seconds, lambda: setattr(options, "terminate", True)) if seconds else None
        if limit is not None:
            limit.daemon = True
            limit.start()
        try:
            found: list[np.ndarray] = self._session.run(list(outputs), dict(inputs), options)
        except RUNTIME_ERRORS as error:
            why = "it took too long" if options.terminate else one_line(error)
            raise BadModel(f"{self._where}: it does not run: {why}") from None
        finally:
            if limit is not None:
                limit.cancel()
        return found


def _options(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = threads
    # ONNX Runtime's threads wait for work by spinning. Two models do during a swap: they take each other's cores, and a
    # frame then waits for the one that spins. On a camera's device most of that time is wasted anyway.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # A device holds two models for a moment: an arena would keep what the larger one took.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # No weights from other files, which no hash guards: they would have to lie in a folder that cannot be one.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    return options


@functools.cache
def _attempts(providers: str) -> list[list[str]]:
    """The providers to try, one list after the other."""
    onnxruntime.set_default_logger_severity(_SILENT)
    if providers == "cpu" or CUDA not in onnxruntime.get_available_providers():
        return [[CPU]]
    # The CUDA that pip installed. It prints what is missing to stdout, which carries results only; this comes before
    # the first of them, and only once.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()
    return [[CUDA, CPU], [CPU]]


def one_line(error: Any) -> str:
    return " ".join(str(error).split())[:300]
