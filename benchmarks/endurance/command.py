"""`python -m edge_hpcr endure`: kills, answers while learning, hours of film, restarts; each against its bar."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import write_atomically

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    passed: bool
    said: list[str]  # what was measured, a line each
    facts: dict[str, Any]  # for JSON


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "endure",
        help="kill it, soak it and restart it, and see that it holds",
        description="Endurance: what a workspace must stand, each part against its bar. 1 is the answer when one is missed.",
    )
    parser.add_argument("part", nargs="?", default="all", metavar="PART", help=f"{', '.join(PARTS)} or all")
    parser.add_argument("--kills", type=int, metavar="N", help="processes to kill (default: 500)")
    parser.add_argument("--frames", type=int, metavar="N", help="of film to soak in (default: 200000)")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="too little to trust, to see that it works")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/endurance.json"),
        metavar="FILE",
        help="where each part is kept beside the others (default: %(default)s)",
    )
    parser.set_defaults(func=command)


def command(arguments: argparse.Namespace) -> int:
    if arguments.part not in (*PARTS, "all"):
        raise UserError(f"no part {arguments.part!r}: choose one of {', '.join(PARTS)}, or all")
    kept = _read(arguments.out)
    missed = False
    for name in PARTS if arguments.part == "all" else [arguments.part]:
        outcome = _run(name, arguments)
        kept[name] = {**outcome.facts, "passed": outcome.passed, **_circumstances()}
        _write(arguments.out, kept)
        print(_table(name, outcome), flush=True)
        missed |= not outcome.passed
    print(f"kept in {arguments.out}")
    return 1 if missed else 0


def _run(name: str, arguments: argparse.Namespace) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"edge-hpcr-{name}-"))
    passed = False
    try:
        with _progress(name) as progress:
            outcome = PARTS[name](folder / "workspace", arguments, progress)
        passed = outcome.passed
    finally:
        # What went wrong can be looked at; what went well, or never began, leaves nothing.
        if passed or not any(folder.iterdir()):
            shutil.rmtree(folder)
        else:
            print(f"edge_hpcr: the workspace of {name} is kept in {folder}", file=sys.stderr)
    return outcome


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    # In a log a line a minute, on a terminal a bar; both with the time that is left.
    on_terminal = sys.stderr.isatty()
    with tqdm(
        desc=name, leave=False, mininterval=0.2 if on_terminal else 60, dynamic_ncols=on_terminal
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def _circumstances() -> dict[str, Any]:
    from edge_hpcr.bench.run import versions

    cores = os.cpu_count() or 1
    return {
        "versions": versions(max(1, cores - 1), "cpu"),
        "cores": cores,
        "load_average": list(
            os.getloadavg()
        ),  # other work on the machine makes times longer, and ratios less sure
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _table(name: str, outcome: Outcome) -> str:
    verdict = "pass" if outcome.passed else "MISSED"
    problems = [f"problem: {problem}" for problem in outcome.facts.get("problems", [])]
    lines = [*outcome.said, *problems, f"bar: {outcome.facts['bar']}"]
    return "\n".join([f"{name:<9}{verdict}", *(f"  {line}" for line in lines)])


def _read(out: Path) -> dict[str, Any]:
    """What other parts left there, before hours are spent on this one."""
    if out.suffix != ".json":
        raise UserError(f"--out {out}: name a .json file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        kept = json.loads(out.read_text()) if out.exists() else {}
        _write(out, kept)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): give another file to --out") from None
    except ValueError:
        raise UserError(f"{out} is no result of this command: move it away, or give another file") from None
    return dict(kept)


def _write(out: Path, kept: dict[str, Any]) -> None:
    write_atomically(out, json.dumps(kept, indent=1, allow_nan=False) + "\n")


# The parts. Each imports what it needs: PyTorch takes seconds, and --help none -----------------------------------------


def _latency(folder: Path, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    from benchmarks.endurance import latency

    plan = latency.LatencyPlan(rounds=1, answers=6) if arguments.quick else latency.LatencyPlan()
    report = latency.measure_latency(folder, plan, arguments.seed, progress)
    said = [
        f"{kind:<11}p50 {times['p50']:.1f} ms, p95 {times['p95']:.1f} ms (n={times['n']:.0f})"
        + (f", p95 {report.ratios[kind]['p95']:.2f} times the idle one" if kind in report.ratios else "")
        for kind, times in report.milliseconds.items()
    ]
    return Outcome(report.passed, said, latency.as_json(report))


def _restart(folder: Path, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    from benchmarks.endurance import restart

    plan = restart.RestartPlan(200, 100, 5, 1) if arguments.quick else restart.RestartPlan()
    report = restart.measure_restart(folder, plan, arguments.seed, progress)
    start = max(report.starts, key=lambda start: start["opening"])
    said = [
        f"{report.labels:,} labels, {report.memory_samples:,} samples in memory, {len(report.starts)} starts",
        f"slowest: opened and answered in {start['opening']:.2f} s; imports before that {start['imports']:.2f} s",
        f"replay of one checkpoint interval: {report.replay['labels']:.0f} labels, {report.replay['steps']:.0f} steps, "
        f"{report.replay['seconds']:.1f} s",
    ]
    return Outcome(report.passed, said, restart.as_json(report))


def _kills(folder: Path, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    from benchmarks.endurance import kills

    count = (3 if arguments.quick else 500) if arguments.kills is None else arguments.kills
    report = kills.run_kills(folder, count, arguments.seed, progress)
    hit = ", ".join(f"{phase} {times}" for phase, times in report.phases.most_common())
    said = [
        f"{report.kills} kills in {report.seconds:.0f} s; {report.actions.total()} actions were acknowledged, "
        f"{report.labels} labels among them; {report.unacknowledged} were done and not told of",
        f"they hit: {hit}",
        f"{report.memories} memories were checked sample by sample; {report.problem_count} problems",
    ]
    return Outcome(report.passed, said, kills.as_json(report))


def _soak(folder: Path, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    from benchmarks.endurance import soak

    count = (300 if arguments.quick else 200_000) if arguments.frames is None else arguments.frames
    report = soak.run_soak(folder, count, arguments.seed, progress)
    said = [
        f"{report.frames:,} frames at {report.frames / report.seconds:.0f}/s, learned at {report.image_size} pixels; "
        f"{report.labels:,} labels, {report.steps:,} steps",
        f"resident memory {report.level / 1e6:.0f} MB after the first tenth, {report.growth:+.2%} at its highest since",
        f"replay memory at most {report.largest_memory:,} of {soak.SETTINGS['memory_bytes']:,} bytes "
        f"({report.memory_looks:,} looks), queue {report.largest_queue}, disk {report.largest_disk:,} bytes",
    ]
    return Outcome(report.passed, said, soak.as_json(report))


PARTS: dict[str, Callable[[Path, argparse.Namespace, Progress], Outcome]] = {
    "latency": _latency,
    "restart": _restart,
    "kills": _kills,
    "soak": _soak,
}
