"""The numbers in which a training step's network computes: float32, or bfloat16 where that is faster.

Under bfloat16 the backbone's layers compute in it and everything else stays float32: weights, their gradients, batch-norm
statistics, proxies, logits, losses, and what the memory keeps. Predictions are float32 in both, so that the model that is
tested and exported is the one that was measured here. OCM's and OnPro's passes, which are most of their step, and a
teacher's are in the step's precision; other passes that a method makes of its own are float32.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

PRECISIONS = ("auto", "float32", "bfloat16")


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware; anywhere else it is emulated, and slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False


def resolve_precision(
    name: str, device: torch.device, is_fast: Callable[[torch.device], bool] = has_fast_bfloat16
) -> str:
    """`auto` is bfloat16 where the device has it, else float32: docs/speed.md has the runs that were as accurate."""
    if name != "auto":
        return name
    return "bfloat16" if is_fast(device) else "float32"


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The forward pass of a training step runs inside; its backward pass follows by itself."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def allow_tf32() -> None:
    """Let CUDA's float32 products round their factors to 10 bits, as its convolutions do by default: many times as fast."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
