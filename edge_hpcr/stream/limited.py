"""A helper process with limits of time and memory: what would exceed them ends it, and not the program that asks."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import edge_hpcr
from edge_hpcr.common.errors import UserError

if sys.platform != "win32":
    import resource

START_SECONDS = 60.0
SLACK = 6  # times its seconds may pass by the clock: waiting for a processor is not the question's fault
_LENGTH = 8  # bytes of a message's length, before the message

Part = bytes | bytearray | memoryview


class Exceeded(Exception):
    """The question took more than its limits, or was the end of the helper in another way."""


class Helper:
    """Answers one question after the other in a process of its own, which is started when it is needed.

    `code` is what that process runs: a call of `answer_questions`. Thread-safe.
    """

    def __init__(self, code: str, cpu_seconds: int, memory_bytes: int) -> None:
        self._code, self.cpu_seconds, self.memory_bytes = code, cpu_seconds, memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    def ask(self, question: bytes) -> bytearray:
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()  # somebody ended it while it waited, which is no fault of this question
            process = self._process = self._process or self._start()
            try:
                with _killed_after(process, SLACK * self.cpu_seconds):
                    _send(process, question)
                    return _receive(process)
            except (OSError, EOFError) as error:
                self._end()
                raise Exceeded from error
            except BaseException:
                self._end()  # an answer that nobody has read would be taken for that of the next question
                raise

    def stop(self) -> None:
        if (process := self._process) is not None:
            process.kill()  # before the lock: whoever waits for an answer need not wait any longer
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        # The same packages as here, however they were found.
        places = os.pathsep.join(filter(None, [os.fspath(Path(edge_hpcr.__file__).parents[1]), *sys.path]))
        # OpenBLAS maps memory for every thread that it might use.
        environment = {**os.environ, "PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1"}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", self._code, str(self.cpu_seconds), str(self.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the program that asks
            )
        except OSError as error:
            raise UserError(
                f"the process that decodes pictures cannot be started: {error.strerror}"
            ) from error
        try:
            with _killed_after(process, START_SECONDS):
                _receive(process)  # it says when it is ready
        except (OSError, EOFError) as error:
            _end(process)
            raise UserError(
                "the process that decodes pictures does not start: is the installation whole?"
            ) from error
        return process

    def _end(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


def answer_questions(answer: Callable[[bytearray], Iterable[Part]]) -> None:
    """What the helper process runs: read a question, answer it within the limits, until nobody asks any more."""
    cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    _write(answers, [b"ready"])
    with contextlib.suppress(EOFError):
        while True:
            question = _read(questions)
            if sys.platform != "win32":
                used = resource.getrusage(resource.RUSAGE_SELF)
                limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            _write(answers, answer(question))


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what it has not read is lost with it
                pipe.close()


def _send(process: subprocess.Popen[bytes], message: bytes) -> None:
    assert process.stdin is not None
    _write(process.stdin, [message])


def _receive(process: subprocess.Popen[bytes]) -> bytearray:
    assert process.stdout is not None
    return _read(process.stdout)


def _write(pipe: IO[bytes], parts: Iterable[Part]) -> None:
    views = [memoryview(part).cast("B") for part in parts]
    pipe.write(sum(len(view) for view in views).to_bytes(_LENGTH, "big"))
    for view in views:
        pipe.write(view)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytearray:
    length = int.from_bytes(_exactly(pipe, _LENGTH), "big")
    return _exactly(pipe, length)


def _exactly(pipe: IO[bytes], count: int) -> bytearray:
    data = bytearray(count)
    view, place = memoryview(data), 0
    while place < count:
        came = pipe.readinto(view[place:])  # type: ignore[attr-defined]
        if not came:
            raise EOFError
        place += came
    return data
