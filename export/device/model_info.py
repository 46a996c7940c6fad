"""What a model says of itself in its metadata, and whether that fits its graph and its manifest."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_hpcr.stream.resize import check_rule
from export.device.errors import BadModel
from export.device.manifest import FORMAT, Described, Facts, Manifest, parse_json
from export.device.providers import Session

MOST_WRONG_LENGTH = 0.02  # of a normalised proxy, after its way through 16 bits
_JSON = ("version", "step", "classes", "image", "unknown_below", "temperature", "accuracy", "feature_size")


@dataclass(frozen=True)
class ModelInfo(Described):
    """What a model's metadata say of it."""

    temperature: float
    accuracy: dict[str, Any]
    edge_hpcr: str


def read_metadata(metadata: Mapping[str, str], where: str) -> tuple[ModelInfo, np.ndarray | None]:
    """The facts, and of format 1 the normalised proxies float32 [C, D]: such a model does not say how near they are."""
    for key in ("format", "created", "edge_hpcr", *_JSON):
        _check_key(metadata, key, where)
    if metadata["format"] not in map(str, range(1, FORMAT + 1)):
        raise BadModel(f"{where}: format {metadata['format'][:20]!r}; this runtime knows 1 to {FORMAT}")
    # Without a threshold, its text is empty.
    texts = {key: metadata.get(key) or "null" for key in (*_JSON, "region")}
    values = {key: parse_json(text, f"{where}: metadata {key}") for key, text in texts.items()}
    facts = Facts({**metadata, **values}, f"{where}: metadata")
    info = ModelInfo(
        **ModelInfo.read(facts),
        temperature=facts.number("temperature", lambda value: value > 0, "a number above 0"),
        accuracy=facts.inner("accuracy").values,
        edge_hpcr=facts.text("edge_hpcr"),
    )
    try:
        check_rule(info.resize)
    except ValueError as error:
        raise BadModel(f"{where}: {error}") from None
    if metadata["format"] != "1":
        return info, None
    _check_key(metadata, "proxies", where)
    return info, _read_proxies(metadata["proxies"], len(info.classes), info.feature_size, where)


def _check_key(metadata: Mapping[str, str], key: str, where: str) -> None:
    if key not in metadata:
        raise BadModel(f"{where}: its metadata lack {key}: it was not made by `python -m export`")


def _read_proxies(text: str, classes: int, feature_size: int, where: str) -> np.ndarray:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadModel(f"{where}: metadata proxies are not base64") from None
    if len(data) != 2 * classes * feature_size:
        raise BadModel(
            f"{where}: proxies of {len(data)} bytes for {classes} classes of {feature_size} numbers"
        )
    proxies = np.frombuffer(data, "<f2").astype(np.float32).reshape(classes, feature_size)
    lengths = np.linalg.norm(proxies, axis=1)
    if not (np.abs(lengths - 1) < MOST_WRONG_LENGTH).all():  # also refuses NaN
        raise BadModel(f"{where}: the proxies in its metadata are not normalised")
    return proxies


def check_agreement(info: ModelInfo, manifest: Manifest, where: str) -> None:
    """Refuse a model that says otherwise than its manifest."""
    for key in ("version", "step", "height", "width", "resize", "feature_size", "unknown_below", "region"):
        own, manifests = getattr(info, key), getattr(manifest, key)
        if own != manifests:
            raise BadModel(
                f"{where}: the model and its manifest contradict each other on {key} ({own} and {manifests})"
            )
    own, manifests = ([(each.id, each.name) for each in facts.classes] for facts in (info, manifest))
    if own != manifests:
        raise BadModel(f"{where}: the model and its manifest contradict each other on the classes")


def check_shapes(session: Session, widths: dict[str, list[int]], info: ModelInfo, where: str) -> None:
    """The contract: image uint8 [N, H, W, 3] in; out float [N, ...] as `widths` says; N free."""
    inputs, outputs = session.inputs, session.outputs
    if set(inputs) != {"image"} or set(outputs) != set(widths):
        raise BadModel(
            f"{where}: inputs {sorted(inputs)} and outputs {sorted(outputs)} instead of image, {', '.join(widths)}"
        )
    expected = {"image": ("tensor(uint8)", [info.height, info.width, 3])}
    expected |= {name: ("tensor(float)", sides) for name, sides in widths.items()}
    for name, (kind, sides) in expected.items():
        found, shape = inputs.get(name) or outputs[name]
        if found != kind or shape[1:] != sides or isinstance(shape[0], int):
            raise BadModel(f"{where}: {name} is {found} {shape} instead of {kind} {['N', *sides]}")
