"""Whether a model is one file: its bytes as protobuf, before ONNX Runtime opens anything that they name.

A hash guards one file only. The fields are walked as protobuf reads them, because the same entry can be written in many
ways: a search for its usual bytes would miss the others.
"""

from collections.abc import Iterator

from export.device.errors import BadModel

MOST_FIELDS = 1_000_000  # a published model has a few thousand
_VARINT, _EIGHT_BYTES, _SUB_MESSAGE, _FOUR_BYTES = 0, 1, 2, 5
_SKIPPED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # fields of a tensor

# The fields of onnx.proto through which a tensor can be reached: kind of message, field number, kind of what is in it.
_INNER: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}


def check_one_file(data: bytes, where: str) -> None:
    """`BadModel` if it keeps weights outside itself, or is no protobuf."""
    waiting = [("model", 0, len(data))]
    budget = iter(range(MOST_FIELDS))
    try:
        while waiting:
            kind, start, end = waiting.pop()
            for number, first, last in _fields(data, start, end):
                if next(budget, None) is None:
                    raise BadModel(f"{where}: more than {MOST_FIELDS} fields: no published model has so many")
                # A location of 0 means "in here".
                elsewhere = number == _DATA_LOCATION and any(byte & 127 for byte in data[first:last])
                if kind == "tensor" and (elsewhere or number == _EXTERNAL_DATA):
                    raise BadModel(f"{where}: it keeps weights in another file, which no hash guards")
                if number in _INNER[kind]:
                    waiting.append((_INNER[kind][number], first, last))
    except (IndexError, ValueError):
        raise BadModel(f"{where}: damaged, or not an ONNX model") from None


def _fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of the message in these bytes."""
    while place < end:
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            start, (_, place) = place, _varint(data, place)
        elif wire == _SUB_MESSAGE:
            length, start = _varint(data, place)
            place = start + length
        elif wire in _SKIPPED:
            start, place = place, place + _SKIPPED[wire]
        else:
            raise ValueError("a group, which ONNX does not use")
        if place > end:
            raise ValueError("longer than what it is in")
        yield number, start, place


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), place
        shift += 7
    raise ValueError("a number without end")
