"""`python -m edge_hpcr bench`: from the command line to runs, one process per seed."""

import hashlib
import os
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer import Context, Option

from edge_hpcr.bench import datasets as data
from edge_hpcr.bench import presets, report
from edge_hpcr.bench.local_runner import (
    DONE,
    HELD,
    INTERRUPTED,
    WRONG_INPUT,
    LocalRunner,
    outcome,
)
from edge_hpcr.bench.run import (
    Run,
    RunConfig,
    finished_result,
    forget,
    interrupt,
    make_config,
    on_stop_signal,
    papers_options,
)
from edge_hpcr.commands import analyse, teach
from edge_hpcr.commands.cli import (
    DatasetRoot,
    Device,
    Fresh,
    ResultFolder,
    Threads,
    at_most_one,
    continues,
    examples,
    make_writable,
    new_commands,
    refusal,
)
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import parse_bytes, parse_setting
from edge_hpcr.learner import backbones, methods
from edge_hpcr.learner.augment import strength
from edge_hpcr.learner.config import memory_options
from edge_hpcr.learner.learner import LearnerConfig, resolve_device
from edge_hpcr.learner.memory_config import AUTO, MemoryConfig
from edge_hpcr.learner.memory_config import OPTIONS as MEMORY_OPTIONS
from edge_hpcr.learner.precision import resolve_precision

EXAMPLES = """
examples:
  python -m edge_hpcr bench --dataset digits --method hpcr            the embedded data, in seconds
  python -m edge_hpcr bench --preset paper/cifar10-200 --seeds 3      a cell of the paper's table
  python -m edge_hpcr bench --dataset cifar10 --budget 2.59MB --codec webp
  python -m edge_hpcr bench --dataset cifar100 --backbone efficientnet_lite0 --method slda --budget 13.3MB
  python -m edge_hpcr bench --preset edge/cifar10-200                 our own method, in the bytes of the paper's cell
  python -m edge_hpcr bench --dataset cifar10 --buffer 200 --set schedule=cosine --set batch_norm=joint

A run that was stopped (Ctrl-C, a power cut) continues when the same command is given again.
"""
DEFAULT_BUFFER = 200
LONGEST_LABEL = 80  # file systems allow 255 bytes a name
_LEARNER_OPTIONS = (
    *("views", "plain", "strong_below", "augment", "stored_views", "as_kept", "replay", "nf", "tau"),
    *("optimiser", "lr", "proxy_lr", "lr_decay", "imprint", "batch_norm", "ema_decay"),
)


commands = new_commands()


def _settings_help() -> str:
    options = sorted({option for name in methods.names() for option in methods.method_class(name).options()})
    return f"any other setting; learner: {', '.join(_LEARNER_OPTIONS + MEMORY_OPTIONS)}; methods: {', '.join(options)}"


@commands.callback(invoke_without_command=True, epilog=examples(EXAMPLES))
def bench(
    context: Context,
    preset: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="of the paper, e.g. paper/cifar10-200, or our method in the same bytes, e.g. edge/cifar10-200",
        ),
    ] = None,
    dataset: Annotated[str | None, Option(metavar="NAME", help=", ".join(data.DATASETS))] = None,
    method: Annotated[
        str | None,
        Option(metavar="NAME", help=", ".join(methods.names()), show_default="hpcr, or the preset's"),
    ] = None,
    backbone: Annotated[
        str, Option(metavar="NAME", help=f"{', '.join(backbones.names())}, or timm:NAME with --weights")
    ] = LearnerConfig.backbone,
    weights: Annotated[Path | None, Option(metavar="FILE", help="of a backbone that brings none")] = None,
    image_size: Annotated[
        int | None,
        Option(min=1, metavar="N", help="images are resized to", show_default="the dataset's or backbone's"),
    ] = None,
    tasks: Annotated[
        int | None, Option(min=1, metavar="N", help="of the split", show_default="the paper's")
    ] = None,
    stream: Annotated[
        str,
        Option(
            help="split: task by task; longtail: the same, with up to 100 times as many images of one class as of another; "
            "blurry: no tasks, classes overlap, come back and are imbalanced"
        ),
    ] = "split",
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
        str | None, Option(metavar="BYTES", help="memory, as all bytes that are kept of samples, like 2MB")
    ] = None,
    codec: Annotated[
        str | None,
        Option(
            help="how samples are kept: raw, webp, jpeg, png; auto: what suits budget and image size; or latent with a pre-trained backbone",
            show_default="the method's, or latent",
        ),
    ] = None,
    quality: Annotated[
        int | None, Option(help="of webp and jpeg", show_default=str(MemoryConfig.quality))
    ] = None,
    seeds: Annotated[int | None, Option(min=1, metavar="N", help="run seeds 0 to N-1")] = None,
    seed: Annotated[
        int | None, Option(min=0, max=2**32 - 1, metavar="K", help="run one seed", show_default="0")
    ] = None,
    jobs: Annotated[
        int | None, Option(min=1, metavar="N", help="seeds at a time", show_default="one per core")
    ] = None,
    threads: Threads = 1,
    device: Device = "auto",
    precision: Annotated[
        str,
        Option(
            help="of a training step: float32, bfloat16, or auto: bfloat16 where it is fast and as accurate"
        ),
    ] = LearnerConfig.compute,
    root: DatasetRoot = None,
    out: ResultFolder = Path("runs"),
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=_settings_help())] = None,
    fresh: Fresh = False,
) -> int:
    """Learn a dataset task by task in a single pass, and test after each task."""
    if context.invoked_subcommand:
        _refuse_options(context)
        return 0
    runs = _configure(SimpleNamespace(**context.params))
    make_writable(out)
    data.load(runs[0].dataset, root)  # missing or damaged data: say so once, not once a process
    for run in runs if fresh else []:
        forget(run, out)
    waiting = [run for run in runs if finished_result(run, out) is None]
    for run in runs:
        if run not in waiting:
            print(
                f"{run.name}: finished earlier, in {out / run.name}.json (--fresh runs it again)",
                file=sys.stderr,
            )
    at_a_time = jobs or max(1, (os.cpu_count() or 1) // threads)
    with on_stop_signal(interrupt):
        code = _run_all(waiting, out, root, at_a_time)
    if code in (WRONG_INPUT, HELD):
        return 2
    if code != DONE:
        how = "stopped and saved" if code == INTERRUPTED else "a run died"
        print(f"{how}; {continues(fresh)}", file=sys.stderr)
        return 1
    results = [result for run in runs if (result := finished_result(run, out)) is not None]
    print(report.table(results))
    return 0


commands.command(epilog=examples(teach.EXAMPLES))(teach.teach)
commands.command(epilog=examples(analyse.EXAMPLES))(analyse.analyse)


def _refuse_options(context: Context) -> None:
    """Options before the sub-command would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            name = context.invoked_subcommand
            raise UserError(f"{parameter.opts[0]} is an option of `bench`: give those of `{name}` after it")


def configure(options: list[str]) -> list[RunConfig]:
    """The runs that these options of the command ask for, one per seed."""
    try:
        with typer.main.get_command(commands).make_context("bench", list(map(str, options))) as context:
            return _configure(SimpleNamespace(**context.params))
    except typer.TyperException as error:
        raise UserError(refusal(error)) from None


def _configure(arguments: SimpleNamespace) -> list[RunConfig]:
    at_most_one(buffer=arguments.buffer, budget=arguments.budget)
    at_most_one(seeds=arguments.seeds, seed=arguments.seed)
    setting = presets.preset(arguments.preset) if arguments.preset else None
    dataset = arguments.dataset or (setting.dataset if setting else None)
    if dataset is None:
        raise UserError(
            f"name a dataset (--dataset {'|'.join(data.DATASETS)}) or a preset (--preset {next(iter(presets.PRESETS))})"
        )
    if setting and dataset != setting.dataset:
        raise UserError(f"--dataset {dataset} contradicts --preset {arguments.preset}: leave one of them out")
    data.registry.info(dataset)
    method = arguments.method or (setting.method if setting else presets.Setting.method)
    kind = methods.method_class(method)
    method_fields = kind.options()
    method_options = papers_options(dataset, method, arguments.backbone)
    learner_options: dict[str, Any] = dict(setting.learner_options) if setting else {}
    if arguments.image_size is not None:
        learner_options |= {"height": arguments.image_size, "width": arguments.image_size}
    if arguments.weights is not None:
        learner_options["weights"] = str(arguments.weights)
    # Resolved here: a run that is to be found again by its settings says what it computes in.
    precision = arguments.precision
    if precision == "auto":
        precision = resolve_precision(precision, resolve_device(arguments.device))
    learner_options["compute"] = precision
    keeping = _memory_options(arguments, method)
    for key, value in map(parse_setting, arguments.settings or []):
        if key in method_fields:
            method_options[key] = value
        elif key in _LEARNER_OPTIONS:
            learner_options[key] = strength(value) if key == "augment" else value
        elif key in MEMORY_OPTIONS:
            keeping[key] = value
        else:
            known = sorted({*method_fields, *_LEARNER_OPTIONS, *MEMORY_OPTIONS})
            raise UserError(f"--set {key}: {method} has no such setting; it has {', '.join(known)}")
    for options, config in (
        (method_options, kind.Config),
        (learner_options, LearnerConfig),
        (keeping, MemoryConfig),
    ):
        _check_types(options, config)
    memory = MemoryConfig(**_memory_size(arguments, setting), **keeping)
    labels = [text.replace("/", "_") for text in sorted(arguments.settings or [])]
    if arguments.image_size is not None:
        labels.insert(0, f"{arguments.image_size}px")
    if setting and setting.learner_options:
        labels.insert(0, arguments.preset.split("/")[0].removeprefix("paper-"))
    label = "-".join(labels)
    if len(label) > LONGEST_LABEL:
        label = f"{label[:LONGEST_LABEL]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    seeds = range(arguments.seeds) if arguments.seeds else [arguments.seed or 0]
    return [
        make_config(
            dataset,
            method,
            seed,
            memory,
            arguments.tasks,
            method_options,
            learner_options,
            arguments.backbone,
            limit=arguments.limit,
            validation=arguments.validation,
            threads=arguments.threads,
            device=arguments.device,
            label=label,
            stream=arguments.stream,
        )
        for seed in seeds
    ]


def _memory_options(arguments: SimpleNamespace, method: str) -> dict[str, Any]:
    """How samples are kept: as suits backbone and method, with what the command says."""
    options = memory_options(arguments.backbone, method)
    if arguments.codec is not None:
        options["codec"] = arguments.codec
    if arguments.quality is not None:
        options["quality"] = arguments.quality
        if options.get("codec") == AUTO:
            options["codec"] = "webp"
    return options


def _memory_size(arguments: SimpleNamespace, setting: presets.Setting | None) -> dict[str, Any]:
    if arguments.budget is not None:
        return {"bytes": parse_bytes(arguments.budget)}
    if arguments.buffer is None and setting and setting.budget is not None:
        return {"bytes": setting.budget}
    return {"samples": arguments.buffer or (setting.buffer if setting else None) or DEFAULT_BUFFER}


def _check_types(options: dict[str, Any], config: type) -> None:
    """Each option is of its field's type."""
    declared, types = {field.name: field for field in fields(config)}, get_type_hints(config)
    for key, value in options.items():
        kinds = get_args(types[key]) or (types[key],)
        fits = isinstance(value, (*kinds, int) if float in kinds else kinds)
        if not fits or (isinstance(value, bool) and bool not in kinds):
            named, default = " or ".join(kind.__name__ for kind in kinds), declared[key].default
            raise UserError(f"--set {key}={value}: {key} is a {named}, like {default}")


def _run_all(runs: list[RunConfig], out: Path, root: Path | None, jobs: int) -> int:
    """DONE, or the code of the first run that did not come to its end."""
    if len(runs) <= 1 or jobs == 1:
        for run in runs:
            code, cause = outcome(Run(run, out, root).run)
            if cause:
                print(f"edge_hpcr: {cause}", file=sys.stderr)
            if code != DONE:
                return code
        return DONE
    waiting, failed = list(runs), DONE
    try:
        with LocalRunner(out, root, jobs) as runner:
            while runner.running or (waiting and failed == DONE):
                while waiting and runner.has_room and failed == DONE:
                    runner.start(waiting.pop(0))
                for ended in runner.wait():
                    failed = failed or ended.code
                    if ended.cause:
                        print(f"edge_hpcr: {ended.cause}", file=sys.stderr)
    except KeyboardInterrupt:
        return INTERRUPTED
    return failed
