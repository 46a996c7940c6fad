"""What a method is: a loss over one batch, and a few hooks where it may differ from plain replay.

The learner runs every method through this contract and knows none of them. The defaults are plain experience replay:
replay at random, offer everything to the reservoir, follow the gradient, classify by the proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from edge_hpcr.learner.backbones.backbone import Trunk
from edge_hpcr.learner.device import send
from edge_hpcr.learner.memory import Replay, ReplayMemory
from edge_hpcr.learner.network import Classifier, Network


@dataclass(frozen=True)
class Records:
    """What the memory recorded of the replayed samples, one row for each replayed view."""

    logits: Tensor
    features: Tensor
    known: Tensor


@dataclass(frozen=True)
class Batch:
    """One step's batch after the forward pass, before the update.

    The rows of `inputs`, `logits`, `features` and `labels`: incoming samples, their augmented views, replayed samples, their augmented views.
    """

    inputs: Tensor  # images, or latents if the network has a trunk
    logits: Tensor
    features: Tensor
    labels: Tensor
    incoming_rows: int
    distinct_samples: int
    records: Records
    step: int
    tau: float
    ids: np.ndarray  # of the incoming samples, as the memory would store them

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def incoming(self) -> slice:
        return slice(None, self.incoming_rows)

    @property
    def replayed(self) -> slice:
        return slice(self.incoming_rows, None)

    @property
    def views(self) -> int:
        """Rows of each sample: itself, and perhaps an augmented view."""
        return len(self.labels) // self.distinct_samples


@dataclass(frozen=True)
class StepView:
    """What a hook may see and touch; valid until the hook returns, but for network, rng, augment and features, which stay.

    A hook that runs `network` in training mode moves its batch-norm statistics: try things out on a copy.
    """

    network: Network
    average: Network | None  # of the weights so far, if the learner keeps one
    held: ReplayMemory  # to draw from, look at and edit; what comes and goes is the learner's to say
    rng: np.random.Generator  # the learner's own: a restored learner draws the same numbers
    lr: float  # of SGD: what a method tries out by itself is a step of SGD, whatever the optimiser
    replay: int  # samples from memory in a step
    device: torch.device
    augment: Callable[[Tensor], Tensor]  # another view of each image, as in a step; latents stay as they are
    features: Callable[[Network, Tensor], Tensor]  # a network's pass in the precision of a step

    def to_device(self, inputs: np.ndarray) -> Tensor:
        """Latents as they are; images NHWC of 0 to 255 on the host as float NCHW (channels_last) of 0 to 1 on the device."""
        moved = send(torch.from_numpy(inputs), self.device)
        if moved.dtype != torch.uint8 and self.network.backbone.trunk is not None:
            return moved
        # An NHWC array seen as NCHW is already channels_last: nothing is copied but the bytes to the device.
        return moved.permute(0, 3, 1, 2).to(torch.float32).div(255)

    def linear(self, inputs: int, outputs: int) -> nn.Linear:
        """A layer for `network.extra`, on the device, that starts where the learner's own random numbers say."""
        layer, bound = nn.Linear(inputs, outputs, device=self.device), inputs**-0.5
        with torch.no_grad():
            for parameter in layer.parameters():
                start = self.rng.uniform(-bound, bound, parameter.shape).astype(np.float32)
                parameter.copy_(torch.from_numpy(start))
        return layer

    def plain(self, inputs: np.ndarray) -> Tensor:
        """A batch as `Learner.encode` gives it, on the device: latents without the dimension that the memory has more."""
        latents = self.network.backbone.trunk is not None and inputs.dtype != np.uint8
        return self.to_device(inputs[:, 0] if latents else inputs)

    def samples(self, replay: Replay) -> tuple[Tensor, Tensor]:
        """Samples from memory, on the device: their inputs and their class columns."""
        return self.plain(replay.inputs), torch.from_numpy(replay.labels).to(self.device)


@dataclass(frozen=True)
class NoConfig:
    """Of a method without hyper-parameters."""


class Method:
    """One way of learning. A subclass gives `name` and `loss`; the hooks serve the methods of the paper's table.

    One with `closed_form` has no loss: its `take_in` learns, and the network stays as it is.

    A class without a `name` of its own is a helper, not a method.
    """

    name: ClassVar[str]  # in commands, tables, checkpoints and the paper's results
    order: ClassVar[int] = 1000  # its place in the tables
    Config: ClassVar[type] = NoConfig
    fixed: ClassVar[Mapping[str, Any]] = {}  # fields of Config that this method does not leave to the user
    paper_options: ClassVar[Mapping[str, dict[str, Any]]] = {}  # by dataset; see `papers_options`
    # Options newer than some results: what was done before they existed.
    earlier: ClassVar[Mapping[str, Any]] = {}
    gone: ClassVar[Mapping[str, Any]] = {}  # options that stored results may name, and what is done now
    source: ClassVar[str] = "the paper"  # where it was published, how far read, and what is known to differ
    from_description: ClassVar[bool] = False  # no program of its authors was read: pages and tables say so
    # Settings of learner and memory that suit it, if they are not the paper's, where a network learns from scratch.
    recommended: ClassVar[Mapping[str, Any]] = {}
    recommended_memory: ClassVar[Mapping[str, Any]] = {}
    predicts_averaged: ClassVar[bool] = False  # a benchmark asks the averaged weights; a person chooses
    uses_memory: ClassVar[bool] = True
    closed_form: ClassVar[bool] = False
    linear: ClassVar[bool] = False  # the classifier is a linear layer, not cosines
    edits_images: ClassVar[bool] = False  # then the memory keeps them as 32-bit floats
    # Somebody must say where a task ends: it is refused where nobody can, as in a live workspace.
    needs_boundaries: ClassVar[bool] = False
    stores_logits: bool = False
    stores_features: bool = False
    # A record gets a logit for a class that comes later: the cosine of its features with the class's first proxy.
    extends_logits: bool = False
    # A reference row that sees the whole data shuffled instead of task by task, and how often.
    shuffled_passes: ClassVar[int] = 0
    samples_per_step: ClassVar[int] = 10

    network: Network  # the one that learns

    def __init__(self, config: Any = None) -> None:
        self.config = config if config is not None else self.Config(**self.fixed)

    @classmethod
    def options(cls) -> set[str]:
        """The names of the hyper-parameters that a user may set."""
        return {field.name for field in fields(cls.Config)} - cls.fixed.keys()

    @classmethod
    def papers_options(cls, dataset: str) -> dict[str, Any]:
        """The options with which the paper ran this method on a dataset, where they are not the defaults."""
        chosen = cls.paper_options.get(dataset, {})
        return {key: value for key, value in chosen.items() if key in cls.options()}

    @classmethod
    def options_then(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """All options of a stored result or checkpoint, which may be older than some of them.

        An option that is gone is included only if its value differs from what is done now.
        """
        known = cls.options() | cls.gone.keys()
        then = {key: value for key, value in cls.earlier.items() if key in known} | dict(stored)
        return {key: value for key, value in then.items() if key not in cls.gone or cls.gone[key] != value}

    def loss(self, batch: Batch) -> Tensor:
        """What one step minimises."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def begin(self, view: StepView) -> None:
        """Before the first class; a restored learner loads its state afterwards."""
        self.network = view.network

    def take_in(self, view: StepView, features: Tensor, columns: Tensor) -> None:
        """Learn from features without a gradient, and say in `view.network.proxies` where the classes are now."""
        raise NotImplementedError(f"{type(self).__name__} learns by its loss")

    def take_out(self, view: StepView, features: Tensor, columns: Tensor) -> None:
        """Undo `take_in` of these samples."""
        raise NotImplementedError(f"{type(self).__name__} learns by its loss")

    def choose_replay(self, view: StepView, inputs: np.ndarray, columns: np.ndarray, size: int) -> Replay:
        """Which samples to replay with these incoming ones (MIR and ASER choose; the default leaves it to the memory)."""
        return view.held.sample(size, columns)

    def adjust_gradients(self, view: StepView, batch: Batch) -> None:
        """After backward, before the weights and the memory change.

        A-GEM projects here, OBC gives the classifier a gradient of its own. The step may still be refused.
        """

    def choose_slots(self, view: StepView, batch: Batch) -> dict[int, int | None] | None:
        """Which incoming samples to store, and the slot whose sample gives way to each (None: a slot of its own).

        GSS and ASER choose; the default leaves it to the reservoir. Runs before the weights change: if it fails, the
        step is not taken.
        """
        return None

    def after_step(self, view: StepView, batch: Batch) -> None:
        """After the weights and the memory changed (OCM refreshes its second model, ER-WA and OBC correct weights)."""

    def end_task(self, view: StepView) -> None:
        """A task has ended. Only methods with `needs_boundaries` may depend on it."""

    def add_class(self) -> None:
        """A class has come; its column is the last."""

    def drop_class(self, column: int) -> None:
        """A class has left; the columns behind it move up."""

    def keeps_any(self, view: StepView, column: int) -> bool:
        """Whether anything that is kept is of this class."""
        return bool((view.held.labels() == column).any())

    def kept_shape(self, trunk: Trunk) -> tuple[int, ...]:
        """Of what the memory keeps of a latent; `keep` gives it."""
        return trunk.with_places(0)

    def keep(self, view: StepView, inputs: np.ndarray) -> np.ndarray:
        """What the memory keeps of new samples [N, 1, ...]: a latent's places are for methods that look at them."""
        trunk = view.network.backbone.trunk
        return inputs if trunk is None else inputs[..., : self.kept_shape(trunk)[-1]]

    def follow(self, other: Method) -> None:
        """Take over what a copy, which learns from a part of the memory, cannot find out by itself."""

    def evidence(self) -> str | None:
        """A sentence about what it looks at, and why, for a person; None: there is nothing to choose."""
        return None

    def where(self, seen: np.ndarray) -> tuple[float, float, float] | None:
        """Where the thing of a picture is, and how large: across, down and a side, as shares; None: it cannot say."""
        return None

    def classifier(self, view: StepView, network: Network) -> Classifier:
        """From features to class scores (before the softmax), for predictions with this network and for its export.

        Called between two steps; it may be used during later ones, so it holds all that it needs (SCR computes its
        class means here).
        """
        return Classifier.by_proxies(network)

    def bytes(self) -> int:
        """The bytes of samples that it keeps outside the memory (its `state`); they count as replay bytes, as the memory's do."""
        return sum(tensor.nbytes for tensor in self.state().values())

    def network_bytes(self) -> int:
        """The bytes of its own networks, as a second model: learner bytes, which are no part of the replay budget."""
        return 0

    def state(self) -> dict[str, Tensor]:
        """Tensors of its own that a checkpoint must keep (a second model's weights)."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The counterpart of `state`."""

    def config_dict(self) -> dict[str, Any]:
        """The values of all `options`, and of those gone options that an older result would mean by saying nothing."""
        told = {key: value for key, value in self.gone.items() if key in self.earlier}
        return told | {key: value for key, value in asdict(self.config).items() if key not in self.fixed}
