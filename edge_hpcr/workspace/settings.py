"""What a user can set in a workspace: each setting with its default, its limits and a sentence of help.

The app's Settings tab, `learn --set` and docs/settings.md (`make docs`) are made from this one model. A person sees the
settings in `TITLES`; the others are options of the method, of the gate and of the app, which only `--set` names.
"""

import json
import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from edge_hpcr import __version__
from edge_hpcr.common.errors import UserError, first_of
from edge_hpcr.common.files import disk_errors, weights_file, write_atomically
from edge_hpcr.common.formats import REGIONS, SETTINGS
from edge_hpcr.common.units import format_bytes, parse_bytes
from edge_hpcr.stream.region import Region

# Names of methods and backbones are known to PyTorch's side alone: `learner_config` in live_learner.py checks them.
AUTO = "auto"  # of method and codec: what suits the backbone
BETTER, ALWAYS_HERE = "tiny_vit_5m_grid", "efficientnet_lite0"  # what new workspaces build on
BETTER_WEIGHTS = "tiny_vit_5m"  # as `weights get` names them
FIRST = "What matters"  # the group of the Settings tab that is open
# The settings that a person sees, with their titles: by groups on the Settings tab, and two on the Memory tab.
GROUPS = {
    FIRST: {
        "idle_share": "Work in idle time",
        "unknown_share": "How easily it says unknown",
        "held_out_share": "Labels kept for measuring",
        "disk_bytes": "Disk space for pictures",
    },
    "Pictures that wait for a label": {
        "gate_per_second": "New pictures per second",
        "gate_distance": "Largest difference of the same picture",
        "queue_samples": "Longest queue",
    },
    "Learning, for researchers": {
        "backbone": "Network that it builds on",
        "method": "How it learns",
    },
    "Publishing": {
        "publish_steps": "Publish every N steps",
        "publish_seconds": "Publish every N seconds",
        "publish_most_drop": "Largest allowed drop in accuracy",
        "publish_keep": "Versions kept",
        "publish_int8": "Also as INT8",
    },
    "Machine and disk": {
        "device": "Compute on",
        "threads": "Processor cores for learning",
        "archive": "Keep every labelled picture",
    },
}
TITLES = {name: title for group in GROUPS.values() for name, title in group.items()} | {
    "memory_bytes": "Replay memory",
    "codec": "How the memory keeps images",
}
# When a change takes effect; the others do at once.
TAKES_EFFECT = {
    **dict.fromkeys(("backbone", "image_size", "method"), "at once, as long as nothing has been learned"),
    **dict.fromkeys(("device", "threads", "averaged"), "at the next start"),
    **dict.fromkeys(("gate_distance", "gate_sure", "gate_per_second"), "with the next source or start"),
}


def _as_bytes(value: Any) -> Any:
    """Take a size like 2MB as well as a number of bytes."""
    try:
        return parse_bytes(value) if isinstance(value, str) else value
    except UserError as error:
        raise ValueError(str(error)) from None  # for pydantic, which names the setting


Size = Annotated[int, BeforeValidator(_as_bytes)]
Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


def _setting(default: Any, help: str, **limits: Any) -> Any:
    return Field(default, description=help, **limits)


@dataclass(frozen=True)
class Description:
    """A setting, for help texts and the app."""

    name: str
    default: Any
    help: str
    title: str  # of those that a person sees
    kind: str  # how it is asked for: switch, choice, size, number or text
    choices: tuple[str, ...]
    limits: str  # what may be given, in words
    takes_effect: str  # when a change of it does

    @classmethod
    def of(cls, name: str, field: FieldInfo) -> "Description":
        default = field.default
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        if isinstance(default, bool):
            kind, limits = "switch", "true or false"
        elif isinstance(default, str):
            kind, limits = ("choice", ", ".join(choices)) if choices else ("text", "a text")
        else:
            low = next((each.ge for each in field.metadata if hasattr(each, "ge")), -math.inf)
            high = next((each.le for each in field.metadata if hasattr(each, "le")), math.inf)
            kind = "size" if name.endswith("_bytes") else "number"
            limits = f"at least {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
        effect = TAKES_EFFECT.get(name, "at once")
        return cls(
            name, default, field.description or "", TITLES.get(name, ""), kind, choices, limits, effect
        )


class Settings(BaseModel):
    """How a workspace learns and what it may use.

    >>> Settings().replace(queue_samples=200).queue_samples
    200
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    idle_share: Share = _setting(
        0.5, "share of idle time used for further replay; more learns sooner and takes more power"
    )
    unknown_share: Share = _setting(0.05, "share of held-out samples that may be called unknown by mistake")
    held_out_share: float = _setting(
        0.1,
        "share of the labels kept for measuring, never trained on; with more, accuracy is known better",
        ge=0,
        le=0.9,
    )
    disk_bytes: Size = _setting(
        1_000_000_000,
        "disk space for all images; beyond it old ones are deleted, and what was learned stays",
        ge=1,
    )
    gate_per_second: float = _setting(2.0, "frames that may enter the queue per second, on average", ge=0)
    gate_distance: int = _setting(
        6,
        "frames whose 64-bit hashes differ in at most this many bits count as the same; -1: none do",
        ge=-1,
        le=64,
    )
    queue_samples: Positive = _setting(500, "unlabelled samples kept, at most")
    backbone: str = _setting(
        ALWAYS_HERE,
        "the network: tiny_vit_5m_grid (the default of new workspaces where `weights get tiny_vit_5m` was run) and efficientnet_lite0 know "
        "photographs, reduced_resnet18 learns from scratch",
    )
    method: str = _setting(
        AUTO, "one of the benchmark's methods; auto: edge from scratch, experts on TinyViT, else hpcr"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = _setting("auto", "where it computes")
    threads: int = _setting(0, "CPU threads for learning; 0 leaves one core free", ge=0, le=1024)
    archive: bool = _setting(False, "keep the images of all labelled samples, beyond the disk budget too")
    memory_bytes: Size = _setting(8_000_000, "replay memory, in bytes", ge=1)
    codec: Literal["auto", "raw", "webp", "jpeg", "png"] = _setting(
        AUTO,
        "how the memory keeps images; auto: as latents if the backbone is pre-trained, else as the method does",
    )
    publish_steps: Steps = _setting(0, "training steps between two automatic publications; 0: not by steps")
    publish_seconds: Steps = _setting(0, "seconds between two automatic publications; 0: not by time")
    publish_most_drop: Share = _setting(
        0.02, "held-out accuracy that a model may lose and still be published"
    )
    publish_keep: int = _setting(10, "published versions kept", ge=1, le=1000)
    publish_int8: bool = _setting(False, "publish in 8 bits too, if that loses at most one point of accuracy")

    # Options, and what the app remembers of a person's choices.
    image_size: int = _setting(
        0, "side of the square images that are learned, in pixels; 0: the backbone's own", ge=0, le=1024
    )
    idle_steps: Steps = _setting(150, "steps of further replay after the last label, at most")
    averaged: bool = _setting(True, "predict and export with averaged weights")
    checkpoint_steps: Positive = _setting(200, "steps between two checkpoints")
    gate_sure: float = _setting(
        0.95, "confidence from which a prediction counts as sure; above 1: never", ge=0, le=2
    )
    source: str = _setting("", "the source that the app opens when it starts; empty: none")
    source_labels: Literal["none", "folders"] = _setting(
        "none", "whether that source's folders name the classes"
    )
    publish_key: str = _setting("", "the file with the private key that signs what is published; empty: none")

    @classmethod
    def of_new_workspace(cls) -> "Settings":
        """The defaults, with the better network if its weights are here."""
        return cls(backbone=BETTER if weights_file(BETTER_WEIGHTS).is_file() else ALWAYS_HERE)

    def lacks_better(self) -> str | None:
        """A sentence about the better network, if its weights are all that was in the way of it."""
        if self.backbone != ALWAYS_HERE or weights_file(BETTER_WEIGHTS).is_file():
            return None
        return (
            f"the weights of {BETTER_WEIGHTS} are not here, so {ALWAYS_HERE} is used, which answers less well: run `python -m edge_hpcr "
            f"weights get {BETTER_WEIGHTS}`, then set backbone to {BETTER} before the first label"
        )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(f"setting {first_of(error)}") from None

    def replace(self, **changes: Any) -> "Settings":
        """These settings with some changed; a bad name or value is refused and nothing changes."""
        for name in changes:
            if name not in type(self).model_fields:
                names = ", ".join(type(self).model_fields)
                raise UserError(f"unknown setting {name!r}: choose one of {names}")
        return Settings(**{**self.model_dump(), **changes})

    @classmethod
    def describe(cls) -> list[Description]:
        """Every setting, those that a person sees first."""
        return [Description.of(name, field) for name, field in cls.model_fields.items()]

    @classmethod
    def load(cls, path: Path) -> "Settings":
        """The settings of a file, as an older version wrote it, too; those it does not name have their defaults."""
        try:
            with disk_errors("it cannot be read"):
                values = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict):
                raise ValueError("a JSON object of names and values belongs there")
            written, version = values.pop("format", 1), values.pop("version", None)
            if SETTINGS.is_old(written, path, version):
                SETTINGS.upgrade(values, written)
            # Other versions have others.
            return cls(**{name: value for name, value in values.items() if name in cls.model_fields})
        except UserError as error:
            raise UserError(f"settings {path}: {error}") from error
        except ValueError as error:
            mend = "mend the file, or remove it to start with the defaults"
            raise UserError(f"settings {path} are damaged ({error}): {mend}") from error

    def save(self, path: Path) -> None:
        text = json.dumps({"format": SETTINGS.current, "version": __version__, **self.model_dump()}, indent=1)
        with disk_errors(f"settings {path} cannot be written", "check free space and permissions"):
            write_atomically(path, text + "\n")


PAGE = """# Settings

Made by `make docs` from `edge_hpcr/workspace/settings.py`. A workspace keeps them in `settings.json`; change
them in the app (Settings, Memory, Models), or with `learn --workspace W --set NAME=VALUE`.
Settings in bytes also take sizes like 500KB, 2MB or 1MiB.

| setting | default | allowed | what it is |
| --- | --- | --- | --- |
{settings}

## Options

Only `--set` reaches these: options of method, gate and publishing, and what the app remembers of your choices.

| option | default | allowed | what it is |
| --- | --- | --- | --- |
{options}
"""


def reference() -> str:
    """The page docs/settings.md."""
    lines: dict[bool, list[str]] = {True: [], False: []}
    for each in Settings.describe():
        default = each.default if isinstance(each.default, str) else json.dumps(each.default)
        default += f" ({format_bytes(each.default)})" if each.kind == "size" else ""
        lines[bool(each.title)].append(f"| `{each.name}` | {default} | {each.limits} | {each.help} |")
    return PAGE.format(settings="\n".join(lines[True]), options="\n".join(lines[False]))


# Regions ----------------------------------------------------------------------------------------------------------


class Regions:
    """The regions that a person has drawn, one per source, by its name; and which source was used last.

    Kept in a file, which is there once somebody has drawn a region. Any thread may ask.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known, self._last = _load_regions(path)

    def of(self, source: str) -> Region | None:
        return self._known.get(source)

    def current(self) -> Region | None:
        """Of the source that was used last: what a model is published with."""
        return self._known.get(self._last)

    def put(self, source: str, region: Region | None) -> None:
        """Draw a source's region, or clear it; on disk when this returns."""
        with self._lock:
            known = {name: each for name, each in self._known.items() if name != source}
            self._write(known | ({source: region} if region is not None else {}), source)

    def use(self, source: str) -> Region | None:
        """Go over to a source; the region that it has."""
        with self._lock:
            if self._known and source != self._last:
                self._write(self._known, source)
            return self._known.get(source)

    def _write(self, known: dict[str, Region], last: str) -> None:
        listed = {name: region.to_list() for name, region in known.items()}
        facts = {"format": REGIONS.current, "version": __version__, "last": last, "regions": listed}
        with disk_errors(f"regions {self._path} cannot be written", "check free space and permissions"):
            write_atomically(self._path, json.dumps(facts, indent=1) + "\n")
        self._known, self._last = known, last


def _load_regions(path: Path) -> tuple[dict[str, Region], str]:
    if not path.exists():
        return {}, ""
    try:
        with disk_errors(f"regions {path} cannot be read"):
            facts = json.loads(path.read_text(encoding="utf-8"))
        REGIONS.is_old(facts["format"], path, facts.get("version"))
        return {name: Region.of(values) for name, values in facts["regions"].items()}, str(facts["last"])
    except (ValueError, TypeError, KeyError, AttributeError, UserError) as error:
        mend = "mend the file, or remove it and draw them again"
        raise UserError(f"regions {path} cannot be used ({error}): {mend}") from error


if __name__ == "__main__":
    print(reference(), end="")
