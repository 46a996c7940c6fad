"""The methods: every class with a `name` in a file of this folder, or in a module that another package offers.

Another package offers a module by an entry point of the group `edge_hpcr.methods`. There is no list to keep.
"""

import logging
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.methods.contract import Batch, Method, Records, StepView

__all__ = [
    "ENTRY_POINTS",
    "Batch",
    "Method",
    "Records",
    "StepView",
    "create",
    "live_names",
    "method_class",
    "names",
]

ENTRY_POINTS = "edge_hpcr.methods"


def _methods_in(module: ModuleType) -> Iterator[type[Method]]:
    for kind in vars(module).values():
        own = isinstance(kind, type) and issubclass(kind, Method) and kind.__module__ == module.__name__
        if own and "name" in vars(kind):
            yield kind


@cache
def _found() -> tuple[dict[str, type[Method]], dict[str, str]]:
    """The methods by name in the order of the tables, and why a plug-in cannot be used, by its name."""
    modules = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
    kinds = {kind.name: kind for module in modules for kind in _methods_in(module)}
    broken = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            offered = {kind.name: kind for kind in _methods_in(entry.load())}
            if not offered:
                raise ImportError(f"{entry.value} has no subclass of Method with a name")
            if taken := kinds.keys() & offered:
                raise ImportError(f"the name {min(taken)!r} is taken")
            kinds |= offered
        except Exception as error:  # other people's code: whatever it raises, the other methods still work
            broken[entry.name] = f"{type(error).__name__}: {error}"
            logging.getLogger(__name__).warning("method plug-in %r: %s", entry.name, broken[entry.name])
    return dict(sorted(kinds.items(), key=lambda item: (item[1].order, item[0]))), broken


def names() -> tuple[str, ...]:
    """All methods, in the order of the tables."""
    return tuple(_found()[0])


def live_names() -> tuple[str, ...]:
    """Those that nobody has to tell where a task ends."""
    return tuple(name for name in names() if not method_class(name).needs_boundaries)


def method_class(name: str) -> type[Method]:
    kinds, broken = _found()
    if name not in kinds:
        why = "".join(
            f"; plug-in {plug_in!r} cannot be loaded ({error})" for plug_in, error in broken.items()
        )
        raise UserError(f"unknown method {name!r}: choose one of {', '.join(kinds)}{why}")
    return kinds[name]


def create(name: str, options: dict[str, Any] | None = None) -> Method:
    """The method of this name; `options` set fields of its `Config`."""
    kind = method_class(name)
    for option in options or {}:
        if option not in kind.options():
            has = f"it has {', '.join(sorted(kind.options())) or 'none'}"
            raise UserError(f"method {name!r} has no option {option!r}: {has}")
    return kind(kind.Config(**(options or {}), **kind.fixed))
