"""The analyses of the paper: every subclass of `Analysis` with a `name` in a file of this folder. There is no list to keep."""

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from edge_hpcr.bench.analyses.contract import KIND, NEEDED, Analysis, title_of
from edge_hpcr.common.errors import UserError, one_of

__all__ = ["EXPLANATION", "KIND", "analysis", "check", "draw", "is_analysis", "names", "ordered", "section"]

EXPLANATION = """\
`bench analyse`: the paper's analyses, repeated. The small versions learn little data with a small network and few seeds, so
that each takes minutes on one core: they show that the analysis works and decide nothing about the paper. `--paper` runs an
analysis as the paper prints it. Accuracies are in percent, the mean over n seeds and the half-width of its 95 % confidence
interval. Figures and tables are named by their labels in the paper's source. Each sentence after *Here* is made from the
numbers below it, and compares means."""


@cache
def _found() -> dict[str, Analysis]:
    modules = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
    kinds = [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Analysis) and kind.__module__ == module.__name__
    ]
    made = [kind() for kind in kinds if "name" in vars(kind)]
    return {each.name: each for each in sorted(made, key=lambda each: each.order)}


def names() -> tuple[str, ...]:
    """All analyses, in the order of the paper."""
    return tuple(_found())


def analysis(name: str) -> Analysis:
    one_of("analysis", name, names())
    return _found()[name]


def is_analysis(result: Any) -> bool:
    """Whether `bench analyse` wrote it."""
    return isinstance(result, dict) and result.get("benchmark") == KIND


def check(path: Path, result: dict[str, Any]) -> None:
    """Refuse a result of `bench analyse` that is damaged, or of another version."""
    for key, kind in NEEDED.items():
        if not isinstance(result.get(key), kind):
            raise UserError(f"{path}: damaged, or of another version: {key} is missing or wrong")
    one_of(f"analysis in {path}", result["analysis"], names())
    try:
        section(result)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: damaged, or of another version: its table cannot be made ({error!r}); make it again with "
            f"`python -m edge_hpcr bench analyse {result['analysis']}`"
        ) from None


def section(result: dict[str, Any]) -> str:
    """One analysis in Markdown: what it is, what the paper says, what was found here, and the table."""
    return analysis(result["analysis"]).section(result)


def ordered(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of the paper; the small version of an analysis first."""
    return sorted(
        results, key=lambda result: (names().index(result["analysis"]), result["version"] != "small")
    )


def draw(results: list[dict[str, Any]], folder: Path) -> list[tuple[str, str, Path]]:
    """Write their plots into an existing folder: the title, what is shown, and the file of each."""
    from edge_hpcr.bench import plots  # here, because only reports need matplotlib

    drawn = []
    for result in results:
        one = analysis(result["analysis"])
        figure = one.draw(result)
        if figure is not None:
            title = title_of(result)
            drawn.append(
                (title, f"{title}: {one.purpose}", plots.write(figure, folder / f"analysis-{title}.png"))
            )
    return drawn
