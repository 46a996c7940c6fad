"""What can go wrong on a device, as one clear line each."""

import argparse
from typing import NoReturn

from edge_hpcr.common.errors import Failed


class BadModel(Failed):
    """A model is refused: which file, and what is wrong with it."""


class Unavailable(Exception):
    """Models cannot be reached at this moment; asking again later may help."""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is for --help."""

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("python -m ").split()[0]
        self.exit(2, f"{name}: {message} (see `{self.prog} --help`)\n")
