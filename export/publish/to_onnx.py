"""A snapshot as ONNX: everything after the resize is in the graph, so that training and deployment cannot disagree.

Input `image` uint8 [N, H, W, 3] RGB; outputs `scores` float32 [N, C] (calibrated probabilities) and `feature` float32
[N, D]; N is free. A file counts as a model only after ONNX's own checker has seen all of it, and after its outputs on
images of the memory were those of the network.
"""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr import __version__
from edge_hpcr.common.files import sha256, write_through
from edge_hpcr.learner.network import Network
from edge_hpcr.stream.resize import RESIZE_RULE
from export.device.errors import BadModel
from export.device.manifest import FORMAT
from export.device.providers import RUNTIME_ERRORS, one_line, open_session
from export.publish.policy import TOLERANCE
from export.publish.snapshot import HeldOutSamples, Snapshot, parity_images

FEATURE_TOLERANCE = 10 * TOLERANCE  # of the largest feature: features have no scale of their own
BATCHES = (1, 2, 64)
TEST_BATCH = 64
TRACE_ATTEMPTS = 3
_SHORTEST = 1e-12  # as torch's own normalize


class ParityFailed(Exception):
    """The exported model does not answer as the network that it was made of."""


@dataclass(frozen=True)
class Parity:
    """How far a model's outputs are from the network's."""

    images: int  # different ones
    max_score_difference: float
    max_feature_difference: float
    same_answer: int  # of `images`


@dataclass(frozen=True)
class Accuracy:
    held_out: float | None  # None without samples
    samples: int


@dataclass(frozen=True)
class Exported:
    """A model's file that passed every check."""

    parity: Parity
    accuracy: Accuracy
    created: str
    model: ModelProto = field(repr=False)

    @property
    def opset(self) -> int:
        return next(each.version for each in self.model.opset_import if not each.domain)


class Deployed(nn.Module):
    """The network as devices run it: batch-norm inside the convolutions, proxies normalised, images as they come."""

    proxies: Tensor
    sharpness: Tensor

    def __init__(self, network: Network, temperature: float) -> None:
        super().__init__()
        directions = F.normalize(network.proxies.detach(), dim=1)
        self.register_buffer("proxies", directions.T.contiguous())
        self.register_buffer("sharpness", torch.tensor(network.tau * temperature))
        self.backbone = network.backbone.deployable()
        trunk = network.backbone.trunk
        self.trunk = trunk.on(torch.device("cpu")) if trunk is not None else nn.Identity()

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        feature = self.backbone(self.trunk(image.permute(0, 3, 1, 2).float() / 255))
        direction = feature / feature.norm(dim=1, keepdim=True).clamp_min(_SHORTEST)
        return (direction @ self.proxies / self.sharpness).softmax(1), feature

    def weights(self) -> dict[str, np.ndarray]:
        """What learning changes, by the names that the exporter gives it."""
        state = self.state_dict().items()
        return {name: tensor.contiguous().numpy() for name, tensor in state if not name.startswith("trunk.")}


def deployed(snapshot: Snapshot) -> Deployed:
    with torch.no_grad():
        module = Deployed(snapshot.network, snapshot.temperature)
    return module.eval().requires_grad_(False)


def export_full(snapshot: Snapshot, path: Path, version: int = 0, tolerance: float = TOLERANCE) -> Exported:
    """Trace the network, check the result, and write it to `path`."""
    model = trace(deployed(snapshot), (snapshot.height, snapshot.width))
    return finish(model, snapshot, path, version, tolerance)


def _whole_text(error: BaseException | None) -> str:
    """What it says, and what its causes say."""
    return "" if error is None else f"{error} {_whole_text(error.__cause__ or error.__context__)}"


def _trace_once(module: Deployed, size: tuple[int, int]) -> Any:
    example = torch.zeros(2, *size, 3, dtype=torch.uint8)
    # Without gradients: the network's training path through Winograd's transforms is no convolution to an exporter.
    with torch.no_grad():
        return torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            optimize=True,
            input_names=["image"],
            output_names=["scores", "feature"],
            dynamic_shapes={"image": {0: torch.export.Dim("N")}},
            verbose=False,
        )


def trace(module: Deployed, size: tuple[int, int]) -> ModelProto:
    for attempt in range(TRACE_ATTEMPTS):
        try:
            program = _trace_once(module, size)
            break
        except Exception as error:
            # Python 3.11 counts the depth of syntax trees for all threads together: while another thread parses
            # something, torch's exporter may find the count wrong. The next time it is right.
            if attempt + 1 == TRACE_ATTEMPTS or "recursion depth mismatch" not in _whole_text(error):
                raise
    if program is None:
        raise RuntimeError("torch's exporter returned nothing")
    model = program.model_proto
    _clean(model)
    return model


def _clean(model: ModelProto) -> None:
    """Remove the exporter's debugging notes, which are half of a small model's bytes."""
    graph = model.graph
    # Shapes in between follow from the graph, and some of them would name the number of classes.
    graph.ClearField("value_info")
    for noted in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        noted.ClearField("metadata_props")
        noted.ClearField("doc_string")
    model.producer_name, model.producer_version = "edge_hpcr", __version__


def finish(
    model: ModelProto, snapshot: Snapshot, path: Path, version: int, tolerance: float = TOLERANCE
) -> Exported:
    """Compare the model with the network, let it describe itself, check all of it, and write it."""
    runs = RunningModel(model.SerializeToString(), str(path))
    parity = compare(runs, snapshot, tolerance)
    accuracy = runs.accuracy(snapshot.held_out, [each.id for each in snapshot.classes])
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    exported = Exported(parity, accuracy, created, model)
    onnx.helper.set_model_props(model, metadata(snapshot, exported, version))
    check(model)
    write_through(path, model.SerializeToString())
    return exported


def check(model: ModelProto) -> None:
    """Everything that ONNX itself asks of a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ParityFailed(f"no valid ONNX model: {one_line(error)}") from None


def file_facts(path: Path) -> dict[str, Any]:
    """How a manifest names a file."""
    data = path.read_bytes()
    return {"file": path.name, "bytes": len(data), "sha256": sha256(data)}


def described(snapshot: Snapshot, exported: Exported, version: int) -> dict[str, Any]:
    """What a manifest and a model's metadata both say of a model."""
    packages = {"edge_hpcr": __version__, "torch": installed("torch"), "onnx": installed("onnx")}
    return {
        "format": FORMAT,
        "version": version,
        "created": exported.created,
        "step": snapshot.step,
        "image": {"height": snapshot.height, "width": snapshot.width, "resize": RESIZE_RULE},
        "classes": [asdict(each) for each in snapshot.classes],
        "unknown_below": snapshot.unknown_below,
        "temperature": snapshot.temperature,
        "feature_size": snapshot.network.feature_size,
        "accuracy": asdict(exported.accuracy),
        "versions": {**packages, "opset": exported.opset},
    }


def metadata(snapshot: Snapshot, exported: Exported, version: int) -> dict[str, str]:
    """What a model says of itself, all of it text."""
    facts = described(snapshot, exported, version)
    text = {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items() if key != "created"}
    directions = F.normalize(snapshot.network.proxies, dim=1).numpy()
    return text | {
        "created": exported.created,
        "unknown_below": "" if snapshot.unknown_below is None else text["unknown_below"],
        "edge_hpcr": __version__,
        # For the cosine to the nearest proxy, which says whether anything is near, without a third output.
        "proxies": base64.b64encode(directions.astype("<f2").tobytes()).decode("ascii"),
    }


class RunningModel:
    """A model in ONNX Runtime on the CPU."""

    def __init__(self, data: bytes, where: str, threads: int = 1) -> None:
        self._session = open_session(data, where, "cpu", threads).run
        self._where = where

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        try:
            scores, features = self._session.run(["scores", "feature"], {"image": images})
        except RUNTIME_ERRORS as error:
            raise BadModel(f"{self._where}: it does not run: {one_line(error)}") from None
        return scores, features

    def accuracy(self, samples: HeldOutSamples, class_ids: list[int]) -> Accuracy:
        """`class_ids` are those of the scores' columns; a sample of a class that is not among them counts as wrong."""
        if not len(samples):
            return Accuracy(None, 0)
        columns = [
            self(samples.images[start : start + TEST_BATCH])[0].argmax(1)
            for start in range(0, len(samples), TEST_BATCH)
        ]
        answers = np.array(class_ids, dtype=np.int64)[np.concatenate(columns)]
        return Accuracy(float((answers == samples.class_ids).mean()), len(samples))


def compare(runs: RunningModel, snapshot: Snapshot, tolerance: float = TOLERANCE) -> Parity:
    """Compare with the network's own answers, for each batch size; raises `ParityFailed` if they differ."""
    images = parity_images(snapshot)
    with ThreadPoolExecutor(1) as aside:  # both take as long, and neither holds Python up
        expected = aside.submit(network_outputs, snapshot, images)
        found = {count: runs(images[:count]) for count in BATCHES}
        scores, features = expected.result()
    worst_score = worst_feature = 0.0
    answers = np.empty(0, dtype=np.int64)
    for count, (found_scores, found_features) in found.items():
        if found_scores.shape != scores[:count].shape or found_features.shape != features[:count].shape:
            raise ParityFailed(
                f"{count} images gave scores {found_scores.shape} and features {found_features.shape}"
            )
        worst_score = max(worst_score, _largest(found_scores - scores[:count]))
        worst_feature = max(worst_feature, _largest(found_features - features[:count]))
        answers = found_scores.argmax(1)
    different = len(snapshot.images)
    # Of two classes that are equally probable, either is the same answer.
    same = scores.max(1) - scores[np.arange(len(answers)), answers] <= tolerance
    parity = Parity(different, worst_score, worst_feature, int(same[:different].sum()))
    most = FEATURE_TOLERANCE * max(1.0, _largest(features))
    if worst_score > tolerance or worst_feature > most or not same.all():
        raise ParityFailed(
            f"the exported model differs from the network: scores by up to {worst_score:.1e} (allowed {tolerance:.0e}), "
            f"features by {worst_feature:.1e} (allowed {most:.0e}), {parity.same_answer} of {different} answers alike"
        )
    return parity


def _largest(values: np.ndarray) -> float:
    """The largest absolute value; NaN counts as infinite."""
    return float(np.nan_to_num(np.abs(values), nan=np.inf).max())


def network_outputs(snapshot: Snapshot, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and features as the learner itself computes them."""
    with torch.inference_mode():
        logits, features = snapshot.network(torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255))
        return (logits / snapshot.temperature).softmax(1).numpy(), features.numpy()
