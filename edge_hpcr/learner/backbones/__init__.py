"""The backbones: every class with a `name` in a file of this folder."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from edge_hpcr.common.errors import one_of
from edge_hpcr.learner.backbones.backbone import Backbone, BackboneConfig, Trunk

__all__ = ["Backbone", "BackboneConfig", "Trunk", "backbone_class", "names"]


@cache
def _found() -> dict[str, type[Backbone]]:
    modules = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
    kinds = (kind for module in modules for kind in vars(module).values() if isinstance(kind, type))
    return {kind.name: kind for kind in kinds if issubclass(kind, Backbone) and "name" in vars(kind)}


def names() -> tuple[str, ...]:
    return tuple(sorted(_found()))


def backbone_class(name: str) -> type[Backbone]:
    one_of("backbone", name, names())
    return _found()[name]
