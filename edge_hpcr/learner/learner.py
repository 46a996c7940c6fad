"""The learner: learns from images and labels, and predicts; classes may arrive with any batch.

It knows no tasks. Whoever knows them may tell the method when one ends. Any thread may call it: calls run one at a time.
Images are uint8 RGB [N, H, W, 3], or what `encode` made of them, so that an image passes a trunk only once. A label
is a class id: a whole number from 0 on, which never passes to another class. Inside, classes are columns in the order of
their arrival.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint, methods, step
from edge_hpcr.learner.augment import augment
from edge_hpcr.learner.config import LearnerConfig, build_network, suited_memory
from edge_hpcr.learner.device import resolve_device, resolve_precision
from edge_hpcr.learner.memory import MemoryConfig, Replay, ReplayMemory
from edge_hpcr.learner.methods import StepView
from edge_hpcr.learner.network import Classifier, Network
from edge_hpcr.learner.optimise import SETTLED, Optimiser, WeightAverage
from edge_hpcr.learner.step import LossNotFinite, StepReport

__all__ = [
    "Learner",
    "LearnerConfig",
    "LossNotFinite",
    "Prediction",
    "StepReport",
    "build_network",
    "resolve_device",
]
PREDICTION_BATCH = 256
LOWEST_RATE = 0.2  # share of the learning rate that lr_decay leaves at least: an old learner must still learn new classes
Call = TypeVar("Call", bound=Callable[..., Any])


def _exclusive(call: Call) -> Call:
    """Run a learner's method while no other thread is in one: a prediction must not meet half a step."""

    @wraps(call)
    def alone(self: Learner, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            return call(self, *arguments, **options)

    return cast(Call, alone)


@dataclass(frozen=True)
class Prediction:
    """Row i answers for image i; column c of `scores` stands for class `class_ids[c]`."""

    scores: np.ndarray  # probabilities, float32 [N, C]
    similarity: np.ndarray  # how near the nearest class is, as the classifier says: float32 [N]
    class_ids: np.ndarray  # int64 [C]

    @property
    def best(self) -> np.ndarray:
        """The most probable class id of each image."""
        return self.class_ids[self.scores.argmax(1)]


class Learner:
    """A classifier that learns from single labelled images, for life.

    >>> import numpy as np
    >>> learner = Learner(LearnerConfig(height=8, width=8), device="cpu")
    >>> dark, bright = np.zeros((4, 8, 8, 3), np.uint8), np.full((4, 8, 8, 3), 255, np.uint8)
    >>> for _ in range(10):
    ...     _ = learner.observe(np.concatenate([dark, bright]), [7, 7, 7, 7, 9, 9, 9, 9])
    >>> [int(c) for c in learner.predict(np.stack([dark[0], bright[0]])).class_ids]
    [7, 9]
    """

    def __init__(self, config: LearnerConfig | None = None, device: str | torch.device = "auto") -> None:
        self.device = device if isinstance(device, torch.device) else resolve_device(device)
        config = config or LearnerConfig()
        self.config = config = replace(config, compute=resolve_precision(config.compute, self.device))
        self.method = methods.create(config.method, config.method_options)
        self.rng = np.random.default_rng(config.seed)
        self.network = build_network(config, self.device)
        self.memory = ReplayMemory(
            suited_memory(config.memory, self.method),
            self._kept_shape(),
            self.network.feature_size if self.method.stores_features else 0,
            self.method.stores_logits,
            self.rng,
        )
        self.class_ids: list[int] = []
        self.step = 0
        self._lock = threading.RLock()
        # Of the live and of the averaged weights, until something changes.
        self._classifiers: dict[bool, Classifier] = {}
        self.average: WeightAverage | None = None
        self.method.begin(self.view)
        self.optimiser = Optimiser(config.optimiser, config.lr, self.network, config.proxy_lr)
        if config.ema_decay is not None:
            self.average = WeightAverage(self.network, config.ema_decay)
        self.changed()
        if self.memory.reserved:
            self.memory.check_holds(1)  # with the bytes that the method keeps taken off

    # Classes ------------------------------------------------------------------------------------------------------

    @_exclusive
    def add_class(self, class_id: int) -> int:
        """Make room for a class; returns its column. What the learner knows of other classes does not change."""
        (class_id,) = _whole_numbers([class_id], 1, "class ids").tolist()
        if class_id in self.class_ids:
            raise UserError(f"class {class_id} exists already; give a new class another id")
        if self.method.uses_memory:
            self.memory.add_class()
        bound = self.network.feature_size**-0.5
        proxy = self.rng.uniform(-bound, bound, self.network.feature_size).astype(np.float32)
        for network in self._networks():
            network.append_proxy(torch.from_numpy(proxy))
        if self.average is not None:
            self.average.ages.append(0)
        self.optimiser.follow_proxies()
        self.method.add_class()
        self.class_ids.append(class_id)
        self.changed()
        self._extend_records(len(self.class_ids) - 1)
        return len(self.class_ids) - 1

    @torch.no_grad()
    def _extend_records(self, column: int) -> None:
        """What the records of held samples say of a class that has come since, if the method wants to know."""
        if self.method.extends_logits:
            direction = F.normalize(self.network.proxies[column : column + 1], dim=1)[0] / self.config.tau
            self.memory.extend_logits(column, direction.cpu().numpy())

    @_exclusive
    def drop_class(self, class_id: int) -> int:
        """Forget a class and every sample of it in memory; returns how many those were."""
        column = self.column(class_id)
        removed = self.memory.drop_class(column) if self.method.uses_memory else 0
        kept = [other for other in range(len(self.class_ids)) if other != column]
        for network in self._networks():
            network.keep_proxies(kept)
        if self.average is not None:
            del self.average.ages[column]
        self.optimiser.follow_proxies(kept)
        self.method.drop_class(column)
        del self.class_ids[column]
        self.changed()
        return removed

    @_exclusive
    def relabel(self, sample_id: int, class_id: int) -> bool:
        """Correct a sample in memory; False when the memory does not hold it."""
        is_new = class_id not in self.class_ids
        column = self.add_class(class_id) if is_new else self.column(class_id)
        if not self.method.uses_memory or not self.memory.relabel(sample_id, column):
            return False
        self.changed()
        if is_new and self.config.imprint:
            own = self.memory.at(np.flatnonzero(self.memory.ids() == sample_id))
            self._imprint(own.inputs, own.labels, [column])
        return True

    @_exclusive
    def forget(self, sample_id: int) -> bool:
        """Remove a sample from memory; the weights keep what they learned from it. False when it is not held."""
        self.changed()
        return self.method.uses_memory and self.memory.remove(sample_id)

    @_exclusive
    def keeps_any(self, class_id: int) -> bool:
        """Whether it keeps anything of the class that a change of labels could still move to another."""
        return self.method.keeps_any(self.view, self.column(class_id))

    def column(self, class_id: int) -> int:
        if class_id not in self.class_ids:
            raise UserError(f"unknown class {class_id}: the learner knows {self.class_ids or 'none yet'}")
        return self.class_ids.index(class_id)

    def changed(self) -> None:
        """What was made of the weights or the memory is out of date; and the method may keep more or less."""
        self._classifiers.clear()
        if self.method.uses_memory:
            self.memory.reserve(self.method.bytes())

    def _networks(self) -> list[Network]:
        return [self.network] if self.average is None else [self.network, self.average.network]

    # Learning -----------------------------------------------------------------------------------------------------

    @_exclusive
    def observe(
        self, images: np.ndarray, labels: Any, ids: np.ndarray | None = None, remember: bool = True
    ) -> StepReport:
        """One step on a batch of labelled images, and on as many from memory; then the memory may keep some of them.

        If it fails, the learner is as before it, but for classes that came with the batch. `remember=False` is for
        samples that the memory has been offered before (a corrected label).
        """
        inputs = self.encode(images)
        labels = _whole_numbers(labels, len(inputs), "class ids").tolist()
        if ids is not None:
            ids = _whole_numbers(ids, len(inputs), "sample ids")
        new = [class_id for class_id in dict.fromkeys(labels) if class_id not in self.class_ids]
        for class_id in new:
            self.add_class(class_id)
        columns = np.array([self.class_ids.index(class_id) for class_id in labels], dtype=np.int64)
        if self.method.closed_form:
            return self._take_in(inputs, columns, ids, remember)
        inputs = self.method.keep(self.view, inputs)
        if self.config.imprint:
            self._imprint(inputs, columns, [self.class_ids.index(class_id) for class_id in new])
        return self._step(lambda: (inputs, columns, self._choose_replay(inputs, columns)), ids, remember)

    @torch.no_grad()
    def _take_in(
        self, inputs: np.ndarray, columns: np.ndarray, ids: np.ndarray | None, remember: bool
    ) -> StepReport:
        """A step without a gradient. It reports how the class means classified the samples before they joined them."""
        begun = time.perf_counter()
        self.network.eval()
        features = self.network.features(self.view.plain(inputs))
        labels = torch.from_numpy(columns).to(self.device)
        logits = self.network.logits(features)
        loss = F.cross_entropy(logits, labels)
        if not torch.isfinite(loss):
            raise LossNotFinite(
                f"the features are not finite at step {self.step}: nothing was learned from them"
            )
        kept = self.method.keep(self.view, inputs) if remember and self.method.uses_memory else None
        offer = None if kept is None else self.memory.offer(kept, columns, ids=ids)
        self.method.take_in(self.view, features, labels)
        if offer is not None:
            self.memory.admit(offer)
        self._average_proxies_follow()
        self.changed()
        self.step += 1
        correct = int((logits.argmax(1) == labels).sum())
        return StepReport(self.step - 1, float(loss), correct, 0, time.perf_counter() - begun)

    @_exclusive
    @torch.no_grad()
    def unlearn(self, images: np.ndarray, labels: Any) -> bool:
        """Undo what `observe` learned from these; False if the method cannot, because it learns by gradients."""
        if not self.method.closed_form:
            return False
        inputs = self.encode(images)
        columns = [
            self.column(class_id) for class_id in _whole_numbers(labels, len(inputs), "class ids").tolist()
        ]
        self.network.eval()
        features = self.network.features(self.view.plain(inputs))
        self.method.take_out(self.view, features, torch.tensor(columns, device=self.device))
        self._average_proxies_follow()
        self.changed()
        return True

    def _average_proxies_follow(self) -> None:
        if self.average is not None:
            self.average.network.proxies.copy_(self.network.proxies)

    @_exclusive
    def encode(self, images: np.ndarray) -> np.ndarray:
        """What the trainable part sees of images, and the memory keeps; what is encoded already stays as it is."""
        if self._latents and isinstance(images, np.ndarray) and images.dtype != np.uint8:
            kept = images.shape[1:] == self._kept_shape()
            _check_latents(images, self._kept_shape() if kept else self._input_shape())
            return images
        _check_images(images, self.config.height, self.config.width)
        if not self._latents:
            return images
        with torch.inference_mode():
            return self.network.inputs(self.to_device(images)).cpu().numpy()[:, None]

    @property
    def _latents(self) -> bool:
        return self.network.backbone.trunk is not None

    def _input_shape(self) -> tuple[int, ...]:
        """Of one sample; latents have one dimension more, of length one, as in checkpoints."""
        trunk = self.network.backbone.trunk
        return (self.config.height, self.config.width, 3) if trunk is None else (1, *trunk.latent_shape)

    def _kept_shape(self) -> tuple[int, ...]:
        """Of what the memory has of one: a method may keep a part of a latent."""
        trunk = self.network.backbone.trunk
        return self._input_shape() if trunk is None else (1, *self.method.kept_shape(trunk))

    @torch.no_grad()
    def _imprint(self, inputs: np.ndarray, columns: np.ndarray, new: list[int]) -> None:
        """Let the proxies of new classes start where their first samples are."""
        for network in self._networks() if new else []:
            network.eval()
            features = network.features(self.view.plain(inputs))
            for column in new:
                network.proxies[column] = features[columns == column].mean(0)
        for column in new:
            self._extend_records(column)
            if self.average is not None:
                self.average.ages[column] = SETTLED  # no random start to forget

    @_exclusive
    def rehearse(self) -> StepReport | None:
        """One more step on what the memory holds, for idle time; nothing is stored. None when it holds nothing.

        Half of the samples take the place of incoming ones, so the other half is distilled as in any step.
        """
        if self.method.closed_form or not len(self.memory):
            return None

        def drawn() -> tuple[np.ndarray, np.ndarray, Replay]:
            slots = self.memory.choose(self._rehearsed())
            half = (len(slots) + 1) // 2
            first, replay = self.memory.at(slots[:half]), self.memory.at(slots[half:])
            return first.inputs, first.labels, replay

        return self._step(drawn, None, remember=False, rehearsal=True)

    def _rehearsed(self) -> int:
        """Samples in a rehearsal; where a step shows one view of each, as many as in a step on new samples."""
        if self.config.plain:
            return 2 * max(1, self.config.replay)
        return self.method.samples_per_step + self._replay

    @property
    def _replay(self) -> int:
        """Samples from memory in a step; while few are held and each is shown twice, as many as in the paper."""
        wanted = self.config.replay
        return min(wanted, self.method.samples_per_step) if self.has_few else wanted

    @property
    def has_few(self) -> bool:
        """Whether the memory holds so few samples that light views of them would be learned by heart."""
        return not self.config.plain and len(self.memory) < self.config.few_samples

    @_exclusive
    def end_task(self) -> None:
        """Tell the method that a task has ended. A benchmark knows; most methods do not ask."""
        self.method.end_task(self.view)
        self.changed()

    def _step(
        self,
        choose: Callable[[], tuple[np.ndarray, np.ndarray, Replay]],
        ids: np.ndarray | None,
        remember: bool,
        rehearsal: bool = False,
    ) -> StepReport:
        begun = time.perf_counter()
        with self._undone_on_error():
            inputs, columns, replay = choose()
            batch = step.forward(self, inputs, columns, replay, ids, rehearsal)
            outcome = step.read(self, batch, *step.backward(self, batch))
            offer = None
            if remember and self.method.uses_memory:
                slots = self.method.choose_slots(self.view, batch)
                offer = self.memory.offer(inputs, columns, outcome.logits, outcome.features, batch.ids, slots)
        # From here on nothing can be refused: the weights and the memory change together.
        self.optimiser.step(self._rate())
        if self.average is not None:
            self.average.update(self.network, self.step)
        if remember:
            self._follow(batch.inputs[: len(inputs)])
        if offer is not None:
            self.memory.admit(offer)
        self.step += 1
        self.method.after_step(self.view, batch)
        self.changed()
        seconds = time.perf_counter() - begun
        return StepReport(self.step - 1, outcome.loss, outcome.correct, len(replay.ids), seconds)

    def _rate(self) -> float:
        """The learning rate's share that is left: it falls with the root of the steps, as nobody knows how many will come."""
        decay = self.config.lr_decay
        return 1.0 if decay is None else max((1 + self.step / decay) ** -0.5, LOWEST_RATE)

    @torch.no_grad()
    def _follow(self, inputs: Tensor) -> None:
        """Let the backbone's statistics follow what is seen; proxies move with the features."""
        for network in self._networks():
            move = network.backbone.follow(inputs, network.num_classes)
            if move is not None:
                network.proxies.copy_(move(network.proxies))

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """Leave draws, batch-norm statistics and gradients as they were when the step cannot be taken."""
        random_state, drawn = self.rng.bit_generator.state, self.memory.drawn()
        buffers = list(self.network.buffers())
        before = torch._foreach_clone(buffers) if buffers else []
        try:
            yield
        except BaseException:
            self.rng.bit_generator.state = random_state
            self.memory.undraw(drawn)
            for buffer, good in zip(buffers, before, strict=True):
                buffer.copy_(good)
            self.network.zero_grad(set_to_none=True)
            raise

    def _choose_replay(self, inputs: np.ndarray, columns: np.ndarray) -> Replay:
        if self.method.uses_memory and len(self.memory):
            return self.method.choose_replay(self.view, inputs, columns, self._replay)
        return self.memory.sample(0)

    @property
    def view(self) -> StepView:
        """What the method's hooks may see and touch."""
        return StepView(
            network=self.network,
            average=None if self.average is None else self.average.network,
            held=self.memory,
            rng=self.rng,
            lr=self.config.lr,
            replay=self._replay,
            device=self.device,
            augment=self._another_view,
            features=partial(step.features_of, self),
        )

    def _another_view(self, plain: Tensor) -> Tensor:
        return plain if self._latents else augment(plain, self.rng, self.config.augment)

    def to_device(self, inputs: np.ndarray) -> Tensor:
        """Latents as they are; uint8 images NHWC on the host as float NCHW (channels_last) in [0, 1] on the device."""
        return self.view.to_device(inputs)

    @_exclusive
    def average_weights(self, decay: float | None) -> None:
        """Keep an average of the weights from now on, or none."""
        if decay is None:
            self.average = None
        elif self.average is None:
            self.average = WeightAverage(self.network, decay)
        else:
            self.average.decay = decay
        self.config = replace(self.config, ema_decay=decay)
        self.changed()

    @_exclusive
    def resize_memory(self, config: MemoryConfig) -> None:
        """Change the memory's budget and encoding; what no longer fits leaves at random."""
        self.memory.resize(suited_memory(config, self.method))
        self.changed()

    # Predicting ---------------------------------------------------------------------------------------------------

    @_exclusive
    @torch.no_grad()
    def predict(self, images: np.ndarray, averaged: bool = False) -> Prediction:
        """Probabilities over the classes seen so far, and how near the nearest proxy is; `averaged` uses the EMA."""
        if not self.class_ids:
            raise UserError(
                "nothing to predict yet: the learner knows no class; observe a labelled image first"
            )
        network = self.network
        if averaged:
            if self.average is None:
                raise UserError("this learner keeps no averaged weights: set ema_decay when it is made")
            network = self.average.network
        network.eval()
        if averaged not in self._classifiers:
            self._classifiers[averaged] = self.method.classifier(self.view, network)
        classify = self._classifiers[averaged]
        scores, similarity = [], []
        for start in range(0, len(images), PREDICTION_BATCH):
            part = self.encode(images[start : start + PREDICTION_BATCH])
            plain = self.view.plain(part)
            features = network.features(plain)
            scores.append(classify(features, plain).softmax(1).cpu().numpy())
            similarity.append(classify.similarity(network.similarities(features), plain).cpu().numpy())
        ids = np.array(self.class_ids, dtype=np.int64)
        return Prediction(np.concatenate(scores), np.concatenate(similarity), ids)

    @_exclusive
    def byte_breakdown(self) -> dict[str, int]:
        """The replay bytes, all that is kept of samples: the memory's by kind, and the method's own."""
        held, kept = self.memory.byte_breakdown(), self.method.bytes()
        return held | {"method": kept, "total": held["total"] + kept}

    @_exclusive
    def learner_bytes(self) -> dict[str, int]:
        """The bytes of the learner itself, by kind: they do not grow with the samples, and no budget pays for them."""
        trunk = self.network.backbone.trunk
        tensors = {
            "weights": self.network.state_dict(),
            "average": self.average.network.state_dict() if self.average else {},
            "optimiser": self.optimiser.state(),
        }
        parts = {kind: sum(each.nbytes for each in own.values()) for kind, own in tensors.items()}
        parts["trunk"] = trunk.weight_bytes if trunk else 0
        parts["method"] = self.method.network_bytes()
        return parts | {"total": sum(parts.values())}

    # Checkpoints --------------------------------------------------------------------------------------------------

    @_exclusive
    def save(self, folder: Path, notes: dict[str, Any] | None = None) -> None:
        """The whole learner as a folder; `notes` come back from `load` (a benchmark keeps its progress there)."""
        tensors = {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state(),
            "method": self.method.state(),
        }
        if self.average is not None:
            tensors["average"] = self.average.network.state_dict()
        arrays = {
            group: {name: tensor.detach().cpu().numpy() for name, tensor in members.items()}
            for group, members in tensors.items()
        }
        arrays["memory"], memory_facts = self.memory.state()
        trunk = self.network.backbone.trunk
        facts = {
            "config": asdict(self.config),
            "method_options": self.method.config_dict(),
            "class_ids": self.class_ids,
            "step": self.step,
            "rng": self.rng.bit_generator.state,
            "memory": memory_facts,
            "trunk": trunk.sha256 if trunk else None,
            "ages": None if self.average is None else self.average.ages,
            "notes": notes or {},
        }
        checkpoint.write(Path(folder), arrays, facts)

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "auto") -> tuple[Learner, dict[str, Any]]:
        """The learner that `save` wrote, which continues bit for bit, and the notes saved with it."""
        arrays, facts = checkpoint.read(Path(folder))
        try:
            learner = cls._as_configured(facts, device)
            learner._restore(arrays, facts)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            # Every file is as it was written, so another version wrote it.
            raise UserError(f"checkpoint {folder} is of another version of the learner ({error})") from error
        return learner, facts["notes"]

    @classmethod
    def _as_configured(cls, facts: dict[str, Any], device: str | torch.device) -> Learner:
        """A new learner with all options as they were, whatever their defaults are now; but those that are gone since."""
        config = LearnerConfig.from_dict(facts["config"])
        method = methods.method_class(config.method)
        stored = method.options_then(facts.get("method_options", config.method_options))
        if named := sorted(method.gone.keys() & stored.keys()):
            raise UserError(
                f"it learned with {named[0]}={stored[named[0]]}, an option of {config.method} that is gone: start anew, or "
                "use an earlier version"
            )
        asked, options = (
            {name: value for name, value in each.items() if name in method.options()}
            for each in (config.method_options, stored)
        )
        learner = cls(replace(config, method_options=options), device)
        learner.config = replace(learner.config, method_options=asked)
        return learner

    def _restore(self, arrays: dict[str, dict[str, np.ndarray]], facts: dict[str, Any]) -> None:
        trunk, learned = self.network.backbone.trunk, facts.get("trunk")
        if learned and (trunk is None or trunk.sha256 != learned):
            raise UserError(
                f"the weights of the backbone {self.config.backbone} here are not those it learned with (SHA-256 "
                f"{learned[:12]}…): install the same ones"
            )
        self.class_ids = [int(class_id) for class_id in facts["class_ids"]]
        self.step = facts["step"]
        self.rng.bit_generator.state = facts["rng"]
        self.memory = ReplayMemory.from_state(arrays["memory"], facts["memory"], self.rng)

        def tensors(group: str) -> dict[str, Tensor]:
            # Cloned into PyTorch's own memory: which kernel computes a tensor, and so the last bits of the result, depends on
            # its alignment and its layout. The network and the optimiser keep their own layout.
            return {
                name: torch.from_numpy(array).clone().to(self.device) for name, array in arrays[group].items()
            }

        self.network.take_over(tensors("network"))
        if self.average is not None:
            self.average.network.take_over(tensors("average"))
            # Older checkpoints say nothing of them.
            self.average.ages = facts.get("ages") or [SETTLED] * len(self.class_ids)
        self.optimiser.follow_proxies(kept=[])
        self.optimiser.load_state(tensors("optimiser"))
        self.method.load_state(tensors("method"))
        self.changed()


def _check_images(images: np.ndarray, height: int, width: int) -> None:
    """Refuse anything but a batch of uint8 RGB images of this size."""
    wanted = f"[N, {height}, {width}, 3]"
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = getattr(images, "dtype", type(images).__name__)
        raise UserError(f"images are {kind}: give a NumPy array of uint8, RGB, {wanted}")
    if images.ndim != 4 or images.shape[1:] != (height, width, 3):
        raise UserError(f"images have shape {images.shape}: this learner takes {wanted}")
    if len(images) == 0:
        raise UserError("an empty batch: give at least 1 image")


def _check_latents(latents: np.ndarray, shape: tuple[int, ...]) -> None:
    """Refuse anything but a batch of finite latents of this shape."""
    if latents.dtype != np.float32 or latents.shape[1:] != shape or len(latents) == 0:
        kind = f"{latents.dtype} {list(latents.shape)}"
        raise UserError(f"latents are {kind}: this learner takes float32 [N, {', '.join(map(str, shape))}]")
    if not np.isfinite(latents).all():
        raise UserError("the latents of a batch are not finite: are the trunk's weights damaged?")


def _whole_numbers(values: Any, count: int, what: str) -> np.ndarray:
    """As int64; refuses another number of them, and what does not count from 0."""
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise UserError(
            f"{what} are {array.dtype} of shape {array.shape}: give {count} whole numbers, one per image"
        )
    array = array.astype(np.int64)
    if (array < 0).any():
        raise UserError(f"{what}: {array.min()} is negative; they count from 0")
    return array
