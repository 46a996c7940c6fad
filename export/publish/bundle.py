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
from export.device import BadModel
from export.device.manifest import MANIFEST, Manifest, read_manifest, read_model_file
from export.publish.model_card import CARD, LABELS, MEASURED
from export.publish.serve import DEFAULT_PORT
from export.publish.snapshot import NO_UNKNOWN
from export.publish.versions import folder_name, held_out

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
    yield Path(export.__file__).parent / "requirements.txt", "requirements.txt"


def readme(manifest: Manifest) -> str:
    """What to type on the device, for this model."""
    unknown = f"Note that {NO_UNKNOWN}.\n" if manifest.unknown_below is None else ""
    variants = "".join(f"In {name}: add `--variant {shlex.quote(name)}`.\n" for name in manifest.variants)
    return f"""# Model {manifest.version} for a device

Version {manifest.version} of {manifest.created}, {len(manifest.classes):,} classes.
Accuracy: {held_out(manifest.facts)}. {MEASURED} Made with Edge HPCR {__version__}.
{unknown}
In this folder, on the device, with Python 3.11 or newer (no PyTorch is needed):

    python3 -m venv .venv
    .venv/bin/pip install -r requirements.txt

Classify what a camera shows, a JSON line per frame; 0 is the first camera, and a folder of pictures or a video does as well:

    .venv/bin/python -m export.runtime --models {MODEL} --source 0

{variants}
Follow new versions from the machine that trains, instead of staying with this one (it runs `python -m export serve`, with the
same token.txt):

    .venv/bin/python -m export.runtime --models http://THE-TRAINER:{DEFAULT_PORT} --token token.txt --source 0

`{MODEL}/{CARD}` says what the model knows, how well it does, and how to use it without this runtime; `{MODEL}/{LABELS}` has
the names of the classes in the order of the scores.
"""
