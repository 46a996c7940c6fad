"""What all measurements share: clocks, turns, facts of the machine, and the files that keep the result."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tqdm import tqdm
from typer import Option

from edge_hpcr import __version__
from edge_hpcr.commands.cli import make_writable
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import write_atomically

ROOT = Path(__file__).parent.parent
Facts = dict[str, Any]
Clock = Callable[[], float]
Out = Annotated[Path, Option(metavar="FILE", help="where to keep it")]

# Time -----------------------------------------------------------------------------------------------------------------


def seconds(run: Callable[[], Any], clock: Clock = time.perf_counter) -> float:
    begun = clock()
    run()
    return clock() - begun


def in_turns(
    contestants: Mapping[str, Callable[[], Any]], rounds: int, calls: int, clock: Clock = time.perf_counter
) -> dict[str, np.ndarray]:
    """Seconds of each call by contestant, [rounds, calls].

    They take turns within a round, so that other work on the machine hits all of them alike: take ratios within a round.
    """
    names = list(contestants)
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for number in tqdm(range(rounds), "rounds", disable=None, leave=False):
        first = number % len(names)  # so that one does not always find the caches that the same other left
        for name in names[first:] + names[:first]:
            contestants[name]()  # its weights are in the caches again, as where nothing else runs
            found[name].append([seconds(contestants[name], clock) for _ in range(calls)])
    return {name: np.array(times) for name, times in found.items()}


def quartiles(values: Any) -> dict[str, float]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "q1": float(low), "q3": float(high)}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# The machine ----------------------------------------------------------------------------------------------------------


@contextmanager
def circumstances() -> Iterator[dict[str, Any]]:
    """Yield the facts of the machine that a result needs; they are complete when the block has ended."""
    import onnxruntime  # here, as PyTorch: both take seconds, and --help none
    import torch

    from edge_hpcr.bench.run import hardware, source

    packages = {each.__name__: each.__version__ for each in (torch, np, onnxruntime)}
    facts: dict[str, Any] = {
        "hardware": hardware(),
        **source(),
        "cores": os.cpu_count(),
        "versions": {"edge_hpcr": __version__, "python": platform.python_version(), **packages},
        "load_average": {"start": os.getloadavg()},  # other work makes times longer, and ratios less sure
    }
    yield facts
    facts["load_average"]["end"] = os.getloadavg()
    facts["finished"] = datetime.now(UTC).isoformat(timespec="seconds")


def described(result: Mapping[str, Any]) -> str:
    """The circumstances in words."""
    load, versions = result["load_average"], result["versions"]
    return (
        f"{result['hardware']}, torch {versions['torch']}, ONNX Runtime {versions['onnxruntime']}.\n"
        f"Load average {load['start'][0]:.1f} at the start, {load['end'][0]:.1f} at the end; times count only where nothing else ran."
    )


# Files --------------------------------------------------------------------------------------------------------------


def check_writable(out: Path) -> None:
    """Refuse a file that cannot be written before the measurement, not minutes later."""
    if out.suffix != ".json":
        raise UserError(f"--out {out}: name a .json file")
    make_writable(out.parent)


def keep(out: Path, result: Mapping[str, Any]) -> None:
    write_atomically(out, json.dumps(result, indent=1, allow_nan=False) + "\n")


def keep_with_page(out: Path, result: Mapping[str, Any], tables: list[str], command: str) -> None:
    """Keep a result, and its tables beside it and on the screen."""
    page, text = out.with_suffix(".md"), "\n\n".join([described(result), *tables])
    keep(out, result)
    write_atomically(page, f"Made by `{command}` from `{out.name}`.\n\n{text}\n")
    print(f"{text}\n\nkept in {out} and {page}")
