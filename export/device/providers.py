"""ONNX Runtime: which hardware really runs a model, without its own noise on stdout and stderr."""

import contextlib
import ctypes
import functools
import io
import platform
from dataclasses import dataclass
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from edge_hpcr.common.errors import UserError
from export.device.errors import BadModel
from export.device.one_file import check_one_file

CHOICES = ("auto", "cpu", "tensorrt")
CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
# It runs what does not depend on the image, without a time limit, and cannot be stopped. The first answer does the same
# within a limit. Our own models gain nothing by it (32x32: 0.99 to 1.03 of the time).
_NOT_AT_LOADING = ["ConstantFolding"]
_SILENT = 4  # only what ends the process; everything else reaches us as an exception

# ONNX Runtime's own errors have no common base class.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(value for value in vars(_state).values() if isinstance(value, type) and issubclass(value, Exception)),
    RuntimeError,
    ValueError,
    MemoryError,
)


@dataclass(frozen=True)
class Session:
    """A model in ONNX Runtime, and what runs it."""

    run: onnxruntime.InferenceSession
    provider: str  # what really runs it
    note: str | None  # why no GPU runs it, when one was hoped for
    metadata: dict[str, str]
    inputs: dict[str, tuple[str, list[Any]]]  # type and shape by name
    outputs: dict[str, tuple[str, list[Any]]]


def open_session(
    data: bytes, where: str, providers: str = "auto", threads: int = 0, require_gpu: bool = False
) -> Session:
    """The model in `data`, on the best hardware that works; `threads` 0 leaves their number to ONNX Runtime."""
    if providers not in CHOICES:
        raise UserError(f"unknown providers {providers!r}: choose one of {', '.join(CHOICES)}")
    if require_gpu and providers == "cpu":
        raise UserError("a GPU is required and the CPU was asked for: leave one of them out")
    check_one_file(data, where)
    wanted, note = _wanted(providers)
    session = None
    while session is None:
        try:
            # Without its own fallback, which prints to stdout.
            session = onnxruntime.InferenceSession(
                data, _options(threads), wanted, disabled_optimizers=_NOT_AT_LOADING, enable_fallback=0
            )
        except RUNTIME_ERRORS as error:
            if len(wanted) == 1:
                raise BadModel(f"{where}: ONNX Runtime cannot load it: {one_line(error)}") from None
            note, wanted = f"{wanted[0]} did not start ({one_line(error)})", wanted[1:]
    provider = session.get_providers()[0]
    if provider != wanted[0]:
        note = f"{wanted[0]} did not start (do driver, CUDA and cuDNN fit this ONNX Runtime?)"
    if require_gpu and provider == CPU:
        raise UserError(f"a GPU is required, and none can be used: {note}")
    try:
        metadata = dict(session.get_modelmeta().custom_metadata_map)
        inputs, outputs = (
            {each.name: (each.type, list(each.shape)) for each in values}
            for values in (session.get_inputs(), session.get_outputs())
        )
    except UnicodeDecodeError:
        raise BadModel(f"{where}: its names or its metadata are not valid UTF-8") from None
    return Session(session, provider, note, metadata, inputs, outputs)


def _options(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = threads
    # ONNX Runtime's threads wait for work by spinning. Two models do during a swap: they take each other's cores, and a
    # frame then waits for the one that spins. On a camera's device most of that time is wasted anyway.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # A device holds two models for a moment: an arena would keep what the larger one took.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return options


@functools.cache
def _wanted(providers: str) -> tuple[list[str], str | None]:
    """The providers to try in order, and why CUDA or TensorRT are not among them."""
    onnxruntime.set_default_logger_severity(_SILENT)
    if providers == "cpu":
        return [CPU], None
    if CUDA not in onnxruntime.get_available_providers():
        note = "this ONNX Runtime is built for the CPU only (export/requirements.txt says how to change it)"
        return [CPU], note
    problem = _cannot_load("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
    if problem:
        return [CPU], f"no NVIDIA driver ({problem})"
    # The CUDA that pip installed. It prints what is missing to stdout, which carries results only; this comes before
    # the first of them, and only once.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()
    if providers == "tensorrt":
        problem = _cannot_load("nvinfer_10.dll" if platform.system() == "Windows" else "libnvinfer.so.10")
        if problem:
            return [CUDA, CPU], f"no TensorRT ({problem})"
        return [TENSORRT, CUDA, CPU], None
    return [CUDA, CPU], None


def _cannot_load(library: str) -> str | None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return one_line(error)
    return None


def one_line(error: Any) -> str:
    return " ".join(str(error).split())[:300]
