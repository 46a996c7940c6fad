"""The replay memory: a fair sample of everything seen, inside a budget of bytes or of samples.

A slot of a 32x32 image with 160 features and 10 classes costs 3,424 bytes raw (image 3,072, features 320,
logits 20, label 2, bookkeeping 10), where float32 storage of the same sample takes 12,968.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edge_hpcr.common.errors import UserError, one_of
from edge_hpcr.learner.codec import (
    CODECS,
    DEFAULT_QUALITY,
    FLOAT,
    LATENT,
    LOSSY_CODECS,
    InputStore,
    Numbers,
    Rows,
    input_store,
    stored_bytes,
)

AUTO = "auto"  # of the codec: what suits budget and image size, see `resolved`
# Of WebP, and at least as good as 50 and 90 in every budget that was tried: docs/edge.md.
BEST_QUALITY = 75
SMALLEST_SIDE = 16  # below it, a file's head outweighs what encoding saves
OPTIONS = ("draw", "keep")  # which are neither budget nor codec
DRAWS = ("random", "deck", "even")
KEEPS = ("reservoir", "balanced")
# Options that earlier versions wrote into checkpoints and results, with the values at which they changed nothing.
GONE = {"side": None, "precision": "float16"}
_HEAD = np.dtype([("id", np.int64), ("label", np.uint16), ("known", np.uint16)])
MAX_CLASSES = 2**16 - 1  # labels and `known` are uint16


@dataclass(frozen=True)
class MemoryConfig:
    """The budget (exactly one of `samples` and `bytes`), how a sample is kept, and which ones are drawn and kept."""

    samples: int | None = None
    bytes: int | None = None
    codec: str = "raw"
    quality: int = DEFAULT_QUALITY
    draw: str = "random"  # which samples are replayed; or "deck", "even"
    keep: str = "reservoir"  # which stay; or "balanced": of each class as many, up to the same number

    def __post_init__(self) -> None:
        if (self.samples is None) == (self.bytes is None):
            raise UserError("the memory needs exactly one budget: a number of samples or a number of bytes")
        budget = self.samples if self.bytes is None else self.bytes
        if not isinstance(budget, int) or budget < 1:
            raise UserError(f"the memory budget must be a whole number of at least 1, not {budget!r}")
        one_of("draw", self.draw, DRAWS)
        one_of("keep", self.keep, KEEPS)
        one_of("codec", self.codec, (AUTO, *CODECS, LATENT, FLOAT))
        if not 1 <= self.quality <= 100:
            raise UserError(f"image quality {self.quality} is out of range: use 1 to 100")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "MemoryConfig":
        """Of a checkpoint or a result, which may be older than this version."""
        for name in GONE.keys() & values.keys():
            if values[name] != GONE[name]:
                raise UserError(
                    f"the memory's option {name}={values[name]} is gone: it needs an earlier version"
                )
        return cls(**{name: value for name, value in values.items() if name not in GONE})

    def resolved(self, height: int, width: int) -> "MemoryConfig":
        """With a codec for images of this size in the place of `auto`."""
        if self.codec != AUTO:
            return self
        if self.bytes is None or min(height, width) < SMALLEST_SIDE:
            return replace(self, codec="raw")
        return replace(self, codec="webp", quality=BEST_QUALITY)

    @property
    def encoding(self) -> tuple[str, int | None]:
        """What decides the bytes of an input."""
        return self.codec, self.quality if self.codec in LOSSY_CODECS else None

    def capacity(self, row_bytes: int, reserved: int = 0) -> int:
        """How many rows of this size the budget holds when so many bytes of it are reserved for the method."""
        return self.samples if self.samples is not None else max(0, (self.bytes or 0) - reserved) // row_bytes

    def exceeded_by(self, count: int, total_bytes: int) -> bool:
        return count > self.samples if self.samples is not None else total_bytes > (self.bytes or 0)


@dataclass(frozen=True)
class Replay:
    """Rows drawn from the memory; row i of every field belongs to one and the same sample."""

    slots: np.ndarray
    ids: np.ndarray
    inputs: np.ndarray  # images, or latents if the network has a trunk
    labels: np.ndarray
    logits: np.ndarray
    features: np.ndarray
    known: np.ndarray  # how many classes there were when the sample came


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


class Deck:
    """A shuffled deck of the classes, one sample of each; it is shuffled anew when it is used up.

    Rare classes are replayed as often as frequent ones. With `even`, incoming samples use up cards of their classes: a step
    then holds about the same number of samples of each class, incoming and replayed ones together.
    """

    def __init__(self, cards: list[int] | None = None) -> None:
        self.cards = list(cards or [])

    def choose(
        self, labels: np.ndarray, size: int, rng: np.random.Generator, incoming: list[int] | None = None
    ) -> np.ndarray:
        """`min(size, len(labels))` distinct slots; `incoming` are the classes of samples that use up cards."""
        shown = Counter(incoming)
        members: dict[int, list[int]] = {}  # slots not chosen yet, of classes whose card was drawn
        chosen: list[int] = []
        while len(chosen) < min(size, len(labels)):
            if not self.cards:
                classes = np.flatnonzero(np.bincount(labels)).tolist()
                self.cards = rng.permutation([each for each in classes if members.get(each) != []]).tolist()
            card = self.cards.pop()
            if shown[card]:
                shown[card] -= 1
                continue
            if card not in members:
                members[card] = rng.permutation(np.flatnonzero(labels == card)).tolist()
            if members[card]:  # the class may have lost its samples since the deck was shuffled
                chosen.append(members[card].pop())
        return np.array(chosen, np.int64)

    def drop_class(self, column: int) -> None:
        self.cards = [card - (card > column) for card in self.cards if card != column]


@dataclass
class _ClassStream:
    """What a balanced memory knows of the samples of one class: how many came, and whether any had to leave."""

    seen: int = 0
    left: bool = False

    def admits(self, held: int) -> float:
        """The probability that the next one is admitted; a sample drawn at random then leaves (Vitter's reservoir)."""
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
        self.num_classes = 0
        self._rng = rng
        self._next_id = 0
        self._deck = Deck()
        self._classes: list[_ClassStream] = []
        # The rows: sample i is row i of each.
        self._count = 0
        self._input_bytes = 0
        self._heads = Rows((), _HEAD)
        self._inputs = input_store(self.input_shape, config.codec, config.quality)
        self._logits = Numbers(0)
        self._features = Numbers(feature_size)
        # Encoded images may turn out small, so only what could never hold a sample is refused so early.
        exact = isinstance(self._inputs, Rows)
        self._check_holds_classes(config, 1, self.row_bytes(None if exact else 1))

    def __len__(self) -> int:
        return self._count

    # What it costs

    def byte_breakdown(self) -> dict[str, int]:
        """The bytes of the held samples by kind; `total` is what a byte budget limits."""
        slot = self._slot_bytes().items()
        parts = {"image": self._input_bytes} | {kind: self._count * size for kind, size in slot}
        return parts | {"total": sum(parts.values())}

    def row_bytes(self, input_bytes: int | None = None) -> int:
        """The cost of one slot now, for an input of this many bytes or else for a typical one."""
        if input_bytes is None:
            input_bytes = self._mean_bytes(self._inputs, self._input_bytes)
        return self._fixed_bytes() + input_bytes

    def planned_capacity(self) -> int:
        """How many samples the budget holds now; an estimate when images are encoded."""
        return self.config.capacity(self.row_bytes(), self.reserved)

    def overhead(self) -> dict[str, float]:
        """What logits and features add: in numbers, as the paper's table counts, and in real bytes."""
        kept = int(np.prod(self.input_shape))
        extra = self.feature_size + self._logits.shape[0]
        row = self.row_bytes()
        plain = row - extra * self._logits.dtype.itemsize
        return {"numbers": (kept + extra) / kept, "bytes": row / plain}

    def check_holds(self, classes: int) -> None:
        """Refuse a budget that could not hold one sample of each of so many classes."""
        more = classes - self._logits.shape[0] if self.stores_logits else 0
        self._check_holds_classes(self.config, classes, self.row_bytes() + more * Numbers.ITEM.itemsize)

    def _slot_bytes(self) -> dict[str, int]:
        """What one slot costs besides its input's own bytes, by kind."""
        item, label = Numbers.ITEM.itemsize, _HEAD["label"].itemsize
        return {
            "label": label,
            "logits": self._logits.shape[0] * item,
            "features": self.feature_size * item,
            "bookkeeping": _HEAD.itemsize - label + self._inputs.overhead,
        }

    def _fixed_bytes(self) -> int:
        return sum(self._slot_bytes().values())

    def _total_bytes(self) -> int:
        return self._count * self._fixed_bytes() + self._input_bytes

    def _mean_bytes(self, inputs: InputStore, total: int) -> int:
        """Of an input; a guess, to plan with before any is held."""
        return -(-total // self._count) if self._count else inputs.typical_bytes

    def _check_holds_classes(self, config: MemoryConfig, classes: int, row_bytes: int) -> None:
        if config.capacity(row_bytes, self.reserved) < classes:
            budget = f"{config.samples} samples" if config.bytes is None else f"{config.bytes} bytes"
            kept = f", as well as {self.reserved} bytes that the method keeps" if self.reserved else ""
            raise UserError(
                f"a memory of {budget} cannot hold one sample (about {row_bytes} bytes) of each of "
                f"{classes} classes{kept}: raise the budget"
            )

    # What it holds

    def ids(self) -> np.ndarray:
        """The ids of the held samples, in the order of their slots."""
        return self._held("id").copy()

    def labels(self) -> np.ndarray:
        """The class columns of the held samples, in the order of their slots."""
        return self._held("label").astype(np.int64)

    def class_counts(self) -> np.ndarray:
        return np.bincount(self._held("label"), minlength=self.num_classes)

    def _held(self, field: str) -> np.ndarray:
        return self._heads.head(self._count)[field]

    # Learning

    def add_class(self) -> None:
        """One more class: every row of logits widens, and samples leave if the budget now holds fewer."""
        if self.num_classes == MAX_CLASSES:
            raise UserError(f"the memory knows {MAX_CLASSES} classes, the most it can: drop one first")
        self.check_holds(self.num_classes + 1)
        self.num_classes += 1
        self._classes.append(_ClassStream())
        if self.stores_logits:
            self._logits.widen()
        self._shrink()
        self._trim()

    def reserve(self, size: int) -> None:
        """Reserve so many bytes of the budget for the method; samples leave if the rest is too small for them."""
        self.reserved = size
        self._shrink()

    def extend_logits(self, column: int, direction: np.ndarray) -> None:
        """Record for a class that came after the samples how far their features point in its direction."""
        self._logits.set_column(column, self._features.values(self._count) @ direction)

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
        """Encode a batch, and draw its keys: all that can fail. Nothing but the generator changes.

        Logits and features that the memory does not store are ignored. `slots` says, instead of the keys, which rows to
        keep, and the slot whose sample gives way to each; None is a slot of its own.
        """
        ids = self.new_ids(len(inputs)) if ids is None else ids
        logits, features = self._logits.rows(logits, len(inputs)), self._features.rows(features, len(inputs))
        keys = self._rng.random(len(inputs))
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

    def _to_stored(self, value: np.ndarray) -> Any:
        stored = self._inputs.stored(value)
        size = self.row_bytes(stored_bytes(stored))
        if self.config.exceeded_by(1, size + self.reserved):
            budget = self.config.bytes
            raise UserError(
                f"one sample takes {size} bytes, more than the whole memory budget of {budget}: raise the budget"
            )
        return stored

    def admit(self, offer: Offer) -> None:
        """Take an offer into the reservoir, or into the slots that the method chose."""
        for label in offer.labels.tolist():
            self._classes[label].seen += 1
        self._next_id = max(self._next_id, int(offer.ids.max()) + 1)
        for row, stored in offer.inputs.items():
            head = (offer.ids[row], offer.labels[row], self.num_classes)
            values = head, stored, offer.logits[row], offer.features[row]
            if offer.slots is not None:
                self._put(offer.slots[row], *values)
            elif self.config.keep == "balanced" or offer.keys[row] < self.threshold:
                self._put(None, *values)
                self._shrink()
        self._shrink()

    def _shrink(self) -> None:
        while self._count and self.config.exceeded_by(self._count, self._total_bytes() + self.reserved):
            self._evict()

    def _evict(self) -> None:
        """Remove the sample with the largest key (see the class)."""
        slot = self._leaving()
        self.threshold *= (1.0 - self._rng.random()) ** (1.0 / self._count)
        self._classes[int(self._heads.get(slot)["label"])].left = True
        self._delete(slot)

    def _leaving(self) -> int:
        """The slot whose sample has to leave: any, or any of the class that holds most."""
        if self.config.keep == "reservoir":
            return int(self._rng.integers(self._count))
        largest = int(self.class_counts().argmax())
        return int(self._rng.choice(np.flatnonzero(self._held("label") == largest)))

    # Replay

    def sample(self, k: int, incoming: np.ndarray | None = None) -> Replay:
        """`min(k, len)` distinct rows, as `choose` draws them."""
        return self.at(self.choose(k, incoming))

    def choose(self, k: int, incoming: np.ndarray | None = None) -> np.ndarray:
        """The slots of `min(k, len)` distinct samples; each set of them is equally likely, unless `draw` says otherwise.

        `incoming` are the labels of the step's incoming samples.
        """
        if self.config.draw in ("deck", "even"):
            shown = incoming.tolist() if self.config.draw == "even" and incoming is not None else []
            return self._deck.choose(self.labels(), k, self._rng, shown)
        return self._rng.choice(self._count, size=min(k, self._count), replace=False)

    def sample_of(self, slots: np.ndarray, size: int, rng: np.random.Generator) -> Replay:
        """At most so many distinct rows of these slots."""
        return self.at(rng.choice(slots, size=min(size, len(slots)), replace=False))

    def drawn(self) -> list[int]:
        """What the next draw depends on, apart from the generator; for `undraw`."""
        return [*self._deck.cards]

    def undraw(self, drawn: list[int]) -> None:
        """Take back the draws since `drawn`."""
        self._deck.cards = drawn

    def at(self, slots: np.ndarray) -> Replay:
        """The rows at these slots; slots stay valid until the memory changes."""
        slots = np.asarray(slots, np.int64).reshape(-1)
        heads = self._heads.gather(slots)
        return Replay(
            slots=slots,
            ids=heads["id"].copy(),
            inputs=self._inputs.gather(slots),
            labels=heads["label"].astype(np.int64),
            logits=self._logits.gather(slots),
            features=self._features.gather(slots),
            known=heads["known"].astype(np.int64),
        )

    def encode_incoming(self, inputs: np.ndarray) -> np.ndarray:
        """What the memory would give back of these."""
        store, _ = self._encoded(inputs, self.config)
        return store.gather(np.arange(len(inputs)))

    def replace_input(self, slot: int, value: np.ndarray) -> None:
        """Another input for the sample in this slot (GMED edits what it replays); the rest of the row stays."""
        stored = self._to_stored(value)
        self._input_bytes += stored_bytes(stored) - stored_bytes(self._inputs.get(slot))
        self._inputs.put(slot, stored)
        self._shrink()

    # Corrections by the user

    def remove(self, sample_id: int) -> bool:
        """Forget a sample; False when the memory does not hold it."""
        return self._remove_where("id", sample_id) > 0

    def relabel(self, sample_id: int, column: int) -> bool:
        """Correct the class of a sample; False when the memory does not hold it."""
        slots = np.flatnonzero(self._held("id") == sample_id)
        for slot in slots.tolist():
            self._heads.get(slot)["label"] = column
        return len(slots) > 0

    def drop_class(self, column: int) -> int:
        """Forget a class, its samples and its column of the logits; later columns move down by one."""
        removed = self._remove_where("label", column)
        for heads in self._heads.views(self._count):
            heads["label"] -= heads["label"] > column
            heads["known"] -= heads["known"] > column
        if self.stores_logits:
            self._logits.delete_column(column)
        self._deck.drop_class(column)
        del self._classes[column]
        self.num_classes -= 1
        return removed

    def _remove_where(self, field: str, value: int) -> int:
        slots = np.flatnonzero(self._held(field) == value)
        for slot in slots[::-1].tolist():
            self._delete(slot)
        # What is left are still the smallest keys of its own stream: newcomers fill the room at the same share.
        if not self._count:
            self.threshold = 1.0
        self._trim()
        return len(slots)

    def resize(self, config: MemoryConfig) -> None:
        """Change the budget, and the codec with it; what no longer fits leaves by the fair rule."""
        store, total = self._inputs, self._input_bytes
        if config.encoding != self.config.encoding:
            if LATENT in (config.codec, self.config.codec):
                raise UserError(
                    f"a memory of {self.config.codec} cannot be kept as {config.codec}: the network decides"
                )
            held = (self._inputs.gather(np.array([slot]))[0] for slot in range(self._count))
            store, total = self._encoded(held, config)
        row = self._fixed_bytes() - self._inputs.overhead + store.overhead + self._mean_bytes(store, total)
        self._check_holds_classes(config, max(1, self.num_classes), row)
        self._inputs, self._input_bytes, self.config = store, total, config
        self._shrink()
        self._trim()

    def _encoded(self, inputs: Iterable[np.ndarray], config: MemoryConfig) -> tuple[InputStore, int]:
        """These inputs as the memory stores them under a configuration, and their bytes."""
        store: Any = input_store(self.input_shape, config.codec, config.quality)
        total = 0
        for slot, each in enumerate(inputs):
            stored = store.stored(each)
            store.put(slot, stored)
            total += stored_bytes(stored)
        return store, total

    # Rows

    @property
    def _columns(self) -> tuple[Rows | InputStore, ...]:
        return self._heads, self._inputs, self._logits, self._features

    def _put(self, slot: int | None, *row: Any) -> None:
        """Write head, stored input, logits and features into this slot; None is one more."""
        if slot is not None:
            self._input_bytes -= stored_bytes(self._inputs.get(slot))
        for column, value in zip(self._columns, row, strict=True):
            column.put(self._count if slot is None else slot, value)
        self._input_bytes += stored_bytes(row[1])
        self._count += slot is None

    def _delete(self, slot: int) -> None:
        """The last row takes its place."""
        last = self._count - 1
        self._input_bytes -= stored_bytes(self._inputs.get(slot))
        for column in self._columns:
            column.put(slot, column.get(last))
            # The spare page saves allocating anew each time a batch crosses the edge of a page and comes back.
            column.trim(last, spare=1)
        self._count = last

    def _trim(self) -> None:
        """Give back what no row needs."""
        for column in self._columns:
            column.trim(self._count)

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
            "next_id": self._next_id,
            "deck": self._deck.cards,
            "classes": [asdict(each) for each in self._classes],
        }
        arrays = {name: np.ascontiguousarray(self._held(name)) for name in _HEAD.names or ()}
        numbers = {"logits": self._logits.head(self._count), "features": self._features.head(self._count)}
        return arrays | numbers | self._inputs.arrays(self._count), meta

    @classmethod
    def from_state(
        cls, arrays: dict[str, np.ndarray], meta: dict[str, Any], rng: np.random.Generator
    ) -> "ReplayMemory":
        """The memory that `state` described."""
        config = MemoryConfig.from_dict(meta["config"])
        memory = cls(config, tuple(meta["image_shape"]), meta["feature_size"], meta["stores_logits"], rng)
        memory.num_classes = meta["num_classes"]
        memory.threshold = meta["threshold"]
        memory._next_id = meta["next_id"]
        memory._deck = Deck(meta.get("deck"))  # older checkpoints have neither
        known = meta.get("classes") or [{}] * memory.num_classes
        memory._classes = [_ClassStream(**each) for each in known]
        if memory.stores_logits:
            memory._logits = Numbers(memory.num_classes)
        heads = zip(arrays["id"], arrays["label"], arrays["known"], strict=True)
        inputs = memory._inputs.unpack(arrays)
        for row in zip(heads, inputs, arrays["logits"], arrays["features"], strict=True):
            memory._put(None, *row)
        return memory
