"""`python -m export.runtime`: classify what a camera sees, a JSON line per frame, and follow new models meanwhile.

stdout carries results only; messages go to stderr, a line each. Needs what export/requirements.txt lists.
"""

import argparse
import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import reason_of
from edge_hpcr.stream import WATCH, EndOfStream, Frame, Stream, open_stream
from edge_hpcr.stream.passwords import with_password
from edge_hpcr.stream.region import Region
from export.device.access_token import read_token
from export.device.display import Display, Window
from export.device.errors import BadModel
from export.device.health import Health
from export.device.heartbeat import Heartbeat
from export.device.hot_swap import HotSwap
from export.device.http_models import HttpModels
from export.device.identity import device_id
from export.device.line import as_text, result_line
from export.device.model import Result
from export.device.model_info import ModelInfo
from export.device.model_source import Loading, LocalModels, ModelSource
from export.device.mqtt import Broker, MqttSender, parse_address
from export.device.options import new_parser
from export.device.reports import Reporter
from export.device.run_limit import RUNS
from export.device.server import DeviceServer, parse_place
from export.device.signing import PublicKey, Trust
from export.device.smoothing import Smoother
from export.device.unsure import Choice, UnsureFrames

READ_SECONDS = 0.5
STOP_SECONDS = 2.0  # for the current frame, after a request to end
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def main(arguments: Sequence[str] | None = None) -> int:
    options = new_parser().parse_args(arguments)
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
        health = Health(device_id(options.device_id, options.cache), tell)
        token = read_token(options.token)
        source = models(options, health.device, token)
        heartbeat = Heartbeat(options.heartbeat, tell) if options.heartbeat else None
        servers = [keep(each) for each in _servers(options, health, token)]
        displays: list[Display] = [*servers, *([keep(Window())] if options.display == "window" else [])]
        sender = keep(MqttSender(_broker(options), health)) if options.mqtt else None
        unsure = keep(_unsure(options, health, token)) if options.send_unsure else None
        place = WATCH + options.source.removeprefix(WATCH) if options.watch else options.source
        place = with_password(place, options.camera_password)
        stream: Stream = keep(open_stream(place, on_bad_file=lambda _, reason: tell(reason)))
        providers = "tensorrt" if options.tensorrt else "cpu" if options.cpu else "auto"
        loading = Loading(providers, options.threads, options.variant, options.require_gpu)
        swap = keep(HotSwap(source, loading, tell, options.poll, options.min_agreement))
        with stop.at_once():
            swap.first(options.wait)
        swap.start()
        if isinstance(source, HttpModels) and options.report:
            keep(Reporter(options.models, token, health, options.report))
        for server in servers:
            server.classifier = lambda: swap.classifier
            tell(f"the picture is at {server.name}")
        _Loop(options, stop, swap, stream, displays, sender, unsure, heartbeat, health).run()
    return 0


def models(options: argparse.Namespace, device: str, token: str | None) -> ModelSource:
    trust = None
    if options.public_key is not None:
        if options.cache is None:
            raise UserError(
                "--public-key: there is no home folder to remember versions in: name one with --cache DIR"
            )
        # However it is spelled, it is one place.
        local = "://" not in options.models
        place = str(Path(options.models).resolve()) if local else options.models.rstrip("/")
        trust = Trust(PublicKey(options.public_key), options.cache, place)
    if "://" not in options.models:
        return LocalModels(Path(options.models), trust)
    if options.cache is None:
        raise UserError("there is no home folder to keep models of a server in: name one with --cache DIR")
    return HttpModels(options.models, options.cache, token, options.variant, device=device, trust=trust)


def _servers(options: argparse.Namespace, health: Health, token: str | None) -> Iterator[DeviceServer]:
    """`--http`, and `--display PORT`, which is the same on this machine only."""
    if options.http is not None:
        yield DeviceServer(parse_place(options.http, "--http"), health, token, "--http", options.top)
    if options.display not in (None, "window"):
        port = options.display
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
            raise UserError(f"--display takes window or a port from 0 to 65535, and not {port!r}")
        yield DeviceServer(("127.0.0.1", int(port)), health, None, "--display", options.top)


def _broker(options: argparse.Namespace) -> Broker:
    return parse_address(options.mqtt, options.mqtt_ca, options.mqtt_discovery)


def _unsure(options: argparse.Namespace, health: Health, token: str | None) -> UnsureFrames:
    if options.cache is None:
        raise UserError("--send-unsure: there is no home folder to keep frames in: name one with --cache DIR")
    choice = Choice(options.unsure_below, options.unsure_margin, options.unsure_rate, options.unsure_disk)
    return UnsureFrames(options.send_unsure, token, options.cache, choice, health)


@dataclass
class _Loop:
    """Answers frame after frame, a line each."""

    options: argparse.Namespace
    stop: _Stop
    swap: HotSwap
    stream: Stream
    displays: list[Display]
    sender: MqttSender | None
    unsure: UnsureFrames | None
    heartbeat: Heartbeat | None
    health: Health
    problem: str | None = None  # of the last frame
    lost: bool = False  # the source is in trouble
    last: tuple[int | None] | None = None  # the class of the last line; None before the first
    region: Region | None = None  # of the last frame

    def __post_init__(self) -> None:
        window = self.options.smooth
        self.smoother = Smoother(window) if window is not None else None

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
            self._follow_models()
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
            self.heartbeat.beat(self.health.problem)

    def _follow_models(self) -> None:
        """Note what runs and what is wrong with the next one, also while no frame comes."""
        self.health.runs(self.swap.classifier.info.version)
        self.health.note("models", self.swap.problem)

    def _follow_source(self) -> None:
        """Report once that the source is in trouble, and once that it works again."""
        state = self.stream.state()
        if self.lost and state.phase == "live":
            self.lost = False
            self.health.trouble("source", None, f"{self.stream.name}: works again")
        elif not self.lost and state.phase in ("stalled", "reconnecting"):
            self.lost = True
            self.health.trouble("source", f"{self.stream.name}: {state.message}")

    def _answer(self, frame: Frame, number: int) -> bool:
        classifier = self.swap.classifier  # once: a swap waits for the next frame
        frame = self._part_of(frame, classifier.info)
        started = time.perf_counter()
        try:
            images = classifier.prepare([frame.image])
            # Two at least: the lead over the second says how sure the first is.
            result = classifier.predict_prepared(images, max(self.options.top, 2))[0]
        except BadModel as error:
            # It answered before, so this is the frame's or the machine's (a GPU that is gone): go on, and say so once.
            if str(error) != self.problem and not self.stop.asked:
                tell(str(error))
            self.problem = str(error)
            self.health.note("frame", self.problem)
            return False
        if self.problem is not None:
            self.problem = None
            self.health.note("frame", None)
        milliseconds = 1000 * (time.perf_counter() - started)
        self.swap.remember(images[0])
        version = classifier.info.version
        self.health.answered(version, result.unknown, milliseconds)
        if self.unsure is not None:
            self.unsure.offer(frame, result)
        result = replace(result, top=result.top[: self.options.top])
        for display in self.displays:
            display.show(frame, result, version)
        return self._say(frame, number, result, version, milliseconds)

    def _part_of(self, frame: Frame, info: ModelInfo) -> Frame:
        """The region that the command names, or else that the model was taught with; says once that it is the model's."""
        region = self.options.region or info.region
        if region != self.region and self.options.region is None:
            taught = f"only the region {region} is looked at" if region else "the whole picture is looked at"
            tell(f"version {info.version}: {taught}, as it was taught; --region names another, or whole")
        self.region = region
        return region.of_frame(frame) if region else frame

    def _say(self, frame: Frame, number: int, result: Result, version: int, milliseconds: float) -> bool:
        """Hand the answer out, as a line; True if it counts for --count."""
        answer = None if result.unknown else result.top[0]
        if self.smoother is not None:
            answer = self.smoother.answer(result, time.monotonic())
        known = (None if answer is None else answer.id,)
        if self.options.on_change and known == self.last:
            self._beat()
            return False
        self.last = known
        facts = (number, frame.at, frame.origin, self.health.device, result, answer)
        line = result_line(*facts, version, milliseconds)
        text = as_text(line)
        try:
            print(text, flush=True)
        except OSError as error:
            raise CannotWrite(error) from None
        if self.sender is not None:
            self.sender.send(line, text)
        return True


if __name__ == "__main__":
    leave(main())
