"""What a user can set in a workspace, each setting with its default, its limits and a sentence of help."""

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.common.files import flush_to_disk
from edge_hpcr.learner.codec import CODECS

FORMAT = 1
LABELS = ("none", "folders")  # as streams know them


def _setting(
    default: Any, help: str, low: float = 0, high: float = math.inf, choices: tuple[str, ...] = ()
) -> Any:
    limits = {"help": help, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=limits)


@dataclass(frozen=True)
class Description:
    """A setting, for help texts and the app."""

    name: str
    default: Any
    help: str
    low: float
    high: float
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """How a workspace learns and what it may use.

    >>> Settings().replace(queue_samples=200).queue_samples
    200
    """

    image_size: int = _setting(32, "side of the square images that are learned, in pixels", 8, 256)
    method: str = _setting("hpcr", "how it learns: one of the benchmark's methods")
    memory_bytes: int = _setting(2_000_000, "replay memory, in bytes", 1)
    codec: str = _setting("raw", "how the replay memory keeps images", choices=CODECS)
    device: str = _setting("auto", "where it computes", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = _setting(0, "CPU threads for learning; 0 leaves one core free", 0, 1024)
    micro_batch: int = _setting(10, "labels learned in one step, at most", 1, 1000)
    idle_share: float = _setting(0.5, "share of idle time used for further replay", 0, 1)
    idle_steps: int = _setting(500, "steps of further replay after the last label, at most")
    averaged: bool = _setting(True, "predict and export with averaged weights")
    checkpoint_steps: int = _setting(200, "steps between two checkpoints", 1)
    checkpoints_kept: int = _setting(3, "checkpoints kept", 1, 100)
    held_out_share: float = _setting(0.1, "share of the labels kept for measuring, never trained on", 0, 0.9)
    held_out_bytes: int = _setting(2_000_000, "images used for measuring, in bytes")
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
    source: str = _setting("digits", "what the app shows to the learner when it starts")
    source_labels: str = _setting(
        "none", "whether that source's sub-folders name the classes", choices=LABELS
    )
    publish_steps: int = _setting(
        0, "steps of learning between two publications of the model by the app; 0: not by steps"
    )
    publish_seconds: int = _setting(
        0, "seconds between two publications of the model by the app; 0: not by time"
    )
    publish_most_drop: float = _setting(
        0.02, "held-out accuracy that a model may lose against the last and still be published", 0, 1
    )
    publish_keep: int = _setting(10, "published versions kept", 1, 1000)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        if (
            self.method != type(self).method
        ):  # PyTorch takes seconds to import, and the default needs no check
            from edge_hpcr.learner import methods

            methods.method_class(self.method)

    def replace(self, **changes: Any) -> "Settings":
        """These settings with some changed; a bad name or value is refused and nothing changes."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise UserError(f"unknown setting {name!r}: choose one of {', '.join(names)}")
        return dataclasses.replace(self, **changes)

    @classmethod
    def describe(cls) -> list[Description]:
        return [Description(field.name, field.default, **field.metadata) for field in dataclasses.fields(cls)]

    @classmethod
    def load(cls, path: Path) -> "Settings":
        """The settings of a file; those it does not name have their defaults."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"settings {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UserError(
                f"settings {path} are damaged ({error}): mend the file, or remove it to start with the defaults"
            ) from error
        if not isinstance(values, dict):
            raise UserError(f"settings {path} are damaged: a JSON object of names and values belongs there")
        written = values.pop("format", FORMAT)
        if written != FORMAT:
            raise UserError(
                f"settings {path} have format {written}, this version reads format {FORMAT}: use a newer version"
            )
        try:
            return cls().replace(**values)
        except UserError as error:
            raise UserError(f"settings {path}: {error}") from error

    def save(self, path: Path) -> None:
        """Whole or as before: a temporary file, flushed and renamed."""
        text = json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1)
        temporary = path.with_name(path.name + ".writing")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            flush_to_disk(path.parent)
        except OSError as error:
            raise UserError(
                f"settings {path} cannot be written: {error.strerror}; is there room, and a right to write?"
            ) from error


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    kind = type(field.default)
    # A whole number is a number too; but True is no number here, although Python thinks so.
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind is float and not math.isfinite(value)):
        what = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
        raise UserError(f"setting {field.name} {value!r}: give {what}")
    limits = field.metadata
    if limits["choices"]:
        one_of(f"setting {field.name}", value, limits["choices"])
    if kind in (int, float) and not limits["low"] <= value <= limits["high"]:
        most = "" if limits["high"] == math.inf else f" and at most {limits['high']}"
        raise UserError(f"setting {field.name} {value}: give at least {limits['low']}{most}")
