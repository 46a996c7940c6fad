"""What leaves with a model: names, a model card, a golden sample, and all of it with the runtime in one zip for a device.

The golden sample is a picture with the answers to it, by which a port finds out whether it resizes and runs the model as
it should. The picture is drawn (a gear of the demonstration's workbench, 320 x 240): no picture of the workspace leaves with a
model. The zip's runtime is the code of this installation, in the folders that the Dockerfile's device has.
"""

from __future__ import annotations

import json
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np

import edge_hpcr
import export
from edge_hpcr import __version__
from edge_hpcr.common.files import write_through
from edge_hpcr.stream.resize import RESIZE_STEPS, prepare
from export.device.identity import DEFAULT_PORT
from export.device.manifest import MANIFEST, Manifest
from export.device.model import Classifier
from export.publish.snapshot import NO_UNKNOWN, Snapshot
from export.publish.to_onnx import file_facts
from export.publish.versions import check_whole, folder_name, held_out

LABELS, CARD = "labels.txt", "model-card.md"
GOLDEN, PICTURE, INPUT = "golden.json", "golden.png", "golden-input.png"
# Of a score or similarity. The picture's is larger: a resize that rounds a pixel otherwise is still right.
TOLERANCES = {"input": 0.001, "image": 0.01}
MOST_NAMES = 200  # of classes in a card
MEASURED = "The learner was tested on labelled pictures that it had not learned."
MODEL = "model"  # the version's folder in the zip
# Of each package the files and folders that a device has.
PARTS = {
    Path(edge_hpcr.__file__).parent: ("__init__.py", "common", "stream"),
    Path(export.__file__).parent: ("__init__.py", "runtime.py", "device"),
}


def write_beside(
    folder: Path, classifier: Classifier, snapshot: Snapshot, facts: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Write everything that belongs beside the model in `folder`; how the manifest names it."""
    picture = Path(__file__).with_name(PICTURE).read_bytes()
    frame = np.asarray(cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR_RGB))
    prepared = prepare(frame, (snapshot.height, snapshot.width))
    write_through(folder / LABELS, "".join(f"{each.name}\n" for each in snapshot.classes))
    write_through(folder / CARD, model_card(snapshot, facts))
    write_through(folder / PICTURE, picture)
    write_through(folder / INPUT, cv2.imencode(".png", prepared[..., ::-1])[1].tobytes())
    write_through(folder / GOLDEN, json.dumps(golden(classifier, prepared), indent=1, ensure_ascii=False))
    names = {"labels": LABELS, "card": CARD, "golden": GOLDEN, "golden_image": PICTURE, "golden_input": INPUT}
    return {key: file_facts(folder / name) for key, name in names.items()}


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
    """What a person should know of the model: what it tells apart, how well, on what that rests, how to use it."""
    image, count = facts["image"], len(snapshot.classes)
    names = [f"{each.name}: {snapshot.labels.get(each.id, 0):,}" for each in snapshot.classes[:MOST_NAMES]]
    more = [f"and {count - MOST_NAMES:,} more, see {LABELS}"] if count > MOST_NAMES else []
    classes = "\n".join([*names, *more])
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(RESIZE_STEPS, 1))
    below, unknown = snapshot.unknown_below, f"There is no threshold for *unknown*: {NO_UNKNOWN}."
    if below is not None:
        unknown = f"A picture whose `similarity` is below {below:g} is *unknown*: of none of these classes."
    if snapshot.region:
        unknown += (
            f" It was taught with only a part of the camera's picture: left, top, width and height {snapshot.region}, as "
            "shares of it. Cut the same part out of that camera's pictures first."
        )
    return f"""# Model, version {facts["version"]}

An image classifier of {count:,} classes, published on {facts["created"].replace("T", " ")} by Edge HPCR {__version__}, after \
step {snapshot.step:,} of a learner that keeps learning ({snapshot.backbone}, {snapshot.method}).

Accuracy: {held_out(facts)}. {MEASURED} They are of the same people and the same source as the others: pictures from elsewhere \
may be recognised less often.

## How to use it

Input `image`: uint8 [N, {image["height"]}, {image["width"]}, 3], RGB. Outputs: `scores` [N, {count}], \
probabilities in the order of `{LABELS}`; `feature`; `similarity` [N]. {unknown}

The resize, `{image["resize"]}`, to H x W of the input:

{steps}

`{GOLDEN}` has the answers to `{PICTURE}` and to `{INPUT}`, which is the same picture after the resize. `{MANIFEST}` has the
rest: variants, versions, and how far the model's answers are from the network's.

## The classes in the order of the scores, and how many pictures were labelled

```
{classes}
```
"""


# The zip for a device -------------------------------------------------------------------------------------------------


def bundle_name(version: int) -> str:
    return f"edge-hpcr-device-v{version}"


def write_bundle(exports: Path, version: int, file: Path | IO[bytes]) -> None:
    """Write the zip of a version; a `UserError` if it is not kept, or not as it was published."""
    manifest, folder, top = (
        check_whole(exports, version),
        exports / folder_name(version),
        bundle_name(version),
    )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(f"{top}/README.md", _readme(manifest))
        for path, name in _runtime():
            bundle.write(path, f"{top}/{name}")
        for name in (MANIFEST, *(each.file for each in manifest.files)):
            bundle.write(folder / name, f"{top}/{MODEL}/{name}")


def _runtime() -> Iterator[tuple[Path, str]]:
    """Every file of the runtime, with its name in the zip."""
    for package, parts in PARTS.items():
        for part in parts:
            root = package / part
            for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path, f"{package.name}/{path.relative_to(package).as_posix()}"
    yield Path(export.__file__).parent / "requirements.txt", "requirements.txt"


def _readme(manifest: Manifest) -> str:
    """What to type on the device, for this model."""
    variants = "".join(f"In {name}: add `--variant {shlex.quote(name)}`.\n" for name in manifest.variants)
    return f"""# Model {manifest.version} for a device

`{MODEL}/{CARD}` says what the model knows, how well it does, and how to use it without this runtime.

In this folder, on the device, with Python 3.11 or newer (no PyTorch is needed):

    python3 -m venv .venv
    .venv/bin/pip install -r requirements.txt

Classify what a camera shows, a JSON line per frame; 0 is the first camera, and a folder of pictures or a video does as well:

    .venv/bin/python -m export.runtime --models {MODEL} --source 0

{variants}
Follow new versions from the machine that trains, instead of staying with this one (it runs `python -m export serve`, with the
same token.txt):

    .venv/bin/python -m export.runtime --models http://THE-TRAINER:{DEFAULT_PORT} --token token.txt --source 0
"""
