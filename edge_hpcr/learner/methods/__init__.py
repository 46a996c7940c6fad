"""The methods: every class with a `name` in a file of this folder. There is no list to keep."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner.methods.method import Batch, Method, Records, StepView

__all__ = ["Batch", "Method", "Records", "StepView", "create", "live_names", "method_class", "names"]


@cache
def _found() -> dict[str, type[Method]]:
    """By name, in the order of the tables."""
    modules = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    named = [kind for kind in kinds if issubclass(kind, Method) and "name" in vars(kind)]
    return {kind.name: kind for kind in sorted(named, key=lambda kind: (kind.order, kind.name))}


def names() -> tuple[str, ...]:
    """All methods, in the order of the tables."""
    return tuple(_found())


def live_names() -> tuple[str, ...]:
    """Those that nobody has to tell where a task ends."""
    return tuple(name for name in names() if not method_class(name).needs_boundaries)


def method_class(name: str) -> type[Method]:
    one_of("method", name, _found())
    return _found()[name]


def create(name: str, options: dict[str, Any] | None = None) -> Method:
    """The method of this name; `options` set fields of its `Config`."""
    kind = method_class(name)
    for option in options or {}:
        if option not in kind.options():
            has = f"it has {', '.join(sorted(kind.options())) or 'none'}"
            raise UserError(f"method {name!r} has no option {option!r}: {has}")
    return kind(kind.Config(**(options or {}), **kind.fixed))
