"""A snapshot as ONNX: everything after the resize is in the graph, so that training and deployment cannot disagree.

Input `image` uint8 [N, H, W, 3] RGB; outputs `scores` float32 [N, C] (calibrated probabilities), `feature` float32
[N, D] and `similarity` float32 [N] (to the nearest class); N is free. What the trunk says, if there is one, is the
value `latent` inside. A file counts as a model only after ONNX's own checker has seen all of it, and after its outputs on
the user's images were those of the network.
"""

from __future__ import annotations

import copy
import json
import traceback
from contextlib import suppress
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
from edge_hpcr.common.files import sha256, write_atomically, write_through
from edge_hpcr.learner.network import Unit
from edge_hpcr.stream.resize import RESIZE_RULE
from export.device import BadModel
from export.device.manifest import FORMAT
from export.device.model import one_line
from export.publish.graph import (
    FORM,
    IMAGE,
    LATENT,
    PIXELS,
    Outputs,
    RunningModel,
    TwoParts,
    check,
    graph_versions,
    in_lowest_opset,
    read_model,
)
from export.publish.snapshot import Snapshot, parity_images

TOLERANCE = 1e-4  # of a score, against the network
FEATURE_TOLERANCE = 10 * TOLERANCE  # of the largest feature: features have no scale of their own
FEW = 2  # images that a known trunk sees again
TRACE_ATTEMPTS = 3
TRACED_OPSET = 18  # which torch's exporter writes without converting anything
TEMPLATE = "template.onnx"
OUTPUTS = ("scores", "feature", "similarity")
_SHORTEST = 1e-12  # as torch's own normalize


class ParityFailed(BadModel):
    """The exported model does not answer as the network that it was made of."""


@dataclass(frozen=True)
class Exported:
    """A model's file that passed every check."""

    parity: dict[str, Any]  # how far its outputs are from the network's, for the manifest
    accuracy: float | None  # on the samples held out; None without any
    facts: dict[str, Any]  # what the model and its manifest both say of it
    traced: bool  # otherwise new weights in the known graph
    model: ModelProto = field(repr=False)


class Direction(nn.Module):
    """As `Unit`; torch's own normalize would expand the lengths to the features' shape, which not every tool can."""

    def forward(self, features: Tensor) -> Tensor:
        return features / features.norm(dim=1, keepdim=True).clamp_min(_SHORTEST)


class Deployed(nn.Module):
    """The network behind the trunk as devices run it: batch-norm inside the convolutions, proxies normalised."""

    proxies: Tensor
    temperature: Tensor

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.backbone = snapshot.network.backbone.deployable()
        self.head = copy.deepcopy(snapshot.head)
        if isinstance(self.head.lift, Unit):
            self.head.lift = Direction()
        self.direction = Direction()
        directions = F.normalize(snapshot.network.proxies.detach(), dim=1)
        self.register_buffer("proxies", directions.T.contiguous())
        self.register_buffer("temperature", torch.tensor(snapshot.temperature))
        self.eval().requires_grad_(False)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        feature = self.backbone(inputs)
        scores = (self.head(feature, inputs) / self.temperature).softmax(1)
        return scores, feature, self.head.similarity(self.direction(feature) @ self.proxies, inputs)


class _Whole(nn.Module):
    """From images as they come to what a model says, and the values inside that have names.

    What learning changes comes as an input: an exporter computes nothing with it, nor leaves any of it out.
    """

    def __init__(self, trunk: nn.Module | None, rest: Deployed) -> None:
        super().__init__()
        self.trunk = trunk
        self.rest = [rest]  # hidden, or its weights would be this one's too

    def forward(self, weights: dict[str, Tensor], image: Tensor) -> tuple[Tensor, ...]:
        pixels = _pixels(image)
        latent = pixels if self.trunk is None else self.trunk(pixels)
        outputs = torch.func.functional_call(self.rest[0], weights, (latent,))
        return (*outputs, pixels) if self.trunk is None else (*outputs, pixels, latent)


def _pixels(image: Tensor) -> Tensor:
    return image.permute(0, 3, 1, 2).float() / 255


def export(snapshot: Snapshot, path: Path, version: int = 0, templates: Path | None = None) -> Exported:
    """Write the snapshot's model to `path`; raises a `BadModel` if it is not as good as the network.

    Tracing takes many seconds and gives the same graph every time. The graph is left in `templates`, with the trunk and
    without what learning changes; later exports put theirs in, with as many classes as there are now.
    """
    template = load_template(templates, snapshot) if templates else None
    if template is not None:
        with suppress(BadModel):  # then traced again: a fresh graph shows whether the template was at fault
            return finish(_filled(template, snapshot), snapshot, path, version)
    exported = finish(_trace(snapshot), snapshot, path, version, traced=True)
    if templates:
        _save_template(templates, exported.model, snapshot)
    return exported


# The graph ------------------------------------------------------------------------------------------------------------


def _template_facts(snapshot: Snapshot) -> str:
    """What decides the graph, besides the weights. Another version of anything may trace another one."""
    backbone = snapshot.network.backbone
    shapes = {name: list(tensor.shape) for name, tensor in backbone.state_dict().items()}
    trunk = None if backbone.trunk is None else (backbone.trunk.sha256, backbone.trunk.latent_shape)
    packages = [installed(package) for package in ("torch", "onnx", "onnxscript")]
    size = (snapshot.height, snapshot.width)
    return json.dumps([FORM, __version__, packages, snapshot.method, snapshot.backbone, size, trunk, shapes])


def _save_template(folder: Path, model: ModelProto, snapshot: Snapshot) -> None:
    weights = Deployed(snapshot).state_dict()
    template = ModelProto()
    template.CopyFrom(model)
    onnx.helper.set_model_props(template, {"facts": _template_facts(snapshot)})
    rest = [each for each in model.graph.initializer if each.name not in weights]
    template.graph.ClearField("initializer")
    template.graph.initializer.extend(rest)
    folder.mkdir(exist_ok=True)
    write_atomically(folder / TEMPLATE, template.SerializeToString())


def load_template(folder: Path, snapshot: Snapshot) -> ModelProto | None:
    """The graph for this network; None when there is none, or when it is of another network or no graph."""
    try:
        template = read_model((folder / TEMPLATE).read_bytes(), TEMPLATE)
    except (OSError, BadModel):
        return None
    facts = {each.key: each.value for each in template.metadata_props}
    return template if facts.get("facts") == _template_facts(snapshot) else None


def _filled(template: ModelProto, snapshot: Snapshot) -> ModelProto:
    """The template with the snapshot's weights and number of classes."""
    model = ModelProto()
    model.CopyFrom(template)
    used = {name for node in model.graph.node for name in node.input}
    for name, tensor in Deployed(snapshot).state_dict().items():
        if name in used:  # runtimes warn of what nothing uses
            model.graph.initializer.append(numpy_helper.from_array(tensor.contiguous().numpy(), name))
    for output in model.graph.output:
        if output.name == "scores":
            output.type.tensor_type.shape.dim[1].dim_value = len(snapshot.classes)
    return model


def _trace(snapshot: Snapshot) -> ModelProto:
    """The graph of the snapshot's network, with its weights."""
    trunk, rest = snapshot.network.backbone.trunk, Deployed(snapshot)
    # A copy: while it traces, the exporter puts stand-ins in the place of weights, and the learner uses the same trunk.
    whole = _Whole(None if trunk is None else copy.deepcopy(trunk.on(torch.device("cpu"))), rest).eval()
    weights = rest.state_dict()
    image = torch.zeros(2, snapshot.height, snapshot.width, 3, dtype=torch.uint8)
    for attempt in range(TRACE_ATTEMPTS):
        try:
            # Without gradients: the network's training path through Winograd's transforms is no convolution to an
            # exporter.
            with torch.no_grad():
                program = torch.onnx.export(
                    whole,
                    (weights, image),
                    dynamo=True,
                    optimize=True,
                    opset_version=TRACED_OPSET,
                    input_names=[*weights, IMAGE],
                    output_names=[*OUTPUTS, PIXELS, *([] if trunk is None else [LATENT])],
                    dynamic_shapes=(dict.fromkeys(weights), {0: torch.export.Dim("N")}),
                    verbose=False,
                )
            break
        except Exception as error:
            # Python 3.11 counts the depth of syntax trees for all threads together: while another thread parses
            # something, torch's exporter may find the count wrong. The next time it is right.
            with_causes = "".join(traceback.format_exception(error))
            if attempt + 1 < TRACE_ATTEMPTS and "recursion depth mismatch" in with_causes:
                continue
            if isinstance(error, torch.onnx.OnnxExporterError):
                reason = one_line(error.__cause__ or error)
                raise UserError(f"the network cannot be exported to ONNX: {reason}") from error
            raise
    assert program is not None
    model: ModelProto = program.model_proto
    del model.graph.input[:-1]  # the weights, which are part of the model
    del model.graph.output[len(OUTPUTS) :]  # values inside, which have their names by now
    _clean(model)
    return in_lowest_opset(_filled(model, snapshot))


def _clean(model: ModelProto) -> None:
    """Remove the exporter's debugging notes, which are half of a small model's bytes."""
    graph = model.graph
    # Shapes in between follow from the graph, and some of them would name the number of classes.
    graph.ClearField("value_info")
    for noted in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        noted.ClearField("metadata_props")
        noted.ClearField("doc_string")
    model.producer_name, model.producer_version = "edge_hpcr", __version__


# What a file says, and whether it is the network -----------------------------------------------------------------------


def finish(model: ModelProto, snapshot: Snapshot, path: Path, version: int, traced: bool = False) -> Exported:
    """Compare the model with the network, let it describe itself, check all of it, and write it."""
    parts = TwoParts(model, str(path))
    # Behind a trunk both see the same latents.
    inputs = parts.inputs(parity_images(snapshot))
    parity = _parity(
        [parts.rest(inputs[:count]) for count in (1, 2, len(inputs))],
        network_outputs(snapshot, inputs),
        len(snapshot.images),
    )
    if parts.has_trunk:
        images = snapshot.images if traced else snapshot.images[:FEW]
        whole = RunningModel(model.SerializeToString(), str(path))
        _parity([whole(images)], network_outputs(snapshot, images), len(images))
    accuracy = parts.accuracy(snapshot.held_out, [each.id for each in snapshot.classes])
    facts = _facts(snapshot, model, accuracy, version)
    onnx.helper.set_model_props(model, _as_metadata(facts))
    check(model)
    write_through(path, model.SerializeToString())
    return Exported(parity, accuracy, facts, traced, model)


def file_facts(path: Path) -> dict[str, Any]:
    """How a manifest names a file."""
    data = path.read_bytes()
    return {"file": path.name, "bytes": len(data), "sha256": sha256(data)}


def _facts(snapshot: Snapshot, model: ModelProto, accuracy: float | None, version: int) -> dict[str, Any]:
    measured = snapshot.measured
    return {
        "format": FORMAT,
        "version": version,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
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
        # As the app shows it, where a learner has measured.
        "accuracy": {
            "held_out": measured.accuracy,
            "samples": measured.samples,
            "one_place": measured.one_place,
        }
        if measured
        else {"held_out": accuracy, "samples": len(snapshot.held_out)},
        "versions": {
            "edge_hpcr": __version__,
            "torch": installed("torch"),
            "onnx": installed("onnx"),
            **graph_versions(model),
        },
    }


def _as_metadata(facts: dict[str, Any]) -> dict[str, str]:
    """What a model says of itself is all text: JSON, but for the time, and nothing where there is no threshold."""
    text = {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()}
    unknown_below = "" if facts["unknown_below"] is None else text["unknown_below"]
    return text | {"created": facts["created"], "unknown_below": unknown_below, "edge_hpcr": __version__}


def _parity(found: list[Outputs], expected: Outputs, different: int) -> dict[str, Any]:
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
    same = expected.scores.max(1) - expected.scores[np.arange(len(answers)), answers] <= TOLERANCE
    parity = {
        "images": different,
        "max_score_difference": worst["scores"],
        "max_feature_difference": worst["features"],
        "max_similarity_difference": worst["similarity"],
        "same_answer": int(same[:different].sum()),
    }
    most = FEATURE_TOLERANCE * max(1.0, _largest(expected.features))
    within = max(worst["scores"], worst["similarity"]) <= TOLERANCE and worst["features"] <= most
    if not (within and same.all()):
        raise ParityFailed(
            f"the exported model differs from the network: scores by up to {worst['scores']:.1e} and similarity by "
            f"{worst['similarity']:.1e} (allowed {TOLERANCE:.0e}), features by {worst['features']:.1e} (allowed "
            f"{most:.0e}), {parity['same_answer']} of {different} answers alike"
        )
    return parity


def _largest(values: np.ndarray) -> float:
    """The largest absolute value; NaN counts as infinite."""
    return float(np.nan_to_num(np.abs(values), nan=np.inf).max())


def network_outputs(snapshot: Snapshot, inputs: np.ndarray) -> Outputs:
    """What the learner itself says of images, or of the latents that its trunk makes of them."""
    network = snapshot.network
    with torch.inference_mode():
        values = torch.from_numpy(inputs)
        if values.dtype == torch.uint8:
            values = network.inputs(_pixels(values))
        features = network.features(values)
        scores = (snapshot.head(features, values) / snapshot.temperature).softmax(1)
        similarity = snapshot.head.similarity(network.similarities(features), values)
        return Outputs(scores.numpy(), features.numpy(), similarity.numpy())
