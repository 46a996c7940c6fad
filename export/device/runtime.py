"""`python -m export.runtime`: classify what a camera sees, a JSON line per frame, and follow new models meanwhile.

stdout carries results only; messages go to stderr, a line each. Needs what export/requirements.txt lists.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of
from edge_hpcr.stream import KINDS, WATCH, EndOfStream, Frame, Stream, open_stream
from export.device.access_token import VARIABLE, read_token
from export.device.display import Display, Page, open_display
from export.device.errors import BadModel, OneLineParser
from export.device.heartbeat import Heartbeat
from export.device.hot_swap import HotSwap
from export.device.http_models import HttpModels
from export.device.manifest import VARIANTS
from export.device.model import Result
from export.device.model_source import Loading, LocalModels, ModelSource
from export.device.mqtt import MqttSender
from export.device.run_limit import RUNS

EXAMPLES = """\
examples:
  python -m export.runtime --models workspace/exports --source 0
  python -m export.runtime --models https://host:8081 --token token.txt --source rtsp://host/camera --display 8082
  python -m export.runtime --models model.onnx --source photos/ --top 1
"""
READ_SECONDS = 0.5
STOP_SECONDS = 2.0  # for the current frame, after a request to end
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    stop = _Stop()
    try:
        with stop.listening():
            return run(options, stop)
    except UserError as error:
        tell(str(error))
        return 2
    except KeyboardInterrupt:
        return 0
    except CannotWrite as error:
        # Python would complain when it flushes stdout at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.nobody_reads:
            return 0
        tell(str(error))
        return 1


def leave(code: int) -> NoReturn:
    """End the process at once: threads that hang in a driver cannot be stopped, and Python's normal exit aborts when one
    of them returns from C++ too late.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class CannotWrite(Exception):
    """Results cannot be handed over."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"results cannot be written: {reason_of(error)}")
        self.nobody_reads = isinstance(error, BrokenPipeError)


def tell(text: str) -> None:
    """Print a line on stderr; one that is closed is no error."""
    with contextlib.suppress(OSError, ValueError):
        print(_CONTROL.sub(" ", f"export.runtime: {text}"), file=sys.stderr, flush=True)


class _Stop:
    """Ctrl-C and SIGTERM alike: the loop ends after the frame it is at, so that nothing is left half done.

    During the wait for a first model, and at the second request, it ends at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        # SIGINT too: a shell starts a background job with Ctrl-C ignored.
        previous = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        with self._ending_runs():
            try:
                yield
            finally:
                for number, handler in previous.items():
                    signal.signal(number, handler)

    @contextlib.contextmanager
    def _ending_runs(self) -> Iterator[None]:
        """A model that hangs holds up the thread that handles signals. Their numbers come through a socket too."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ended = threading.Event()

        def wait_for_a_signal() -> None:
            with ours:
                while ours.recv(1):
                    if not ended.wait(STOP_SECONDS):
                        RUNS.end_all()

        threading.Thread(target=wait_for_a_signal, name="signals", daemon=True).start()
        previous = signal.set_wakeup_fd(theirs.fileno())
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)
            ended.set()
            theirs.close()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        if self.asked:
            raise KeyboardInterrupt
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._at_once:
            raise KeyboardInterrupt


def run(options: argparse.Namespace, stop: _Stop) -> int:
    with contextlib.ExitStack() as opened:

        def keep(part: Any) -> Any:
            opened.callback(part.close)
            return part

        # What can be wrong with the command is found before anything is waited for.
        source = models(options)
        heartbeat = Heartbeat(options.heartbeat, tell) if options.heartbeat else None
        display: Display | None = keep(open_display(options.display)) if options.display else None
        sender: MqttSender | None = keep(MqttSender(options.mqtt)) if options.mqtt else None
        place = WATCH + options.source.removeprefix(WATCH) if options.watch else options.source
        stream: Stream = keep(open_stream(place, on_bad_file=lambda _, reason: tell(reason)))
        providers = "tensorrt" if options.tensorrt else "cpu" if options.cpu else "auto"
        loading = Loading(providers, options.threads, options.variant, options.require_gpu)
        swap = keep(HotSwap(source, loading, tell, options.poll, options.min_agreement))
        with stop.at_once():
            swap.first(options.wait)
        swap.start()
        if isinstance(display, Page):
            tell(f"the picture is at {display.name}")
        _Loop(options, stop, swap, stream, display, sender, heartbeat).run()
    return 0


def models(options: argparse.Namespace) -> ModelSource:
    if "://" not in options.models:
        return LocalModels(Path(options.models))
    if options.cache is None:
        raise UserError("there is no home folder to keep models of a server in: name one with --cache DIR")
    return HttpModels(options.models, options.cache, read_token(options.token), options.variant)


def _default_cache() -> Path | None:
    with contextlib.suppress(RuntimeError):  # a user without a home
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "edge-hpcr"
    return None


@dataclass
class _Loop:
    """Answers frame after frame, a line each."""

    options: argparse.Namespace
    stop: _Stop
    swap: HotSwap
    stream: Stream
    display: Display | None
    sender: MqttSender | None
    heartbeat: Heartbeat | None
    problem: str | None = None  # of the last frame
    lost: bool = False  # the source is in trouble

    def run(self) -> None:
        read = answered = 0
        most = self.options.count
        while not self.stop.asked and (most is None or answered < most):
            try:
                frame = self.stream.read(READ_SECONDS)
            except EndOfStream as end:
                if not read:
                    raise UserError(f"{self.stream.name}: there is no image in it ({end})") from None
                tell(f"{self.stream.name}: {end}")
                return
            self._follow_source()
            if frame is None:
                if not self.stream.live:
                    self._beat()  # nothing came, and nothing had to
                continue
            read += 1
            if (read - 1) % self.options.every:
                self._beat()
            elif self._answer(frame, read):
                answered += 1
                self._beat()

    def _beat(self) -> None:
        if self.heartbeat is not None:
            self.heartbeat.beat()

    def _follow_source(self) -> None:
        """Report once that the source is in trouble, and once that it works again."""
        state = self.stream.state()
        if self.lost and state.phase == "live":
            self.lost = False
            tell(f"{self.stream.name}: works again")
        elif not self.lost and state.phase in ("stalled", "reconnecting"):
            self.lost = True
            tell(f"{self.stream.name}: {state.message}")

    def _answer(self, frame: Frame, number: int) -> bool:
        classifier = self.swap.classifier  # once: a swap waits for the next frame
        started = time.perf_counter()
        try:
            images = classifier.prepare([frame.image])
            result = classifier.predict_prepared(images, self.options.top)[0]
        except BadModel as error:
            # It answered before, so this is the frame's or the machine's (a GPU that is gone): go on, and say so once.
            if str(error) != self.problem and not self.stop.asked:
                tell(str(error))
            self.problem = str(error)
            return False
        self.problem = None
        milliseconds = 1000 * (time.perf_counter() - started)
        self.swap.remember(images[0])
        line = result_line(frame, number, result, classifier.info.version, milliseconds)
        try:
            print(line, flush=True)
        except OSError as error:
            raise CannotWrite(error) from None
        if self.sender is not None:
            self.sender.send(line)
        if self.display is not None:
            self.display.show(frame, result, classifier.info.version)
        return True


def result_line(frame: Frame, number: int, result: Result, version: int, milliseconds: float) -> str:
    facts = {
        "frame": number,
        "at": round(frame.at, 3),
        "origin": frame.origin,
        "top": [
            {"id": each.id, "name": each.name, "confidence": round(each.confidence, 6)} for each in result.top
        ],
        "unknown": result.unknown,
        "similarity": round(result.similarity, 6),
        "version": version,
        "latency_ms": round(milliseconds, 3),
    }
    return json.dumps(facts, allow_nan=False)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m export.runtime",
        description="Classify frames with a published model, a JSON line a frame; follow new models while running.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models",
        required=True,
        metavar="PATH_OR_URL",
        help="an exports folder here or on a server (http, https), a version's folder, or a model file",
    )
    parser.add_argument("--source", required=True, metavar="SRC", help=KINDS)
    out = parser.add_argument_group("what comes out")
    out.add_argument("--top", type=_whole(1), default=3, metavar="N", help="answers a frame (default: 3)")
    out.add_argument("--every", type=_whole(1), default=1, metavar="N", help="classify every Nth frame only")
    out.add_argument("--count", type=_whole(1), metavar="N", help="end after N answers")
    out.add_argument("--watch", action="store_true", help="go on with images that come into the folder")
    out.add_argument(
        "--display", metavar="window|PORT", help="show the frames: a window, or a page on 127.0.0.1"
    )
    out.add_argument(
        "--mqtt", metavar="HOST[:PORT][/TOPIC]", help="publish the results too (needs paho-mqtt)"
    )
    out.add_argument(
        "--heartbeat",
        type=Path,
        metavar="FILE",
        help="touch it while all goes well; `python -m export.device.heartbeat FILE` looks at it",
    )
    what = parser.add_argument_group("models")
    what.add_argument("--variant", choices=VARIANTS, default="fp32", help="used where a version has it")
    what.add_argument(
        "--poll",
        type=_number(0.05, 86_400.0),
        default=5.0,
        metavar="SECONDS",
        help="between looks (default: 5)",
    )
    what.add_argument("--wait", action="store_true", help="wait for a first model instead of ending with 2")
    what.add_argument(
        "--min-agreement",
        type=_number(0.0, 1.0),
        metavar="SHARE",
        help="refuse a new model that agrees on fewer frames",
    )
    what.add_argument("--token", type=Path, metavar="FILE", help=f"for the server (default: ${VARIABLE})")
    what.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        default=_default_cache(),
        help="where models of a server are kept (default: %(default)s)",
    )
    how = parser.add_argument_group("hardware")
    how.add_argument(
        "--threads", type=_whole(0), default=0, metavar="N", help="of the CPU (default: its choice)"
    )
    kind = how.add_mutually_exclusive_group()
    kind.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    kind.add_argument("--tensorrt", action="store_true", help="prefer TensorRT to CUDA")
    how.add_argument("--require-gpu", action="store_true", help="end with 2 if no GPU can be used")
    return parser


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= float(text) <= most:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")

    return parse


if __name__ == "__main__":
    leave(main())
