"""`python -m edge_hpcr bench teach`: from the command line to lessons, one after the other."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm
from typer import Option

from edge_hpcr.bench import inputs as sources
from edge_hpcr.bench.inputs import Pictures
from edge_hpcr.bench.run import finished_result
from edge_hpcr.bench.teach import CONTESTANTS, FROM_SCRATCH, TeachConfig, label_counts, run, table
from edge_hpcr.commands.cli import DatasetRoot, Device, Fresh, ResultFolder, Threads, make_writable
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.units import parse_setting
from edge_hpcr.learner.learner import LearnerConfig
from edge_hpcr.live.live_learner import learner_config
from edge_hpcr.workspace.settings import Settings

EXAMPLES = """
examples:
  python -m edge_hpcr bench teach --source photographs               a folder with one sub-folder per class
  python -m edge_hpcr bench teach --dataset cifar100 --classes 10    ten classes per draw, pictures of the test set
  python -m edge_hpcr bench teach --dataset digits --methods ours,scratch --draws 3 --labels 1,5

Runs that have finished are not run again: a command that was stopped continues when it is given again. `report` draws a
plot of them.
"""


def teach(
    source: Annotated[
        Path | None, Option(metavar="FOLDER", help="pictures, in one sub-folder per class")
    ] = None,
    dataset: Annotated[
        str | None, Option(metavar="NAME", help=f"or a dataset's test pictures: {', '.join(sources.NAMES)}")
    ] = None,
    validation: Annotated[
        bool, Option("--validation", help="the dataset's training pictures instead, to choose settings on")
    ] = False,
    classes: Annotated[
        int | None, Option(min=2, metavar="N", help="classes per draw", show_default="all, at most 10")
    ] = None,
    draws: Annotated[int, Option(min=1, metavar="N", help="draws of classes and pictures")] = 10,
    labels: Annotated[str, Option(metavar="N,N,…", help="labels per class")] = "1,2,5,10,20,50",
    contestants: Annotated[str, Option("--methods", metavar="NAME,…", help="the contestants")] = ",".join(
        CONTESTANTS
    ),
    test: Annotated[int, Option(min=1, metavar="N", help="test pictures per class, at most")] = 50,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, metavar="K", help="seed of the draws")] = 0,
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
    """Teach a new workspace's learner and its rivals the same pictures, and test after each number of labels per class."""
    if (source is None) == (dataset is None):
        raise UserError(
            f"name a folder of pictures (--source FOLDER) or a dataset (--dataset {'|'.join(sources.NAMES)})"
        )
    if validation and dataset is None:
        raise UserError("--validation goes with --dataset: a folder has no training pictures of its own")
    names = list(dict.fromkeys(part.strip() for part in contestants.split(",")))
    for name in names:
        one_of("method", name, CONTESTANTS)
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", labels):
        raise UserError(f"--labels {labels!r}: write numbers of labels between commas, like 1,2,5")
    chosen = Settings.of_new_workspace().replace(**dict(map(parse_setting, settings or [])))
    make_writable(out)
    if source is not None:
        pictures = sources.of_folder(source, seed)
    else:
        pictures = sources.of_dataset(str(dataset), root, validation)
    known = len(pictures.class_names)
    if classes is not None and classes > known:
        raise UserError(f"--classes {classes}: {pictures.name} has {known} classes")
    counts = label_counts(map(int, labels.split(",")), pictures)
    differs = [
        *(["validation"] if validation else []),
        *(text.replace("/", "_") for text in sorted(settings or [])),
    ]
    runs = [
        TeachConfig(
            source=pictures.name,
            pictures=pictures.identity,
            contestant=contestant,
            draw=draw,
            seed=seed,
            classes=classes or min(known, 10),
            labels=counts,
            test=test,
            steps=chosen.idle_steps,
            averaged=chosen.averaged,
            learner=replace(_learner(contestant, chosen), seed=draw),
            threads=threads,
            device=device,
            label="-".join(differs),
        )
        for draw in range(draws)
        for contestant in names
    ]
    print(table(_run_all(runs, pictures, out, fresh)))
    return 0


def _learner(contestant: str, settings: Settings) -> LearnerConfig:
    """The learner of a new workspace, with a rival's method, or as the paper has it."""
    if contestant in FROM_SCRATCH:
        settings = settings.replace(
            backbone=LearnerConfig.backbone,
            image_size=LearnerConfig.height,
            method=FROM_SCRATCH[contestant],
        )
    elif contestant != "ours":
        settings = settings.replace(method=settings.method if contestant == "dense" else contestant)
    return learner_config(settings)


def _run_all(runs: list[TeachConfig], pictures: Pictures, out: Path, fresh: bool) -> list[dict[str, Any]]:
    results = []
    for config in tqdm(runs, unit="run", disable=None, dynamic_ncols=True):
        if fresh:
            (out / f"{config.name}.json").unlink(missing_ok=True)
        earlier = finished_result(config, out)
        result = earlier or run(config, pictures, out)
        results.append(result)
        said = "finished earlier" if earlier else f"{result['seconds']:.0f} s"
        reached = ", ".join(f"{k}: {100 * share:.1f} %" for k, share in result["accuracy"].items())
        tqdm.write(f"{len(results)} of {len(runs)} {config.name} ({said}): {reached}", sys.stderr)
    return results
