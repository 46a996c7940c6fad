"""What a sweep runs: a small YAML file, or the paper's whole table, as options of `bench`, a list of them per run.

    datasets: [cifar10]
    methods: [hpcr, pcr, er]    # or paper: every method of the paper's table
    buffers: [100, 200]         # or budgets: [2.59MB]
    seeds: 3                    # 0, 1 and 2; or a list
    limit: 500                  # optional, like the other options of `bench` in FIELDS
    set: {schedule: cosine}     # optional, as `bench --set`
    variants: [{}, {lr: 0.05}]  # optional: every run once with each of these, too

Every value is taken as the text that stands in the file, so that `bench` reads it as it reads its own options: YAML would
make 1e-3 a text and `no` a false.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import yaml

from edge_hpcr.bench import presets, report
from edge_hpcr.bench.datasets import registry
from edge_hpcr.bench.run import RunConfig, has_budget
from edge_hpcr.bench.split import STREAMS
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import read_regular
from edge_hpcr.common.units import parse_bytes
from edge_hpcr.learner import backbones, methods
from edge_hpcr.learner.codec import CODECS, LATENT
from edge_hpcr.learner.precision import PRECISIONS

ACCURACY = "paper/accuracy"
PAPER = "paper"  # for the methods of the paper's table
LARGEST_FILE = 10**6
MOST_SEEDS = 1000
Configure = Callable[[list[str]], list[RunConfig]]


def _whole_number(most: int | None = None, least: int = 1) -> Callable[[str], object]:
    def check(text: str) -> None:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= (most or 10**12):
            reach = f"from {least} to {most}" if most else f"of at least {least}"
            raise UserError(f"{text!r} is no whole number {reach}")

    return check


def _choice(name: str, known: Iterable[str]) -> Callable[[str], object]:
    return lambda text: one_of(name, text, list(known))


# What each field may hold. Lists make the product; of the others, each run has the same.
_LISTS: dict[str, Callable[[str], object]] = {
    "datasets": registry.info,
    "presets": presets.preset,
    "methods": lambda text: text == PAPER or methods.method_class(text),
    "buffers": _whole_number(),
    "budgets": parse_bytes,
    "seeds": _whole_number(2**32 - 1, least=0),
}
_SINGLE: dict[str, Callable[[str], object]] = {
    "tasks": _whole_number(),
    "limit": _whole_number(),
    "validation": _choice("answer", ("true", "false")),
    "stream": _choice("stream", STREAMS),
    "codec": _choice("codec", (*CODECS, LATENT)),
    "quality": _whole_number(100),
    "backbone": backbones.backbone_class,
    "threads": _whole_number(),
    "precision": _choice("precision", PRECISIONS),
}
_OF_THE_MEMORY = ("codec", "quality")  # options of `bench` that variants may differ in, beside its settings
FIELDS = (*_LISTS, *_SINGLE, "set", "variants")


@dataclass
class _Read:
    """The fields of a file as text, and where the settings stand."""

    lists: dict[str, list[str]] = field(default_factory=dict)
    single: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    variants: list[dict[str, str]] = field(default_factory=lambda: [{}])
    lines: dict[str, int] = field(default_factory=dict)  # of the settings, by name


def read(path: Path, configure: Configure, options: list[str]) -> list[RunConfig]:
    """The runs that a file asks for, each once; `options` of `bench` are added to those of every run."""
    asked = _fields(path)
    if "presets" in asked.lists and {"datasets", "buffers"} & set(asked.lists):
        raise UserError(f"{path}: a preset is a dataset and a buffer: leave `datasets` and `buffers` out")
    if {"buffers", "budgets"} <= set(asked.lists):
        raise UserError(
            f"{path}: both `buffers` and `budgets`: a memory has one size, so leave one of them out"
        )
    for needed in ("methods", "seeds"):
        if needed not in asked.lists:
            raise UserError(f"{path}: `{needed}` is missing: there is nothing to run")
    if not {"datasets", "presets"} & set(asked.lists):
        raise UserError(f"{path}: `datasets` is missing (or `presets`): there is nothing to run")
    runs = []
    for chosen, variant in product(_product(asked.lists), asked.variants):
        common = [text for each in asked.single.items() for text in _option(*each)]
        common += [text for each in (asked.settings | variant).items() for text in _setting(*each)]
        try:
            runs += configure([*chosen, *common, *options])
        except UserError as error:
            setting = re.match(r"--set (\w+)", str(error))
            line = asked.lines.get(setting[1]) if setting else None
            raise UserError(f"{path}{f', line {line}' if line else ''}: {error}") from None
    return _once_each(runs)


def paper_table(datasets: list[str], seeds: int, configure: Configure, options: list[str]) -> list[RunConfig]:
    """The paper's table of accuracies, as far as its methods are known here: all of it with one seed, then with the next."""
    chosen = (
        options_of_run
        for seed, dataset in product(range(seeds), datasets)
        for options_of_run in _product(
            {
                "datasets": [dataset],
                "methods": [PAPER],
                "buffers": list(map(str, presets.BUFFERS[dataset])),
                "seeds": [str(seed)],
            }
        )
    )
    return _once_each(run for each in chosen for run in configure([*each, *options]))


def _once_each(runs: Iterable[RunConfig]) -> list[RunConfig]:
    found: dict[str, RunConfig] = {}
    for run in runs:
        found.setdefault(run.name, run)
    return list(found.values())


def _product(lists: dict[str, list[str]]) -> Iterator[list[str]]:
    """The options of each run, seed by seed, with PAPER written out; a method without a memory has one run for all sizes of memory."""
    where, places = next((name, lists[name]) for name in ("datasets", "presets") if name in lists)
    size, sizes = next(((name, lists[name]) for name in ("buffers", "budgets") if name in lists), ("", [""]))
    papers = [name for name in methods.names() if report.is_in_papers_table(name)]
    chosen = [name for each in lists["methods"] for name in (papers if each == PAPER else [each])]
    for seed, place, method in product(lists["seeds"], places, chosen):
        for memory in sizes if has_budget(method) else [""]:
            yield [
                *_option(where.removesuffix("s"), place),
                *_option("method", method),
                *(_option(size.removesuffix("s"), memory) if memory else []),
                *_option("seed", seed),
            ]


def _option(name: str, value: str) -> list[str]:
    if name == "validation":
        return ["--validation"] if value == "true" else []
    return [f"--{name}", value]


def _setting(name: str, value: str) -> list[str]:
    return _option(name, value) if name in _OF_THE_MEMORY else ["--set", f"{name}={value}"]


def _fields(path: Path) -> _Read:
    """The file's fields, each checked; what is wrong is named with its line."""
    root = _compose(path)
    asked = _Read()
    seen: set[str] = set()
    for key, value in root.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "a list"
        with _at(path, key):
            one_of("field", name, FIELDS)
            if name in seen:
                raise UserError(f"{name!r} is there twice: leave one of them out")
        seen.add(name)
        if name == "set":
            asked.settings = _settings(path, name, value, asked.lines)
        elif name == "variants":
            asked.variants = _variants(path, value, asked.lines)
        elif name in _SINGLE:
            asked.single[name] = _text(path, name, value, _SINGLE[name])
        elif name == "seeds" and isinstance(value, yaml.ScalarNode):
            count = _text(path, name, value, _whole_number(MOST_SEEDS))
            asked.lists[name] = [str(seed) for seed in range(int(count))]
        else:
            asked.lists[name] = _list(path, name, value, _LISTS[name])
    return asked


def _compose(path: Path) -> yaml.MappingNode:
    content = read_regular(path, LARGEST_FILE, lambda reason: UserError(f"{path}: {reason}"))
    try:
        root = yaml.compose(content, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: not a sweep; write lines like `datasets: [digits]` (docs/sweeps.md)")
    return root


@contextmanager
def _at(path: Path, node: yaml.Node) -> Iterator[None]:
    """Say where in the file it was that something is wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}, line {node.start_mark.line + 1}: {error}") from None


def _text(path: Path, name: str, node: yaml.Node, check: Callable[[str], object]) -> str:
    with _at(path, node):
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise UserError(f"`{name}` is one value, not a list, a mapping or nothing")
        try:
            check(node.value)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return node.value


def _list(path: Path, name: str, node: yaml.Node, check: Callable[[str], object]) -> list[str]:
    """Of one value, too, if it stands alone."""
    values = node.value if isinstance(node, yaml.SequenceNode) else [node]
    with _at(path, node):
        if not values:
            raise UserError(f"`{name}` is empty: there is nothing to run")
    return list(dict.fromkeys(_text(path, name, each, check) for each in values))


def _settings(path: Path, field_name: str, node: yaml.Node, lines: dict[str, int]) -> dict[str, str]:
    """Settings by name; `lines` learns where each stands."""
    with _at(path, node):
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"`{field_name}` holds settings by name, like {{schedule: cosine}}")
    found: dict[str, str] = {}
    for key, value in node.value:
        name = _text(path, field_name, key, lambda text: None)
        with _at(path, key):
            if name in found:
                raise UserError(f"{name!r} is set twice: leave one of them out")
        check = _SINGLE[name] if name in _OF_THE_MEMORY else lambda text: None
        found[name] = _text(path, name, value, check)
        lines[name] = key.start_mark.line + 1
    return found


def _variants(path: Path, node: yaml.Node, lines: dict[str, int]) -> list[dict[str, str]]:
    with _at(path, node):
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise UserError("`variants` is a list of settings, like [{}, {schedule: cosine}]")
    return [_settings(path, "variants", each, lines) for each in node.value]
