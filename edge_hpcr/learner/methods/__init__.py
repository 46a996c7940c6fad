"""The methods, one file each, found by name."""

from dataclasses import fields
from importlib import import_module
from typing import Any

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner.methods.contract import Batch, Method, Records

__all__ = ["NAMES", "Batch", "Method", "Records", "create", "method_class"]

NAMES = (
    "hpcr",
    "pcr_ct_pcd",
    "pcr_ct",
    "pcr_c",
    "pcr",
    "couple_1",
    "couple_2",
    "er",
    "finetune",
    "iid",
    "iid_pp",
)


def method_class(name: str) -> type[Method]:
    one_of("method", name, NAMES)
    return import_module(f"edge_hpcr.learner.methods.{name}").METHOD


def create(name: str, options: dict[str, Any] | None = None) -> Method:
    """The method of this name; `options` set fields of its `Config`."""
    kind = method_class(name)
    known = {field.name for field in fields(kind.Config)}
    for option in options or {}:
        if option not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise UserError(f"method {name!r} has no option {option!r}: {has}")
    return kind(kind.Config(**(options or {})))
