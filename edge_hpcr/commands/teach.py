"""`python -m edge_hpcr bench teach`: from the command line to lessons, one after the other."""

import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm
from typer import Option

from edge_hpcr.bench import pictures as sources
from edge_hpcr.bench import teach_report
from edge_hpcr.bench.pictures import Pictures
from edge_hpcr.bench.run import finished_result
from edge_hpcr.bench.teach import CONTESTANTS, FROM_SCRATCH, ORDERS, TeachConfig, label_counts, run
from edge_hpcr.commands.cli import (
    DatasetRoot,
    Device,
    Fresh,
    ResultFolder,
    Threads,
    at_most_one,
    make_writable,
)
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import disk_errors
from edge_hpcr.common.units import parse_setting
from edge_hpcr.learner import backbones
from edge_hpcr.learner.learner import LearnerConfig
from edge_hpcr.live.live_learner import learner_config
from edge_hpcr.workspace.settings import Settings

EXAMPLES = """
examples:
  python -m edge_hpcr bench teach --source photographs               a folder with a sub-folder for each class
  python -m edge_hpcr bench teach --dataset cifar100 --classes 10    ten classes a draw, pictures of the test set
  python -m edge_hpcr bench teach --dataset digits --methods ours,scratch --draws 3 --labels 1,5 --steps 50

Runs that have finished are not run again: a command that was stopped continues when it is given again.
"""


def teach(
    source: Annotated[
        Path | None, Option(metavar="FOLDER", help="pictures, in a sub-folder for each class")
    ] = None,
    dataset: Annotated[
        str | None, Option(metavar="NAME", help=f"or a dataset's test pictures: {', '.join(sources.NAMES)}")
    ] = None,
    validation: Annotated[
        bool, Option("--validation", help="the dataset's training pictures instead, to choose settings on")
    ] = False,
    classes: Annotated[
        int | None, Option(min=2, metavar="N", help="classes a draw", show_default="all, at most 10")
    ] = None,
    draws: Annotated[int, Option(min=1, metavar="N", help="of classes and pictures")] = 10,
    labels: Annotated[str, Option(metavar="N,N,…", help="labels a class")] = "1,2,5,10,20,50",
    contestants: Annotated[str, Option("--methods", metavar="NAME,…", help="who is taught")] = ",".join(
        CONTESTANTS
    ),
    order: Annotated[str, Option(metavar="NAME,…", help=f"of the labels: {', '.join(ORDERS)}")] = ORDERS[0],
    steps: Annotated[
        int | None,
        Option(
            min=0,
            metavar="N",
            help="of rehearsal after the labels",
            show_default="the workspace's idle_steps",
        ),
    ] = None,
    test: Annotated[int, Option(min=1, metavar="N", help="test pictures a class, at most")] = 50,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, metavar="K", help="of the draws")] = 0,
    threads: Threads = 1,
    device: Device = "auto",
    root: DatasetRoot = None,
    out: ResultFolder = Path("runs"),
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="a setting of the workspace (docs/settings.md)"),
    ] = None,
    fresh: Fresh = False,
) -> int:
    """Teach a new workspace's learner and its rivals the same pictures, and test after each number of labels a class."""
    at_most_one(source=source, dataset=dataset)
    names, orders = _listed("method", contestants, CONTESTANTS), _listed("order", order, ORDERS)
    wanted = _counts(labels)
    chosen = Settings().replace(**dict(map(parse_setting, settings or [])))
    if validation and dataset is None:
        raise UserError("--validation goes with --dataset: a folder has no training pictures of its own")
    make_writable(out)
    pictures = _pictures(source, dataset, root, validation, seed)
    known = len(pictures.class_names)
    if classes is not None and classes > known:
        raise UserError(f"--classes {classes}: {pictures.name} has {known} classes")
    counts = _possible(wanted, pictures)
    label = _label(validation, steps, settings or [])
    runs = [
        TeachConfig(
            source=pictures.name,
            pictures=pictures.identity,
            contestant=contestant,
            order=one,
            draw=draw,
            seed=seed,
            classes=classes or min(known, 10),
            labels=counts,
            test=test,
            steps=chosen.idle_steps if steps is None else steps,
            averaged=chosen.averaged,
            learner=replace(_learner(contestant, chosen), seed=draw),
            threads=threads,
            device=device,
            label=label,
        )
        for draw in range(draws)
        for one in orders
        for contestant in names
    ]
    results = _run_all(runs, pictures, out, fresh)
    print(teach_report.table(results))
    _draw(results, out / "plots")
    return 0


def _label(validation: bool, steps: int | None, settings: list[str]) -> str:
    """What sets runs apart from plain ones, for their names."""
    differs = [
        *(["validation"] if validation else []),
        *([] if steps is None else [f"steps{steps}"]),
        *(text.replace("/", "_") for text in sorted(settings)),
    ]
    return "-".join(differs)


def _draw(results: list[dict[str, Any]], folder: Path) -> None:
    from edge_hpcr.bench import plots  # here, because matplotlib takes a second

    with disk_errors(f"cannot write plots to {folder}"):
        folder.mkdir(exist_ok=True)
        for _, _, path in plots.draw_lessons(teach_report.group(results), folder):
            print(f"plot: {path}", file=sys.stderr)


def _listed(what: str, text: str, known: Collection[str]) -> list[str]:
    """Names between commas, each once."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        one_of(what, name, known)
    if not names:
        raise UserError(f"name at least one {what}: {', '.join(known)}")
    return names


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UserError(f"--labels {text!r}: write numbers of labels between commas, like 1,2,5")
    return counts


def _pictures(
    source: Path | None, dataset: str | None, root: Path | None, validation: bool, seed: int
) -> Pictures:
    if source is not None:
        return sources.of_folder(source, seed)
    if dataset is not None:
        return sources.of_dataset(dataset, root, validation)
    raise UserError(
        f"name a folder of pictures (--source FOLDER) or a dataset (--dataset {'|'.join(sources.NAMES)})"
    )


def _possible(wanted: list[int], pictures: Pictures) -> tuple[int, ...]:
    """The label counts that the source allows; the others are named."""
    counts = label_counts(wanted, pictures)
    name, size = pictures.smallest_class
    few = f"class {name} of {pictures.name} has {size} pictures, some of which must be left to test on"
    if not counts:
        raise UserError(f"--labels {min(wanted)}: {few}; give fewer labels, or more pictures")
    if left_out := sorted(set(wanted) - set(counts)):
        print(f"left out: {', '.join(map(str, left_out))} labels a class: {few}", file=sys.stderr)
    return counts


def _learner(contestant: str, settings: Settings) -> LearnerConfig:
    """The learner of a new workspace, with a rival's method, or as the paper has it."""
    if contestant in FROM_SCRATCH:
        settings = settings.replace(
            backbone=LearnerConfig.backbone,
            weights="",
            image_size=LearnerConfig.height,
            method=FROM_SCRATCH[contestant],
        )
    elif contestant != "ours":
        # The last features alone, as they are published: a rival on our latents would be another product of ours.
        pooled = f"{settings.backbone}_pooled"
        method = settings.method if contestant == "dense" else contestant
        known = pooled in backbones.names()
        settings = settings.replace(method=method, backbone=pooled if known else settings.backbone)
    return learner_config(settings)


def _run_all(runs: list[TeachConfig], pictures: Pictures, out: Path, fresh: bool) -> list[dict[str, Any]]:
    results = []
    with tqdm(runs, unit="run", disable=None, dynamic_ncols=True) as bar:
        for number, config in enumerate(bar, 1):
            if fresh:
                (out / f"{config.name}.json").unlink(missing_ok=True)
            bar.set_description(config.name)
            result = finished_result(config, out)
            said = "finished earlier"
            if result is None:
                result = run(config, pictures, out)
                said = f"{result['seconds']:.0f} s"
            results.append(result)
            if bar.disable:
                reached = ", ".join(f"{k}: {100 * share:.1f} %" for k, share in result["accuracy"].items())
                print(
                    f"{number} of {len(runs)} {config.name} ({said}): {reached}", file=sys.stderr, flush=True
                )
    return results
