"""Pickles from outside: arrays and plain containers are read, everything else is refused."""

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_hpcr.bench.datasets.safe_pickle import read_pickle
from edge_hpcr.common.errors import UserError


class _Calls:
    """Pickles as a call of a function, which is what an attacker's object does."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def _written(path: Path, content: object, protocol: int) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_containers_come_back_equal(tmp_path, protocol):
    content = {
        "data": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big-endian": np.arange(3, dtype=">i4"),
        "scalar": np.float32(2.5),
        "names": ["a", b"b", ("c", None, True)],
        "ordered": OrderedDict(x=1),
    }
    loaded = read_pickle(_written(tmp_path / "file", content, protocol))
    assert loaded.keys() == content.keys()
    for key in ("data", "fortran", "big-endian", "scalar"):
        assert loaded[key].dtype.newbyteorder("=") == content[key].dtype.newbyteorder("=")
        np.testing.assert_array_equal(loaded[key], content[key])
    assert loaded["names"] == content["names"]
    assert loaded["ordered"] == content["ordered"]


def test_a_python_2_pickle_with_the_old_numpy_names_is_read(tmp_path):
    # Opcode by opcode as Python 2's cPickle and NumPy 1 wrote: {'data': uint8 [3], 'labels': [7]}.
    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01K\x03\x85cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + text(b"\x01\x80\xff")
        + b"tb"
    )
    path = tmp_path / "old"
    path.write_bytes(b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"]K\x07au.")
    loaded = read_pickle(path)
    np.testing.assert_array_equal(loaded["data"], np.array([1, 128, 255], np.uint8))
    assert loaded["data"].dtype == np.uint8
    assert loaded["labels"] == [7]


def test_a_pickle_that_runs_a_command_is_refused_before_it_runs(tmp_path):
    trace = tmp_path / "trace"
    path = _written(tmp_path / "evil", {"data": _Calls(os.system, f"touch {trace}")}, 2)
    with pytest.raises(UserError, match=r"evil: refused: the pickle asks for (posix|nt)\.system"):
        read_pickle(path)
    assert not trace.exists()


@pytest.mark.parametrize("function", [eval, getattr, np.load, np.frombuffer, pickle.loads])
def test_no_other_function_can_be_named(tmp_path, function):
    with pytest.raises(UserError, match="refused: the pickle asks for"):
        read_pickle(_written(tmp_path / "evil", _Calls(function, "x"), 4))


def test_an_array_of_objects_over_made_up_addresses_is_refused(tmp_path):
    # np.ndarray((1,), "O", buffer) is accepted by NumPy, and reading its element crashes the process.
    made_up = struct.pack("<Q", 0x4141414141414141)
    path = _written(tmp_path / "evil", _Calls(np.ndarray, (1,), "O", made_up), 2)
    with pytest.raises(UserError, match="evil: damaged, or not a pickle of arrays"):
        read_pickle(path)


@pytest.mark.parametrize("dtype", ["O", [("a", "O"), ("b", "i4")], "V8", "M8[s]"])
def test_arrays_that_are_not_of_numbers_or_text_are_refused(tmp_path, dtype):
    with pytest.raises(UserError, match="not a pickle of arrays"):
        read_pickle(_written(tmp_path / "odd", np.zeros(2, dtype=dtype), 2))


class _StateOf:
    """Pickles as a call followed by a state, which is how arrays and their types are stored."""

    def __init__(self, function, arguments, state):
        self.parts = (function, arguments, state)

    def __reduce__(self):
        return self.parts


def test_a_type_whose_state_reaches_behind_the_array_is_not_used(tmp_path):
    # A field 1,000 bytes behind a one-byte element: NumPy takes over such a state unchecked.
    state = (3, "|", None, ("f",), {"f": (np.dtype("u1"), 1000)}, -1, -1, 0)
    dtype = _StateOf(np.dtype, ("u1", False, True), state)
    reconstruct = np.zeros(0).__reduce__()[0]
    array = _StateOf(reconstruct, (np.ndarray, (0,), b"b"), (1, (2,), dtype, False, b"ab"))
    loaded = read_pickle(_written(tmp_path / "evil", array, 2))
    assert loaded.dtype == np.uint8 and loaded.dtype.fields is None
    assert loaded.tolist() == [97, 98]


@settings(deadline=None, derandomize=True)  # a busy machine may take its time
@given(st.data())
def test_a_damaged_pickle_is_an_error_that_names_the_file(tmp_path_factory, data):
    whole = pickle.dumps({"data": np.arange(50, dtype=np.uint8), "labels": [1, 2]}, protocol=2)
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / "batch"
    path.write_bytes(whole[:cut])
    with pytest.raises(UserError, match="batch: damaged"):
        read_pickle(path)
    path.unlink()


def test_a_missing_pickle_is_named(tmp_path):
    with pytest.raises(UserError, match=r"absent: cannot be read"):
        read_pickle(tmp_path / "absent")
