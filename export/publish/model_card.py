"""What is published with a model, for those who use it without our code: names, a model card, and a golden sample.

The golden sample is a picture with the answers to it, by which a port finds out whether it resizes and runs the model as
it should. The picture is drawn (a gear of the demonstration's workbench, 320 x 240): no picture of the workspace leaves with a
model.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_hpcr.common.files import write_through
from edge_hpcr.common.text import many
from edge_hpcr.live.status import accuracy_text
from edge_hpcr.stream.resize import RESIZE_STEPS, prepare
from export.device.model import Classifier
from export.publish.snapshot import NO_UNKNOWN, Snapshot
from export.publish.to_onnx import file_facts
from export.publish.versions import held_out

LABELS, CARD = "labels.txt", "model-card.md"
GOLDEN, PICTURE, INPUT = "golden.json", "golden.png", "golden-input.png"
# Of a score or similarity. The picture's is larger: a resize that rounds a pixel otherwise is still right.
TOLERANCES = {"input": 0.001, "image": 0.01}
MOST_NAMES = 200  # of classes in a card
MEASURED = "The learner was tested on labelled pictures that it had not learned."
_PICTURE = Path(__file__).with_name(PICTURE)
_SPECIAL = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]<>|"})


def write_beside(
    folder: Path, classifier: Classifier, snapshot: Snapshot, facts: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Write everything that belongs beside the model in `folder`; how the manifest names it."""
    write_through(folder / LABELS, "".join(f"{each.name}\n" for each in snapshot.classes))
    write_through(folder / CARD, model_card(snapshot, facts))
    picture, frame = _picture()
    prepared = prepare(frame, (snapshot.height, snapshot.width))
    write_through(folder / PICTURE, picture)
    write_through(folder / INPUT, cv2.imencode(".png", prepared[..., ::-1])[1].tobytes())
    write_through(folder / GOLDEN, json.dumps(golden(classifier, prepared), indent=1, ensure_ascii=False))
    names = {"labels": LABELS, "card": CARD, "golden": GOLDEN, "golden_image": PICTURE, "golden_input": INPUT}
    return {key: file_facts(folder / name) for key, name in names.items()}


@cache
def _picture() -> tuple[bytes, np.ndarray]:
    """The golden picture as a file and as a frame."""
    data = _PICTURE.read_bytes()
    return data, np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB))


def golden(classifier: Classifier, prepared: np.ndarray) -> dict[str, Any]:
    """What the plain model answers to the golden picture."""
    classes = classifier.info.classes
    (result,) = classifier.predict_prepared(prepared[None], len(classes))
    scores = {label.id: round(label.confidence, 7) for label in result.top}
    return {
        "image": PICTURE,
        "input": INPUT,  # the picture after the resize, as the model sees it
        "scores": [scores[each.id] for each in classes],
        "similarity": round(result.similarity, 7),
        "unknown": result.unknown,
        "best": {"id": result.top[0].id, "name": result.top[0].name},
        "tolerance": TOLERANCES,
    }


def model_card(snapshot: Snapshot, facts: dict[str, Any]) -> str:
    """What a person should know of the model: what it tells apart, how well, on what that rests, how it was made."""
    image, parity = facts["image"], facts["parity"]
    labels = sum(snapshot.labels.values())
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(RESIZE_STEPS, 1))
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    below, unknown = snapshot.unknown_below, f"There is no threshold for *unknown*: {NO_UNKNOWN}."
    if below is not None:
        unknown = f"A picture whose `similarity` is below {below:g} is *unknown*: of none of these classes."
    if snapshot.region:
        unknown += (
            f" It was taught with only a part of the camera's picture: left, top, width and height {snapshot.region}, as "
            "shares of it. Cut the same part out of that camera's pictures first."
        )
    variants = "".join(f"- {_variant(name, made)}\n" for name, made in facts["variants"].items())
    return f"""# Model, version {facts["version"]}

An image classifier of {len(snapshot.classes):,} classes, published on {facts["created"].replace("T", " ")} by Edge HPCR \
{facts["versions"]["edge_hpcr"]}, after step {snapshot.step:,} of a learner that goes on learning.

## Classes

{_classes(snapshot)}

## How well

- Accuracy: {held_out(facts)}. {MEASURED} They are of the same people and the same source as the others: pictures from elsewhere \
may be recognised less often.
- Its answers were compared with the network's on {parity["images"]} images: {parity["same_answer"]} alike, scores within \
{parity["max_score_difference"]:.1e}.
{variants}
## How to use it

Input `image`: uint8 [N, {image["height"]}, {image["width"]}, 3], RGB. Outputs: `scores` [N, {len(snapshot.classes)}], \
probabilities in the order of `{LABELS}`; `feature`; `similarity` [N]. {unknown}

The resize, `{image["resize"]}`, to H x W of the input:

{steps}

`{GOLDEN}` has the answers to `{PICTURE}` and to `{INPUT}`, which is the same picture after the resize.

## How it was made

- Data: {many(labels, "labelled picture")}, the held-out ones among them, of the people who taught it.
- Network: {snapshot.backbone}, learned with {snapshot.method}; temperature {snapshot.temperature:.3g}.
- Versions: {versions}.
"""


def _classes(snapshot: Snapshot) -> str:
    rows = ["| score | id | name | labels |", "|--:|--:|:--|--:|"]
    for place, each in enumerate(snapshot.classes[:MOST_NAMES]):
        labels = snapshot.labels.get(each.id, 0)
        rows.append(f"| {place} | {each.id} | {each.name.translate(_SPECIAL)} | {labels:,} |")
    more = len(snapshot.classes) - MOST_NAMES
    return "\n".join(rows) + (f"\n\nand {more:,} more: see `{LABELS}`" if more > 0 else "")


def _variant(name: str, made: dict[str, Any]) -> str:
    if made.get("kept") is False:
        return f"No {name}: {made['reason']}."
    accuracy = accuracy_text(made["accuracy"], made["samples"])
    return f"{name}: {accuracy} on held-out samples, where the plain model has {made['plain']:.0%}."
