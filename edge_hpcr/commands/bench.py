"""`python -m edge_hpcr bench`: from the command line to runs, one process per seed."""

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import report
from edge_hpcr.bench.local_runner import DONE, Event, run_here
from edge_hpcr.bench.run import Run, finished_result
from edge_hpcr.bench.run_config import DEFAULT_BUFFER, LEARNER_OPTIONS, RunConfig, make_config
from edge_hpcr.commands import analyse, teach
from edge_hpcr.commands.cli import (
    DatasetRoot,
    Device,
    Fresh,
    ResultFolder,
    Threads,
    examples,
    new_commands,
)
from edge_hpcr.commands.sweep import Start, make
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import parse_setting
from edge_hpcr.learner import backbones, methods
from edge_hpcr.learner.learner import LearnerConfig
from edge_hpcr.learner.memory import OPTIONS as MEMORY_OPTIONS
from edge_hpcr.learner.memory import MemoryConfig

EXAMPLES = """
examples:
  python -m edge_hpcr bench --dataset digits --method hpcr            the embedded data, in seconds
  python -m edge_hpcr bench --dataset cifar10 --buffer 200 --seeds 3  a cell of the paper's table
  python -m edge_hpcr bench --dataset cifar10 --method edge --budget 2593600
  python -m edge_hpcr bench --dataset cifar100 --backbone efficientnet_lite0 --method slda --budget 13.3MB
  python -m edge_hpcr bench --dataset cifar10 --buffer 200 --set schedule=cosine --set batch_norm=joint

A run that was stopped (Ctrl-C, a power cut) continues when the same command is given again.
"""
commands = new_commands()


def _settings_help() -> str:
    options = sorted({option for name in methods.names() for option in methods.method_class(name).options()})
    return f"any other setting; learner: {', '.join(LEARNER_OPTIONS + MEMORY_OPTIONS)}; methods: {', '.join(options)}"


@commands.callback(invoke_without_command=True, epilog=examples(EXAMPLES))
def bench(
    context: Context,
    dataset: Annotated[str | None, Option(metavar="NAME", help=", ".join(data.DATASETS))] = None,
    method: Annotated[
        str | None,
        Option(metavar="NAME", help=", ".join(methods.names()), show_default="hpcr"),
    ] = None,
    backbone: Annotated[
        str, Option(metavar="NAME", help=", ".join(backbones.names()))
    ] = LearnerConfig.backbone,
    image_size: Annotated[
        int | None,
        Option(min=1, metavar="N", help="pixels per side", show_default="the dataset's or backbone's"),
    ] = None,
    tasks: Annotated[
        int | None, Option(min=1, metavar="N", help="number of tasks", show_default="the paper's")
    ] = None,
    limit: Annotated[
        int | None, Option(min=1, metavar="N", help="train on at most N images per task")
    ] = None,
    validation: Annotated[
        bool, Option("--validation", help="test on a held-out tenth of the training set instead")
    ] = False,
    buffer: Annotated[
        int | None,
        Option(
            min=1, metavar="SAMPLES", help="memory, as a number of samples", show_default=str(DEFAULT_BUFFER)
        ),
    ] = None,
    budget: Annotated[
        str | None, Option(metavar="BYTES", help="memory, in bytes of all that is kept of samples, like 2MB")
    ] = None,
    codec: Annotated[
        str | None,
        Option(
            help="how samples are kept: raw, webp, jpeg, png; auto: what suits budget and image size; or latent with a pre-trained backbone",
            show_default="the method's, or latent",
        ),
    ] = None,
    quality: Annotated[
        int | None, Option(help="quality of webp and jpeg", show_default=str(MemoryConfig.quality))
    ] = None,
    seeds: Annotated[int | None, Option(min=1, metavar="N", help="run seeds 0 to N-1")] = None,
    seed: Annotated[
        int | None, Option(min=0, max=2**32 - 1, metavar="K", help="run one seed", show_default="0")
    ] = None,
    jobs: Annotated[
        int | None, Option(min=1, metavar="N", help="seeds run at a time", show_default="one per core")
    ] = None,
    threads: Threads = 1,
    device: Device = "auto",
    precision: Annotated[
        str,
        Option(
            help="precision of a training step: float32, bfloat16, or auto: bfloat16 where it is fast and as accurate"
        ),
    ] = LearnerConfig.compute,
    root: DatasetRoot = None,
    out: ResultFolder = Path("runs"),
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=_settings_help())] = None,
    fresh: Fresh = False,
) -> int:
    """Learn a dataset task by task in a single pass, and test after each task."""
    if context.invoked_subcommand:
        return 0
    runs = _runs(context.params)
    start: Start
    if len(runs) == 1:
        start = partial(_run_alone, out=out, root=root)
    else:
        start = partial(run_here, out=out, root=root, jobs=jobs)
    if code := make(runs, out, root, fresh, start):
        return code
    results = [result for run in runs if (result := finished_result(run, out)) is not None]
    print(report.table(results))
    return 0


commands.command(epilog=examples(teach.EXAMPLES))(teach.teach)
commands.command(epilog=examples(analyse.EXAMPLES))(analyse.analyse)


def _runs(options: Mapping[str, Any]) -> list[RunConfig]:
    given = dict(options)
    if given["seeds"] and given["seed"] is not None:
        raise UserError("--seeds and --seed exclude each other: leave one of them out")
    for text in given["settings"] or []:
        parse_setting(text)  # refuses what is no KEY=VALUE
    settings = dict(text.split("=", 1) for text in given["settings"] or [])
    seeds = range(given["seeds"]) if given["seeds"] else [given["seed"] or 0]
    for name in ("settings", "seeds", "seed", "jobs", "root", "out", "fresh"):
        del given[name]
    return [make_config(seed=seed, settings=settings, **given) for seed in seeds]


def _run_alone(runs: Sequence[RunConfig], out: Path, root: Path | None) -> Generator[Event]:
    """In this process, with its progress bar; what goes wrong is raised."""
    for run in runs:
        Run(run, out, root).run()
        yield Event(run, DONE)
