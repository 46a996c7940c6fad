"""Weights that `weights get` has fetched: read out of an ONNX file, and known by the network's answer to one picture."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError


def read_onnx(data: bytes) -> tuple[Any, dict[str, Tensor]]:
    """The graph of an ONNX file, and its initialisers by name."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(data).graph
    tensors = {each.name: numpy_helper.to_array(each).copy() for each in graph.initializer}
    return graph, {name.removeprefix("model."): torch.from_numpy(each) for name, each in tensors.items()}


def from_onnx(data: bytes, model: Any) -> dict[str, Tensor]:
    """The weights of one of timm's networks, out of the ONNX file that torch's first exporter once made of it.

    Names of parameters that were exported as they are stayed. Batch-norms were multiplied into their convolutions, and
    the weights of linear layers transposed: these lost their names, but the nodes have their modules' paths.
    """
    graph, given = read_onnx(data)
    wanted = model.state_dict()
    found = {name: tensor for name, tensor in given.items() if name in wanted}
    for node in graph.node:
        inputs = (name.removeprefix("model.") for name in node.input)
        weights = [given[name] for name in inputs if name in given]
        # `/stages/stages.0/blocks/blocks.0/conv1/conv/Conv` computes the module stages.0.blocks.0.conv1.conv
        module = re.sub(r"(\w+)/(?=\1\.)", "", node.name.strip("/")).rpartition("/")[0].replace("/", ".")
        if node.op_type == "MatMul" and weights:
            found[f"{module}.weight"] = weights[0].T.contiguous()
        elif node.op_type == "Conv" and f"{module}.weight" not in found:
            found[f"{module}.weight"], bias = weights
            norm = module.removesuffix("conv") + "bn"
            found |= {
                f"{norm}.weight": torch.ones_like(bias),
                f"{norm}.bias": bias,
                f"{norm}.running_mean": torch.zeros_like(bias),
                f"{norm}.running_var": torch.ones_like(bias) - model.get_submodule(norm).eps,
                f"{norm}.num_batches_tracked": torch.tensor(0),
            }
    return found


def load(model: torch.nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Give a network its weights; refused if they are another one's."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        what = " ".join(str(error).split())[:120]
        raise UserError(f"these are not the weights of {name} ({what}): get the file again") from None


def check_answer(model: torch.nn.Module, expected: tuple[float, ...], name: str) -> None:
    """Refuse weights of the right shape with which the network gives another answer to one picture of 224 pixels."""
    picture = (torch.arange(3 * 224 * 224) % 97 / 97).view(1, 3, 224, 224)
    with torch.inference_mode():
        found = model(picture)[0, : len(expected)]
    if not torch.allclose(found, torch.tensor(expected), atol=1e-3):
        raise UserError(f"these are other weights of {name} than those that this version knows")
