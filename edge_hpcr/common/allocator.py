"""Memory that a step frees is kept for the next step, instead of going back to the system and coming again.

A training step frees and asks for the same buffers of a few MB every time. glibc hands buffers of that size back at
once, and the system must then clear every page of them anew: thousands of page faults a step.
"""

import ctypes
import sys

# From glibc's malloc.h. The threshold may be 32 MB at most; a larger value is refused.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD, _KEPT_BYTES = 32 * 2**20, 2**30


def keep_freed_memory() -> bool:
    """Ask the C library to; False where it cannot be asked (macOS, Windows, musl), which costs speed and no more."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    )
