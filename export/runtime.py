"""`python -m export.runtime`: classify what a camera sees, a JSON line per frame, and follow new models meanwhile.

stdout carries results only; messages go to stderr, one per line. Needs what export/requirements.txt lists.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from edge_hpcr.common.errors import Failed, UserError
from edge_hpcr.common.files import cache_folder, reason_of
from edge_hpcr.stream import KINDS, SOURCE_VARIABLE, EndOfStream, Frame, Stream, open_stream
from edge_hpcr.stream.region import Region
from export.device import BadModel
from export.device.health import Health, Reporter
from export.device.hot_swap import HotSwap, HttpModels, LocalModels
from export.device.identity import VARIABLE, device_id, parse_place, read_token
from export.device.manifest import VARIANTS, Manifest
from export.device.model import Classifier, Label, Result
from export.device.mqtt import MqttSender
from export.device.server import DeviceServer
from export.device.signing import Trust
from export.device.unsure import Choice, UnsureFrames

SCHEMA = Path(__file__).with_name("device") / "line.schema.json"
READ_SECONDS = 0.5
CHANGE_SHARE = 0.6  # of the last frames; more than half, so that two answers that take turns do not change it
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def main(arguments: Sequence[str] | None = None) -> int:
    options = new_parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        # SIGTERM ends as Ctrl-C does, and a shell that starts a background job with Ctrl-C ignored is not believed.
        signal.signal(number, signal.default_int_handler)
    try:
        run(options)
        return 0
    except UserError as error:
        tell(str(error))
        return 2
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        return 0  # nobody reads the results any more
    except Failed as error:
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


def tell(text: str) -> None:
    """Print a line on stderr; one that is closed is no error."""
    with contextlib.suppress(OSError, ValueError):
        print(_CONTROL.sub(" ", f"export.runtime: {text}"), file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as opened:
        keep = opened.enter_context
        # What can be wrong with the command is found before anything is waited for.
        options.region = Region.parse(options.region) if options.region else None
        health = Health(device_id(options.device_id, options.cache), tell)
        token = read_token(options.token)
        source = models(options, health.device, token)
        server = sender = unsure = None
        if options.http is not None:
            place = parse_place(options.http, "--http")
            server = keep(closing(DeviceServer(place, health, token)))
        if options.mqtt:
            sender = keep(closing(MqttSender(health, options.mqtt, options.mqtt_ca, options.mqtt_discovery)))
        if options.send_unsure:
            choice = Choice(options.unsure_below, options.unsure_rate)
            unsure = keep(closing(UnsureFrames(options.send_unsure, token, options.cache, choice, health)))
        stream = keep(open_stream(options.source, on_bad_file=lambda _, reason: tell(reason)))
        load = partial(
            Classifier.load,
            providers="cpu" if options.cpu else "auto",
            threads=options.threads,
            variant=options.variant,
        )
        swap = keep(closing(HotSwap(source, load, health, options.poll)))
        swap.first(options.wait)
        swap.start()
        if isinstance(source, HttpModels) and options.report:
            keep(closing(Reporter(options.models, token, health, options.report)))
        if server is not None:
            tell(f"the newest frame is at {server.url}/frame.jpg")
        _Loop(options, health, swap, stream, server, sender, unsure).run()


def models(options: argparse.Namespace, device: str, token: str | None) -> LocalModels:
    local = "://" not in options.models
    trust = None
    if options.public_key is not None:
        # However it is spelled, it is one place.
        place = str(Path(options.models).resolve()) if local else options.models.rstrip("/")
        trust = Trust(options.public_key, options.cache, place)
    if local:
        return LocalModels(Path(options.models), trust)
    return HttpModels(options.models, options.cache, token, options.variant, device=device, trust=trust)


@dataclass
class _Loop:
    """Answers frame after frame, one line per frame."""

    options: argparse.Namespace
    health: Health
    swap: HotSwap
    stream: Stream
    server: DeviceServer | None
    sender: MqttSender | None
    unsure: UnsureFrames | None
    last: tuple[int | None] | None = None  # the class of the last line; None before the first
    region: Region | None = None  # of the last frame

    def __post_init__(self) -> None:
        self.smoother = Smoother(self.options.smooth) if self.options.smooth else None

    def run(self) -> None:
        stream, most = self.stream, self.options.count
        read = answered = 0
        while most is None or answered < most:
            try:
                frame = stream.read(READ_SECONDS)
            except EndOfStream as end:
                if not read:
                    raise UserError(f"{stream.name}: there is no image in it ({end})") from None
                tell(f"{stream.name}: {end}")
                return
            self._follow_source()
            # Also while no frame comes.
            self.health.version = self.swap.classifier.info.version
            if frame is not None:
                read += 1
                answered += self._answer(frame, read)
            elif not stream.live:
                self.health.last_sign = time.monotonic()  # nothing came, and nothing had to

    def _follow_source(self) -> None:
        """Report once that the source is in trouble, and once that it works again."""
        state, name = self.stream.state(), self.stream.name
        if state.phase == "live":
            self.health.trouble("source", None, f"{name}: works again")
        elif state.phase in ("stalled", "reconnecting") and not self.health.has("source"):
            self.health.trouble("source", f"{name}: {state.message}")

    def _answer(self, frame: Frame, number: int) -> bool:
        """Classify a frame and hand the answer out; True if it counts for --count."""
        classifier = self.swap.classifier  # once: a swap waits for the next frame
        frame = self._part_of(frame, classifier.info)
        started = time.perf_counter()
        try:
            # Two at least: the lead over the second says how sure the first is.
            result = classifier.predict([frame.image], max(self.options.top, 2))[0]
        except BadModel as error:
            # It answered before, so this is the frame's or the machine's (a GPU that is gone): go on, and say so once.
            self.health.trouble("frame", str(error))
            return False
        seconds = time.perf_counter() - started
        self.health.trouble("frame", None)
        version = classifier.info.version
        self.health.answered(version, result.unknown)
        shown = replace(result, top=result.top[: self.options.top])
        said = self._say(frame, number, shown, version, seconds)
        if self.server is not None:
            self.server.newest = frame.image
        if self.unsure is not None:
            self.unsure.offer(frame, result)
        return said

    def _part_of(self, frame: Frame, info: Manifest) -> Frame:
        """The region that the command names, or else that the model was taught with; says once that it is the model's."""
        region = self.options.region or info.region
        if region != self.region and self.options.region is None:
            taught = f"only the region {region} is looked at" if region else "the whole picture is looked at"
            tell(f"version {info.version}: {taught}, as it was taught; --region names another")
        self.region = region
        return region.of_frame(frame) if region else frame

    def _say(self, frame: Frame, number: int, result: Result, version: int, seconds: float) -> bool:
        """Print and send the answer, unless it is the last one again and only changes are wanted."""
        line = result.line(number, frame.at, frame.origin, self.health.device, version, seconds)
        if self.smoother is not None:
            answer = self.smoother.answer(result)
            line["answer"] = answer and {"id": answer.id, "name": answer.name}
        known = (line["answer"] and line["answer"]["id"],)
        if self.options.on_change and known == self.last:
            return False
        self.last = known
        text = json.dumps(line, allow_nan=False)
        try:
            print(text, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Failed(f"results cannot be written: {reason_of(error)}") from None
        if self.sender is not None:
            self.sender.send(line, text)
        return True


class Smoother:
    """The answer changes when another class, or unknown, is that of most of the last frames; until then it stays.

    >>> smoother = Smoother(frames=1)
    >>> smoother.answer(Result([Label(3, "mug", 0.9)], False, 0.8))
    Label(id=3, name='mug', confidence=0.9)
    """

    def __init__(self, frames: int) -> None:
        self._votes: deque[Label | None] = deque(maxlen=frames)
        self._current: Label | None = None

    def answer(self, result: Result) -> Label | None:
        """The smoothed answer after one more frame; None: unknown."""
        first = not self._votes
        self._votes.append(result.answer)
        # By the class, whose last label counts: a name may change.
        labels = {label and label.id: label for label in self._votes}
        winner, count = Counter(label and label.id for label in self._votes).most_common(1)[0]
        if first or count >= CHANGE_SHARE * len(self._votes):
            self._current = labels[winner]
        elif self._current is not None:
            self._current = labels.get(self._current.id) or self._current
        return self._current


# The options ---------------------------------------------------------------------------------------------------------

EXAMPLES = """\
examples:
  python -m export.runtime --models workspace/exports --source 0
  python -m export.runtime --models https://host:8081 --token token.txt --source rtsp://host/camera --http 8082
  python -m export.runtime --models workspace/exports/v000017 --source photos/ --top 1
"""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is for --help."""

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("python -m ").split()[0]
        self.exit(2, f"{name}: {message} (see `{self.prog} --help`)\n")


def new_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m export.runtime",
        description="Classify frames with a published model, one JSON line per frame; follow new models while running.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def option(group: Any, name: str, metavar: str, help: str, kind: Any = str, **more: Any) -> None:
        group.add_argument(name, metavar=metavar, type=kind, help=help, **more)

    def switch(group: Any, name: str, help: str) -> None:
        group.add_argument(name, action="store_true", help=help)

    where = "an exports folder here or on a server (http, https), or a version's folder"
    option(parser, "--models", "PATH_OR_URL", where, required=True)
    given = os.environ.get(SOURCE_VARIABLE)
    sources = f"{KINDS} (default: ${SOURCE_VARIABLE})"
    option(parser, "--source", "SRC", sources, default=given, required=given is None)
    part = (
        "look at this part of the picture, in shares of it (default: the part that the model was taught with)"
    )
    option(parser, "--region", "X,Y,W,H", part)

    out = parser.add_argument_group("output")
    option(out, "--top", "N", "answers per frame (default: 3)", _number(int, 1, 65_535), default=3)
    option(out, "--count", "N", "end after N answers", _number(int, 1, 2**53))
    option(out, "--smooth", "N", "answer what most of the last N frames say", _number(int, 1, 10_000))
    switch(out, "--on-change", "a line only when the answer changes")
    option(out, "--device-id", "ID", "its name in every line (default: made once, kept in the cache)")
    schema = "print the JSON schema of a line and exit"
    out.add_argument("--schema", action="version", version=SCHEMA.read_text(encoding="utf-8"), help=schema)
    page = "serve /healthz and /frame.jpg (the newest frame) over HTTP; PORT alone: this machine only"
    option(out, "--http", "[HOST]:PORT", page)
    option(out, "--mqtt", "[mqtts://]HOST[:PORT][/TOPIC]", "publish the results too, mqtts:// with TLS")
    option(out, "--mqtt-ca", "FILE", "certificates to trust for a broker with TLS", Path)
    switch(out, "--mqtt-discovery", "appear in Home Assistant as a sensor")

    what = parser.add_argument_group("models")
    what.add_argument("--variant", choices=VARIANTS, default="fp32", help="to run where a version has it")
    looks = "between looks for a new version (default: 5)"
    option(what, "--poll", "SECONDS", looks, _number(float, 0.05, 86_400), default=5.0)
    switch(what, "--wait", "wait for a first model instead of ending with 2")
    option(what, "--token", "FILE", f"for the trainer, and for --http (default: ${VARIABLE})", Path)
    option(what, "--public-key", "FILE", "accept only models that are signed with its private key", Path)
    every = "between two reports to the trainer that gives the models; 0: none (default: 30)"
    option(what, "--report", "SECONDS", every, _number(float, 0, 86_400), default=30.0)
    kept = "where models of a server and unsent frames are kept (default: %(default)s)"
    option(what, "--cache", "DIR", kept, Path, default=cache_folder())

    back = parser.add_argument_group("frames that are worth a label")
    option(back, "--send-unsure", "URL", "send frames that are unknown or unsure to this trainer")
    below = "a confidence below this is unsure (default: %(default)g)"
    option(back, "--unsure-below", "SHARE", below, _number(float, 0, 1), default=Choice.below)
    rate = "frames per minute, on average (default: %(default)g)"
    option(back, "--unsure-rate", "N", rate, _number(float, 0.01, 6000), default=Choice.per_minute)

    how = parser.add_argument_group("hardware")
    option(how, "--threads", "N", "CPU threads (default: automatic)", _number(int, 0, 1024), default=0)
    switch(how, "--cpu", "use the CPU even if there is a GPU")
    return parser


def _number(kind: Callable[[str], Any], least: float, most: float) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        whole = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a {whole} from {least:g} to {most:g}")

    return parse


if __name__ == "__main__":
    leave(main())
