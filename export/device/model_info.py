"""What a model says of itself in its metadata, and whether that fits its graph and its manifest."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_hpcr.common.text import LONGEST_NAME
from edge_hpcr.stream.resize import check_rule
from export.device.errors import BadModel
from export.device.manifest import (
    FORMAT,
    LARGEST_SIDE,
    ClassLabel,
    Manifest,
    is_number,
    is_whole,
    parse_classes,
    parse_json,
    parse_threshold,
)
from export.device.providers import Session

MOST_WRONG_LENGTH = 0.02  # of a normalised proxy, after its way through 16 bits
LARGEST_FEATURE = 2**20


@dataclass(frozen=True)
class ModelInfo:
    """What a model's metadata say of it."""

    version: int
    step: int
    classes: tuple[ClassLabel, ...]  # in the order of the scores
    height: int
    width: int
    resize: str
    unknown_below: float | None
    temperature: float
    feature_size: int
    accuracy: dict[str, Any]
    created: str
    edge_hpcr: str


def read_metadata(metadata: Mapping[str, str], where: str) -> tuple[ModelInfo, np.ndarray]:
    """The facts, and the normalised proxies float32 [C, D]."""

    def text(key: str) -> str:
        if key not in metadata:
            raise BadModel(f"{where}: its metadata lack {key}: it was not made by `python -m export`")
        return metadata[key]

    def value(key: str) -> Any:
        return parse_json(text(key), f"{where}: metadata {key}")

    def whole(key: str, least: int, most: int = 2**53) -> int:
        number = value(key)
        if not is_whole(number, least, most):
            raise BadModel(f"{where}: metadata {key} must be a whole number from {least} to {most}")
        return number

    if text("format") != str(FORMAT):
        raise BadModel(f"{where}: format {text('format')[:20]!r}; this runtime knows {FORMAT}")
    classes = parse_classes(value("classes"), f"{where}: metadata")
    height, width, resize = _read_image(value("image"), where)
    temperature, accuracy = value("temperature"), value("accuracy")
    if not is_number(temperature) or temperature <= 0:
        raise BadModel(f"{where}: metadata temperature must be a number above 0")
    if not isinstance(accuracy, dict):
        raise BadModel(f"{where}: metadata accuracy is not a JSON object")
    info = ModelInfo(
        version=whole("version", 0),
        step=whole("step", 0),
        classes=classes,
        height=height,
        width=width,
        resize=resize,
        unknown_below=parse_threshold(
            value("unknown_below") if text("unknown_below") else None, f"{where}: metadata"
        ),
        temperature=float(temperature),
        feature_size=whole("feature_size", 1, LARGEST_FEATURE),
        accuracy=accuracy,
        created=text("created")[:LONGEST_NAME],
        edge_hpcr=text("edge_hpcr")[:LONGEST_NAME],
    )
    return info, _read_proxies(text("proxies"), len(classes), info.feature_size, where)


def _read_image(image: Any, where: str) -> tuple[int, int, str]:
    if not isinstance(image, dict) or not isinstance(image.get("resize"), str):
        raise BadModel(f"{where}: metadata image must hold height, width and resize")
    for key in ("height", "width"):
        if not is_whole(image.get(key), 1, LARGEST_SIDE):
            raise BadModel(f"{where}: metadata image.{key} must be a whole number from 1 to {LARGEST_SIDE}")
    try:
        check_rule(image["resize"])
    except ValueError as error:
        raise BadModel(f"{where}: {error}") from None
    return image["height"], image["width"], image["resize"]


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
    pairs = {
        "version": (info.version, manifest.version),
        "step": (info.step, manifest.step),
        "image size": ((info.height, info.width), (manifest.height, manifest.width)),
        "resize rule": (info.resize, manifest.resize),
        "feature size": (info.feature_size, manifest.feature_size),
        "classes": (_names(info.classes), _names(manifest.classes)),
    }
    for name, (own, manifests) in pairs.items():
        if own != manifests:
            shown = "" if name == "classes" else f" ({own} and {manifests})"
            raise BadModel(f"{where}: the model and its manifest contradict each other on the {name}{shown}")
    ours, theirs = info.unknown_below, manifest.unknown_below
    if (ours is None) != (theirs is None) or (ours is not None and abs(ours - (theirs or 0.0)) > 1e-6):
        raise BadModel(f"{where}: the model and its manifest contradict each other on unknown_below")


def _names(classes: tuple[ClassLabel, ...]) -> list[tuple[int, str]]:
    return [(each.id, each.name) for each in classes]


def check_shapes(session: Session, info: ModelInfo, where: str) -> None:
    """The contract: image uint8 [N, H, W, 3] in; scores [N, C] and feature [N, D] out; N free."""
    inputs, outputs = session.inputs, session.outputs
    if set(inputs) != {"image"} or set(outputs) != {"scores", "feature"}:
        raise BadModel(
            f"{where}: inputs {sorted(inputs)} and outputs {sorted(outputs)} instead of image, scores and feature"
        )
    expected = {
        "image": ("tensor(uint8)", [info.height, info.width, 3]),
        "scores": ("tensor(float)", [len(info.classes)]),
        "feature": ("tensor(float)", [info.feature_size]),
    }
    for name, (kind, sides) in expected.items():
        found, shape = inputs.get(name) or outputs[name]
        if found != kind or shape[1:] != sides or isinstance(shape[0], int):
            raise BadModel(f"{where}: {name} is {found} {shape} instead of {kind} {['N', *sides]}")
