"""The options of `python -m export.runtime`."""

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.units import parse_bytes
from edge_hpcr.stream import KINDS
from edge_hpcr.stream.passwords import VARIABLE as CAMERA_VARIABLE
from edge_hpcr.stream.region import Region
from export.device.access_token import VARIABLE
from export.device.errors import OneLineParser
from export.device.line import SCHEMA
from export.device.manifest import VARIANTS
from export.device.smoothing import Window
from export.device.unsure import Choice

EXAMPLES = """\
examples:
  python -m export.runtime --models workspace/exports --source 0
  python -m export.runtime --models https://host:8081 --token token.txt --source rtsp://host/camera --display 8082
  python -m export.runtime --models model.onnx --source photos/ --top 1
"""


class _PrintSchema(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(SCHEMA.read_text(encoding="utf-8"), end="")
        parser.exit()


def _default_cache() -> Path | None:
    with contextlib.suppress(RuntimeError):  # a user without a home
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "edge-hpcr"
    return None


def new_parser() -> argparse.ArgumentParser:
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
    parser.add_argument(
        "--region",
        type=_of(Region.parse),
        metavar="X,Y,W,H|whole",
        help="look at this part of the picture, in shares of it (default: the part that the model was taught with)",
    )
    parser.add_argument(
        "--camera-password",
        type=Path,
        metavar="FILE",
        help=f"user:password of a camera's address (default: ${CAMERA_VARIABLE})",
    )
    out = parser.add_argument_group("what comes out")
    out.add_argument("--top", type=_whole(1), default=3, metavar="N", help="answers a frame (default: 3)")
    out.add_argument("--every", type=_whole(1), default=1, metavar="N", help="classify every Nth frame only")
    out.add_argument("--count", type=_whole(1), metavar="N", help="end after N answers")
    out.add_argument("--watch", action="store_true", help="go on with images that come into the folder")
    out.add_argument(
        "--smooth",
        type=_of(Window.parse),
        metavar="N|SECONDSs",
        help="answer with what most of the last N frames say, or of the last seconds like 0.5s",
    )
    out.add_argument("--on-change", action="store_true", help="a line only when the answer changes")
    out.add_argument(
        "--device-id", metavar="ID", help="in every line (default: made once and kept in the cache)"
    )
    out.add_argument(
        "--schema", nargs=0, action=_PrintSchema, help="print the JSON schema of a line, and end"
    )
    out.add_argument(
        "--http",
        metavar="[HOST]:PORT",
        help="classify pictures, /healthz, /metrics and the current frame over HTTP; PORT alone: this machine only",
    )
    out.add_argument(
        "--display", metavar="window|PORT", help="show the frames: a window, or a page on 127.0.0.1"
    )
    out.add_argument(
        "--mqtt", metavar="[mqtts://]HOST[:PORT][/TOPIC]", help="publish the results too, mqtts:// with TLS"
    )
    out.add_argument(
        "--mqtt-ca", type=Path, metavar="FILE", help="certificates to trust, of a broker with TLS"
    )
    out.add_argument("--mqtt-discovery", action="store_true", help="appear in Home Assistant as a sensor")
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
    what.add_argument(
        "--token", type=Path, metavar="FILE", help=f"for the trainer, and of --http (default: ${VARIABLE})"
    )
    what.add_argument(
        "--public-key", type=Path, metavar="FILE", help="take only models that its owner has signed"
    )
    what.add_argument(
        "--report",
        type=_number(0.0, 86_400.0),
        default=30.0,
        metavar="SECONDS",
        help="between two reports to a trainer that models come from; 0: none (default: 30)",
    )
    what.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        default=_default_cache(),
        help="where models of a server and unsent frames are kept (default: %(default)s)",
    )
    back = parser.add_argument_group("frames that are worth a label")
    back.add_argument(
        "--send-unsure", metavar="URL", help="send frames that are unknown or unsure to this trainer"
    )
    back.add_argument(
        "--unsure-below",
        type=_number(0.0, 1.0),
        default=Choice.below,
        metavar="SHARE",
        help="unsure is a confidence below this (default: %(default)g) …",
    )
    back.add_argument(
        "--unsure-margin",
        type=_number(0.0, 1.0),
        default=Choice.margin,
        metavar="SHARE",
        help="… or a lead over the second class below this (default: %(default)g)",
    )
    back.add_argument(
        "--unsure-rate",
        type=_number(0.01, 6000.0),
        default=Choice.per_minute,
        metavar="N",
        help="a minute, on average (default: %(default)g)",
    )
    back.add_argument(
        "--unsure-disk",
        type=_of(parse_bytes),
        default=Choice.most_bytes,
        metavar="BYTES",
        help="while the trainer is away, like 50MB (the default)",
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


def _of(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of ours as argparse wants it."""

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
