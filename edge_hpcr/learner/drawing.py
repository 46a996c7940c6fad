"""Which of the held samples a step replays: at random, class by class, or those that were replayed least."""

from collections import Counter

import numpy as np

DRAWS = ("random", "deck", "even", "least_used")


class Deck:
    """A shuffled deck of the classes, one sample of each; it is shuffled anew when it is used up.

    Rare classes are replayed as often as frequent ones. With `even`, incoming samples use up cards of their classes, so
    that a step holds as many samples of one class as of another, incoming and replayed ones together, as far as it can.
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


def least_used(uses: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """The slots that were replayed least; chance decides among equals."""
    return np.lexsort((rng.random(len(uses)), uses))[:size]
