"""The replay memory: a fair sample of everything seen, inside a budget of bytes or of samples.

A slot of a 32x32 image with 160 features and 10 classes costs 3,424 bytes raw (image 3,072, features 320,
logits 20, label 2, bookkeeping 10), where float32 storage of the same sample takes 12,968.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.checks import check_inputs, whole_numbers
from edge_hpcr.learner.codec import FLOAT, LATENT
from edge_hpcr.learner.drawing import Deck, least_used
from edge_hpcr.learner.memory_config import MemoryConfig as MemoryConfig
from edge_hpcr.learner.rows import Numbers, input_store, stored_bytes
from edge_hpcr.learner.slots import MAX_CLASSES, Slots, slot_bytes
from edge_hpcr.learner.slots import Replay as Replay


@dataclass(frozen=True)
class Offer:
    """A batch that was checked and encoded, with the keys it drew; valid until the memory changes."""

    keys: np.ndarray
    ids: np.ndarray
    labels: np.ndarray
    logits: np.ndarray
    features: np.ndarray
    inputs: dict[int, Any]  # as they would be stored, by row, of those rows that may be kept
    slots: dict[int, int | None] | None  # where the method wants them; None: the reservoir decides


@dataclass
class _ClassStream:
    """What a balanced memory knows of the samples of one class: how many came, and whether any had to leave."""

    seen: int = 0
    left: bool = False

    def admits(self, held: int) -> float:
        """The probability that the next one is taken in, of which one then leaves by chance (Vitter's reservoir)."""
        return (held + 1) / (self.seen + 1) if self.left else 1.0


class ReplayMemory:
    """A uniform random sample of the stream within a budget, whatever the samples' sizes.

    Fairness. Picture that every arriving sample draws a key, uniform in (0, 1), and that the memory keeps
    the samples with the smallest keys that fit. Keys do not look at the sample, so every position of the
    stream is as likely to be kept as any other, also when sizes differ or the capacity shrinks. The keys
    need not be stored: with `threshold` t the smallest key ever evicted, the k held keys are independent
    and uniform in (0, t). So a newcomer belongs to the memory with probability t, the largest of k keys
    is that of a uniformly chosen sample, and its value is distributed as t * U**(1/k).

    With `keep="balanced"` whoever leaves is of the class that holds most, and each class is a reservoir of its own
    (Chrysakis and Moens 2020): rare classes are kept whole while frequent ones share what is left.

    >>> memory = ReplayMemory(MemoryConfig(samples=2), (8, 8, 3), 0, False, np.random.default_rng(0))
    >>> memory.add_class()
    >>> memory.update(np.zeros((5, 8, 8, 3), np.uint8), np.zeros(5, np.int64))
    >>> len(memory), memory.sample(10).inputs.shape
    (2, (2, 8, 8, 3))
    """

    def __init__(
        self,
        config: MemoryConfig,
        input_shape: tuple[int, ...],
        feature_size: int,
        stores_logits: bool,
        rng: np.random.Generator,
    ) -> None:
        self.input_shape = tuple(input_shape)
        self.feature_size = feature_size
        self.stores_logits = stores_logits
        self.config = config
        self.threshold = 1.0
        self.reserved = 0  # of the byte budget, for what the method keeps
        self.seen = 0
        self._rng = rng
        self.num_classes = 0
        self._next_id = 0
        self._deck = Deck()
        self._classes: list[_ClassStream] = []
        self._slots = Slots(config, self.input_shape, feature_size)
        # Encoded images may turn out small, so only what could never hold a sample is refused so early.
        exact = config.codec in ("raw", FLOAT, LATENT)
        self._check_holds_classes(config, 1, self.row_bytes(None if exact else 1))

    def __len__(self) -> int:
        return len(self._slots)

    # What it costs

    def byte_breakdown(self) -> dict[str, int]:
        """The bytes of the held samples by kind; `total` is what a byte budget limits."""
        slot = slot_bytes(self.config, self.feature_size, self._slots.logits.shape[0])
        parts = {"image": self._slots.input_bytes} | {
            kind: len(self._slots) * size for kind, size in slot.items()
        }
        return parts | {"total": sum(parts.values())}

    def row_bytes(self, input_bytes: int | None = None) -> int:
        """The cost of one slot now, for an input of this many bytes or else for a typical one."""
        input_bytes = self._typical_input_bytes() if input_bytes is None else input_bytes
        return self._fixed_bytes(self.config, self._slots.logits.shape[0]) + input_bytes

    def planned_capacity(self) -> int:
        """How many samples the budget holds now; an estimate when images are encoded."""
        return self.config.capacity(self.row_bytes(), self.reserved)

    def overhead(self) -> dict[str, float]:
        """What logits and features add: in numbers, as the paper's table counts, and in real bytes."""
        kept = int(np.prod(self.input_shape))
        extra = self.feature_size + self._slots.logits.shape[0]
        row = self.row_bytes()
        plain = row - extra * self._slots.logits.dtype.itemsize
        return {"numbers": (kept + extra) / kept, "bytes": row / plain}

    def check_holds(self, classes: int) -> None:
        """Refuse a budget that could not hold one sample of each of so many classes."""
        fixed = self._fixed_bytes(self.config, classes if self.stores_logits else 0)
        self._check_holds_classes(self.config, classes, fixed + self._typical_input_bytes())

    # What it holds

    def ids(self) -> np.ndarray:
        """The ids of the held samples, in the order of their slots."""
        return self._slots.held("id").copy()

    def labels(self) -> np.ndarray:
        """The class columns of the held samples, in the order of their slots."""
        return self._slots.held("label").astype(np.int64)

    def class_counts(self) -> np.ndarray:
        return np.bincount(self._slots.held("label"), minlength=self.num_classes)

    # Learning

    def add_class(self) -> None:
        """One more class: every row of logits widens, and samples leave if the budget now holds fewer."""
        if self.num_classes == MAX_CLASSES:
            raise UserError(f"the memory knows {MAX_CLASSES} classes, the most it can: drop one first")
        self.check_holds(self.num_classes + 1)
        fixed = self._fixed_bytes(self.config, self._slots.logits.shape[0] + int(self.stores_logits))
        while self.config.exceeded_by(
            len(self._slots), len(self._slots) * fixed + self._slots.input_bytes + self.reserved
        ):
            self._evict()
        self._slots.trim()
        self.num_classes += 1
        self._classes.append(_ClassStream())
        if self.stores_logits:
            self._slots.logits.widen()

    def reserve(self, size: int) -> None:
        """Leave so many bytes of the budget to the method; samples leave if they no longer fit beside them."""
        self.reserved = size
        self._shrink()

    def extend_logits(self, column: int, direction: np.ndarray) -> None:
        """Record for a class that came after the samples how far their features point in its direction."""
        self._slots.logits.set_column(column, self._slots.features.values(len(self._slots)) @ direction)

    def new_ids(self, count: int) -> np.ndarray:
        """What so many samples would be called that come without ids of their own."""
        return np.arange(self._next_id, self._next_id + count)

    def update(self, *batch: Any, **options: Any) -> None:
        """Offer a batch and admit what is drawn of it; the arguments are those of `offer`."""
        self.admit(self.offer(*batch, **options))

    def offer(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        logits: np.ndarray | None = None,
        features: np.ndarray | None = None,
        ids: np.ndarray | None = None,
        slots: dict[int, int | None] | None = None,
    ) -> Offer:
        """Check and encode a batch, and draw its keys: all that can fail. Nothing but the generator changes.

        Logits and features that the memory does not store are ignored. `slots` says, instead of the keys, which rows to
        keep, and the slot whose sample gives way to each; None is a slot of its own.
        """
        check_inputs(inputs, self.input_shape, self.config.codec == LATENT)
        count = len(inputs)
        labels = whole_numbers(labels, count, "labels")
        if labels.max() >= self.num_classes:
            raise UserError(f"a label is outside the {self.num_classes} known classes: add the class first")
        ids = whole_numbers(self.new_ids(count) if ids is None else ids, count, "ids")
        logits = _checked_numbers(logits, count, self._slots.logits, "logits")
        features = _checked_numbers(features, count, self._slots.features, "features")
        keys = self._rng.random(count)
        candidates = list(slots) if slots is not None else self._candidates(keys, labels)
        stored = {row: self._to_stored(inputs[row]) for row in candidates}
        return Offer(keys, ids, labels, logits, features, stored, slots)

    def _candidates(self, keys: np.ndarray, labels: np.ndarray) -> list[int]:
        """The rows that may be kept. What admits a sample only falls while the batch is taken in."""
        if self.config.keep == "reservoir":
            return np.flatnonzero(keys < self.threshold).tolist()
        held = self.class_counts()
        admits = np.array([self._classes[label].admits(held[label]) for label in labels.tolist()])
        return np.flatnonzero(keys < admits).tolist()

    def admit(self, offer: Offer) -> None:
        """Take an offer into the reservoir, or into the slots that the method chose."""
        self.seen += len(offer.keys)
        for label in offer.labels.tolist():
            self._classes[label].seen += 1
        self._next_id = max(self._next_id, int(offer.ids.max()) + 1)
        for row, stored in offer.inputs.items():
            head = (offer.ids[row], offer.labels[row], self.num_classes)
            values = head, stored, offer.logits[row], offer.features[row]
            if offer.slots is not None:
                self._slots.put(offer.slots[row], *values)
            elif self.config.keep == "balanced" or offer.keys[row] < self.threshold:
                self._slots.put(None, *values)
                self._shrink()
        self._shrink()

    # Replay

    def sample(self, k: int, incoming: np.ndarray | None = None) -> Replay:
        """`min(k, len)` distinct rows, as `choose` draws them."""
        return self.at(self.choose(k, incoming))

    def choose(self, k: int, incoming: np.ndarray | None = None) -> np.ndarray:
        """The slots of `min(k, len)` distinct samples; each set of them is equally likely, unless `draw` says otherwise.

        `incoming` are the labels of the samples beside which they will be shown.
        """
        if self.config.draw in ("deck", "even"):
            beside = incoming.tolist() if self.config.draw == "even" and incoming is not None else []
            return self._deck.choose(self.labels(), k, self._rng, beside)
        if self.config.draw == "random":
            return self._rng.choice(len(self._slots), size=min(k, len(self._slots)), replace=False)
        uses = self._slots.uses()
        slots = least_used(uses, k, self._rng)
        uses[slots] += 1
        self._slots.set_uses(uses)
        return slots

    def drawn(self) -> Any:
        """What the next draw depends on beside the generator, for `undraw`."""
        return [*self._deck.cards], self._slots.uses()

    def undraw(self, drawn: Any) -> None:
        """Take back the draws since `drawn`; no sample may have come or gone."""
        self._deck.cards, uses = drawn
        self._slots.set_uses(uses)

    def at(self, slots: np.ndarray) -> Replay:
        """The rows at these slots; slots stay valid until the memory changes."""
        return self._slots.at(slots)

    def as_kept(self, inputs: np.ndarray) -> np.ndarray:
        """What the memory would give back of these."""
        store: Any = input_store(self.input_shape, self.config.codec, self.config.quality, self.config.side)
        for slot, each in enumerate(inputs):
            store.put(slot, store.stored(each))
        return store.gather(np.arange(len(inputs)))

    def replace_input(self, slot: int, value: np.ndarray) -> None:
        """Another input for the sample in this slot (GMED edits what it replays); the rest of the row stays."""
        self._slots.check(np.array([slot]))
        check_inputs(value[None], self.input_shape, value.dtype != np.uint8)
        self._slots.put_input(slot, self._to_stored(value))
        self._shrink()

    # Corrections by the user

    def remove(self, sample_id: int) -> bool:
        """Forget a sample; False when the memory does not hold it."""
        return self._remove_where("id", sample_id) > 0

    def relabel(self, sample_id: int, column: int) -> bool:
        """Correct the class of a sample; False when the memory does not hold it."""
        self._check_column(column)
        slots = np.flatnonzero(self._slots.held("id") == sample_id)
        for slot in slots.tolist():
            self._slots.relabel(slot, column)
        return len(slots) > 0

    def drop_class(self, column: int) -> int:
        """Forget a class, its samples and its column of the logits; later columns move down by one."""
        self._check_column(column)
        removed = self._remove_where("label", column)
        self._slots.drop_class(column)
        if self.stores_logits:
            self._slots.logits.delete_column(column)
        self._deck.drop_class(column)
        del self._classes[column]
        self.num_classes -= 1
        return removed

    def resize(self, config: MemoryConfig) -> None:
        """Change the budget, and the codec or precision with it; what no longer fits leaves by the fair rule.

        A first pass only measures, so that samples leave before the new encoding can take more room.
        """
        recode = config.encoding != self.config.encoding
        if recode and LATENT in (config.codec, self.config.codec):
            raise UserError(
                f"a memory of {self.config.codec} cannot be kept as {config.codec}: the network decides"
            )
        store = self._slots.inputs
        if recode:
            store = input_store(self.input_shape, config.codec, config.quality, config.side)
        sizes = [stored_bytes(self._slots.recoded(slot, store)) for slot in range(len(self._slots))]
        fixed = self._fixed_bytes(config, self._slots.logits.shape[0])
        mean = -(-sum(sizes) // len(sizes)) if sizes else config.typical_bytes(self.input_shape)
        self._check_holds_classes(config, max(1, self.num_classes), fixed + mean)
        growth = config.capacity(fixed + mean, self.reserved) / max(1, self.planned_capacity())
        # Newcomers may fill the room that was won, at the share that it is of the old.
        self.threshold = min(1.0, self.threshold * max(1.0, growth))
        total = sum(sizes) + len(self._slots) * fixed + self.reserved
        while config.exceeded_by(len(self._slots), total):
            slot = self._evict()
            total -= sizes[slot] + fixed
            sizes[slot] = sizes[-1]
            sizes.pop()
        self._slots.recode(config, store)
        self.config = config

    # Checkpoints

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and JSON-ready facts that `from_state` restores; the generator is the learner's to save."""
        meta = {
            "config": asdict(self.config),
            "image_shape": list(self.input_shape),
            "feature_size": self.feature_size,
            "stores_logits": self.stores_logits,
            "num_classes": self.num_classes,
            "threshold": self.threshold,
            "seen": self.seen,
            "next_id": self._next_id,
            "deck": self._deck.cards,
            "classes": [asdict(each) for each in self._classes],
        }
        return self._slots.arrays(), meta

    @classmethod
    def from_state(
        cls, arrays: dict[str, np.ndarray], meta: dict[str, Any], rng: np.random.Generator
    ) -> "ReplayMemory":
        """The memory that `state` described; refuses arrays that do not fit together."""
        try:
            config = MemoryConfig(**meta["config"])
            memory = cls(config, tuple(meta["image_shape"]), meta["feature_size"], meta["stores_logits"], rng)
            memory.num_classes = int(meta["num_classes"])
            memory.threshold = float(meta["threshold"])
            memory.seen = int(meta["seen"])
            memory._next_id = int(meta["next_id"])
            memory._deck = Deck(meta.get("deck"))  # older checkpoints have neither
            known = meta.get("classes") or [{}] * memory.num_classes
            memory._classes = [_ClassStream(**each) for each in known]
            if memory.stores_logits:
                memory._slots.logits = Numbers(memory.num_classes, config.logit_precision)
            memory._slots.fill(arrays, memory.num_classes)
        except (KeyError, TypeError) as error:
            raise UserError(f"the saved memory is incomplete ({error}): use an older checkpoint") from error
        if config.exceeded_by(len(memory), memory._total_bytes()) or not 0 < memory.threshold <= 1:
            raise UserError("the saved memory contradicts its own budget: use an older checkpoint")
        return memory

    # Insides

    def _shrink(self) -> None:
        while len(self._slots) and self.config.exceeded_by(
            len(self._slots), self._total_bytes() + self.reserved
        ):
            self._evict()

    def _evict(self) -> int:
        """Remove the sample with the largest key (see the class); returns the slot that the last one took."""
        slot = self._leaving()
        self.threshold *= (1.0 - self._rng.random()) ** (1.0 / len(self._slots))
        self._classes[self._slots.label(slot)].left = True
        self._slots.delete(slot)
        return slot

    def _leaving(self) -> int:
        """The slot whose sample has to leave: any, or any of the class that holds most."""
        if self.config.keep == "reservoir":
            return int(self._rng.integers(len(self._slots)))
        largest = int(self.class_counts().argmax())
        return int(self._rng.choice(np.flatnonzero(self._slots.held("label") == largest)))

    def _remove_where(self, field: str, value: int) -> int:
        slots = np.flatnonzero(self._slots.held(field) == value)
        before = len(self._slots)
        for slot in slots[::-1].tolist():
            self._slots.delete(slot)
        # What is left stands for a stream that is shorter by the same share.
        if len(slots):
            self.threshold = min(1.0, self.threshold * before / len(self._slots)) if len(self._slots) else 1.0
        self._slots.trim()
        return len(slots)

    def _to_stored(self, value: np.ndarray) -> Any:
        stored = self._slots.inputs.stored(value)
        size = self.row_bytes(stored_bytes(stored))
        if self.config.exceeded_by(1, size + self.reserved):
            budget = self.config.bytes
            raise UserError(
                f"one sample takes {size} bytes, more than the whole memory budget of {budget}: raise the budget"
            )
        return stored

    def _total_bytes(self) -> int:
        return (
            len(self._slots) * self._fixed_bytes(self.config, self._slots.logits.shape[0])
            + self._slots.input_bytes
        )

    def _fixed_bytes(self, config: MemoryConfig, columns: int) -> int:
        return sum(slot_bytes(config, self.feature_size, columns).values())

    def _typical_input_bytes(self) -> int:
        if len(self._slots):
            return -(-self._slots.input_bytes // len(self._slots))
        return self.config.typical_bytes(self.input_shape)

    def _check_holds_classes(self, config: MemoryConfig, classes: int, row_bytes: int) -> None:
        if config.capacity(row_bytes, self.reserved) < classes:
            budget = f"{config.samples} samples" if config.bytes is None else f"{config.bytes} bytes"
            beside = f" beside {self.reserved} bytes that the method keeps" if self.reserved else ""
            raise UserError(
                f"a memory of {budget} cannot hold one sample (about {row_bytes} bytes) of each of "
                f"{classes} classes{beside}: raise the budget"
            )

    def _check_column(self, column: int) -> None:
        if not 0 <= column < self.num_classes:
            raise UserError(f"class column {column} is outside the {self.num_classes} known classes")


def _checked_numbers(values: np.ndarray | None, count: int, rows: Numbers, name: str) -> np.ndarray:
    """So many rows as they are to be stored."""
    shape = (count, *rows.shape)
    if rows.shape[0] == 0:
        return np.empty(shape, np.float32)
    if values is None:
        raise UserError(f"the memory stores {name}, but the batch came without them")
    values = np.asarray(values, np.float32)
    if values.shape != shape:
        raise UserError(f"the memory takes {name} {list(shape)}, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise UserError(f"the batch's {name} are not finite: nothing was stored")
    return rows.precision.stored(values)
