"""Everything for a device in one zip: a published version, the runtime with what it needs, and the commands for them.

The runtime's code is that of this installation, in the folders that the Dockerfile's device has.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import edge_hpcr
import export
from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError
from edge_hpcr.live.status import accuracy_text
from export.device.errors import BadModel
from export.device.manifest import MANIFEST, Manifest, read_manifest, read_model_file
from export.publish.companions import CARD, GOLDEN, LABELS
from export.publish.serve import DEFAULT_PORT
from export.publish.versions import folder_name

MODEL = "model"  # the version's folder in the zip
# Of each package the files and folders that a device has.
PARTS = {
    Path(edge_hpcr.__file__).parent: ("__init__.py", "common", "stream"),
    Path(export.__file__).parent: ("__init__.py", "runtime.py", "device"),
}


def bundle_name(version: int) -> str:
    return f"edge-hpcr-device-v{version}"


def write_bundle(exports: Path, version: int, file: IO[bytes]) -> Manifest:
    """Write the zip of a version; a `UserError` if it is not kept, or not as it was published."""
    folder, top = exports / folder_name(version), bundle_name(version)
    try:
        manifest = read_manifest(folder)
        contents = {each.file: read_model_file(folder, each) for each in manifest.files}
    except BadModel as error:
        raise UserError(f"version {version} cannot be given to a device: {error}") from None
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(f"{top}/README.md", readme(manifest))
        for path, name in _runtime():
            bundle.write(path, f"{top}/{name}")
        bundle.write(folder / MANIFEST, f"{top}/{MODEL}/{MANIFEST}")
        for name, content in contents.items():
            bundle.writestr(f"{top}/{MODEL}/{name}", content)
    return manifest


def _runtime() -> Iterator[tuple[Path, str]]:
    """Every file of the runtime, with its name in the zip."""
    for package, parts in PARTS.items():
        for part in parts:
            root = package / part
            for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path, f"{package.name}/{path.relative_to(package).as_posix()}"
    place = Path(export.__file__).parent
    yield place / "requirements.txt", "requirements.txt"
    yield place / "samples" / "classify.py", "classify.py"


def readme(manifest: Manifest) -> str:
    """What to type on the device, for this model."""
    names = ", ".join(each.name for each in manifest.classes[:20])
    more = f" and {len(manifest.classes) - 20} more" if len(manifest.classes) > 20 else ""
    accuracy = manifest.facts.get("accuracy") or {}
    measured = accuracy_text(accuracy.get("held_out"), accuracy.get("samples", 0))
    variants = "".join(f"\nIn {name}: add `--variant {shlex.quote(name)}`.\n" for name in manifest.variants)
    golden = (
        f"""
Does it answer as the trainer did? This compares its answer to the golden sample, and ends with 1 if it does not:

    .venv/bin/python classify.py {MODEL} {MODEL}/golden.png
"""
        if "golden" in manifest.beside
        else ""
    )
    return f"""# Model {manifest.version} for a device

Version {manifest.version} of {manifest.created}, {len(manifest.classes)} classes: {names}{more}.
Held-out accuracy: {measured}. Made with Edge HPCR {__version__}.

In this folder, on the device, with Python 3.11 or newer (no PyTorch is needed):

    python3 -m venv .venv
    .venv/bin/pip install -r requirements.txt
{golden}
Classify what a camera shows, a JSON line a frame; 0 is the first camera, and a folder of pictures or a video does as well:

    .venv/bin/python -m export.runtime --models {MODEL} --source 0

The golden pictures as a source: `--source {MODEL}`.
{variants}
Follow new versions from the machine that trains, instead of staying with this one (it runs `python -m export serve`):

    .venv/bin/python -m export.runtime --models http://THE-TRAINER:{DEFAULT_PORT} --token token.txt --source 0

| what | where |
|---|---|
| the model, and its facts with checksums | `{MODEL}/{manifest.model.file}`, `{MODEL}/{MANIFEST}` |
| names of the classes, in the order of the scores | `{MODEL}/{LABELS}` |
| what it is, how well it does, how to use it without this runtime | `{MODEL}/{CARD}` |
| a picture with the answers to it | `{MODEL}/{GOLDEN}` |
| the runtime, and what it needs | `export/`, `edge_hpcr/`, `requirements.txt` |
| the same without the runtime, a page of Python | `classify.py` |
"""
