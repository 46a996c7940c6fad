"""A frozen trunk in ONNX Runtime: half of PyTorch's time on a processor, and the numbers that a device has.

It is exported once per machine, weights and image size, into the cache, with PyTorch's answer to one picture: so a later
start neither makes the network in PyTorch, which takes seconds and hundreds of MB, nor trusts the file. What learns stays
in PyTorch.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import cache_folder, write_atomically
from edge_hpcr.learner.backbones import backbone
from edge_hpcr.learner.backbones.backbone import CPU_PORTION, Trunk

LOG = logging.getLogger(__name__)
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}  # by PyTorch's kind of device
LINES = Path(backbone.__file__).parent  # of code that say what a trunk answers
TOLERANCE = 1e-3  # of the largest number of a latent
INPUT, ANSWER = "images", "answer"


class TrunkSession:
    """From float RGB images in [0, 1], [N, 3, H, W], to latents, as `Trunk`; any thread may ask."""

    def __init__(self, path: Path, provider: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, (os.cpu_count() or 1) - 1)
        # Threads that wait for work by spinning would take the cores that learning needs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4  # what is wrong is raised
        self._session: Any = onnxruntime.InferenceSession(path, options, providers=[provider])
        if self._session.get_providers()[0] != provider:
            raise OSError(f"{provider} does not work here")
        said = self._session.get_modelmeta().custom_metadata_map.get(ANSWER, "")
        self.expected = np.frombuffer(base64.b64decode(said), np.float32)  # PyTorch's answer to `picture`

    def __call__(self, images: Tensor) -> Tensor:
        portion = CPU_PORTION if images.device.type == "cpu" else len(images)
        pixels = [np.ascontiguousarray(part.cpu().numpy()) for part in images.split(portion)]
        latents = np.concatenate([self._session.run(None, {INPUT: part})[0] for part in pixels])
        return torch.from_numpy(latents).to(images.device)

    def answers_as_expected(self, height: int, width: int, device: torch.device) -> bool:
        found = self(picture(height, width).to(device)).cpu().numpy().ravel()
        expected = self.expected
        return found.shape == expected.shape and bool(
            np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
        )


def fastest(trunk: Trunk, height: int, width: int, device: torch.device) -> TrunkSession | Trunk:
    """The trunk in ONNX Runtime, or as it is where that cannot be had; then the log says why."""
    if (provider := PROVIDERS.get(device.type)) is None:
        return trunk
    path = _place(trunk, height, width)
    try:
        for _ in range(2):  # a file that other lines of code made is made anew
            if not path.is_file():
                _export(trunk, picture(height, width), path)
            session = TrunkSession(path, provider)
            if session.answers_as_expected(height, width, device):
                return session
            path.unlink()
        reason = "its numbers differ"
    except UserError:
        raise  # the weights are damaged, which PyTorch would find as well
    except Exception as error:  # whatever it is, PyTorch can do the same
        reason = " ".join(str(error).split())[:200]
    LOG.warning(
        "the network runs in PyTorch, which takes twice as long: ONNX Runtime refuses %s (%s)", path, reason
    )
    return trunk


def picture(height: int, width: int) -> Tensor:
    return torch.arange(3 * height * width).remainder(97).div(97).view(1, 3, height, width)


def _place(trunk: Trunk, height: int, width: int) -> Path:
    latent = "x".join(map(str, trunk.latent_shape))
    lines = hashlib.sha256(b"".join(each.read_bytes() for each in sorted(LINES.glob("*.py")))).hexdigest()
    return cache_folder() / "trunks" / f"{trunk.sha256[:16]}-{height}x{width}-{latent}-{lines[:16]}.onnx"


def _export(trunk: Trunk, picture: Tensor, path: Path) -> None:
    LOG.info("preparing the network for this machine, once: %s", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A copy: while it traces, the exporter puts stand-ins in the place of weights, and the learner uses the same trunk.
    module = copy.deepcopy(trunk.on(torch.device("cpu")))
    with torch.no_grad():
        program = torch.onnx.export(
            module,
            (picture.repeat(2, 1, 1, 1),),
            dynamo=True,
            input_names=[INPUT],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            verbose=False,
        )
    assert program is not None
    answer = base64.b64encode(trunk(picture).numpy().tobytes()).decode()
    model = program.model_proto
    model.metadata_props.add(key=ANSWER, value=answer)
    write_atomically(path, model.SerializeToString())
