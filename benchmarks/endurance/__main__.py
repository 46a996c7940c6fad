"""`python -m benchmarks.endurance`: kills, answers while learning, hours of film, restarts; each against its bar."""

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
from typing import Annotated, Any

from tqdm import tqdm
from typer import Argument, Option

from benchmarks.output import check_writable, keep
from edge_hpcr.commands import cli
from edge_hpcr.common.errors import UserError, one_of

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    passed: bool
    said: list[str]  # what was measured, a line each
    facts: dict[str, Any]  # for JSON


@dataclass(frozen=True)
class Plan:
    """How much of it."""

    kills: int | None
    frames: int | None
    seed: int
    quick: bool


commands = cli.new_commands()


@commands.command()
def endure(
    part: Annotated[str, Argument(help="latency, restart, kills, soak or all")] = "all",
    kills: Annotated[int | None, Option(metavar="N", help="processes to kill", show_default="500")] = None,
    frames: Annotated[
        int | None, Option(metavar="N", help="of film to soak in", show_default="200000")
    ] = None,
    seed: Annotated[int, Option(metavar="K")] = 0,
    quick: Annotated[bool, Option("--quick", help="too little to trust, to see that it works")] = False,
    out: Annotated[Path, Option(metavar="FILE", help="where each part is kept beside the others")] = Path(
        "results/endurance.json"
    ),
) -> int:
    """Kill it, soak it and restart it: what a workspace must stand, each part against its bar. 1 when one is missed."""
    one_of("part", part, (*PARTS, "all"))
    kept = _read(out)
    missed = False
    for name in PARTS if part == "all" else [part]:
        outcome = _run(name, Plan(kills, frames, seed, quick))
        kept[name] = {**outcome.facts, "passed": outcome.passed, **_circumstances()}
        keep(out, kept)
        print(_table(name, outcome), flush=True)
        missed |= not outcome.passed
    print(f"kept in {out}")
    return 1 if missed else 0


def _run(name: str, plan: Plan) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"edge-hpcr-{name}-"))
    passed = False
    try:
        with _progress(name) as progress:
            outcome = PARTS[name](folder / "workspace", plan, progress)
        passed = outcome.passed
    finally:
        # What went wrong can be looked at; what went well, or never began, leaves nothing.
        if passed or not any(folder.iterdir()):
            shutil.rmtree(folder)
        else:
            print(f"the workspace of {name} is kept in {folder}", file=sys.stderr)
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
    check_writable(out)
    try:
        return dict(json.loads(out.read_text())) if out.exists() else {}
    except ValueError:
        raise UserError(f"{out} is no result of this command: move it away, or give another file") from None


# The parts. Each imports what it needs: PyTorch takes seconds, and --help none -----------------------------------------


def _latency(folder: Path, asked: Plan, progress: Progress) -> Outcome:
    from benchmarks.endurance import latency

    plan = latency.LatencyPlan(rounds=1, answers=6) if asked.quick else latency.LatencyPlan()
    report = latency.measure_latency(folder, plan, asked.seed, progress)
    said = [
        f"{kind:<11}p50 {times['p50']:.1f} ms, p95 {times['p95']:.1f} ms (n={times['n']:.0f})"
        + (f", p95 {report.ratios[kind]['p95']:.2f} times the idle one" if kind in report.ratios else "")
        for kind, times in report.milliseconds.items()
    ]
    return Outcome(report.passed, said, latency.as_json(report))


def _restart(folder: Path, asked: Plan, progress: Progress) -> Outcome:
    from benchmarks.endurance import restart

    plan = restart.RestartPlan(200, 100, 5, 1) if asked.quick else restart.RestartPlan()
    report = restart.measure_restart(folder, plan, asked.seed, progress)
    start = max(report.starts, key=lambda start: start["opening"])
    said = [
        f"{report.labels:,} labels, {report.memory_samples:,} samples in memory, {len(report.starts)} starts",
        f"slowest: opened and answered in {start['opening']:.2f} s; imports before that {start['imports']:.2f} s",
        f"replay of one checkpoint interval: {report.replay['labels']:.0f} labels, {report.replay['steps']:.0f} steps, "
        f"{report.replay['seconds']:.1f} s",
    ]
    return Outcome(report.passed, said, restart.as_json(report))


def _kills(folder: Path, asked: Plan, progress: Progress) -> Outcome:
    from benchmarks.endurance import kills

    count = (3 if asked.quick else 500) if asked.kills is None else asked.kills
    report = kills.run_kills(folder, count, asked.seed, progress)
    hit = ", ".join(f"{phase} {times}" for phase, times in report.phases.most_common())
    said = [
        f"{report.kills} kills in {report.seconds:.0f} s; {report.actions.total()} actions were acknowledged, "
        f"{report.labels} labels among them; {report.unacknowledged} were done and not told of",
        f"they hit: {hit}",
        f"{report.memories} memories were checked sample by sample; {report.problem_count} problems",
    ]
    return Outcome(report.passed, said, kills.as_json(report))


def _soak(folder: Path, asked: Plan, progress: Progress) -> Outcome:
    from benchmarks.endurance import soak

    count = (300 if asked.quick else 200_000) if asked.frames is None else asked.frames
    report = soak.run_soak(folder, count, asked.seed, progress)
    said = [
        f"{report.frames:,} frames at {report.frames / report.seconds:.0f}/s, learned at {report.image_size} pixels; "
        f"{report.labels:,} labels, {report.steps:,} steps",
        f"resident memory {report.level / 1e6:.0f} MB after the first tenth, {report.growth:+.2%} at its highest since",
        f"replay memory at most {report.largest_memory:,} of {soak.SETTINGS['memory_bytes']:,} bytes "
        f"({report.memory_looks:,} looks), queue {report.largest_queue}, disk {report.largest_disk:,} bytes",
    ]
    return Outcome(report.passed, said, soak.as_json(report))


PARTS: dict[str, Callable[[Path, Plan, Progress], Outcome]] = {
    "latency": _latency,
    "restart": _restart,
    "kills": _kills,
    "soak": _soak,
}

if __name__ == "__main__":
    sys.exit(cli.run(commands, "python -m benchmarks.endurance"))
