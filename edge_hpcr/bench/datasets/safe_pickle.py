"""Read a pickle from outside without letting it run anything.

A pickle can name any function and have it called with any arguments. This unpickler knows only the names that
arrays, NumPy scalars and plain containers need, and even those are stand-ins: NumPy's own constructors trust
their arguments, and an array of objects over a buffer of made-up addresses would be followed into memory.
"""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from edge_hpcr.common.errors import UserError

_PLAIN_KINDS = frozenset("biufcSU")  # numbers and fixed-width strings: nothing that holds an address
_NDARRAY = object()  # stands for numpy.ndarray, which pickles only name for _reconstruct's first argument


class _ForbiddenGlobal(pickle.UnpicklingError):
    pass


class _Array(np.ndarray):
    """An array whose state, coming from the pickle, can only have a plain type."""

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, fortran, content = state
        super().__setstate__((version, shape, _plain(dtype), fortran, content))


def _plain(dtype: Any) -> np.dtype:
    """The same plain type made anew, because the pickle may have changed the inside of the one it brings."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in _PLAIN_KINDS:
        raise pickle.UnpicklingError(f"an array of type {dtype}")
    return np.dtype(dtype.str)


def _dtype(code: Any, *_align_and_copy: Any) -> np.dtype:
    if not isinstance(code, str) or np.dtype(code).kind not in _PLAIN_KINDS:
        raise pickle.UnpicklingError(f"an array of type {code!r}")
    return np.dtype(code, copy=True)  # a copy, because the pickle sets its state next


def _reconstruct(kind: Any, _shape: Any, _code: Any) -> np.ndarray:
    if kind is not _NDARRAY:
        raise pickle.UnpicklingError("an array of an unknown class")
    return _Array((0,), dtype=np.uint8)


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    return np.frombuffer(buffer, dtype=_plain(dtype)).reshape(shape, order=order)


def _scalar(dtype: Any, content: Any) -> Any:
    encoded = content.encode("latin1") if isinstance(content, str) else content
    return np.frombuffer(encoded, dtype=_plain(dtype), count=1)[0]


def _encode(text: str, codec: str) -> bytes:
    if codec not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text in the encoding {codec!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
}
for _core in ("numpy.core", "numpy._core"):  # its name before and since NumPy 2
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _from_buffer


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _ForbiddenGlobal(f"{module}.{name}")
        return _ALLOWED[module, name]


# What the unpickler, and the stand-ins called with nonsense, raise for bytes that are no pickle of arrays.
_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


def read_pickle(path: Path) -> Any:
    """The content of a pickle file of arrays and plain containers; Python 2's byte strings become str."""
    try:
        with path.open("rb") as file:
            return _ArrayUnpickler(file, encoding="latin1").load()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except _ForbiddenGlobal as error:
        raise UserError(
            f"{path}: refused: the pickle asks for {error}; only arrays and plain containers are allowed"
        ) from error
    except _DAMAGED as error:
        raise UserError(
            f"{path}: damaged, or not a pickle of arrays ({error or type(error).__name__})"
        ) from error
