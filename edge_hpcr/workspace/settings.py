"""What a user can set in a workspace: each setting with its default, its limits and a sentence of help.

The app's Settings tab, `learn --set` and docs/settings.md (`make docs`) are made from this one model.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import disk_errors, write_atomically
from edge_hpcr.common.formats import SETTINGS
from edge_hpcr.common.units import format_bytes, parse_bytes
from edge_hpcr.learner.codec import CODECS

LABELS = ("none", "folders")  # as streams know them
AUTO = "auto"  # of method and codec: what suits the backbone
UNCHECKED = {
    "method": (AUTO, "hpcr"),
    "backbone": ("efficientnet_lite0", "reduced_resnet18"),
}  # names that are known
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _setting(
    default: Any, help: str, low: float = 0, high: float = math.inf, choices: tuple[str, ...] = ()
) -> Any:
    limits: dict[str, Any] = {"ge": low, "le": None if high == math.inf else high}
    extra: dict[str, Any] = {"choices": list(choices)}
    number = type(default) in (int, float)
    return Field(default, description=help, json_schema_extra=extra, **(limits if number else {}))


@dataclass(frozen=True)
class Description:
    """A setting, for help texts and the app."""

    name: str
    default: Any
    help: str
    low: float
    high: float
    choices: tuple[str, ...]

    @property
    def limits(self) -> str:
        """What may be given, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if type(self.default) not in (int, float):
            return KINDS[type(self.default)]
        most = "" if self.high == math.inf else f" and at most {self.high:g}"
        return f"at least {self.low:g}{most}"


class Settings(BaseModel):
    """How a workspace learns and what it may use. Settings that this version does not know are kept.

    >>> Settings().replace(queue_samples=200).queue_samples
    200
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)

    backbone: str = _setting(
        "efficientnet_lite0",
        "the network: efficientnet_lite0 knows photographs, reduced_resnet18 learns from scratch; or timm:NAME",
    )
    weights: str = _setting("", "the file with the weights of a timm:NAME; empty: those in timm's own cache")
    image_size: int = _setting(
        0, "side of the square images that are learned, in pixels; 0: the backbone's own", 0, 1024
    )
    method: str = _setting(
        AUTO,
        "how it learns: one of the benchmark's methods; auto: edge from scratch, hpcr if the backbone is pre-trained",
    )
    memory_bytes: int = _setting(8_000_000, "replay memory, in bytes", 1)
    codec: str = _setting(
        AUTO,
        "how the replay memory keeps images; auto: as the method has it, or as latents if the backbone is pre-trained",
        choices=(AUTO, *CODECS),
    )
    device: str = _setting("auto", "where it computes", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = _setting(0, "CPU threads for learning; 0 leaves one core free", 0, 1024)
    micro_batch: int = _setting(10, "labels learned in one step, at most", 1, 1000)
    idle_share: float = _setting(0.5, "share of idle time used for further replay", 0, 1)
    idle_steps: int = _setting(150, "steps of further replay after the last label, at most")
    averaged: bool = _setting(True, "predict and export with averaged weights")
    checkpoint_steps: int = _setting(200, "steps between two checkpoints", 1)
    checkpoints_kept: int = _setting(3, "checkpoints kept", 1, 100)
    held_out_share: float = _setting(0.1, "share of the labels kept for measuring, never trained on", 0, 0.9)
    held_out_bytes: int = _setting(20_000_000, "images used for measuring, in bytes")
    queue_samples: int = _setting(500, "unlabelled samples kept, at most", 1)
    queue_bytes: int = _setting(50_000_000, "images of unlabelled samples, in bytes", 1)
    disk_bytes: int = _setting(1_000_000_000, "all images together, in bytes", 1)
    archive: bool = _setting(False, "keep the images of all labelled samples, beyond the disk budget too")
    gate_distance: int = _setting(
        6, "frames whose 64-bit hashes differ in at most so many bits count as the same; -1: none do", -1, 64
    )
    gate_sure: float = _setting(
        0.95, "confidence from which a prediction counts as sure; above 1: never", 0, 2
    )
    gate_stable: int = _setting(5, "sure frames of one class in a row after which such frames are skipped", 1)
    gate_per_second: float = _setting(2.0, "frames that may enter the queue in a second, on average")
    unknown_share: float = _setting(
        0.05, "share of held-out samples that may be called unknown by mistake", 0, 1
    )
    source: str = _setting(
        "", "what the app shows to the learner when it starts; empty: nothing, until somebody chooses"
    )
    source_labels: str = _setting(
        "none", "whether that source's sub-folders name the classes", choices=LABELS
    )
    class_order: str = _setting(
        "",
        "numbers of the classes as the app's page lists them, like 3,1,2; the others follow, the oldest first",
    )
    class_keys: str = _setting("", "keys of classes on the app's page, like 3=a,7=m; the others have digits")
    publish_steps: int = _setting(
        0, "steps of learning between two publications of the model by itself; 0: not by steps"
    )
    publish_seconds: int = _setting(
        0, "seconds between two publications of the model by itself; 0: not by time"
    )
    publish_most_drop: float = _setting(
        0.02, "held-out accuracy that a model may lose against the last and still be published", 0, 1
    )
    publish_keep: int = _setting(10, "published versions kept", 1, 1000)
    publish_int8: bool = _setting(
        False, "also in 8 bits, where that is faster and as accurate, when it publishes by itself"
    )
    publish_key: str = _setting(
        "", "the file with the private key that signs what is published; empty: nothing is signed"
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(self._refusal(error.errors()[0])) from None

    @field_validator("memory_bytes", "held_out_bytes", "queue_bytes", "disk_bytes", mode="before")
    @classmethod
    def _parse_size(cls, value: Any, info: ValidationInfo) -> Any:
        """Takes a size like 2MB as well as a number of bytes."""
        try:
            return parse_bytes(value) if isinstance(value, str) else value
        except UserError as error:
            raise UserError(f"setting {info.field_name}: {error}") from None

    @field_validator("*", mode="after")
    @classmethod
    def _one_of_the_choices(cls, value: Any, info: ValidationInfo) -> Any:
        description = cls._describe(cast(str, info.field_name))
        if description.choices:
            one_of(f"setting {description.name}", value, description.choices)
        if value in UNCHECKED.get(description.name, (value,)):
            return value
        from edge_hpcr.learner import (  # PyTorch takes seconds, and most names need no check
            backbones,
            methods,
        )

        if description.name == "method":
            if methods.method_class(value).needs_boundaries:
                raise UserError(
                    f"setting method {value}: it must be told where a task ends, and in a live workspace nobody knows: "
                    f"choose one of {', '.join(methods.live_names())}"
                )
        elif not value.startswith(backbones.TIMM):  # whether timm has it, is asked when it is made
            backbones.backbone_class(value)
        return value

    @classmethod
    def _refusal(cls, error: ErrorDetails) -> str:
        name, value = str(error["loc"][0]), error["input"]
        description = cls._describe(name)
        out_of_range = error["type"] in ("greater_than_equal", "less_than_equal")
        wanted = description.limits if out_of_range else KINDS[type(description.default)]
        return f"setting {name} {value!r}: give {wanted}"

    def replace(self, **changes: Any) -> "Settings":
        """These settings with some changed; a bad name or value is refused and nothing changes."""
        for name in changes:
            if name not in type(self).model_fields:
                names = ", ".join(type(self).model_fields)
                raise UserError(f"unknown setting {name!r}: choose one of {names}")
        return Settings(**{**self.model_dump(), **changes})

    def report_unknown(self, path: Path) -> list[str]:
        """A sentence about settings that this version does not know, if there are any."""
        names = ", ".join(sorted(self.model_extra or {}))
        return [f"settings {path}: this version does not know {names}; kept, without effect"] if names else []

    @classmethod
    def describe(cls) -> list[Description]:
        return [cls._describe(name) for name in cls.model_fields]

    @classmethod
    def _describe(cls, name: str) -> Description:
        field = cls.model_fields[name]
        low = next((each.ge for each in field.metadata if hasattr(each, "ge")), 0)
        high = next((each.le for each in field.metadata if hasattr(each, "le")), math.inf)
        choices = cast(dict[str, Any], field.json_schema_extra)["choices"]
        return Description(name, field.default, field.description or "", low, high, tuple(choices))

    @classmethod
    def load(cls, path: Path) -> "Settings":
        """The settings of a file; those it does not name have their defaults."""
        values, old = _read(path)
        if old is not None:
            SETTINGS.upgrade(values, old)
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"settings {path}: {error}") from error

    def save(self, path: Path) -> None:
        text = json.dumps({"format": SETTINGS.current, "version": __version__, **self.model_dump()}, indent=1)
        with disk_errors(f"settings {path} cannot be written", "is there room, and a right to write?"):
            write_atomically(path, text + "\n")


def _read(path: Path) -> tuple[dict[str, Any], int | None]:
    """What a file says, and its format if that is an older one."""
    try:
        with disk_errors(f"settings {path} cannot be read"):
            values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        mend = "mend the file, or remove it to start with the defaults"
        raise UserError(f"settings {path} are damaged ({error}): {mend}") from error
    if not isinstance(values, dict):
        raise UserError(f"settings {path} are damaged: a JSON object of names and values belongs there")
    written, version = values.pop("format", 1), values.pop("version", None)
    return values, written if SETTINGS.is_old(written, path, version) else None


def upgrade_settings(path: Path) -> list[str]:
    """Bring a file of an older version to the current format, with a copy of the old one kept beside it."""
    _, old = _read(path)
    if old is None:
        return []
    kept = path.with_name(f"settings.format-{old}.json")
    settings = Settings.load(path)
    with disk_errors(f"{kept} cannot be written"):
        write_atomically(kept, path.read_bytes())
    settings.save(path)
    return [f"the settings were upgraded from format {old} to {SETTINGS.current}; as they were: {kept}"]


def reference() -> str:
    """The page docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Made by `make docs` from `edge_hpcr/workspace/settings.py`. A workspace keeps them in `settings.json`; change them",
        "on the app's Settings tab, or with `learn --workspace W --set NAME=VALUE`. A setting that a version does not know",
        "is reported and kept. Settings in bytes also take sizes like 500KB, 2MB or 1MiB.",
        "",
        "| setting | default | allowed | what it is |",
        "| --- | --- | --- | --- |",
    ]
    for each in Settings.describe():
        default = json.dumps(each.default) if not isinstance(each.default, str) else each.default
        if each.name.endswith("_bytes"):
            default += f" ({format_bytes(each.default)})"
        lines.append(f"| `{each.name}` | {default} | {each.limits} | {each.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
