"""Two people who label the same sample: what the first one said stays, until the other has seen it."""

from collections.abc import Sequence

from edge_hpcr.workspace.queries import Queries

MOST_NAMED = 3  # samples, in a sentence


def labelled_meanwhile(
    journal: Queries, samples: Sequence[int], seen: Sequence[int], class_id: int
) -> dict[int, str]:
    """The samples that have another class than the page showed (0: none) and than they would get, each in words."""
    now = journal.labels_of(samples)
    other = {
        i: now[i] for i, was in zip(samples, seen, strict=False) if now.get(i) not in (None, was, class_id)
    }
    authors = journal.authors_of(other)
    return {
        i: f"sample {i} stays {journal.class_name(each)}, which {authors.get(i, 'somebody')} has called it meanwhile"
        for i, each in other.items()
    }


def in_words(stay: dict[int, str]) -> str:
    more = [f"and so do {len(stay) - MOST_NAMED} others"] if len(stay) > MOST_NAMED else []
    return "; ".join([*[*stay.values()][:MOST_NAMED], *more])
