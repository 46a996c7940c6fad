"""The replay memory's rows: what is held of each sample, kept together whatever comes and goes.

The memory decides which samples are held; here they lie.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.memory_config import MemoryConfig
from edge_hpcr.learner.rows import (
    InputStore,
    Numbers,
    Rows,
    check_array,
    input_store,
    slot_overhead,
    stored_bytes,
)

_HEAD = np.dtype([("id", np.int64), ("label", np.uint16), ("known", np.uint16)])
_USES = np.dtype(np.uint32)
MAX_CLASSES = 2**16 - 1  # labels and `known` are uint16


@dataclass(frozen=True)
class Replay:
    """Rows drawn from the memory; row i of every field belongs to one and the same sample."""

    slots: np.ndarray
    ids: np.ndarray
    inputs: np.ndarray  # images, or latents if the network has a trunk
    labels: np.ndarray
    logits: np.ndarray
    features: np.ndarray
    known: np.ndarray


def slot_bytes(config: MemoryConfig, feature_size: int, columns: int) -> dict[str, int]:
    """What one slot costs besides its input's own bytes, by kind; `columns` of logits."""
    item, label = config.logit_precision.dtype.itemsize, _HEAD["label"].itemsize
    uses = _USES.itemsize if config.draw == "least_used" else 0
    return {
        "label": label,
        "logits": columns * item,
        "features": feature_size * item,
        "bookkeeping": _HEAD.itemsize - label + slot_overhead(config.codec) + uses,
    }


class Slots:
    """Rows of head (id, label, classes known then), input, logits, features, and uses where they decide."""

    def __init__(self, config: MemoryConfig, input_shape: tuple[int, ...], feature_size: int) -> None:
        self.input_shape = input_shape
        self.input_bytes = 0
        self._count = 0
        self._heads = Rows((), _HEAD)
        self.logits = Numbers(0, config.logit_precision)
        self.features = Numbers(feature_size, config.feature_precision)
        self.inputs = input_store(input_shape, config.codec, config.quality, config.side)
        self._uses: Rows | None = Rows((), _USES) if config.draw == "least_used" else None

    def __len__(self) -> int:
        return self._count

    def held(self, field: str) -> np.ndarray:
        """The ids, labels or known classes of all rows."""
        return self._heads.head(self._count)[field]

    def label(self, slot: int) -> int:
        return int(self._heads.get(slot)["label"])

    def at(self, slots: np.ndarray) -> Replay:
        slots = np.asarray(slots, np.int64).reshape(-1)
        self.check(slots)
        heads = self._heads.gather(slots)
        return Replay(
            slots=slots,
            ids=heads["id"].copy(),
            inputs=self.inputs.gather(slots),
            labels=heads["label"].astype(np.int64),
            logits=self.logits.gather(slots),
            features=self.features.gather(slots),
            known=heads["known"].astype(np.int64),
        )

    def check(self, slots: np.ndarray) -> None:
        if len(slots) and not 0 <= slots.min() <= slots.max() < self._count:
            raise IndexError(f"slots must lie in 0..{self._count - 1}")

    # Changes

    @property
    def _columns(self) -> tuple[Rows | InputStore, ...]:
        columns = self._heads, self.inputs, self.logits, self.features
        return columns if self._uses is None else (*columns, self._uses)

    def put(self, slot: int | None, *row: Any) -> None:
        """Write head, stored input, logits and features into this slot; None is one more."""
        if slot is not None:
            self.input_bytes -= stored_bytes(self.inputs.get(slot))
        # A newcomer counts as replayed as often as the rest: from 0 it would be drawn until it has caught up.
        uses = () if self._uses is None else (self.uses().min() if self._count else 0,)
        for column, value in zip(self._columns, (*row, *uses), strict=True):
            column.put(self._count if slot is None else slot, value)
        self.input_bytes += stored_bytes(row[1])
        self._count += slot is None

    def put_input(self, slot: int, stored: Any) -> None:
        self.input_bytes += stored_bytes(stored) - stored_bytes(self.inputs.get(slot))
        self.inputs.put(slot, stored)

    def delete(self, slot: int) -> None:
        """The last row takes its place."""
        last = self._count - 1
        self.input_bytes -= stored_bytes(self.inputs.get(slot))
        for column in self._columns:
            column.put(slot, column.get(last))
            # The spare page saves allocating anew each time a batch crosses the edge of a page and comes back.
            column.trim(last, spare=1)
        self._count = last

    def trim(self) -> None:
        """Give back what no row needs."""
        for column in self._columns:
            column.trim(self._count)

    def relabel(self, slot: int, label: int) -> None:
        self._heads.get(slot)["label"] = label

    def drop_class(self, column: int) -> None:
        """Labels behind this one move down; no row may have it."""
        for heads in self._heads.views(self._count):
            heads["label"] -= heads["label"] > column
            heads["known"] -= heads["known"] > column

    # How often each was replayed

    def uses(self) -> np.ndarray:
        return np.zeros(0, _USES) if self._uses is None else self._uses.head(self._count)

    def set_uses(self, uses: np.ndarray) -> None:
        """Of the first rows; nothing where uses are not kept."""
        for page in self._uses.views(len(uses)) if self._uses is not None else []:
            page[:], uses = uses[: len(page)], uses[len(page) :]

    # Another encoding

    def recoded(self, slot: int, store: InputStore) -> Any:
        """The input of this slot as another store would keep it."""
        if store is self.inputs:
            return store.get(slot)
        return store.stored(self.inputs.gather(np.array([slot]))[0])

    def recode(self, config: MemoryConfig, store: InputStore) -> None:
        """Keep inputs, numbers and uses as this configuration wants them."""
        if store is not self.inputs:
            # From the last slot, so that the old store gives its room back while the new inputs come.
            fresh = []
            for slot in range(self._count - 1, -1, -1):
                fresh.append(self.recoded(slot, store))
                self.inputs.trim(slot)
            self.inputs, self.input_bytes = store, 0
            for slot in range(self._count):
                stored = fresh.pop()
                store.put(slot, stored)
                self.input_bytes += stored_bytes(stored)
        self.logits.cast(config.logit_precision)
        self.features.cast(config.feature_precision)
        if config.draw != "least_used":
            self._uses = None
        elif self._uses is None:
            self._uses = Rows((), _USES)
            for slot in range(self._count):
                self._uses.put(slot, 0)
        self.trim()

    # Checkpoints

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {name: np.ascontiguousarray(self.held(name)) for name in _HEAD.names or ()}
        arrays |= {"logits": self.logits.head(self._count), "features": self.features.head(self._count)}
        if self._uses is not None:
            arrays["uses"] = self.uses()
        return arrays | self.inputs.arrays(self._count)

    def fill(self, arrays: dict[str, np.ndarray], num_classes: int) -> None:
        """The rows that `arrays` described; refuses what does not fit together."""
        count = len(arrays["id"])
        for name in _HEAD.names or ():
            check_array(arrays[name], name, _HEAD[name], (count,))
        for name, rows in (("logits", self.logits), ("features", self.features)):
            check_array(arrays[name], name, rows.dtype, (count, *rows.shape))
            if not np.isfinite(arrays[name]).all():
                raise UserError(f"the saved memory's {name} are not finite: use an older checkpoint")
        if count and max(arrays["label"].max() + 1, arrays["known"].max()) > num_classes:
            raise UserError("the saved memory has labels outside its classes: use an older checkpoint")
        inputs = self.inputs.unpack(arrays, count)
        heads = zip(arrays["id"], arrays["label"], arrays["known"], strict=True)
        for row in zip(heads, inputs, arrays["logits"], arrays["features"], strict=True):
            self.put(None, *row)
        if self._uses is not None:
            check_array(arrays["uses"], "uses", _USES, (count,))
            self.set_uses(arrays["uses"])
