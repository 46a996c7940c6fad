"""What a run of the split benchmark is: `RunConfig` says it completely, `make_config` makes one out of a few choices.

>>> make_config("digits", "er", buffer=50, settings={"nf": 8}).name
'digits-er-50-nf=8-seed0'
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from edge_hpcr.bench import datasets as data
from edge_hpcr.common.errors import UserError, first_of
from edge_hpcr.common.units import parse_bytes, parse_setting
from edge_hpcr.learner import methods
from edge_hpcr.learner.augment import strength
from edge_hpcr.learner.backbones import backbone_class
from edge_hpcr.learner.codec import LATENT
from edge_hpcr.learner.config import FORMER_NAMES, LearnerConfig, memory_options
from edge_hpcr.learner.device import resolve_device, resolve_precision
from edge_hpcr.learner.memory import AUTO, MemoryConfig
from edge_hpcr.learner.memory import OPTIONS as MEMORY_OPTIONS

DEFAULT_BUFFER = 200
LONGEST_LABEL = 80  # file systems allow 255 bytes a name
LEARNER_OPTIONS = (
    *("views", "plain", "few_samples", "augment", "encode_incoming", "replay", "nf", "tau"),
    *("optimiser", "lr", "proxy_lr", "lr_decay", "imprint", "batch_norm", "ema_decay"),
)


def has_budget(method: str) -> bool:
    """Whether a method keeps anything of the samples: replayed samples, or statistics."""
    kind = methods.method_class(method)
    return kind.uses_memory or kind.closed_form


@dataclass(frozen=True)
class RunConfig:
    """One run, completely: the same RunConfig gives the same numbers on the same machine."""

    dataset: str
    learner: LearnerConfig
    tasks: int
    seed: int
    limit: int | None = None
    validation: bool = False
    threads: int = 1
    device: str = "auto"
    label: str = ""  # what sets it apart from a plain run, for its name

    @property
    def name(self) -> str:
        learner, memory = self.learner, self.learner.memory
        size = f"{memory.samples}" if memory.samples is not None else f"{memory.bytes}B"
        backbone = learner.backbone.replace(":", "_").replace("/", "_")
        parts = [
            (self.dataset, True),
            (learner.method, True),
            (backbone, learner.backbone != LearnerConfig.backbone),
            (f"{self.tasks}tasks", self.tasks != data.info(self.dataset).tasks),
            (size, has_budget(learner.method)),
            (f"{memory.codec}{memory.quality}", memory.codec not in ("raw", LATENT)),
            (learner.compute, learner.compute != LearnerConfig.compute),
            (f"limit{self.limit}", self.limit is not None),
            ("validation", self.validation),
            (self.label, bool(self.label)),
            (f"seed{self.seed}", True),
        ]
        return "-".join(part for part, wanted in parts if wanted)


Count = Annotated[int, Field(ge=1)]


class Choices(BaseModel, frozen=True, extra="forbid"):
    """What a person says of a run; the rest is the paper's, or what suits the backbone. Numbers may be texts."""

    dataset: str
    method: str = "hpcr"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    buffer: Count | None = None  # a number of samples
    budget: int | str | None = None  # of bytes, or a text like 2MB
    codec: str | None = None
    quality: int | None = None
    backbone: str = LearnerConfig.backbone
    image_size: Count | None = None
    tasks: Count | None = None
    limit: Count | None = None
    validation: bool = False
    precision: str = LearnerConfig.compute
    threads: Count = 1
    device: str = "auto"
    settings: dict[str, Any] = {}  # of the method, the learner and the memory; their values may be texts

    def run_config(self) -> RunConfig:
        info = data.info(self.dataset)
        return RunConfig(
            dataset=self.dataset,
            learner=self._learner(info.side),
            tasks=info.tasks if self.tasks is None else self.tasks,
            seed=self.seed,
            limit=self.limit,
            validation=self.validation,
            threads=self.threads,
            device=self.device,
            label=self._label(),
        )

    def _learner(self, side: int) -> LearnerConfig:
        has_trunk = backbone_class(self.backbone).has_trunk
        kind = methods.method_class(self.method)
        of_method, of_learner, of_memory = self._sorted_settings(kind)
        if has_trunk:  # which the paper does not have
            options = LearnerConfig.recommended(self.backbone, method=self.method).method_options
        else:
            options = kind.papers_options(self.dataset)
        size = self.image_size or (None if has_trunk else side)
        if size is not None:
            of_learner = {"height": size, "width": size} | of_learner
        # Resolved here: a run that is to be found again by its settings says what it computes in.
        auto = self.precision == AUTO
        compute = resolve_precision(AUTO, resolve_device(self.device)) if auto else self.precision
        memory = MemoryConfig(**(self._memory_options() | of_memory))
        learner = LearnerConfig.recommended(
            self.backbone,
            method=self.method,
            method_options=options | of_method,
            # One that keeps nothing is the same run whatever budget it is offered.
            memory=memory if has_budget(self.method) else MemoryConfig(samples=DEFAULT_BUFFER),
            seed=self.seed,
            compute=compute,
            **of_learner,
        )
        methods.create(self.method, learner.method_options)  # refuses wrong ones
        return learner

    def _memory_options(self) -> dict[str, Any]:
        options = memory_options(self.backbone, self.method)
        if self.codec is not None:
            options["codec"] = self.codec
        if self.quality is not None:
            options["quality"] = self.quality
            if options.get("codec") == AUTO:
                options["codec"] = "webp"
        if self.budget is None:
            return options | {"samples": self.buffer or DEFAULT_BUFFER}
        return options | {"bytes": parse_bytes(self.budget) if isinstance(self.budget, str) else self.budget}

    def _sorted_settings(self, kind: type[methods.Method]) -> tuple[dict[str, Any], ...]:
        """Those of the method, of the learner and of the memory."""
        of_method: dict[str, Any] = {}
        of_learner: dict[str, Any] = {}
        of_memory: dict[str, Any] = {}
        for name, value in self.settings.items():
            key = FORMER_NAMES.get(name, name)
            if isinstance(value, str):
                _, value = parse_setting(f"{key}={value}")
            if key in kind.options():
                of_method[key] = value
            elif key in LEARNER_OPTIONS:
                of_learner[key] = strength(value) if key == "augment" else value
            elif key in MEMORY_OPTIONS:
                of_memory[key] = value
            else:
                known = ", ".join(sorted({*kind.options(), *LEARNER_OPTIONS, *MEMORY_OPTIONS}))
                raise UserError(f"{self.method} has no setting {key}; it has {known}", code="setting")
        for options, config in (
            (of_method, kind.Config),
            (of_learner, LearnerConfig),
            (of_memory, MemoryConfig),
        ):
            _check_types(options, config)
        return of_method, of_learner, of_memory

    def _label(self) -> str:
        parts = [f"{self.image_size}px"] if self.image_size else []
        parts += sorted(f"{name}={value}".replace("/", "_") for name, value in self.settings.items())
        label = "-".join(parts)
        if len(label) > LONGEST_LABEL:
            label = f"{label[:LONGEST_LABEL]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
        return label


def make_config(
    dataset: str | None = None, method: str | None = None, seed: int | str = 0, **choices: Any
) -> RunConfig:
    """A run by some `Choices`; what is None was not chosen."""
    given = {"dataset": dataset, "method": method, "seed": seed, **choices}
    given = {name: value for name, value in given.items() if value is not None}
    if {"buffer", "budget"} <= given.keys():
        raise UserError("both a buffer and a budget: a memory has one size, so leave one of them out")
    if dataset is None:
        raise UserError(f"name a dataset with --dataset: {', '.join(data.DATASETS)}")
    try:
        return Choices(**given).run_config()
    except ValidationError as error:
        raise UserError(first_of(error), code="value") from None


def _check_types(options: dict[str, Any], config: type) -> None:
    """Each option is of its field's type."""
    declared, types = {field.name: field for field in fields(config)}, get_type_hints(config)
    for key, value in options.items():
        try:
            TypeAdapter(types[key]).validate_python(value, strict=True)
        except ValidationError:
            kind = getattr(types[key], "__name__", str(types[key]))
            raise UserError(
                f"{key}={value}: {key} is a {kind}, like {declared[key].default}", code="setting"
            ) from None
