"""A traced graph in the oldest form that says the same, for runtimes and converters of many years.

torch traces in opset 18. What that opset writes in a new way, most of all the axes of a reduction as an input instead of an
attribute, is written in the old way again; then the lowest opset is taken whose rules ONNX's own checker finds kept, and
the lowest IR version that has this opset. Whether the answers stayed the same is not decided here: `finish` compares
every model with its network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

TRACED_OPSET = 18  # which torch's exporter writes without converting anything
LOWEST_OPSET = 11  # from which on `Clip` takes its limits as inputs
LOWEST_INT8_OPSET = 13  # which brought a scale for each channel
FORM = 1  # of the graphs that are made here; a graph that was kept in another form is traced again
PIXELS = "pixels"  # the value behind the cast: float RGB from 0 to 1, [N, 3, H, W]
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
# The opset from which on an operator's axes are its second input.
_AXES_AS_INPUT = {
    **{f"Reduce{name}": 18 for name in _REDUCTIONS},
    **dict.fromkeys(("ReduceSum", "Squeeze", "Unsqueeze"), 13),
}
_CHANGED_IN_13 = (
    "Softmax",
    "LogSoftmax",
    "Hardmax",
)  # the same words mean something else in three dimensions


def opset_of(model: ModelProto) -> int:
    return next(each.version for each in model.opset_import if not each.domain)


def portable(model: ModelProto, lowest: int = LOWEST_OPSET) -> ModelProto:
    """The model in the lowest opset, from `lowest` on, that can say it, and in the lowest IR version with that opset."""
    traced = opset_of(model)
    for opset in range(lowest, traced):
        if _keeps_its_meaning(model.graph, opset):
            older = _written_for(model, opset)
            if _is_valid(older):
                return older
    return _written_for(model, max(lowest, traced))


def name_pixels(model: ModelProto) -> None:
    """Name the images as floats `pixels`: a tool that takes no uint8 can be given the graph from there on."""
    nodes = model.graph.node
    cast = next(node for node in nodes if node.op_type == "Cast")
    (scaled,) = (node for node in nodes if cast.output[0] in node.input)
    old = scaled.output[0]
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [PIXELS if name == old else name for name in names]


def merge_pools(model: ModelProto) -> None:
    """Write the means over a grid of a map as one product: OpenCV 4 fails on a constant before the map.

    `rows @ map @ columns`, flattened, is the flattened map times one matrix.
    """
    graph = model.graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    users = {
        name: node for node in graph.node for name in node.input
    }  # of those with one user, which these are
    merged: set[str] = set()
    for left in graph.node:
        right = users.get(left.output[0])
        flat = None if right is None else users.get(right.output[0])
        if (
            flat is None
            or right is None
            or (left.op_type, right.op_type, flat.op_type) != ("MatMul", "MatMul", "Reshape")
        ):
            continue
        rows, columns, shape = (
            constants.get(name) for name in (left.input[0], right.input[1], flat.input[1])
        )
        if rows is None or columns is None or shape is None or shape.size != 2:
            continue
        name, cells, places = left.output[0], len(rows) * columns.shape[1], rows.shape[1] * len(columns)
        matrix = np.einsum("rh,wc->hwrc", rows, columns).reshape(places, cells)
        graph.initializer.append(numpy_helper.from_array(matrix, f"{name}_grid"))
        sides = np.array([-1, shape[1] // cells, places], np.int64)
        graph.initializer.append(numpy_helper.from_array(sides, f"{name}_sides"))
        merged |= {left.input[0], right.input[1]}
        right.input[:] = [name, f"{name}_grid"]
        left.op_type, left.input[:] = "Reshape", [left.input[1], f"{name}_sides"]
    _drop_unused(graph, merged)


def _keeps_its_meaning(graph: GraphProto, opset: int) -> bool:
    # The scores have two dimensions, in which the old meaning and the new one are the same.
    return opset >= 13 or not any(
        node.op_type in _CHANGED_IN_13 and "scores" not in node.output for node in graph.node
    )


def _written_for(model: ModelProto, opset: int) -> ModelProto:
    written, before = ModelProto(), opset_of(model)
    written.CopyFrom(model)
    graph = written.graph
    others = {node.domain for node in graph.node if node.domain}
    kept = [
        each for each in model.opset_import if each.domain in others
    ]  # a quantiser names one it does not use
    written.ClearField("opset_import")
    written.opset_import.extend([helper.make_opsetid("", opset), *kept])
    written.ir_version = helper.find_min_ir_version_for(written.opset_import, ignore_unknown=True)
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    axes = {name for node in graph.node if node.op_type in _AXES_AS_INPUT for name in node.input[1:]}
    for node in graph.node:
        if node.op_type in _AXES_AS_INPUT:
            _place_axes(node, graph, constants, opset)
        _drop_defaults(node, constants, before, opset)
    _drop_unused(graph, axes)
    return written


def _place_axes(node: NodeProto, graph: GraphProto, constants: Mapping[str, np.ndarray], opset: int) -> None:
    as_input = opset >= _AXES_AS_INPUT[node.op_type]
    if not as_input and len(node.input) == 2 and node.input[1] in constants:
        axes = constants[node.input[1]].tolist()
        del node.input[1:]
        node.attribute.append(helper.make_attribute("axes", axes))
    given = next((each for each in node.attribute if each.name == "axes"), None)
    if as_input and given is not None:
        name = f"{node.output[0]}_axes"
        graph.initializer.append(numpy_helper.from_array(np.array(given.ints, np.int64), name))
        node.input.append(name)
        node.attribute.remove(given)


def _drop_defaults(node: NodeProto, constants: Mapping[str, np.ndarray], before: int, opset: int) -> None:
    """Drop the attributes that an opset does not know yet and that say nothing new."""
    known = onnx.defs.get_schema(node.op_type, before, node.domain).attributes
    try:
        older = onnx.defs.get_schema(node.op_type, opset, node.domain).attributes
    except onnx.defs.SchemaError:
        return  # no such operator yet: the checker will say so
    for attribute in [each for each in node.attribute if each.name not in older]:
        default: Any = known[attribute.name].default_value if attribute.name in known else None
        value = helper.get_attribute_value(attribute)
        # Whether a zero in a shape means zero is no question where there is none.
        plain_shape = attribute.name == "allowzero" and (constants.get(node.input[1], np.zeros(1)) != 0).all()
        if plain_shape or (default is not None and value == helper.get_attribute_value(default)):
            node.attribute.remove(attribute)


def _drop_unused(graph: GraphProto, names: Collection[str]) -> None:
    """Drop those of these constants that nothing uses any more: runtimes warn of them."""
    used = {name for node in graph.node for name in node.input}
    for each in [each for each in graph.initializer if each.name in set(names) - used]:
        graph.initializer.remove(each)


def _is_valid(model: ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True
