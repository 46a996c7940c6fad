"""A published model on a device: loaded only if it is whole, then asked for what it sees.

A model is refused with `BadModel` unless its bytes are those of its manifest, its inputs, outputs and metadata fit
together, and it answers test images with probabilities.

    classifier = Classifier.load("workspace/exports")
    for result in classifier.predict([frame]):      # uint8 RGB [H, W, 3], any size
        print(result.top[0].name, result.top[0].confidence, result.unknown)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_hpcr.common.errors import one_of
from edge_hpcr.common.files import reason_of
from edge_hpcr.stream.resize import prepare
from export.device import manifest as files
from export.device.errors import BadModel as BadModel
from export.device.manifest import Manifest
from export.device.model_info import check_agreement, check_shapes, read_metadata
from export.device.providers import RUNTIME_ERRORS, Session, one_line, open_session
from export.device.run_limit import RUNS

LONGEST_CHECK_SECONDS = 30.0  # of each run before it is in use; the first one prepares a GPU
LONGEST_RUN_SECONDS = 10.0  # of a batch of frames; the slowest device takes a tenth of that
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
    similarity: float  # cosine to the nearest class


class Classifier:
    """A model that passed every check, ready to answer. Safe to ask from several threads."""

    def __init__(self, session: Session, where: str, manifest: Manifest | None, variant: str) -> None:
        self._session = session.run
        self._where = where
        self.provider = session.provider
        self.provider_note = session.note  # why there is no GPU, when one was hoped for
        self.variant = variant
        self.variant_note: str | None = None  # why it is not the variant that was asked for
        self.info, self._proxies = read_metadata(session.metadata, where)
        if manifest is not None:
            check_agreement(self.info, manifest, where)
        self._widths = {"scores": [len(self.info.classes)], "feature": [self.info.feature_size]}
        if self._proxies is None:
            self._widths["similarity"] = []
        check_shapes(session, self._widths, self.info, where)
        for count in (1, 2):
            self._check_run(count)

    @classmethod
    def load(
        cls,
        path: Path | str,
        providers: str = "auto",
        threads: int = 0,
        variant: str = "fp32",
        require_gpu: bool = False,
    ) -> "Classifier":
        """The model of an exports folder (its latest), of a version folder, or in a file.

        `providers`: auto (CUDA if it works, else the CPU), cpu, or tensorrt (TensorRT, else as auto).
        """
        path, how = Path(path), (providers, threads, variant, require_gpu)
        try:
            if not path.is_dir():
                return cls._load_file(path, *how)
            # A link that the user names is the user's business; links inside are refused.
            folder = path.resolve()
            if (folder / files.MANIFEST).exists():
                return cls.load_version(folder, files.read_manifest(folder), *how)
        except OSError as error:
            raise BadModel(f"{path}: cannot be read: {reason_of(error)}") from None
        return cls._load_latest(folder, *how)

    @classmethod
    def _load_latest(cls, exports: Path, *how: Any) -> "Classifier":
        while True:
            latest = files.read_latest(exports)
            folder = exports / latest.folder
            try:
                return cls.load_version(folder, files.read_manifest(folder, latest), *how)
            except BadModel:
                # A newer version may be current by now, and this one removed.
                if files.read_latest(exports) == latest:
                    raise

    @classmethod
    def load_version(
        cls,
        folder: Path,
        manifest: Manifest,
        providers: str = "auto",
        threads: int = 0,
        variant: str = "fp32",
        require_gpu: bool = False,
    ) -> "Classifier":
        """The model that a manifest describes; the plain one if the version does not have the variant."""
        one_of("variant", variant, files.VARIANTS)
        file = manifest.file_of(variant)
        where = str(folder / file.file)
        data = files.read_model_file(folder, file)
        session = open_session(data, where, providers, threads, require_gpu)
        kept = variant == "fp32" or variant in manifest.variants
        classifier = cls(session, where, manifest, variant if kept else "fp32")
        if not kept:
            reason = manifest.missing_variants.get(variant, "it was not made")
            classifier.variant_note = f"version {manifest.version} has no {variant} variant: {reason}"
        return classifier

    @classmethod
    def _load_file(
        cls, path: Path, providers: str, threads: int, variant: str, require_gpu: bool
    ) -> "Classifier":
        one_of("variant", variant, files.VARIANTS)
        if (path.parent / files.MANIFEST).is_file():
            folder = path.parent.resolve()
            manifest = files.read_manifest(folder)
            for name in files.VARIANTS:
                if path.name == manifest.file_of(name).file:
                    return cls.load_version(folder, manifest, providers, threads, name, require_gpu)
        data = files.read_plain_file(path, files.LARGEST_MODEL, follow=True)
        return cls(open_session(data, str(path), providers, threads, require_gpu), str(path), None, "fp32")

    def predict(self, frames: Sequence[np.ndarray], top: int = 3) -> list[Result]:
        """The `top` best classes of each frame (uint8 RGB of any size), and whether it is none of them."""
        return self.predict_prepared(self.prepare(frames), top) if len(frames) else []

    def prepare(self, frames: Sequence[np.ndarray]) -> np.ndarray:
        """The frames as this model's input."""
        size = (self.info.height, self.info.width)
        return np.stack([prepare(frame, size) for frame in frames])

    def predict_prepared(self, images: np.ndarray, top: int = 3) -> list[Result]:
        outputs = self._run(images, LONGEST_RUN_SECONDS)
        scores, similarities = outputs["scores"], self._similarities(outputs)
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

    def _similarities(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        """The cosine to the nearest class; models of format 1 leave it to the device."""
        if self._proxies is None:
            return outputs["similarity"]
        features = outputs["feature"]
        lengths = np.maximum(np.linalg.norm(features, axis=1, keepdims=True), _TINY)
        return (features / lengths @ self._proxies.T).max(axis=1)

    def _run(self, images: np.ndarray, seconds: float) -> dict[str, np.ndarray]:
        with RUNS.of(seconds) as options:
            try:
                found = self._session.run(list(self._widths), {"image": images}, options)
            except RUNTIME_ERRORS as error:
                why = "it was ended, or took too long" if options.terminate else one_line(error)
                raise BadModel(f"{self._where}: it does not run: {why}") from None
        outputs = dict(zip(self._widths, found, strict=True))
        for name, output in outputs.items():
            if not np.isfinite(output).all():
                raise BadModel(f"{self._where}: {name} of an image is not a number")
        return outputs

    def _check_run(self, count: int) -> None:
        """Refuse a model that does not answer so many images with probabilities; its warm-up, too."""
        info = self.info
        shape = (count, info.height, info.width, 3)
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
