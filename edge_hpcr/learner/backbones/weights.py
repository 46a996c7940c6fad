"""Pre-trained weights that come as files: found, checked, and kept as safetensors so that a pickle is read but once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import disk_errors, flush_to_disk, sha256, write_atomically


def cache_folder() -> Path:
    """Where converted weights are kept: `$EDGE_HPCR_CACHE`, or the user's cache."""
    chosen = os.environ.get("EDGE_HPCR_CACHE")
    return (
        Path(chosen)
        if chosen
        else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "edge-hpcr"
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a file of PyTorch's that holds tensors and nothing else."""
    if not path.is_file():
        raise UserError(f"weights {path}: there is no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise UserError(
            f"weights {path} cannot be read ({(str(error) or type(error).__name__).splitlines()[0]}): get the file again"
        ) from None
    except Exception as error:  # pickle raises what it likes
        raise UserError(
            f"weights {path} are no file of tensors ({type(error).__name__}): get the file again"
        ) from None
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(each, Tensor) for each in state.values()):
        raise UserError(f"weights {path} hold something else than named tensors: give a state dict")
    return state


Tensors = dict[str, Tensor]


def converted(
    name: str, source: Callable[[], Path], expected: str, convert: Callable[[Tensors], Tensors]
) -> Tensors:
    """What `convert` makes of a file with this SHA-256, from the cache if it was read before."""
    kept = cache_folder() / f"{name}-{expected[:16]}.safetensors"
    try:
        if _digest_of(kept).read_text() == sha256(kept):
            return load_file(kept)
    except (SafetensorError, OSError, ValueError):
        pass  # not there yet, or damaged: the source is still there
    path = source()
    if not path.is_file():
        raise UserError(f"weights {path}: there is no such file")
    found = sha256(path)
    if found != expected:
        raise UserError(
            f"weights {path} are damaged or of another version: SHA-256 {found[:16]}… instead of {expected[:16]}…; "
            "install the package again"
        )
    tensors = {key: value.contiguous() for key, value in convert(read_weights(path)).items()}
    _keep(tensors, kept)
    return tensors


def _digest_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _keep(tensors: dict[str, Tensor], path: Path) -> None:
    """Best effort: without a cache the next start takes a moment longer."""
    writing = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk_errors(f"{writing} cannot be written"):
            save_file(tensors, writing)
            flush_to_disk(writing)
            writing.replace(path)
        write_atomically(_digest_of(path), sha256(path))
    except (UserError, OSError, SafetensorError):
        with suppress(OSError):  # the folder may be what is wrong
            writing.unlink(missing_ok=True)
