"""Put new weights into a known graph, so that publishing every minute is affordable.

Tracing the network takes many seconds and gives the same graph every time. The first full export leaves its graph
behind, with the trunk and without what learning changes; later ones put theirs in, with as many classes as there are now,
and pass the same checks.
"""

from __future__ import annotations

from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from onnx import ModelProto

from edge_hpcr import __version__
from export.publish.kept import keep, kept
from export.publish.policy import TOLERANCE
from export.publish.portable import FORM
from export.publish.snapshot import Snapshot
from export.publish.to_onnx import Exported, fill, finish, without_weights

FILE = "template.onnx"


def template_facts(snapshot: Snapshot) -> dict[str, Any]:
    """What decides the graph, besides the weights. Another version of anything may trace another one."""
    backbone = snapshot.network.backbone
    trunk, weights = backbone.trunk, backbone.state_dict().items()
    return {
        "height": snapshot.height,
        "width": snapshot.width,
        "backbone": snapshot.backbone,
        "trunk": None if trunk is None else {"sha256": trunk.sha256, "latent": list(trunk.latent_shape)},
        "weights": {name: list(tensor.shape) for name, tensor in weights},
        "method": snapshot.method,
        "form": FORM,
        "edge_hpcr": __version__,
        "torch": installed("torch"),
        "onnx": installed("onnx"),
        "onnxscript": installed("onnxscript"),
    }


def save_template(folder: Path, model: ModelProto, snapshot: Snapshot) -> bool:
    """Keep the graph of a full export; False when its weights cannot be told apart by their names."""
    template = without_weights(model, snapshot)
    if template is not None:
        keep(folder / FILE, template, template_facts(snapshot))
    return template is not None


def load_template(folder: Path, snapshot: Snapshot) -> ModelProto | None:
    """The graph for this network; None when there is none, or when it is of another network or damaged."""
    return kept(folder / FILE, template_facts(snapshot))


def republish(
    snapshot: Snapshot, template: ModelProto, path: Path, version: int = 0, tolerance: float = TOLERANCE
) -> Exported:
    """As `export_full`, from the graph of an earlier one."""
    return finish(fill(template, snapshot), snapshot, path, version, tolerance)
