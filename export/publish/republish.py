"""Put new weights into a known graph, so that publishing every minute is affordable.

Tracing the network takes many seconds and gives the same graph every time. The first full export leaves its graph
behind, without the weights; later ones put theirs in, with as many classes as there are now, and pass the same checks.
"""

from __future__ import annotations

import base64
import json
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, numpy_helper

from edge_hpcr import __version__
from edge_hpcr.common.files import sha256, write_atomically
from export.publish.policy import TOLERANCE
from export.publish.snapshot import Snapshot
from export.publish.to_onnx import Exported, deployed, finish

FILE = "template.json"


def template_facts(snapshot: Snapshot) -> dict[str, Any]:
    """What decides the graph, besides the weights. Another version of anything may trace another one."""
    return {
        "height": snapshot.height,
        "width": snapshot.width,
        "backbone": snapshot.backbone,
        "features": snapshot.network.feature_size,
        "method": snapshot.method,
        "edge_hpcr": __version__,
        "torch": installed("torch"),
        "onnx": installed("onnx"),
        "onnxscript": installed("onnxscript"),
    }


def save_template(folder: Path, model: ModelProto, snapshot: Snapshot) -> bool:
    """Keep the graph of a full export; False when its weights cannot be told apart by their names."""
    template = ModelProto()
    template.CopyFrom(model)
    template.ClearField("metadata_props")
    weights = {name: list(array.shape) for name, array in deployed(snapshot).weights().items()}
    found = {each.name: list(each.dims) for each in template.graph.initializer if each.name in weights}
    if found != weights:
        # The exporter folds what it can, say two biases that are equal: such a graph is only right for its weights.
        return False
    rest = [each for each in template.graph.initializer if each.name not in weights]
    template.graph.ClearField("initializer")
    template.graph.initializer.extend(rest)
    graph = template.SerializeToString()
    kept = {
        "facts": template_facts(snapshot),
        "sha256": sha256(graph),
        "graph": base64.b64encode(graph).decode("ascii"),
    }
    folder.mkdir(exist_ok=True)
    write_atomically(folder / FILE, json.dumps(kept))
    return True


def load_template(folder: Path, snapshot: Snapshot) -> ModelProto | None:
    """The graph for this network; None when there is none, or when it is of another network or damaged."""
    try:
        kept = json.loads((folder / FILE).read_bytes())
        graph = base64.b64decode(kept["graph"])
        if kept["facts"] != template_facts(snapshot) or kept["sha256"] != sha256(graph):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return onnx.load_model_from_string(graph)


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


def republish(
    snapshot: Snapshot, template: ModelProto, path: Path, version: int = 0, tolerance: float = TOLERANCE
) -> Exported:
    """As `export_full`, from the graph of an earlier one."""
    return finish(fill(template, snapshot), snapshot, path, version, tolerance)
