"""Copies between the host and the device. A step is given to a GPU as a whole, and waits for it once: in `read_back`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def send(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; a GPU fetches it by itself, from memory that stays where it is."""
    if device.type != "cuda":
        return host.to(device)
    pinned = torch.empty_like(host, pin_memory=True).copy_(host)
    return pinned.to(device, non_blocking=True)


def read_back(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """The numbers of tensors on the device, as float32 on the host, in one copy. The host waits for the device here."""
    packed = torch.cat([tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors])
    parts = np.split(packed.cpu().numpy(), np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
