"""Graphs kept beside the versions of an exports folder, each with the facts that it is right for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from edge_hpcr.common.files import sha256, write_atomically


def keep(path: Path, model: ModelProto, facts: dict[str, Any]) -> None:
    """Keep a graph as `path`; its facts are in a JSON file beside it."""
    path.parent.mkdir(exist_ok=True)
    data = model.SerializeToString()
    write_atomically(path, data)
    write_atomically(path.with_suffix(".json"), json.dumps({"facts": facts, "sha256": sha256(data)}))


def kept(path: Path, facts: dict[str, Any]) -> ModelProto | None:
    """The graph; None when there is none, when it was kept for other facts, or when it is damaged."""
    try:
        noted, data = json.loads(path.with_suffix(".json").read_bytes()), path.read_bytes()
        if noted["facts"] != facts or noted["sha256"] != sha256(data):
            return None
        return onnx.load_model_from_string(data)
    except (OSError, ValueError, KeyError, TypeError):
        return None
