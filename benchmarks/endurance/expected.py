"""What a journal must say after the acknowledged actions: a second, much simpler account of the same labels."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Change:
    """Of one action: classes of samples (None: no label) and names of classes (None: not live), before and after."""

    labels: dict[int, tuple[int | None, int | None]]
    names: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)


@dataclass
class Expected:
    """
    >>> expected = Expected()
    >>> expected.acknowledge({"kind": "create_class", "class": 1, "name": "mug"})
    >>> expected.acknowledge({"kind": "label", "ids": [7, 8], "class": 1})
    >>> expected.acknowledge({"kind": "undo", "lost": []})
    >>> expected.labels, expected.names
    ({}, {1: 'mug'})
    """

    labels: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    done: list[Change] = field(default_factory=list)
    undone: list[Change] = field(default_factory=list)

    def acknowledge(self, action: Mapping[str, Any]) -> None:
        kind = action["kind"]
        if kind in ("undo", "redo"):
            self.turn_back(kind, action["lost"])
        else:
            self.do(self._change(kind, action))

    def _change(self, kind: str, action: Mapping[str, Any]) -> Change:
        class_id = action.get("class")
        if kind == "label":
            return Change({i: (self.labels.get(i), class_id) for i in action["ids"]})
        if kind in ("dismiss", "delete"):
            return Change({i: (self.labels.get(i), None) for i in action["ids"]})
        assert isinstance(class_id, int)
        old = self.names.get(class_id)
        if kind in ("create_class", "rename_class"):
            return Change({}, {class_id: (old, action["name"])})
        moved_to = {"merge_classes": action.get("into"), "delete_class": None}[kind]
        members = [i for i, of in self.labels.items() if of == class_id]
        return Change(dict.fromkeys(members, (class_id, moved_to)), {class_id: (old, None)})

    def do(self, change: Change) -> None:
        self._set(change, 1, ())
        self.done.append(change)
        self.undone.clear()

    def turn_back(self, kind: str, lost: Collection[int]) -> None:
        """`lost` are samples whose image is gone: they cannot come back."""
        source, target, side = (self.done, self.undone, 0) if kind == "undo" else (self.undone, self.done, 1)
        change = source.pop()
        target.append(change)
        self._set(change, side, lost)

    def _set(self, change: Change, side: int, lost: Collection[int]) -> None:
        for sample_id, classes in change.labels.items():
            class_id = classes[side]
            if class_id is None or sample_id in lost:
                self.labels.pop(sample_id, None)
            else:
                self.labels[sample_id] = class_id
        for class_id, names in change.names.items():
            name = names[side]
            if name is None:
                self.names.pop(class_id, None)
            else:
                self.names[class_id] = name
