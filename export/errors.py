"""What can go wrong on a device, as one clear line each."""


class BadModel(Exception):
    """A model is refused: which file, and what is wrong with it."""


class Unavailable(Exception):
    """Models cannot be reached at this moment; asking again later may help."""


class WrongInput(Exception):
    """The user asked for something impossible. The command line prints it and exits with 2."""
