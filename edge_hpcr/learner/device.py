"""Where a learner computes, in which numbers, and the copies between there and the host.

Under bfloat16 the backbone's layers compute in it and everything else stays float32: weights, their gradients, batch-norm
statistics, proxies, logits, losses, and what the memory keeps. Predictions are float32 in both, so that the model that is
tested and exported is the one that was measured here. OCM's and OnPro's passes, which are most of their step, and a
teacher's are in the step's precision; other passes that a method makes of its own are float32.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from edge_hpcr.common.errors import UserError, one_of

PRECISIONS = ("auto", "float32", "bfloat16")
# Large pages for tensors of 2 MB and more (Linux). With thousands of classes half of a step was page faults. PyTorch reads
# this when it makes its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def resolve_device(name: str) -> torch.device:
    """`auto` is the best device that works here."""
    one_of("device", name, ("auto", "cpu", "cuda", "mps"))
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, works in usable.items() if works)
    if not usable[name]:
        kind = "usable CUDA" if name == "cuda" else "Apple"
        raise UserError(f"device {name}: PyTorch finds no {kind} GPU here; use --device cpu (or auto)")
    if name == "cuda":
        # Float32 products may round their factors to 10 bits, as convolutions do by default: many times as fast.
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    return torch.device(name)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware; anywhere else it is emulated, and slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is bfloat16 where the device has it, else float32: docs/speed.md has the runs that were as accurate."""
    if name != "auto":
        return name
    return "bfloat16" if has_fast_bfloat16(device) else "float32"


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The forward pass of a training step runs inside; its backward pass follows by itself."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def send(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; a GPU fetches it by itself, from memory that stays where it is."""
    if device.type != "cuda":
        return host.to(device)
    pinned = torch.empty_like(host, pin_memory=True).copy_(host)
    return pinned.to(device, non_blocking=True)


def read_back(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """The numbers of tensors on the device, as float32 on the host, in one copy: the only place where a step waits for a GPU."""
    packed = torch.cat([tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors])
    parts = np.split(packed.cpu().numpy(), np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


# Memory -----------------------------------------------------------------------------------------------------------------

# From glibc's malloc.h. The threshold may be 32 MB at most; a larger value is refused.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD, _KEPT_BYTES = 32 * 2**20, 2**30


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one; where it cannot be asked (macOS, Windows, musl), steps
    are slower and no more.

    A step frees and asks for the same buffers of a few MB every time. glibc hands buffers of that size back at once, and
    the system must then clear every page of them anew: thousands of page faults per step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def return_freed_memory() -> None:
    """Give the system what has been freed and is kept; the next steps clear it anew. For moments of rest: over hours, holes
    between what stays would add up to hundreds of MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
