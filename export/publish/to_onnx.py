"""A snapshot as ONNX: everything after the resize is in the graph, so that training and deployment cannot disagree.

Input `image` uint8 [N, H, W, 3] RGB; outputs `scores` float32 [N, C] (calibrated probabilities), `feature` float32
[N, D] and `similarity` float32 [N] (cosine to the nearest proxy); N is free. What the trunk says, if there is one, is the
value `latent` inside. A file counts as a model only after ONNX's own checker has seen all of it, and after its outputs on
the user's images were those of the network.
"""

from __future__ import annotations

import copy
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
from onnx import ModelProto, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import sha256, write_through
from edge_hpcr.learner.network import Network, Unit
from edge_hpcr.stream.resize import RESIZE_RULE
from export.device.manifest import FORMAT
from export.device.providers import one_line
from export.publish.policy import TOLERANCE
from export.publish.portable import TRACED_OPSET, merge_pools, name_pixels, opset_of, portable
from export.publish.running import IMAGE, LATENT, Accuracy, Outputs, RunningModel, TwoParts, joined
from export.publish.snapshot import Snapshot, parity_images

FEATURE_TOLERANCE = 10 * TOLERANCE  # of the largest feature: features have no scale of their own
FEW = 2  # images that a known trunk sees again
TRACE_ATTEMPTS = 3
OUTPUTS = ("scores", "feature", "similarity")
_SHORTEST = 1e-12  # as torch's own normalize


class ParityFailed(Exception):
    """The exported model does not answer as the network that it was made of."""


@dataclass(frozen=True)
class Parity:
    """How far a model's outputs are from the network's."""

    images: int  # different ones
    max_score_difference: float
    max_feature_difference: float
    max_similarity_difference: float
    same_answer: int  # of `images`


@dataclass(frozen=True)
class Exported:
    """A model's file that passed every check."""

    parity: Parity
    accuracy: Accuracy
    created: str
    model: ModelProto = field(repr=False)


class Images(nn.Module):
    """Images as they come, through the trunk."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, image: Tensor) -> Tensor:
        return self.trunk(_pixels(image))


class Direction(nn.Module):
    """As `Unit`; torch's own normalize would expand the lengths to the features' shape, which not every tool can."""

    def forward(self, features: Tensor) -> Tensor:
        return features / features.norm(dim=1, keepdim=True).clamp_min(_SHORTEST)


class Deployed(nn.Module):
    """The rest of the network as devices run it: batch-norm inside the convolutions, proxies normalised.

    Without a trunk it is all of it, from images as they come.
    """

    proxies: Tensor
    temperature: Tensor

    def __init__(self, network: Network, head: nn.Module, temperature: float) -> None:
        super().__init__()
        self.sees_images = network.backbone.trunk is None
        self.backbone = network.backbone.deployable()
        self.head = copy.deepcopy(head)
        if isinstance(self.head.lift, Unit):
            self.head.lift = Direction()
        self.direction = Direction()
        directions = F.normalize(network.proxies.detach(), dim=1)
        self.register_buffer("proxies", directions.T.contiguous())
        self.register_buffer("temperature", torch.tensor(temperature))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        feature = self.backbone(_pixels(inputs) if self.sees_images else inputs)
        scores = (self.head(feature) / self.temperature).softmax(1)
        return scores, feature, (self.direction(feature) @ self.proxies).amax(1)

    def weights(self) -> dict[str, np.ndarray]:
        """What learning changes, by the names that the exporter gives it."""
        return {name: tensor.contiguous().numpy() for name, tensor in self.state_dict().items()}


def _pixels(image: Tensor) -> Tensor:
    return image.permute(0, 3, 1, 2).float() / 255


def deployed(snapshot: Snapshot) -> Deployed:
    with torch.no_grad():
        module = Deployed(snapshot.network, snapshot.head, snapshot.temperature)
    return module.eval().requires_grad_(False)


def export_full(snapshot: Snapshot, path: Path, version: int = 0, tolerance: float = TOLERANCE) -> Exported:
    """Trace the network, check the result, and write it to `path`."""
    return finish(trace(snapshot), snapshot, path, version, tolerance, new_trunk=True)


def _whole_text(error: BaseException | None) -> str:
    """What it says, and what its causes say."""
    return "" if error is None else f"{error} {_whole_text(error.__cause__ or error.__context__)}"


class _Open(nn.Module):
    """A module whose weights come with its inputs: an exporter computes nothing with them, nor leaves any out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = [module]  # hidden, or its weights would be this one's too

    def forward(self, weights: dict[str, Tensor], inputs: Tensor) -> Any:
        return torch.func.functional_call(self.module[0], weights, (inputs,))


def _trace_once(
    module: nn.Module, example: Tensor, names: tuple[str, ...], weights: dict[str, Tensor]
) -> Any:
    shapes: tuple[Any, ...] = ({0: torch.export.Dim("N")},)
    # Without gradients: the network's training path through Winograd's transforms is no convolution to an exporter.
    with torch.no_grad():
        return torch.onnx.export(
            _Open(module).eval() if weights else module,
            (weights, example) if weights else (example,),
            dynamo=True,
            optimize=True,
            opset_version=TRACED_OPSET,
            input_names=[*weights, IMAGE if example.dtype == torch.uint8 else LATENT],
            output_names=list(names),
            dynamic_shapes=(dict.fromkeys(weights), *shapes) if weights else shapes,
            verbose=False,
        )


def trace(snapshot: Snapshot) -> ModelProto:
    """The graph of the snapshot's network, with its weights."""
    trunk = snapshot.network.backbone.trunk
    images = torch.zeros(2, snapshot.height, snapshot.width, 3, dtype=torch.uint8)
    inputs = images if trunk is None else torch.zeros(2, *trunk.latent_shape)
    module = deployed(snapshot)
    rest = fill(_traced(module, inputs, OUTPUTS, dict(module.state_dict())), snapshot)
    if trunk is None:
        return portable(rest)
    # A copy: while it traces, the exporter puts stand-ins in the place of weights, and the learner uses the same trunk.
    below = Images(copy.deepcopy(trunk.on(torch.device("cpu")))).eval()
    return portable(joined(_traced(below, images, (LATENT,), {}), rest))


def without_weights(model: ModelProto, snapshot: Snapshot) -> ModelProto | None:
    """The graph for any weights of this network; None when they cannot be told apart by their names."""
    weights = {name: list(array.shape) for name, array in deployed(snapshot).weights().items()}
    if {each.name: list(each.dims) for each in model.graph.initializer if each.name in weights} != weights:
        return (
            None  # the exporter computed something with the weights: such a graph is only right for its own
        )
    template = ModelProto()
    template.CopyFrom(model)
    template.ClearField("metadata_props")
    rest = [each for each in model.graph.initializer if each.name not in weights]
    template.graph.ClearField("initializer")
    template.graph.initializer.extend(rest)
    return template


def fill(template: ModelProto, snapshot: Snapshot) -> ModelProto:
    """The template with the snapshot's weights and number of classes."""
    model = ModelProto()
    model.CopyFrom(template)
    weights = deployed(snapshot).weights()
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    for output in model.graph.output:
        if output.name == "scores":
            output.type.tensor_type.shape.dim[1].dim_value = len(snapshot.classes)
    return model


def _traced(
    module: nn.Module, example: Tensor, names: tuple[str, ...], weights: dict[str, Tensor]
) -> ModelProto:
    """The graph without these weights; all others are in it."""
    for attempt in range(TRACE_ATTEMPTS):
        try:
            program = _trace_once(module, example, names, weights)
            break
        except Exception as error:
            # Python 3.11 counts the depth of syntax trees for all threads together: while another thread parses
            # something, torch's exporter may find the count wrong. The next time it is right.
            if attempt + 1 < TRACE_ATTEMPTS and "recursion depth mismatch" in _whole_text(error):
                continue
            if isinstance(error, torch.onnx.OnnxExporterError):
                reason = one_line(error.__cause__ or error)
                raise UserError(f"the network cannot be exported to ONNX: {reason}") from error
            raise
    if program is None:
        raise RuntimeError("torch's exporter returned nothing")
    model = program.model_proto
    del model.graph.input[:-1]  # the weights, which will be part of it
    _clean(model)
    merge_pools(model)
    if example.dtype == torch.uint8:
        name_pixels(model)
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
    model: ModelProto,
    snapshot: Snapshot,
    path: Path,
    version: int,
    tolerance: float = TOLERANCE,
    new_trunk: bool = False,
) -> Exported:
    """Compare the model with the network, let it describe itself, check all of it, and write it."""
    parts = TwoParts(model, str(path))
    parity = compare(parts, snapshot, tolerance)
    if parts.has_trunk:
        whole = RunningModel(model.SerializeToString(), str(path))
        compare_whole(whole, snapshot, len(snapshot.images) if new_trunk else FEW, tolerance)
    accuracy = parts.accuracy(snapshot.held_out, [each.id for each in snapshot.classes])
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


def graph_versions(model: ModelProto) -> dict[str, int]:
    """What a runtime must be able to read."""
    return {"opset": opset_of(model), "ir": model.ir_version}


def described(snapshot: Snapshot, exported: Exported, version: int) -> dict[str, Any]:
    """What a manifest and a model's metadata both say of a model."""
    packages = {"edge_hpcr": __version__, "torch": installed("torch"), "onnx": installed("onnx")}
    return {
        "format": FORMAT,
        "version": version,
        "created": exported.created,
        "step": snapshot.step,
        "image": {
            "height": snapshot.height,
            "width": snapshot.width,
            "colour": "RGB",
            "layout": "NHWC",
            "type": "uint8",
            "resize": RESIZE_RULE,
        },
        "classes": [asdict(each) for each in snapshot.classes],
        "unknown_below": snapshot.unknown_below,
        "temperature": snapshot.temperature,
        "feature_size": snapshot.network.feature_size,
        **({"region": snapshot.region.to_list()} if snapshot.region else {}),
        "accuracy": asdict(exported.accuracy),
        "versions": {**packages, **graph_versions(exported.model)},
    }


def metadata(snapshot: Snapshot, exported: Exported, version: int) -> dict[str, str]:
    """What a model says of itself, all of it text."""
    facts = described(snapshot, exported, version)
    text = {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items() if key != "created"}
    return text | {
        "created": exported.created,
        "unknown_below": "" if snapshot.unknown_below is None else text["unknown_below"],
        "edge_hpcr": __version__,
    }


def compare(parts: TwoParts, snapshot: Snapshot, tolerance: float = TOLERANCE) -> Parity:
    """Compare with the network's own answers, for each batch size; raises `ParityFailed` if they differ.

    Behind a trunk both see the same latents; `compare_whole` does not.
    """
    inputs = parts.inputs(parity_images(snapshot))
    with ThreadPoolExecutor(1) as aside:  # both take as long, and neither holds Python up
        if parts.has_trunk:
            expected = aside.submit(outputs_of, snapshot, torch.from_numpy(inputs))
        else:
            expected = aside.submit(network_outputs, snapshot, inputs)
        found = [parts.rest(inputs[:count]) for count in (1, 2, len(inputs))]
        return _parity(found, expected.result(), len(snapshot.images), tolerance)


def compare_whole(model: RunningModel, snapshot: Snapshot, count: int, tolerance: float = TOLERANCE) -> None:
    """As `compare`, the trunk's answers included, on so many images."""
    images = snapshot.images[:count]
    _parity([model(images)], network_outputs(snapshot, images), len(images), tolerance)


def _parity(found: list[Outputs], expected: Outputs, different: int, tolerance: float) -> Parity:
    """Of answers to the first images: all of them in the last of `found`. Raises `ParityFailed` if they differ."""
    worst = dict.fromkeys(Outputs._fields, 0.0)
    for outputs in found:
        count = len(outputs.scores)
        for name, ours, theirs in zip(Outputs._fields, outputs, expected, strict=True):
            if ours is None or theirs is None or ours.shape != theirs[:count].shape:
                raise ParityFailed(f"{count} images gave {name} {getattr(ours, 'shape', None)}")
            worst[name] = max(worst[name], _largest(ours - theirs[:count]))
    # Of two classes that are equally probable, either is the same answer.
    answers = found[-1].scores.argmax(1)
    same = expected.scores.max(1) - expected.scores[np.arange(len(answers)), answers] <= tolerance
    parity = Parity(
        different, worst["scores"], worst["features"], worst["similarity"], int(same[:different].sum())
    )
    most = FEATURE_TOLERANCE * max(1.0, _largest(expected.features))
    within = max(worst["scores"], worst["similarity"]) <= tolerance and worst["features"] <= most
    if not (within and same.all()):
        raise ParityFailed(
            f"the exported model differs from the network: scores by up to {worst['scores']:.1e} and similarity by "
            f"{worst['similarity']:.1e} (allowed {tolerance:.0e}), features by {worst['features']:.1e} (allowed "
            f"{most:.0e}), {parity.same_answer} of {different} answers alike"
        )
    return parity


def _largest(values: np.ndarray) -> float:
    """The largest absolute value; NaN counts as infinite."""
    return float(np.nan_to_num(np.abs(values), nan=np.inf).max())


def network_outputs(snapshot: Snapshot, images: np.ndarray) -> Outputs:
    """What the learner itself says of images."""
    with torch.inference_mode():
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)
        return outputs_of(snapshot, snapshot.network.inputs(pixels))


def outputs_of(snapshot: Snapshot, inputs: Tensor) -> Outputs:
    """What it says of inputs of its trainable part."""
    network = snapshot.network
    with torch.inference_mode():
        features = network.features(inputs)
        scores = (snapshot.head(features) / snapshot.temperature).softmax(1)
        similarity = network.similarities(features).amax(1)
        return Outputs(scores.numpy(), features.numpy(), similarity.numpy())
