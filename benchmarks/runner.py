"""What all measurements share: clocks, turns, facts of the machine, tables, and the files that keep the result."""

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tabulate import tabulate
from tqdm import tqdm

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import write_atomically

ROOT = Path(__file__).parent.parent
CLOCKS = ("wall", "processor")
Facts = dict[str, Any]
QUICK_HELP = "too little to trust, to see that it works"

# Time -----------------------------------------------------------------------------------------------------------------


def seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """How long a call takes on the wall's clock, and on the processor's."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def in_turns(
    contestants: Mapping[str, Callable[[], Any]],
    rounds: int,
    calls: Mapping[str, int],
    best: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Seconds of one call by contestant, [rounds, clocks]: the median of its calls in a round, of those in `best` the least.

    They take turns within a round, so that other work on the machine hits all of them alike: take ratios within a round.
    """
    names = list(contestants)
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for number in tqdm(range(rounds), "rounds", disable=None, leave=False):
        first = number % len(names)  # so that one does not always find the caches that the same other left
        for name in names[first:] + names[:first]:
            contestants[name]()  # its weights are in the caches again, as where nothing else runs
            times = [seconds(contestants[name]) for _ in range(calls[name])]
            found[name].append((np.min if name in best else np.median)(times, axis=0))
    return {name: np.array(times) for name, times in found.items()}


def quartiles(values: Any) -> dict[str, float]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": float(middle), "q1": float(low), "q3": float(high)}


def by_clock(values: np.ndarray) -> dict[str, dict[str, float]]:
    """Quartiles of [rounds, clocks] for each clock."""
    return {clock: quartiles(values[:, place]) for place, clock in enumerate(CLOCKS)}


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
    stolen = _stolen_seconds()
    yield facts
    facts["load_average"]["end"] = os.getloadavg()
    facts["stolen_seconds"] = round(_stolen_seconds() - stolen, 2)
    facts["finished"] = datetime.now(UTC).isoformat(timespec="seconds")


def _stolen_seconds() -> float:
    """Seconds since the start that the host gave to other virtual machines; 0 where that is unknown."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def described(result: Mapping[str, Any]) -> str:
    """The circumstances in words."""
    load, versions = result["load_average"], result["versions"]
    return (
        f"{result['hardware']}, torch {versions['torch']}, ONNX Runtime {versions['onnxruntime']}.\n"
        f"Load average {load['start'][0]:.1f} at the start, {load['end'][0]:.1f} at the end (wall times count only where "
        f"nothing else ran); other machines on its host took {result['stolen_seconds']:.1f} s of its processors."
    )


# Files and tables -----------------------------------------------------------------------------------------------------


def check_writable(out: Path) -> None:
    """Refuse a file that cannot be written before the measurement, not minutes later."""
    if out.suffix != ".json":
        raise UserError(f"--out {out}: name a .json file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
        if out.is_dir():
            raise IsADirectoryError(None, "it is a folder")
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): give another file to --out") from None


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
