"""The runtime of a device, and what can go wrong on one: each a clear line."""

from edge_hpcr.common.errors import Failed


class BadModel(Failed):
    """A model is refused: which file, and what is wrong with it."""


class Unavailable(Failed):
    """A server or a folder cannot be reached at this moment; asking again later may help. Code `token`: it wants another."""
