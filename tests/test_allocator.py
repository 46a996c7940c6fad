"""Freed buffers are used again."""

import resource
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import resource, sys
    import numpy as np
    from edge_hpcr.common.allocator import keep_freed_memory
    if sys.argv[1] == "keep":
        assert keep_freed_memory()
    for _ in range(20):
        buffers = [np.ones(20_000_000, np.uint8) for _ in range(3)]
        del buffers
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        buffers = [np.ones(20_000_000, np.uint8) for _ in range(3)]
        del buffers
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc offers this choice")
def test_large_buffers_that_are_freed_and_asked_for_again_cause_no_page_faults():
    faults = {
        mode: int(
            subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, check=True).stdout
        )
        for mode in ("keep", "leave")
    }
    pages_of_one_buffer = 20_000_000 // resource.getpagesize()
    assert faults["keep"] < pages_of_one_buffer < faults["leave"]
