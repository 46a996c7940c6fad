"""What a sweep runs, as a small YAML file says it.

    datasets: [cifar10]
    methods: [hpcr, pcr, er]    # or paper: every method of the paper's table
    buffers: [100, 200]         # or budgets: [2.59MB]; or datasets: {cifar10: [100, 200], cifar100: 1000}
    seeds: 3                    # 0, 1 and 2; or a list
    limit: 500                  # optional, like any other of the `Choices` of a run
    set: {schedule: cosine}     # optional, as `bench --set`
    variants: [{}, {lr: 0.05}]  # optional: every run once with each of these, too

Every value is taken as the text that stands in the file, so that it is read as `bench` reads its own options: YAML would
make 1e-3 a text and `no` a false.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from edge_hpcr.bench import report
from edge_hpcr.bench.run_config import RunConfig, has_budget, make_config
from edge_hpcr.common.errors import UserError, first_of
from edge_hpcr.common.files import read_regular
from edge_hpcr.learner import methods

PAPER = "paper"  # for the methods of the paper's table
LARGEST_FILE = 10**6
MOST_SEEDS = 1000
OF_THE_MEMORY = ("codec", "quality")  # what variants may differ in, beside settings


def _listed(value: Any) -> Any:
    """A single value may stand for a list of one."""
    return value if isinstance(value, list) else [value]


def _counted(value: Any) -> Any:
    """A number of seeds stands for so many from 0 on."""
    return list(range(min(int(value), MOST_SEEDS))) if isinstance(value, str) else value


Many = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1), BeforeValidator(_listed)]


class SweepFile(BaseModel, extra="allow"):
    """The fields of a file. Those that are not named here are choices of every run, as `bench` has them."""

    datasets: Many | dict[str, Many]  # a mapping gives the buffers of each
    methods: Many
    buffers: Many = []
    budgets: Many = []
    seeds: Annotated[list[int], Field(min_length=1), BeforeValidator(_counted)]
    settings: dict[str, str] = Field({}, alias="set")
    variants: Annotated[list[dict[str, str]], Field(min_length=1)] = [{}]

    def runs(self) -> Iterator[RunConfig]:
        """The product of the lists, seed by seed; a method without a memory has one run for all sizes of memory."""
        papers = [name for name in methods.names() if report.is_in_papers_table(name)]
        known = [name for each in self.methods for name in (papers if each == PAPER else [each])]
        shared = [{"buffer": size} for size in self.buffers] + [{"budget": size} for size in self.budgets]
        if isinstance(self.datasets, dict):
            sizes = {name: [{"buffer": size} for size in own] for name, own in self.datasets.items()}
        else:
            sizes = dict.fromkeys(self.datasets, shared or [{}])
        for seed, (dataset, own) in product(self.seeds, sizes.items()):
            for method, size, variant in product(known, own, self.variants):
                settings = self.settings | variant
                choices: dict[str, Any] = dict(self.model_extra or {})
                choices |= {name: settings.pop(name) for name in OF_THE_MEMORY if name in settings}
                choices |= size if has_budget(method) else {}
                yield make_config(dataset, method, seed, settings=settings, **choices)


def read(path: Path) -> list[RunConfig]:
    """The runs that a file asks for, each once."""
    try:
        asked = yaml.load(read_regular(path, LARGEST_FILE, lambda reason: UserError(reason)), yaml.BaseLoader)
        if not isinstance(asked, dict):
            raise UserError("not a sweep; write lines like `datasets: [digits]` (docs/sweeps.md)")
        runs = SweepFile.model_validate(asked).runs()
        return list({run.name: run for run in runs}.values())
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}", code="yaml") from None
    except ValidationError as error:
        raise UserError(f"{path}: {first_of(error)}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}", code=error.code) from None
