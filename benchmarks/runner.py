"""What all measurements share: clocks, turns, facts of the machine, tables, and the files that keep the result."""

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tabulate import tabulate
from tqdm import tqdm
from typer import Option

from edge_hpcr import __version__
from edge_hpcr.commands.cli import make_writable
from edge_hpcr.common.errors import UserError, one_of
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

    from edge_hpcr.bench.run import hardware

    packages = {each.__name__: each.__version__ for each in (torch, np, onnxruntime)}
    facts: dict[str, Any] = {
        "hardware": hardware(),
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


# Files and tables -----------------------------------------------------------------------------------------------------


def check_writable(out: Path) -> None:
    """Refuse a file that cannot be written before the measurement, not minutes later."""
    if out.suffix != ".json":
        raise UserError(f"--out {out}: name a .json file")
    make_writable(out.parent)


def run_parts(part: str, measures: Mapping[str, Callable[[Path], Facts]], out: Path) -> int:
    """Run one measurement or all; keep each beside the others in `out`. Returns 1 when one misses its bar.

    The facts of a measurement say whether it `passed`; its `said` is only printed.
    """
    one_of("part", part, (*measures, "all"))
    check_writable(out)
    try:
        kept = dict(json.loads(out.read_text())) if out.exists() else {}
    except ValueError:
        raise UserError(f"{out} is no result of this command: move it away, or give another file") from None
    names = list(measures) if part == "all" else [part]
    for name in names:
        folder, passed = Path(tempfile.mkdtemp(prefix=f"edge-hpcr-{name}-")), False
        try:
            with circumstances() as machine:
                facts = measures[name](folder)
            passed = facts["passed"]
        finally:
            # What went wrong can be looked at; what went well, or never began, leaves nothing.
            if passed or not any(folder.iterdir()):
                shutil.rmtree(folder)
            else:
                print(f"the files of {name} are kept in {folder}", file=sys.stderr)
        said = facts.pop("said", None) or [json.dumps(facts)]
        kept[name] = {**facts, **machine}
        keep(out, kept)
        print("\n  ".join([f"{name:<8} {'pass' if passed else 'MISSED'}", *said]), flush=True)
    print(f"kept in {out}")
    return 0 if all(kept[name]["passed"] for name in names) else 1


def keep(out: Path, result: Mapping[str, Any]) -> None:
    write_atomically(out, json.dumps(result, indent=1, allow_nan=False) + "\n")


def keep_with_page(out: Path, result: Mapping[str, Any], tables: list[str], command: str) -> None:
    """Keep a result, and its tables beside it and on the screen."""
    page, text = out.with_suffix(".md"), "\n\n".join([described(result), *tables])
    keep(out, result)
    write_atomically(page, f"Made by `{command}` from `{out.name}`.\n\n{text}\n")
    print(f"{text}\n\nkept in {out} and {page}")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown: the first column to the left, numbers to the right."""
    sides = ["left", *["right"] * (len(header) - 1)]
    return tabulate(rows, header, tablefmt="pipe", colalign=sides, disable_numparse=True)
