"""The backbones: every class with a `name` in a file of this folder, and `timm:NAME` for a model of timm's."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones.contract import Backbone, BackboneConfig, NoBackbone, Trunk

__all__ = ["Backbone", "BackboneConfig", "NoBackbone", "Trunk", "backbone_class", "names"]

TIMM = "timm:"


@cache
def _found() -> dict[str, type[Backbone]]:
    modules = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
    kinds = (kind for module in modules for kind in vars(module).values() if isinstance(kind, type))
    return {kind.name: kind for kind in kinds if issubclass(kind, Backbone) and "name" in vars(kind)}


def names() -> tuple[str, ...]:
    """All backbones that need no further name."""
    return tuple(sorted(name for name in _found() if name != TIMM))


def backbone_class(name: str) -> type[Backbone]:
    """The backbone of this name; what follows `timm:` is checked when it is made."""
    if name.startswith(TIMM):
        from edge_hpcr.learner.backbones.timm_model import named

        try:
            return named(name)
        except UserError as error:
            raise NoBackbone(str(error)) from error
        except ImportError as error:
            raise NoBackbone(
                f"the backbone {name} needs the package timm ({error}): pip install timm"
            ) from error
    if name not in names():
        raise NoBackbone(f"unknown backbone {name!r}: choose one of {', '.join(names())}, or timm:NAME")
    return _found()[name]
